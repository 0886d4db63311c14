"""Nobody reacts to imported events."""

from __future__ import annotations

from pathlib import Path

from core.actor import Actor, Context
from core.events import Event, Record, RunCompleted, RunRequested, ThreadCreated, thread
from core.ids import uuid7
from core.lifecycle import IMPORTED
from core.runtime.dispatch import concerns
from core.testing.stage import acting
from tests.support.records import human, record


class RunWitnessed(Event, frozen=True):
    """The actor has seen the end of a run."""


class Witness(Actor[RunCompleted]):
    """Appends an event for each end of a run."""

    name = "witness"

    async def handle(self, event: RunCompleted, ctx: Context) -> None:
        await ctx.append(RunWitnessed())


async def test_no_actor_is_woken_for_imported_events(tmp_path: Path) -> None:
    imported = Record(1, record(1, RunCompleted(), "r1").raw, labels=frozenset((IMPORTED, "used_tools")))
    own = Record(2, record(2, RunCompleted(), "r1").raw)
    async with acting(Witness(), home=tmp_path) as stage:
        raws = [
            one.raw.replace(b'"aggregate":"t"', b'"aggregate":"old"')
            for one in (
                record(1, ThreadCreated(user="ada")),
                record(2, RunRequested(input={"messages": [human("h")]}), "r1"),
                record(3, RunCompleted(), "r1"),
            )
        ]
        await stage.system.log.restore(thread("old"), raws, expected=0, labels={IMPORTED})
        await stage.given_run(run=uuid7())
        assert [type(event) for event in await stage.appended()] == [RunWitnessed]
        assert await stage.appended(thread("old")) == []
        witness = stage._actor("witness")
        assert (concerns(witness, imported), concerns(witness, own)) == (False, True)
