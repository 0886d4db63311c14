"""A run as a tool of `/mcp` answers it: what was said after a position, whether it goes on, and what it asks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, Literal

import msgspec
from pydantic import BaseModel, Field

from channels.http.accounts.access import request_run
from channels.http.endpoints.call import Call
from channels.http.protocols.mcp.registry import SERVER
from channels.http.runs.idempotency import fingerprint, new_id
from core.events import Json, MessageAdded, ModelCompleted, Record, RunRequested, ToolCompleted
from core.ids import assistant_id
from core.lifecycle import LAST_TYPES
from core.runs.follow import Follower
from core.thread.messages import text_of
from core.thread.state import ThreadState
from core.thread.values import tool_calls
from core.user.assistants import DEFAULT

MOST_WAIT_SECONDS = 600.0
PROGRESS_SECONDS = 5.0
MOST_CHARACTERS = 60_000
"""Limit of the texts in an answer; the rest is read from the answer's position on."""
METADATA: Json = {"graph_id": DEFAULT, "assistant_id": assistant_id(DEFAULT), "client": "mcp"}
"""Metadata of the threads that clients begin."""


class Message(BaseModel):
    role: Literal["person", "agent", "tool", "system"]
    text: str
    calls: list[str] = []
    """Names of the tools that the agent calls with it."""


class Question(BaseModel):
    """A question of the agent, or a tool call that waits for approval."""

    id: str
    value: Any


class Turn(BaseModel):
    """A run, as far as it has come. Read on with `chat_read` from `position`."""

    thread_id: str
    run_id: str
    status: str = Field(description="pending, running, waiting (for answers), success, error, interrupted")
    position: int
    messages: list[Message] = []
    more: bool = Field(False, description="There are more messages already: read on")
    questions: list[Question] = []
    advice: str = ""


async def run_turn(call: Call, thread_id: str, request: RunRequested, wait_seconds: float, body: bytes) -> Turn:
    """Requests a run and waits for what it says. `body`: what a client that repeats the call sends again."""
    run_id = new_id(call, thread_id)
    async with call.live.follow(thread_id) as follower:
        request = msgspec.structs.replace(request, fingerprint=fingerprint(call, body))
        _, record = await request_run(call, thread_id, run_id, request)
        return await read_turn(call, follower, thread_id, run_id, record.seq, wait_seconds)


async def read_turn(
    call: Call, follower: Follower, thread_id: str, run_id: str, after: int, wait_seconds: float
) -> Turn:
    """Collects a run's messages: those that are there, and until its end, the time, or the limit of an answer."""
    turn = Collected(run_id, after)
    await _take_past(turn, follower)
    state = await call.services.commands.state(call.user, thread_id)
    if wait_seconds and not turn.over and _is_open(state, run_id):
        progress = Progress()
        await progress.report()
        beats = asyncio.create_task(progress.run())
        try:
            async with asyncio.timeout(wait_seconds), aclosing(follower.since(turn.position)) as batches:
                async for batch in batches:
                    if turn.take(batch):
                        break
                    progress.note(turn.messages)
        except TimeoutError:
            pass  # it goes on
        finally:
            beats.cancel()
            await asyncio.gather(beats, return_exceptions=True)
        state = await call.services.commands.state(call.user, thread_id)
    if not turn.over and not _is_open(state, run_id):
        await _take_past(turn, follower)  # it has ended since
    return turn_of(thread_id, run_id, state, turn.position, turn.messages, more=turn.full)


async def _take_past(turn: Collected, follower: Follower) -> None:
    """Takes what the log has by now."""
    async with aclosing(follower.past(turn.position)) as batches:
        async for batch in batches:
            if turn.take(batch):
                break


def _is_open(state: ThreadState, run_id: str) -> bool:
    run = state.runs.get(run_id)
    return run is not None and run.open


class Collected:
    """The messages of a run after a position. Pure."""

    def __init__(self, run_id: str, after: int) -> None:
        self.position, self.messages, self.done = after, list[Message](), False
        self._run, self._size = run_id, 0

    @property
    def full(self) -> bool:
        return self._size > MOST_CHARACTERS

    @property
    def over(self) -> bool:
        """True if nothing more fits, or comes."""
        return self.done or self.full

    def take(self, batch: Sequence[object]) -> bool:
        """Takes what is followed in. Returns whether it is `over`."""
        for item in batch:
            if isinstance(item, Record) and not self.over:
                self.position = item.seq
                if item.run == self._run and (message := _message(item)) is not None:
                    self.messages.append(message)
                    self._size += len(message.text)
                self.done = item.run in (self._run, None) and item.type in LAST_TYPES
        return self.over


class Progress:
    """Tells a client that asked for it how the run goes on, and that its call lives."""

    def __init__(self) -> None:
        self._request, self._count, self._known = SERVER.request_context, 0, 0
        self._text, self._news = "the agent is at work", asyncio.Event()

    async def report(self) -> None:
        self._count += 1
        if self._request.meta is not None and (token := self._request.meta.progressToken) is not None:
            await self._request.session.send_progress_notification(
                token, self._count, message=self._text, related_request_id=str(self._request.request_id)
            )

    async def run(self) -> None:
        """Reports what is noted, and every `PROGRESS_SECONDS` without news, until it is cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(PROGRESS_SECONDS):
                    await self._news.wait()
            self._news.clear()
            await self.report()

    def note(self, messages: Sequence[Message]) -> None:
        """Takes the messages of the run so far."""
        if len(messages) > self._known:
            self._known = len(messages)
            calls = messages[-1].calls
            self._text = f"the agent calls {', '.join(calls)}" if calls else "the agent is at work"
            self._news.set()


def _message(record: Record) -> Message | None:
    match record.event:
        case ModelCompleted(message=message) | ToolCompleted(message=message):
            return as_message(message)
        case MessageAdded(messages=[message, *_]):
            return as_message(message)
    return None


def as_message(message: Json) -> Message:
    roles: Mapping[str, Any] = {"human": "person", "ai": "agent", "tool": "tool"}
    calls = [str(call["name"]) for call in tool_calls(message)] if message["type"] == "ai" else []
    return Message(role=roles.get(message["type"], "system"), text=text_of(message.get("content", "")), calls=calls)


def turn_of(
    thread_id: str, run_id: str, state: ThreadState, position: int, messages: list[Message], *, more: bool = False
) -> Turn:
    run = state.runs.get(run_id)
    turn = Turn(
        thread_id=thread_id,
        run_id=run_id,
        status=run.status if run is not None else "unknown",
        position=position,
        messages=messages,
        more=more,
    )
    if run is not None and run.open:
        turn.advice = f"It goes on. Read on: chat_read(thread_id={thread_id!r}, run_id={run_id!r}, after={position})"
    elif run is not None and run.error is not None:
        turn.advice = run.error.text
    elif state.paused is not None and (questions := questions_of(state)):
        turn.questions, turn.status = questions, "waiting"
        turn.advice = f"Thread {thread_id} waits for an answer: chat_answer(thread_id={thread_id!r}, answer=…)"
    return turn


def questions_of(state: ThreadState) -> list[Question]:
    return [Question(id=str(q["id"]), value=q["value"]) for several in state.interrupts.values() for q in several]
