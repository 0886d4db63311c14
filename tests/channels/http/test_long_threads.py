"""Long threads in streams: a fact costs what it adds, and others get their turn while a past is told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

import core.thread.fold
from channels.http.protocols.langgraph.follow import ThreadFrames
from channels.http.protocols.langgraph.frames import Frames
from channels.http.protocols.langgraph_events.tape import Tape
from channels.http.streams.sse import PAUSE_EVERY
from core.events import Event, ModelCompleted, Record, RunCompleted, StatePatched, ThreadAnnotated
from core.runtime.system import System
from core.thread.state import ThreadState
from tests.channels.http.conftest import Api, Worker
from tests.channels.http.story import RUN, THREAD, Story, ai, human, requested, started

pytestmark = pytest.mark.anyio

FACTS = 600


def of_a_run() -> Callable[[Record], object]:
    return Frames(ThreadState(), THREAD, RUN, ["messages-tuple", "custom"]).fact


def of_a_thread() -> Callable[[Record], object]:
    return ThreadFrames(ThreadState(), THREAD, ["run_modes", "lifecycle"]).fact


def of_events() -> Callable[[Record], object]:
    return Tape(ThreadState(), lambda channel, namespace: channel == "messages").fact


@pytest.mark.parametrize("translator", [of_a_run, of_a_thread, of_events])
def test_the_thread_is_not_copied_for_each_fact(
    monkeypatch: pytest.MonkeyPatch, translator: Callable[[], Callable[[Record], object]]
) -> None:
    copies = 0
    thaw = core.thread.fold._thaw

    def counted(state: ThreadState) -> ThreadState:
        nonlocal copies
        copies += 1
        return thaw(state)

    monkeypatch.setattr(core.thread.fold, "_thaw", counted)
    story = Story(requested(human("h", "hi")), started())
    for number in range(40):
        story.add(ModelCompleted(message=ai(f"m{number}", "Hello")))
    story.add(RunCompleted())
    for number in range(40):
        story.add(requested(human(f"h{number}", "hi")), started(), RunCompleted(), run=f"r{number}")
    fact = translator()
    made = [fact(record) for record in story.records]
    assert copies <= 1
    assert any(made)


@asynccontextmanager
async def turns(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[int]]:
    """How many facts the event loop folded between two turns of another task."""
    found = [0]
    loop, apply = threading.get_ident(), core.thread.fold._apply

    def counted(state: ThreadState, record: Record) -> None:
        found[-1] += threading.get_ident() == loop
        apply(state, record)

    async def other() -> None:
        while True:
            found.append(0)
            await asyncio.sleep(0)

    monkeypatch.setattr(core.thread.fold, "_apply", counted)
    task = asyncio.create_task(other())
    try:
        yield found
    finally:
        task.cancel()


async def test_others_get_their_turn_while_a_long_past_is_told(
    api: Api, worker: Worker, system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = await api.thread()
    filling: list[Event] = [ThreadAnnotated(metadata={"a": number}) for number in range(FACTS)]
    await system.threads.decide(thread, lambda state: filling, actor="test")
    run = await api.run(thread)
    await worker.start(thread, run)
    under: list[Event] = [StatePatched(values={"title": str(number)}) for number in range(FACTS)]
    await system.threads.decide(thread, lambda state: under, actor="test")
    await worker.finish(thread, run)
    _, [marker] = await system.threads.decide(thread, lambda state: [StatePatched(values={"title": "end"})], actor="t")
    await api.ask("GET", f"/threads/{thread}/state")
    everything = {"Last-Event-ID": "-1"}
    async with turns(monkeypatch) as found:
        async with api.stream("GET", f"/threads/{thread}/runs/{run}/stream", **everything) as stream:
            assert (await stream.rest())[-1][0] == "end"
        assert sum(found) > FACTS
        async with api.stream("GET", f"/threads/{thread}/stream?stream_modes=state_update", **everything) as stream:
            while (frame := await stream.next()) and not frame[2].startswith(f"{marker.seq}-"):
                pass
        assert sum(found) > 3 * FACTS
        async with api.stream(
            "GET", f"/threads/{thread}/stream?stream_modes=lifecycle", **{"Last-Event-ID": f"{marker.seq}-0-100"}
        ):
            pass
        body = {"channels": ["lifecycle"], "since": 0}
        async with api.stream("POST", f"/threads/{thread}/stream/events", body) as stream:
            while (frame := await stream.next()) and frame[1]["params"]["data"]["event"] != "completed":
                pass
        assert sum(found) > 4 * FACTS
    assert max(found) <= 2 * PAUSE_EVERY
