"""Deadlines: time decides once, whoever dies, and only what is still waiting."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest

from actors import approvals as actor
from actors.approvals import Approvals
from core.bus.endpoint import Endpoint
from core.events import (
    ApprovalRequested,
    ApprovalResolved,
    Event,
    ModelCompleted,
    Resume,
    RunCancelRequested,
    RunCompleted,
    RunPaused,
    RunRequested,
    RunRolledBack,
    RunStarted,
)
from core.runtime import system
from core.runtime.system import System
from core.thread import approvals
from core.thread.approvals import EXPIRE
from core.thread.state import Run, ThreadState
from tests.support.nats import Nats, eventually
from tests.support.records import ai, call, human
from tests.support.workers import Power

pytestmark = pytest.mark.anyio

THREAD = "t1"
STARTED = RunStarted(attempt=1, worker="w", lease=1)


@pytest.fixture
def endpoint(nats: Nats) -> Endpoint:
    return nats.endpoint(f"t{uuid.uuid4().hex[:10]}")


@asynccontextmanager
async def process(endpoint: Endpoint, home: Path, power: Power | None = None) -> AsyncIterator[Story]:
    """A process with the actor, and nobody who does runs."""
    async with system.start(endpoint, home / f"views-{uuid.uuid4().hex}.db", lease_seconds=2, slots=4) as started:
        if power is not None:
            power.wire(started)
        async with anyio.create_task_group() as tasks:
            parts = [Approvals(started.intake)]
            await tasks.start(partial(started.serve, parts, alone=False))
            yield Story(started)
            tasks.cancel_scope.cancel()


class Story:
    """Writes what a worker would write, and waits for what the actor does."""

    def __init__(self, running: System) -> None:
        self.system = running

    async def say(self, run: str, *events: Event) -> None:
        for event in events:
            await self.system.threads.decide(THREAD, partial(_always, event), actor="lead", run=run)

    async def park(self, *questions: ApprovalRequested, pause: bool = True) -> None:
        await self.system.intake.create_thread(THREAD, user="ada")
        request = RunRequested(input={"messages": [human("h")]}, context={"model_name": "m"})
        answer = ModelCompleted(message=ai("m", calls=[call(parked.call_id) for parked in questions]))
        await self.say("r1", request, STARTED, answer, *questions)
        if pause:
            await self.say("r1", paused(*questions))

    async def state(self) -> ThreadState:
        return await self.system.threads.load(THREAD, at_least=0)

    async def expiry(self, count: int = 1) -> Run:
        """The newest run by which time tells, once there are so many."""

        async def probe() -> list[Run]:
            runs = [run for run in (await self.state()).runs.values() if _tells(run)]
            return runs if len(runs) >= count else []

        return (await eventually(probe))[-1]

    async def quiet(self) -> ThreadState:
        """The thread, once no timer and no wake-up of the actor's is left."""

        async def probe() -> bool:
            stream = self.system.bus.names.stream("cmd")
            info = await self.system.bus.api(f"CONSUMER.INFO.{stream}.{Approvals.name}")
            return not (await self.timers() or info["num_pending"] or info["num_ack_pending"])

        await eventually(probe)
        return await self.state()

    async def timers(self) -> int:
        info = await self.system.bus.api(f"STREAM.INFO.{self.system.bus.names.stream('timer')}")
        return int(info["state"]["messages"])


def _always(event: Event, _: ThreadState) -> Sequence[Event]:
    return [event]


def _tells(run: Run) -> bool:
    resume = run.request.resume
    return resume is not None and isinstance(resume.value, dict) and EXPIRE in resume.value.values()


def asked(identity: str = "A", *, seconds: float | None) -> ApprovalRequested:
    deadline = None if seconds is None else (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()
    more: Any = {"digest": "d", "allowed": ["approve"], "deadline": deadline}
    return ApprovalRequested(approval=identity, call_id=f"call-{identity}", tool="bash", args={}, **more)


def paused(*questions: ApprovalRequested) -> RunPaused:
    return RunPaused(next=["tools"], interrupts=[approvals.question(request) for request in questions])


def resolved(identity: str = "A") -> ApprovalResolved:
    return ApprovalResolved(approval=identity, call_id=f"call-{identity}", decision="expire")


async def test_time_decides_what_nobody_did(endpoint: Endpoint, tmp_path: Path) -> None:
    async with process(endpoint, tmp_path) as story:
        one, other, never = asked(seconds=0.3), asked("B", seconds=0.3), asked("C", seconds=None)
        await story.park(one, other, never)
        run = await story.expiry()
        assert run.request.resume == Resume(value={"A": EXPIRE, "B": EXPIRE})
        assert (run.request.input, run.request.context) == (None, {"model_name": "m"})
        await story.say(run.id, STARTED, resolved(), resolved("B"), paused(never))
        state = await story.quiet()
        assert len(state.runs) == 2
        statuses = [approvals.status(state, one) for one in state.approvals.values()]
        assert statuses == ["expired", "expired", "pending"]


async def test_without_a_deadline_there_is_no_timer(endpoint: Endpoint, tmp_path: Path) -> None:
    async with process(endpoint, tmp_path) as story:
        await story.park(asked(seconds=None))
        await story.quiet()
        await story.park(asked("B", seconds=3600), pause=False)
        assert await eventually(story.timers) == 1


async def test_what_was_decided_in_time_is_left_alone(endpoint: Endpoint, tmp_path: Path) -> None:
    async with process(endpoint, tmp_path) as story:
        await story.park(asked(seconds=5))
        await story.say("r2", RunRequested(resume=Resume(value=True)), STARTED)
        await story.say("r2", ApprovalResolved(approval="A", call_id="call-A", decision="approve"), RunCompleted())
        assert list((await story.quiet()).runs) == ["r1", "r2"]


async def test_a_thread_that_is_busy_is_looked_at_again(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other tool of the run is at work when the deadline is over: nobody can go on from there yet."""
    monkeypatch.setattr(actor, "AGAIN", timedelta(seconds=0.2))
    looked = anyio.Event()
    async with process(endpoint, tmp_path) as story:
        load = story.system.threads.load

        async def seen(thread_id: str, **more: Any) -> ThreadState:
            state = await load(thread_id, **more)
            if approvals.over(question, datetime.now(UTC).isoformat()):
                looked.set()
            return state

        monkeypatch.setattr(story.system.threads, "load", seen)
        question = asked(seconds=0.2)
        await story.park(question, pause=False)
        await looked.wait()
        await story.say("r1", paused(question))
        assert (await story.expiry()).request.resume == Resume(value={"A": EXPIRE})


@pytest.mark.parametrize("end", [RunRolledBack(), RunCancelRequested()], ids=["rolled back", "stopped"])
async def test_what_came_to_nothing_is_told_again_or_not_needed(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: Event
) -> None:
    monkeypatch.setattr(actor, "AGAIN", timedelta(seconds=0.2))
    async with process(endpoint, tmp_path) as story:
        await story.park(asked(seconds=0.1))
        first = await story.expiry()
        await story.say(first.id, STARTED)
        if isinstance(end, RunRolledBack):
            await story.say(first.id, end)
            assert (await story.expiry(2)).id != first.id
            return
        await story.say(first.id, end, resolved(), RunCompleted())
        assert len((await story.quiet()).runs) == 2


CRASHES: dict[str, tuple[int, Literal["unheard", "heard", "later"]]] = {
    "before it is due": (6, "unheard"),
    "when it is due": (6, "later"),
    "the run is asked for, and nobody knows": (7, "unheard"),
    "the run is asked for": (7, "heard"),
}
"""After how many facts; the worker writes six, and the seventh asks for the run."""


@pytest.mark.parametrize(("last", "mode"), CRASHES.values(), ids=CRASHES)
async def test_a_crash(
    endpoint: Endpoint, tmp_path: Path, last: int, mode: Literal["unheard", "heard", "later"]
) -> None:
    power = Power(last, mode)
    async with process(endpoint, tmp_path, power) as story, anyio.create_task_group() as tasks:
        tasks.start_soon(story.park, asked(seconds=0.3))
        await power.off.wait()
        tasks.cancel_scope.cancel()
    async with process(endpoint, tmp_path) as story:
        run = await story.expiry()
        await story.say(run.id, STARTED, resolved(), RunCompleted())
        assert list((await story.quiet()).runs) == ["r1", run.id]
