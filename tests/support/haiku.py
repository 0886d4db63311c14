"""An actor as a stranger would add it: named in the configuration as `tests.support.haiku:Haiku`."""

from __future__ import annotations

from core.actor import Actor, Context
from core.events import RunCompleted, ThreadAnnotated

HAIKU = "the run is over / what it did is in the log / nothing gets lost now"


class Haiku(Actor[RunCompleted]):
    """Writes a haiku after each run, once."""

    async def handle(self, event: RunCompleted, ctx: Context) -> None:
        await ctx.append(ThreadAnnotated(metadata={f"haiku-{ctx.record.run}": HAIKU}))
