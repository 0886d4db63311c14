"""A server that kills itself at a moment of one of its actors: `SIKA_TEST_DOOM=… python -m tests.chaos.doomed serve …`.

The moments lie between an effect and its acknowledgement: the model has answered or the command has run, and
nothing is recorded (`done`); it is recorded, and the actor has not learned of it (`recorded`); its wake-up is not
acked (`handled`); its answer is not sent (`answered`). Other actors that are between the two at that moment die, too
(`beside`). A run is never given up as stalled: how often in a row its workers may die depends on the machine's speed.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from core.actor import Progress
from core.bus import rpc
from core.bus.connection import Bus
from core.bus.queue import Wakeup
from core.events import Aggregate, Event, Record
from core.log.store import EventLog
from core.runs import run
from tests.e2e import sika

DOOM = "SIKA_TEST_DOOM"
MOMENTS = {
    **dict.fromkeys(("title", "goals", "memory", "lead"), ("done", "recorded", "handled")),
    "subagents": ("done", "recorded", "handled", "answered"),
    "sandbox": ("answered",),
}
"""The moments at which each actor can die."""


class Doom(NamedTuple):
    """Moments of actors, such as `lead:done,title:handled`; the first one ends the process after it has appended so
    many facts. `deaths`: the file that gets a line at the end.
    """

    moments: str
    after: str
    deaths: str

    @classmethod
    def read(cls) -> Self:
        return cls(*os.environ[DOOM].split())

    def __str__(self) -> str:
        return " ".join(self)


class Fate:
    """Ends the process at its doom."""

    def __init__(self, doom: Doom) -> None:
        self._moments, self._left, self._deaths = doom.moments.split(","), int(doom.after), Path(doom.deaths)
        self._open: set[str] = set()
        """Actors that have recorded an effect, and acknowledged nothing since."""

    def passes(self, actor: str, moment: str) -> None:
        if self._left <= 0 and f"{actor}:{moment}" in self._moments:
            with self._deaths.open("a") as deaths:
                deaths.write("".join([f"{actor} {moment}\n", *(f"{name} beside\n" for name in self._open - {actor})]))
            os.kill(os.getpid(), signal.SIGKILL)

    def rule(self) -> None:
        """Makes all moments of this process pass by here."""
        append, done, serve = EventLog.append, Wakeup.done, rpc.serve

        async def appended(log: EventLog, aggregate: Aggregate, events: Sequence[Event], **more: Any) -> list[Record]:
            self.passes(more["actor"], "done")
            records = await append(log, aggregate, events, **more)
            self._left -= sum(record.type != "run.started" for record in records)
            self.passes(more["actor"], "recorded")
            self._open |= {more["actor"]} & MOMENTS.keys()
            return records

        async def handled(wakeup: Wakeup) -> None:
            self.passes(wakeup.actor, "handled")
            await done(wakeup)
            self._open.discard(wakeup.actor)

        async def served(bus: Bus, actor: str, answer: Callable[..., Awaitable[Any]]) -> None:
            async def answered(request: Mapping[str, Any], progress: Progress) -> Any:
                result = await answer(request, progress)
                self.passes(actor, "answered")
                return result

            await serve(bus, actor, answered)

        vars(rpc)["serve"] = served
        vars(run)["STALLED_ATTEMPTS"] = sys.maxsize
        setattr(EventLog, "append", appended)  # noqa: B010 (mypy forbids the assignment)
        setattr(Wakeup, "done", handled)  # noqa: B010


if __name__ == "__main__":
    Fate(Doom.read()).rule()
    sys.exit(sika.serve())
