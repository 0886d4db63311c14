"""AG-UI, the Agent-User Interaction protocol 1.0: a run requested with `RunAgentInput`, sent as its events.

The server holds the conversation, so only messages that the thread does not know are taken, and snapshots say how it
stands: `MESSAGES_SNAPSHOT` at the start, and wherever what was streamed does not hold any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
from aiohttp import web

from channels.http.accounts.access import request_run
from channels.http.endpoints.call import Call
from channels.http.endpoints.endpoint import Routes
from channels.http.protocols.agui_input import RunAgentInput, requested
from channels.http.runs.idempotency import hash_of
from channels.http.runs.run_request import check_skills, model_names
from channels.http.server.live import Outlet
from channels.http.server.routes import API, SSE
from channels.http.streams import sse
from channels.http.streams.sse import Frame
from channels.http.streams.tasks import task_event
from core.events import (
    ContextCompacted,
    Interrupt,
    Json,
    Message,
    MessageAdded,
    ModelCompleted,
    ModelFailed,
    Record,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunPaused,
    RunRequested,
    RunRolledBack,
    RunStarted,
    StatePatched,
    SubagentCompleted,
    SubagentProgressed,
    SubagentStarted,
    ThreadErased,
    ThreadTitled,
    ToolCompleted,
)
from core.ids import assistant_id, safe_id
from core.runs.moments import Finished, GivenUp, Grown, Moment, Moments
from core.runs.previews import Part, Piece, Preview, Progress, RunPreview, call_text
from core.thread.fold import Folding
from core.thread.messages import text_of
from core.thread.rewind import state_before
from core.thread.state import Run, ThreadState
from core.thread.values import CLIENT_TOOL, tool_calls
from core.user.assistants import DEFAULT

VERSION = "1.0"


class _Part(NamedTuple):
    """The events that stream a part of a message, and how they name it."""

    name: str
    start: Sequence[str]
    content: str
    end: Sequence[str]


_PARTS: Mapping[Part, _Part] = {
    "reasoning": _Part(
        "messageId",
        ("REASONING_START", "REASONING_MESSAGE_START"),
        "REASONING_MESSAGE_CONTENT",
        ("REASONING_MESSAGE_END", "REASONING_END"),
    ),
    "text": _Part("messageId", ("TEXT_MESSAGE_START",), "TEXT_MESSAGE_CONTENT", ("TEXT_MESSAGE_END",)),
    "call": _Part("toolCallId", ("TOOL_CALL_START",), "TOOL_CALL_ARGS", ("TOOL_CALL_END",)),
}


ROUTES = Routes(mounts=API)


@ROUTES("POST", "/agui", "runs:create", errors=(400, 404, 409))
async def run(call: Call, body: RunAgentInput) -> Annotated[web.StreamResponse, SSE]:
    """Run the agent for an AG-UI client, and stream the protocol's events. The run ends if the client goes, unless
    `forwardedProps.onDisconnect` is `continue`. A `runId` that was used before makes no other run: that one is streamed
    from its beginning. So is the run that is at work, if there is no new message.
    """
    live, thread_id = call.live, safe_id(body.thread_id, "threadId")
    async with live.follow(thread_id) as follower:
        await follower.hear(safe_id(body.run_id, "runId"))
        state, run, record = await _admit(call, thread_id, body)
        if record is None:  # things have happened since
            await follower.hear(run.id)
            state = await state_before(live.reading.read, thread_id, state, run, run.requested_seq - 1)
        events = Events(state, thread_id, run.id)

        def gone() -> None:
            if not events.ended and run.request.on_disconnect == "cancel":
                live.left(thread_id, run.id)

        outlet = Outlet(call.request, sse.CONTENT_TYPE, {})
        async with sse.sending(outlet, "AG-UI stream", gone, run=run.id):
            batches = follower.since(record.seq if record is not None else None, events.audible, heard=True)
            past = sse.single(record) if record is not None else follower.past(run.requested_seq - 1)
            await sse.play(outlet, events, batches, past)
    return outlet.response


async def _admit(call: Call, thread_id: str, body: RunAgentInput) -> tuple[ThreadState, Run, Record | None]:
    """Asks for a run, or finds the one that is at work. Returns the state, the run, and its request if it is new."""
    state = await call.services.commands.state_or_empty(call.user, thread_id)
    run_id = safe_id(body.run_id, "runId")
    if run_id in state.runs:
        request: RunRequested | None = state.runs[run_id].request
    else:
        tools = [tool.name for tool in call.services.tools()]
        request = requested(body, state, call.user, model_names(call.config), tools).request
        await check_skills(call.services.skills, call.user, None, request.context if request else None)
    if request is None:
        return state, next(iter(state.runs.open())), None
    if not state.exists:
        metadata = {"graph_id": DEFAULT, "assistant_id": assistant_id(DEFAULT)}
        await call.services.commands.ensure(call.user, thread_id, metadata)
    request = msgspec.structs.replace(request, fingerprint=hash_of(await call.request.read()))
    state, record = await request_run(call, thread_id, run_id, request)
    return state, state.runs[run_id], record if state.seq == record.seq else None


def _to_protocol(message: Message) -> Iterator[Json]:
    """A message of the log as the protocol has it; reasoning is a message of its own."""
    identity, content = str(message.get("id")), message.get("content", "")
    named = {"id": identity, "content": text_of(content)}
    match message["type"]:
        case "human":
            parts = [part for block in content for part in _shown_part(block)] if isinstance(content, list) else None
            yield {**named, "role": "user", "content": parts if parts is not None else named["content"]}
        case "ai":
            if reasoning := message.get("additional_kwargs", {}).get("reasoning_content"):
                yield {"id": f"{identity}-reasoning", "role": "reasoning", "content": str(reasoning)}
            yield {**named, "role": "assistant", "toolCalls": [_shown_call(call) for call in tool_calls(message)]}
        case "tool":
            yield {**named, "role": "tool", "toolCallId": str(message.get("tool_call_id"))}
        case "system":
            yield {**named, "role": "system"}


def _shown_part(block: Any) -> Iterator[Json]:
    match block:
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            yield {"type": "image", "source": {"type": "url", "value": url}}
        case _ if text := text_of([block]):
            yield {"type": "text", "text": text}


def _shown_call(call: Json) -> Json:
    function = {"name": call["name"], "arguments": call_text(call["args"])}
    return {"id": call["id"], "type": "function", "function": function}


# ── events ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Events:
    """One run in the protocol's events. Pure; `state` is the thread when the run was requested."""

    def __init__(self, state: ThreadState, thread_id: str, run_id: str) -> None:
        self.ended = False
        self._folding = Folding(state)
        self._names = {"threadId": thread_id, "runId": run_id}
        self._run_id = run_id
        self._moments = Moments(self._folding, with_subagents=False)
        self._open: dict[tuple[Part, int], str] = {}
        """The streamed parts of the message."""

    def audible(self) -> list[Run]:
        run = self._folding.state.runs.get(self._run_id)
        return [run] if run is not None and run.open else []

    def fact(self, record: Record) -> list[Frame]:
        if self.ended:
            return []
        self._folding.apply(record)
        frames = list(self._fact(record))
        return frames + [frame for moment in self._moments.waiting() for frame in self._print(moment)]

    def run_preview(self, item: RunPreview) -> list[Frame]:
        if isinstance(item.preview, Preview):
            return [frame for moment in self._moments.preview(item.run, item.preview) for frame in self._print(moment)]
        return [] if item.stored else [_progress(item.preview)]

    def _print(self, moment: Moment) -> Iterator[Frame]:
        match moment:
            case Grown(_, message, piece):
                yield from self._piece(message, piece)
            case GivenUp() | Finished():
                yield from self._closed()

    def _fact(self, record: Record) -> Iterator[Frame]:
        event = record.event
        if isinstance(event, ThreadErased):
            yield from self._closed()
            yield self._ended("RUN_ERROR", message="The thread was deleted", code="deleted")
        if isinstance(event, ThreadTitled):
            yield self._state()
            return
        if record.run != self._run_id:
            if isinstance(event, StatePatched | ContextCompacted):
                yield from [self._state()] if self._open else self._snapshots()
            return
        for moment in self._moments.fact(record):
            yield from self._print(moment)
            if isinstance(moment, GivenUp) and isinstance(event, ModelCompleted | ModelFailed):
                yield from self._snapshots()  # without what was given up
        match event:
            case RunRequested():
                yield _event("RUN_STARTED", **self._names, protocolVersion=VERSION)
            case RunStarted() | MessageAdded() | ContextCompacted():
                yield from self._snapshots()
            case ToolCompleted():
                yield from self._tool_completed(event)
            case SubagentStarted() | SubagentProgressed() | SubagentCompleted():
                if (value := task_event(event, self._folding.state.runs[self._run_id])) is not None:
                    yield _event("CUSTOM", name=value["type"], value=value)
            case RunCompleted() | RunPaused() | RunFailed() | RunCancelled() | RunRolledBack():
                yield from self._end(event)

    def _tool_completed(self, event: ToolCompleted) -> Iterator[Frame]:
        message = event.message
        content = text_of(message.get("content", ""))
        names = {"messageId": str(message.get("id")), "toolCallId": event.call_id}
        yield _event("TOOL_CALL_RESULT", **names, content=content, role="tool")
        if event.update:
            yield self._state()

    def _end(self, event: object) -> Iterator[Frame]:
        yield from [self._state()] if isinstance(event, RunCompleted) else self._snapshots()
        outcome: Json = {"type": "success"}
        match event:
            case RunFailed():
                yield self._ended("RUN_ERROR", message=event.text or event.error, code=event.error)
                return
            case RunPaused() if interrupts := [one for one in event.interrupts if not _is_client_call(one)]:
                outcome = {"type": "interrupt", "interrupts": [_interrupt(interrupt) for interrupt in interrupts]}
            case RunCancelled() | RunRolledBack():
                outcome = {"type": "cancelled"}
        yield self._ended("RUN_FINISHED", **self._names, outcome=outcome)

    def _ended(self, name: str, **fields: Any) -> Frame:
        self.ended = True
        return _event(name, **fields)

    # ── pieces of a message ─────────────────────────────────────────────────────────────────────────────────────────

    def _piece(self, message: str, piece: Piece) -> Iterator[Frame]:
        key, events = (piece.part, piece.index), _PARTS[piece.part]
        if key[0] != "reasoning":
            yield from self._close(("reasoning", 0))
        if key not in self._open:
            identity = {"reasoning": f"{message}-reasoning", "text": message}.get(key[0], piece.call_id)
            if identity is None:
                return  # a call that the model began and that is no part of what it said
            self._open[key] = identity
            if key[0] == "call":
                more = {"toolCallName": str(piece.name), "parentMessageId": message}
            else:
                more = {"role": "reasoning" if key[0] == "reasoning" else "assistant"}
            for name in events.start:
                yield _event(name, **{events.name: identity}, **(more if name == events.start[-1] else {}))
        yield _event(events.content, **{events.name: self._open[key]}, delta=piece.text)

    def _close(self, key: tuple[Part, int]) -> Iterator[Frame]:
        identity = self._open.pop(key, None)
        for name in _PARTS[key[0]].end if identity is not None else ():
            yield _event(name, **{_PARTS[key[0]].name: identity})

    def _closed(self) -> Iterator[Frame]:
        """The message is not going on."""
        for key in list(self._open):
            yield from self._close(key)

    def _snapshots(self) -> Iterator[Frame]:
        messages = self._folding.state.messages
        yield _event("MESSAGES_SNAPSHOT", messages=[shown for message in messages for shown in _to_protocol(message)])
        yield self._state()

    def _state(self) -> Frame:
        values = {name: value for name, value in self._folding.state.values.items() if name != "messages"}
        return _event("STATE_SNAPSHOT", snapshot=values)


def _is_client_call(pending: Interrupt) -> bool:
    """Tells whether the application is to make a call of its own tool: the protocol ends the run for that."""
    return isinstance(pending.value, dict) and CLIENT_TOOL in pending.value


def _interrupt(pending: Interrupt) -> Json:
    """The question is the message if it is text, and whole in the metadata."""
    value = pending.value
    text = value if isinstance(value, str) else value.get("question") if isinstance(value, dict) else None
    interrupt: Json = {"id": pending.id, "reason": "input_required", "metadata": {"value": value}}
    if isinstance(text, str):
        interrupt["message"] = text
    if isinstance(value, dict) and isinstance(value.get("form"), dict):
        interrupt["responseSchema"] = value["form"]
    if pending.call_id is not None:
        interrupt["toolCallId"] = pending.call_id
    return interrupt


def _progress(progress: Progress) -> Frame:
    value = {"toolCallId": progress.call_id, "toolCallName": progress.name, "text": progress.text}
    return _event("CUSTOM", name="tool_progress", value=value)


def _event(kind: str, /, **fields: Any) -> Frame:
    return Frame("", msgspec.json.encode({"type": kind, **fields}))
