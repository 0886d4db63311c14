"""The tools of `/mcp` for conversations with the agent."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any

import msgspec
from pydantic import BaseModel, Field

from channels.http.endpoints.call import Call
from channels.http.protocols.mcp.registry import ACTS, READS, STOPS, ThreadId, current_call, tool
from channels.http.protocols.mcp.turns import (
    METADATA,
    MOST_CHARACTERS,
    MOST_WAIT_SECONDS,
    Message,
    Question,
    Turn,
    as_message,
    questions_of,
    read_turn,
    run_turn,
    turn_of,
)
from channels.http.runs.idempotency import new_id, repeated
from core.errors import Invalid
from core.events import Json, Resume, RunRequested
from core.ids import safe_id, uuid7
from core.thread import approvals
from core.thread.runs import shown_run

WAIT_SECONDS = 50.0
"""Clients end a request after 60 seconds, by default."""

Wait = Annotated[float, Field(ge=0, le=MOST_WAIT_SECONDS, description="Seconds to wait for the end of the run")]
After = Annotated[int, Field(ge=0, description="Only messages after this position")]


class ThreadLine(BaseModel):
    thread_id: str
    title: str
    status: str
    updated_at: str


class ThreadList(BaseModel):
    threads: list[ThreadLine]
    total: int


class Thread(BaseModel):
    thread_id: str
    title: str
    status: str
    messages: list[Message]
    total: int = Field(description="The number of messages; read on with `offset`")
    questions: list[Question] = []


@tool("runs:create", ACTS)
async def chat(
    message: Annotated[str, Field(min_length=1, max_length=200_000)],
    thread_id: Annotated[str | None, Field(description="The conversation to go on with; a new one by default")] = None,
    agent: Annotated[str | None, Field(description="A custom agent's name")] = None,
    wait_seconds: Wait = WAIT_SECONDS,
) -> Turn:
    """Give the agent a message, and wait for its answer. With `wait_seconds: 0` it only starts; the work goes on
    without a reader.
    """
    call = current_call()
    body = msgspec.json.encode([message, agent])
    thread_id = safe_id(thread_id, "thread_id") if thread_id else new_id(call, "", "thread")
    await call.services.commands.ensure(call.user, thread_id, METADATA)
    run_input = {"messages": [{"type": "human", "id": uuid7(), "content": message}]}
    request = RunRequested(input=run_input, context=_context(call, agent))
    return await run_turn(call, thread_id, request, wait_seconds, body)


@tool("runs:create", ACTS)
async def chat_answer(
    thread_id: ThreadId,
    answer: Annotated[Any, Field(description="A text; for several questions an object, by their ids")],
    wait_seconds: Wait = WAIT_SECONDS,
) -> Turn:
    """Answer the questions at which a run has stopped, and wait for the run that goes on. A tool call that waits for
    approval is answered with `{"decision": "approve"}` or `{"decision": "reject", "message": "why"}`.
    """
    call = current_call()
    state = await call.services.commands.state(call.user, safe_id(thread_id, "thread_id"))
    with suppress(msgspec.DecodeError):  # some clients send objects as texts
        answer = msgspec.json.decode(answer, type=dict[str, Any]) if isinstance(answer, str) else answer
    body = msgspec.json.encode(answer, order="deterministic")
    if await repeated(call, thread_id, state, body):
        return await run_turn(call, thread_id, state.runs[new_id(call, thread_id)].request, wait_seconds, body)
    if state.paused is None:
        raise Invalid(f"Thread {thread_id} asks nothing")
    paused = approvals.resuming(state, {})
    context = {**paused.context, **_context(call, None)}
    request = msgspec.structs.replace(paused, resume=Resume(value=answer), context=context)
    return await run_turn(call, thread_id, request, wait_seconds, body)


@tool("threads:read", READS)
async def chat_read(thread_id: ThreadId, run_id: str, after: After = 0, wait_seconds: Wait = WAIT_SECONDS) -> Turn:
    """Read a run's messages after a position, and wait for its end. It can be read from the beginning at any time."""
    call = current_call()
    state = await call.services.commands.state(call.user, safe_id(thread_id, "thread_id"))
    after = max(after, shown_run(state, run_id).requested_seq)
    async with call.live.follow(thread_id) as follower:
        return await read_turn(call, follower, thread_id, run_id, after, wait_seconds)


@tool("runs:cancel", STOPS)
async def chat_cancel(thread_id: ThreadId, run_id: str) -> Turn:
    """Stop a run. Its work stays."""
    call = current_call()
    state = await call.services.intake.cancel(safe_id(thread_id, "thread_id"), run_id, user=call.user)
    return turn_of(thread_id, run_id, state, state.seq, [])


@tool("threads:read", READS)
async def threads_list(
    query: Annotated[str | None, Field(description="Words in the messages or the title", max_length=1000)] = None,
    limit: Annotated[int, Field(ge=1, le=100)] = 20,
    offset: Annotated[int, Field(ge=0, le=2**31)] = 0,
) -> ThreadList:
    """List your conversations, the latest first."""
    call = current_call()
    await call.services.views.current()
    rows, total = await call.services.views.search(user=call.user, query=query or None, limit=limit, offset=offset)
    lines = [
        ThreadLine(thread_id=r.thread_id, title=r.title or "", status=r.status, updated_at=r.updated_at) for r in rows
    ]
    return ThreadList(threads=lines, total=total)


@tool("threads:read", READS)
async def thread_read(
    thread_id: ThreadId,
    offset: Annotated[int, Field(ge=0)] = 0,
    limit: Annotated[int, Field(ge=1, le=200)] = 50,
) -> Thread:
    """Read the messages of a conversation, the oldest first."""
    call = current_call()
    state = await call.services.commands.state(call.user, safe_id(thread_id, "thread_id"))
    shown, size = list[Message](), 0
    for message in state.messages[offset : offset + limit]:
        shown.append(as_message(message))
        if (size := size + len(shown[-1].text)) > MOST_CHARACTERS:
            break
    return Thread(
        thread_id=thread_id,
        title=str(state.values.get("title") or state.title),
        status=state.status,
        messages=shown,
        total=len(state.messages),
        questions=questions_of(state),
    )


def _context(call: Call, agent: str | None) -> Json:
    return {"user_id": call.user, **({"agent_name": agent} if agent else {})}
