"""Channels: a message is one run however often it comes, and its outcome is delivered until that has been done."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from core.actor import Retries
from core.channel import Channel, Desk, Receipt, Reply, ReplyDelivered
from core.errors import Unavailable
from core.events import (
    Event,
    Interrupt,
    ModelCompleted,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunPaused,
    RunRequested,
    RunStarted,
    ThreadCreated,
    ThreadErased,
    ToolCompleted,
    thread,
)
from core.runs.previews import Preview
from core.testing import Stage, acting
from tests.support.records import ai, call, human
from tests.support.workers import wait_for

STARTED = RunStarted(attempt=1, worker="w", lease=1)


class Bell(Channel):
    """Keeps what it delivers; the first `failures` deliveries fail."""

    name = "bell"

    def __init__(self, failures: int = 0) -> None:
        self.desk: Desk | None = None
        self.replies: list[Reply] = []
        self.failures = failures
        self.listening = 0

    async def listen(self, desk: Desk) -> None:
        self.desk = desk
        self.listening += 1
        if self.listening == 1:
            raise RuntimeError("the platform went away")
        await anyio.sleep_forever()

    async def deliver(self, reply: Reply) -> None:
        if self.failures:
            self.failures -= 1
            raise Unavailable("the platform is away")
        self.replies.append(reply)


@asynccontextmanager
async def ringing(home: Path, bell: Bell) -> AsyncIterator[tuple[Stage, Desk]]:
    async def listening() -> bool:
        return bell.listening > 1

    async with acting(bell, home=home) as stage:
        await wait_for(listening)  # again, after it failed
        assert bell.desk is not None
        yield stage, bell.desk


async def work(stage: Stage, receipt: Receipt, *events: Event) -> list[Event]:
    """What a worker appends; returns what the channel did then."""
    target = thread(receipt.thread)
    await stage.given(STARTED, *events, run=receipt.run, aggregate=target)
    return [event for event in await stage.appended(target) if isinstance(event, ReplyDelivered)]


async def test_a_message_is_one_run(tmp_path: Path) -> None:
    async with ringing(tmp_path, Bell()) as (stage, desk):
        first = await desk.receive("room 1", "hello", key="m1", user="ada", context={"model_name": "m"})
        again = await desk.receive("room 1", "hello", key="m1", user="ada")
        second = await desk.receive("room 1", "and then?", key="m2", user="ada")
        elsewhere = await desk.receive("room 2", "hello", key="m1", user="ada")
        assert again == first._replace(new=False)
        assert (second.thread, second.run == first.run) == (first.thread, False)
        assert (elsewhere.thread == first.thread, elsewhere.run == first.run) == (False, False)
        state = await stage.system.threads.load(first.thread)
        assert (state.user, state.metadata) == ("ada", {"channel": "bell", "conversation": "room 1"})
        assert list(state.runs) == [first.run, second.run]
        request = state.runs[first.run].request
        assert (request.context, request.multitask) == ({"model_name": "m"}, "enqueue")
        assert request.input == {"messages": [{"type": "human", "id": f"human-{first.run}", "content": "hello"}]}


async def test_a_conversation_begins_anew(tmp_path: Path) -> None:
    """When a person wants that, and when its thread was deleted."""
    async with ringing(tmp_path, Bell()) as (stage, desk):
        assert await desk.state("room") is None
        first = await desk.receive("room", "hello", key="1")
        second = await desk.begin("room")
        assert (await desk.receive("room", "hello", key="2")).thread == second != first.thread
        await stage.system.intake.erase(second, by="default")
        third = await desk.receive("room", "hello", key="3")
        assert third.thread not in (first.thread, second)
        state = await desk.state("room")
        assert state is not None
        assert list(state.runs) == [third.run]


async def test_a_conversation_does_not_go_on_in_a_thread_that_has_the_id_of_its_deleted_one(tmp_path: Path) -> None:
    async with ringing(tmp_path, Bell()) as (stage, desk):
        first = await desk.receive("room", "hello", key="1", user="ada")
        await stage.given(ThreadErased(by="ada"), ThreadCreated(user="ada"), aggregate=thread(first.thread))
        assert (await desk.receive("room", "hello", key="2", user="ada")).thread != first.thread
        assert not (await stage.system.threads.load(first.thread)).runs


async def test_a_run_is_stopped(tmp_path: Path) -> None:
    async with ringing(tmp_path, Bell()) as (stage, desk):
        assert await desk.stop("room") is False
        receipt = await desk.receive("room", "hello", key="1")
        assert await desk.stop("room") is False
        await work(stage, receipt)
        assert await desk.stop("room") is True
        assert (await stage.system.threads.load(receipt.thread)).runs[receipt.run].cancel == "interrupt"


CLARIFICATION = {"type": "tool", "id": "clarification:1", "tool_call_id": "c", "content": "Which one?"}
PRESENTED = ToolCompleted(
    call_id="c", message={**CLARIFICATION, "id": "t", "content": "ok"}, update={"artifacts": ["/a"]}
)
OUTCOMES: dict[str, tuple[list[Event], dict[str, Any]]] = {
    "an answer": (
        [ModelCompleted(message=ai("a", "Hi.")), RunCompleted()],
        {"status": "success", "text": "Hi."},
    ),
    "files": (
        [ModelCompleted(message=ai("a", "", calls=[call("c")])), PRESENTED, RunCompleted()],
        {"status": "success", "artifacts": ["/a"]},
    ),
    "a question": (
        [
            ModelCompleted(message=ai("a", "Well.", calls=[call("c")])),
            ToolCompleted(call_id="c", message=CLARIFICATION),
            RunCompleted(),
        ],
        {"status": "success", "text": "Which one?"},
    ),
    "an approval": (
        [
            ModelCompleted(message=ai("a", "May I?", calls=[call("c")])),
            RunPaused(next=["tools"], interrupts=[Interrupt(id="i", value={"ask": 1}, call_id="c")]),
        ],
        {"status": "paused", "text": "May I?", "questions": [{"ask": 1}]},
    ),
    "an error": (
        [RunFailed(error="Oh", text="the model is away")],
        {"status": "error", "text": "Sorry, that did not work. The run failed: the model is away"},
    ),
    "nothing": ([RunCancelled()], {"status": "interrupted"}),
}


@pytest.mark.parametrize(("events", "expected"), OUTCOMES.values(), ids=OUTCOMES)
async def test_the_outcome_is_delivered(tmp_path: Path, events: list[Event], expected: dict[str, Any]) -> None:
    bell = Bell()
    async with ringing(tmp_path, bell) as (stage, desk):
        receipt = await desk.receive("room", "hello", key="1")
        assert await work(stage, receipt, *events) == [ReplyDelivered()]
        [reply] = bell.replies
        empty = {"text": "", "questions": [], "artifacts": []}
        fixed = {"conversation": "room", "thread": receipt.thread, "run": receipt.run, "key": reply.key}
        assert reply._asdict() == {**fixed, **empty, **expected}


async def test_runs_of_others_are_not_delivered(tmp_path: Path) -> None:
    bell = Bell()
    async with ringing(tmp_path, bell) as (stage, _):
        await stage.given(RunRequested(input={"messages": [human("h")]}), STARTED, RunCompleted(), run="r")
        assert await stage.appended() == []
        assert bell.replies == []


async def test_it_is_tried_until_it_is_delivered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bell, "retries", Retries(pauses=(0.1,)))
    bell = Bell(failures=2)
    async with ringing(tmp_path, bell) as (stage, desk):
        receipt = await desk.receive("room", "hello", key="1")
        assert await work(stage, receipt, RunCompleted()) == [ReplyDelivered()]
        assert (bell.failures, len(bell.replies)) == (0, 1)


async def test_the_answer_is_followed(tmp_path: Path) -> None:
    """As it grows, without what was given up, and to its end."""
    async with ringing(tmp_path, Bell()) as (stage, desk):
        receipt = await desk.receive("room", "hello", key="1")
        await work(stage, receipt)
        begun = (await stage.system.threads.load(receipt.thread)).seq
        texts: list[str] = []
        more = anyio.Event()

        async def follow() -> None:
            async for text in desk.follow(receipt):
                texts.append(text)
                more.set()

        async def say(after: int, offset: int, text: str) -> None:
            preview = Preview(message="a", after=after, offset=offset, text=text)
            await stage.system.pump.publish(stage.system.bus.names.tok(receipt.run), preview)

        with anyio.fail_after(120):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(follow)
                tasks.start_soon(partial(_until_heard, partial(say, begun, 0, "One "), more))
                await more.wait()
                await say(begun - 1, 4, "of an earlier attempt")
                await say(begun, 4, "two ")
                await work(stage, receipt, ModelCompleted(message=ai("a", "One two three.")), RunCompleted())
    assert texts[0] == "One "
    assert texts[-1] == "One two three."
    assert all("One two three.".startswith(text) for text in texts)


async def test_what_was_said_before_one_listens_is_followed_too(tmp_path: Path) -> None:
    async with ringing(tmp_path, Bell()) as (stage, desk):
        receipt = await desk.receive("room", "hello", key="1")
        await work(stage, receipt)
        begun = (await stage.system.threads.load(receipt.thread)).seq
        said = Preview(message="a", after=begun, offset=0, text="One ")
        await stage.system.pump.publish(stage.system.bus.names.tok(receipt.run), said)
        async with aclosing(desk.follow(receipt)) as texts:
            with anyio.fail_after(120):
                assert await anext(texts) == "One "
        await work(stage, receipt, RunCompleted())


async def _until_heard(say: Any, heard: anyio.Event) -> None:
    """Previews are lost on those who do not listen yet; the same one twice is one."""
    while not heard.is_set():
        await say()
        await anyio.sleep(0.05)
