"""What runs where: the counts of a process, and the reports of all over the bus."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from core.actor import Actor, Context
from core.errors import Invalid, Unavailable
from core.events import ThreadAnnotated, ThreadCreated
from core.runtime.vitals import Backlog, Overview, overview
from core.testing import Stage, acting
from tests.support.nats import eventually


class Picky(Actor[ThreadAnnotated]):
    name = "picky"

    async def handle(self, event: ThreadAnnotated, ctx: Context) -> None:
        if "bad" in event.metadata:
            raise Invalid(f"cannot do {event.metadata['bad']}")
        if "later" in event.metadata:
            raise Unavailable("not yet")

    async def answer(self, request: Any, progress: Any) -> str:
        return "yes"


async def test_the_work_of_an_actor(tmp_path: Path) -> None:
    async with acting(Picky(), home=tmp_path) as stage:
        await stage.given(ThreadAnnotated(metadata={"a": 1}), ThreadAnnotated(metadata={"a": 2}))
        await stage.settled()
        assert await stage.ask({}) == "yes"
        [last] = await stage.given(ThreadAnnotated(metadata={"bad": "x"}))

        async def failed() -> bool:
            [process] = (await seen(stage)).processes
            return process.actors[0].failed > 0

        await eventually(failed)
        report = await seen(stage)
        [process] = report.processes
        [actor] = process.actors
        assert process.process == stage.system.name
        assert (actor.name, actor.consumes, actor.answers) == ("picky", ["thread.annotated"], True)
        assert (actor.handled >= 3, actor.restarts, actor.limit) == (True, 0, 16)
        assert actor.last_error
        assert actor.last_error.text == "Invalid: cannot do x"
        assert actor.p50_ms is not None
        assert actor.p95_ms is not None
        assert actor.p50_ms <= actor.p95_ms
        assert report.position == last.seq == actor.position


async def seen(stage: Stage) -> Overview:
    return await overview(stage.system.bus, await stage.system.log.last())


async def test_what_only_waits_is_no_failure(tmp_path: Path) -> None:
    async with acting(Picky(), home=tmp_path) as stage:
        await stage.given(ThreadCreated(user="ada"), ThreadAnnotated(metadata={"later": 1}))

        async def waits() -> bool:
            [actor] = stage.system.vitals.report().actors
            return actor.last_error is not None

        await eventually(waits)
        [actor] = stage.system.vitals.report().actors
        assert (actor.failed, actor.last_error and actor.last_error.text) == (0, "not yet")
        assert (await seen(stage)).backlogs == [Backlog("picky", 0, 1)]
