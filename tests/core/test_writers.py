"""Many writers at once: to one thread, to threads that are made, and messages that arrive together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from core.actor import Actor, Context
from core.bus import embedded
from core.bus.connection import connect
from core.bus.endpoint import Endpoint
from core.bus.queue import WorkQueue
from core.errors import Refused, Unavailable
from core.events import Event, ModelCompleted, ThreadAnnotated, ThreadExpirySet, thread
from core.log import turns
from core.log.store import EventLog
from core.runs.commands import Commands
from core.runs.intake import Intake
from core.runs.owned import OwnedRun
from core.runs.run import Prepared, RunActor
from core.runtime import system
from core.testing import acting
from core.thread.state import ThreadState
from core.thread.threads import Threads
from tests.support.nats import Nats, append, eventually, fresh, log_on, read
from tests.support.workers import Client

pytestmark = pytest.mark.anyio
WRITERS = 1000


def noting(number: int, decisions: list[int]) -> Any:
    def decide(state: ThreadState) -> Sequence[Event]:
        decisions.append(number)
        return [ThreadAnnotated(metadata={"n": number})]

    return decide


@pytest.mark.long
async def test_a_thousand_writers_to_one_thread(log: EventLog) -> None:
    """Without an error, in the order of their arrival, and with about as many decisions as writers."""
    threads, decisions = Threads(log), list[int]()
    await asyncio.gather(*(threads.decide("t1", noting(number, decisions), actor="test") for number in range(WRITERS)))
    written = [record.event for record in await read(log, thread("t1"))]
    assert [event.metadata["n"] for event in written if isinstance(event, ThreadAnnotated)] == [*range(WRITERS)]
    assert len(decisions) < 1.1 * WRITERS
    assert not log.turns._queues


async def test_writers_in_two_processes(single: Nats, log: EventLog, prefix: str) -> None:
    async with connect(single.endpoint(prefix)) as bus, log_on(bus) as other:
        decisions = list[int]()
        both = [Threads(log), Threads(other)]
        await asyncio.gather(
            *(both[number % 2].decide("t1", noting(number, decisions), actor="test") for number in range(200))
        )
        assert len(await read(log, thread("t1"))) == 200


async def test_a_writer_does_not_wait_for_ever(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_SECONDS", 0.01)
    async with log.turns.turn(thread("t1")):
        with pytest.raises(Unavailable, match="too many writers"):
            await Threads(log).decide("t1", noting(1, []), actor="test")
        await Threads(log).decide("t2", noting(1, []), actor="test")
    await Threads(log).decide("t1", noting(1, []), actor="test")
    assert not log.turns._queues


async def test_a_writer_that_is_cancelled_lets_the_next_one_come(log: EventLog) -> None:
    async with log.turns.turn(thread("t1")):
        waiting = [asyncio.ensure_future(Threads(log).decide("t1", noting(n, []), actor="test")) for n in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(outcomes[0], asyncio.CancelledError)
    assert len(await read(log, thread("t1"))) == 2
    assert not log.turns._queues


async def test_a_refusal_does_not_end_the_queue(log: EventLog) -> None:
    def refuse(_: ThreadState) -> Sequence[Event]:
        raise Refused("no")

    threads = Threads(log)
    outcomes = await asyncio.gather(
        *(threads.decide("t1", refuse if n % 2 else noting(n, []), actor="test") for n in range(40)),
        return_exceptions=True,
    )
    assert sum(isinstance(outcome, Refused) for outcome in outcomes) == 20
    assert len(await read(log, thread("t1"))) == 20


# ── threads that are made ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("expiry", [None, ThreadExpirySet(minutes=5, strategy="delete")])
async def test_get_or_create_by_many_at_once(log: EventLog, expiry: ThreadExpirySet | None) -> None:
    threads = Threads(log)
    commands = Commands(threads, Intake(threads, WorkQueue(log.bus, 10)), actor="test")
    for number in range(10):
        made = await asyncio.gather(
            *(commands.create("ada", f"t{number}", {}, expiry=expiry, steps=[]) for _ in range(8))
        )
        assert sum(new for _, new in made) == 1
        assert all(state.exists and (state.expiry is not None) == (expiry is not None) for state, _ in made)


# ── a second answer ─────────────────────────────────────────────────────────────────────────────────────────────────


class TwiceMarked(Event, frozen=True):
    """The answer of the actor."""


class Twice(Actor[ThreadAnnotated]):
    """Answers an annotation as it says: to how many aggregates, and how often each."""

    name = "twice"

    async def handle(self, event: ThreadAnnotated, ctx: Context) -> None:
        for name in event.metadata["to"]:
            await ctx.append(TwiceMarked(), aggregate=thread(name))


async def test_a_second_append_in_one_handling_is_refused(tmp_path: Path) -> None:
    async with acting(Twice(), home=tmp_path) as stage:
        log = stage.system.log
        await append(log, fresh(), ThreadAnnotated(metadata={"to": ["a", "b"]}))

        async def both() -> bool:
            return bool(await read(log, thread("a")) and await read(log, thread("b")))

        await eventually(both)
        await append(log, fresh(), ThreadAnnotated(metadata={"to": ["c", "c"]}))

        async def failed() -> str:
            error = stage.system.vitals.report().actors[0].last_error
            return error.text if error else ""

        assert await eventually(failed) == (
            "Invalid: actor twice: a second `append` for thread/c; pass all events to one call"
        )
        assert len(await read(log, thread("c"))) == 1


# ── messages that arrive together ───────────────────────────────────────────────────────────────────────────────────


class Echo(RunActor):
    """Answers with the number of messages so far; the first run waits at the gate."""

    name = "lead"

    def __init__(self) -> None:
        self.begun, self.gate = asyncio.Event(), asyncio.Event()

    async def perform(self, run: OwnedRun, prepared: Prepared[Any]) -> None:
        self.begun.set()
        if len(run.state.messages) == 1:
            await self.gate.wait()
        answer = {"type": "ai", "id": f"a-{run.id}", "content": str(len(run.state.messages))}
        await run.append(ModelCompleted(message=answer))


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[tuple[Client, Echo]]:
    echo = Echo()
    async with (
        embedded.start(tmp_path / "nats") as server,
        system.start(
            Endpoint(server.url, token=server.token), tmp_path / "views.db", lease_seconds=5, slots=4
        ) as running,
        asyncio.TaskGroup() as tasks,
    ):
        serving = tasks.create_task(running.serve([echo], alone=True))
        yield Client(running), echo
        serving.cancel()


@pytest.mark.parametrize("burst", range(3))
@pytest.mark.parametrize("strategy", ["interrupt", "rollback", "enqueue", "reject"])
async def test_messages_that_arrive_together(client: tuple[Client, Echo], strategy: str, burst: int) -> None:
    """While a run works, four more are asked for at once. Each is in the conversation, or its sender is told."""
    person, echo = client
    await person.thread("t1")
    first = await person.ask("t1", "one")
    await echo.begun.wait()
    asked = await asyncio.gather(
        *(person.ask("t1", text, multitask=strategy) for text in ("two", "three", "four", "five")),
        return_exceptions=True,
    )
    runs = [run for run in asked if isinstance(run, str)]
    assert len(runs) == (0 if strategy == "reject" else 4)
    assert all(isinstance(error, Refused) for error in asked if not isinstance(error, str))
    echo.gate.set()
    ended = [await person.ended("t1", run) for run in (first, *runs)]
    state = await person.state("t1")
    texts = [message["content"] for message in state.messages if message["type"] == "human"]
    order = [run.request.input["messages"][0]["content"] for run in state.runs.values() if run.request.input]
    match strategy:
        case "interrupt":
            assert texts == order
            assert [run.status for run in ended].count("interrupted") == 4
            assert [run.status for run in state.runs.values()][-1] == "success"
        case "rollback":
            assert texts == order[-1:]
            assert [run.status for run in ended].count("rolled_back") == 4
        case "enqueue":
            assert texts == order
            assert {run.status for run in ended} == {"success"}
        case _:
            assert texts == ["one"]
    assert not state.problems


async def test_a_run_that_a_person_cancels_before_it_begins_leaves_nothing(client: tuple[Client, Echo]) -> None:
    person, echo = client
    await person.thread("t1")
    first = await person.ask("t1", "one")
    await echo.begun.wait()
    second = await person.ask("t1", "two", multitask="enqueue")
    await person.system.intake.cancel("t1", second)
    echo.gate.set()
    await person.ended("t1", first)
    assert [m["content"] for m in (await person.state("t1")).messages if m["type"] == "human"] == ["one"]
