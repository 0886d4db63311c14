"""The innermost middleware: calls the model and the tools, and records what they said and did.

On a resumed run the first model call answers with the recorded message whose tool calls are still open, and tool
calls answer with their recorded outcomes: the loop needs no other way to go on than to start.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import anyio
import msgspec
from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage
from langchain_core.runnables.base import RunnableBinding
from langgraph.config import get_config
from langgraph.errors import GraphBubbleUp, GraphInterrupt
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command

from actors.lead.answers import completed, merge
from actors.lead.breakpoints import Breakpoints
from actors.lead.failures import Breaker, classify, pause_ms
from actors.lead.messages import dump, key_of, load
from core.errors import SikaError
from core.events import Interrupt, Json, Message, ModelCompleted, ModelFailed, ToolCompleted
from core.ids import uuid7
from core.previews import Previewer, text_of
from core.run import Journal, tool_message
from core.state import unanswered
from core.tools import Effect

Call = Callable[[str, Mapping[str, Any], Callable[[str], Awaitable[None]]], Awaitable[Any]]

END_SECONDS = 10.0
SCRATCHPAD = "__pregel_scratchpad"
"""Where `interrupt()` looks for answers in the configuration of a task (langgraph's `CONFIG_KEY_SCRATCHPAD`)."""
ERROR_CHARACTERS = 500
"""How much of an exception's text the model is shown (contract runtime §5.8)."""


class ModelDown(SikaError):
    """The model has failed so often that it is left alone for a while."""

    code = "model_down"


@dataclass(slots=True)
class Turn:
    """What the agent's loop knows of the run it is doing. Passed as the graph's context."""

    journal: Journal
    thread: str
    run: str
    user: str
    call: Call
    attempts: int
    effects: Mapping[str, Effect]
    breakpoints: Breakpoints
    breaker: Breaker
    asked: list[Interrupt] = field(default_factory=list)
    """Questions of tools (LangGraph's `interrupt()`) that wait for an answer."""
    working: set[asyncio.Task[Any]] = field(default_factory=set)
    """Tasks of model and tool calls. LangGraph does not end them all when the run is cancelled: `end` does."""

    @contextmanager
    def at_work(self) -> Iterator[None]:
        task = asyncio.current_task()
        assert task is not None
        self.working.add(task)
        try:
            yield
        finally:
            self.working.discard(task)

    async def end(self) -> None:
        """Cancel what is still at work, and wait for it: it must not append after the run's last event."""
        tasks = set(self.working)
        for task in tasks:
            task.cancel()
        if tasks:
            with anyio.CancelScope(shield=True):
                await asyncio.wait(tasks, timeout=END_SECONDS)


@dataclass(frozen=True, slots=True)
class _ToolContext:
    """See `core.tools.ToolContext`."""

    thread: str
    user: str
    run: str
    call_id: str
    _call: Callable[[str, Mapping[str, Any]], Awaitable[Any]]

    async def call(self, actor: str, request: Mapping[str, Any]) -> Any:
        return await self._call(actor, request)


tool_context: ContextVar[_ToolContext] = ContextVar("tool_context")
"""The context of the tool call being made in this task."""

Ask = Callable[[Sequence[BaseMessage]], AsyncIterator[AIMessage]]


class Recorder(AgentMiddleware[Any, Turn, Any]):
    """Records model answers, tool intents and tool outcomes of the run in the graph's context."""

    name = "recorder"

    def __init__(self) -> None:
        super().__init__()
        self._bound: dict[tuple[int, ...], tuple[list[Any], Ask]] = {}

    # ── model ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def awrap_model_call(
        self, request: ModelRequest[Turn], handler: Callable[[ModelRequest[Turn]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        with request.runtime.context.at_work():
            return await self._model_call(request)

    async def _model_call(self, request: ModelRequest[Turn]) -> ModelResponse[Any]:
        turn = request.runtime.context
        opened = bool(unanswered(turn.journal.state.messages))
        if opened:
            turn.breakpoints.resumed()
        else:
            turn.breakpoints.before_model(after_tools=turn.journal.state.messages[-1]["type"] == "tool")
        steered = [load(message) for message in await turn.journal.steered()]
        said = await self._said(request, [*request.messages, *steered])
        if said.get("tool_calls") and not opened:
            turn.breakpoints.after_model()
        return ModelResponse(result=[*steered, load(said)])

    async def _said(self, request: ModelRequest[Turn], conversation: Sequence[BaseMessage]) -> Message:
        """What the model says next: as recorded, or asked for now, and recorded."""
        turn = request.runtime.context
        key = request_key(conversation)
        recorded = await turn.journal.model_recorded(key)
        if recorded is not None:
            return recorded.message
        messages = closed(conversation)
        if request.system_message:
            messages = [request.system_message, *messages]
        model = self._bind(request)
        event = await _answered(turn, model, messages, key)
        await turn.journal.model_completed(event)
        return event.message

    def _bind(self, request: ModelRequest[Turn]) -> Ask:
        """The model with the request's tools. Converting the tools' schemas takes longer than most requests: done
        once.
        """
        key = (id(request.model), *(id(tool) for tool in request.tools), hash(str(request.model_settings)))
        if request.tool_choice is not None:
            key = (*key, hash(str(request.tool_choice)))
        if key not in self._bound:
            bound: Any = request.model
            if request.tools:
                bound = request.model.bind_tools(
                    request.tools, tool_choice=request.tool_choice, **request.model_settings
                )
            elif request.model_settings:
                bound = request.model.bind(**request.model_settings)
            if len(self._bound) > 64:
                self._bound.clear()
            self._bound[key] = ([request.model, *request.tools], _asking(bound))  # kept alive: the ids stay theirs
        return self._bound[key][1]

    # ── tools ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]]
    ) -> ToolMessage | Command[Any]:
        turn = cast(Turn, request.runtime.context)
        with turn.at_work():
            return await self._tool_call(turn, request, handler)

    async def _tool_call(
        self,
        turn: Turn,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]],
    ) -> ToolMessage | Command[Any]:
        call = request.tool_call
        call_id, name = str(call["id"]), call["name"]
        effect = turn.effects.get(name, "once") if request.tool is not None else "pure"
        outcome = await turn.journal.tool_requested(call_id, name, effect, call["args"])
        if outcome is None:
            started = time.monotonic()
            tool_context.set(self._context(turn, call_id, name))
            said = turn.journal.said_seq()
            broken = next((c.get("error") for c in unanswered(turn.journal.state.messages) if c["id"] == call_id), None)
            if broken:
                message, update = tool_message(said, call_id, name, f"Error: {broken}", "error"), dict[str, Any]()
            else:
                message, update = await _asking_people(turn, request, handler, said)
            duration = int((time.monotonic() - started) * 1000)
            outcome = ToolCompleted(call_id=call_id, message=message, update=update, duration_ms=duration)
            await turn.journal.tool_completed(outcome)
        result = load(outcome.message)
        assert isinstance(result, ToolMessage)
        return Command(update={**outcome.update, "messages": [result]}) if outcome.update else result

    def _context(self, turn: Turn, call_id: str, name: str) -> _ToolContext:
        async def progress(text: str) -> None:
            await turn.journal.progress(call_id, name, text)

        async def ask(actor: str, request: Mapping[str, Any]) -> Any:
            return await turn.call(actor, request, progress)

        return _ToolContext(turn.thread, turn.user, turn.run, f"{turn.journal.said_seq()}-{call_id}", ask)


async def _asking_people(
    turn: Turn,
    request: ToolCallRequest,
    handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]],
    said: int,
) -> tuple[Message, Json]:
    """Make the call of a tool that may ask people (LangGraph's `interrupt()`): it is begun again for each answer, and
    gets those that were given. What it asks that has no answer yet pauses the run.
    """
    call_id = str(request.tool_call["id"])
    answers = turn.journal.answers(call_id)
    if answers:
        get_config()["configurable"][SCRATCHPAD].resume.extend(answers)
    try:
        return await _outcome(request, handler, said)
    except GraphInterrupt as asked:
        for number, one in enumerate(asked.args[0] if asked.args else ()):
            identity = hashlib.blake2b(f"{said}-{call_id}-{len(answers) + number}".encode(), digest_size=16).hexdigest()
            value = msgspec.to_builtins(one.value, str_keys=True, enc_hook=str)
            turn.asked.append(Interrupt(id=identity, value=value, call_id=call_id))
        raise


def closed(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """The conversation with an outcome for every tool call, as providers want it (contract runtime §5.4).

    A run may start from a checkpoint where there was none yet.
    """
    answered = {message.tool_call_id for message in messages if isinstance(message, ToolMessage)}
    found: list[BaseMessage] = []
    for message in messages:
        found.append(message)
        for call in message.tool_calls if isinstance(message, AIMessage) else ():
            if call["id"] not in answered:
                text = "Error: interrupted before this call had a result."
                found.append(ToolMessage(text, tool_call_id=str(call["id"]), name=call["name"], status="error"))
    return found


def request_key(messages: Sequence[BaseMessage]) -> str:
    """Short hash of the conversation sent to the model, without the system prompt."""
    return hashlib.blake2b(msgspec.json.encode(key_of(messages)), digest_size=8).hexdigest()


def _asking(bound: Any) -> Ask:
    """Streams from a model with its arguments; without the detour through the configuration of a binding."""
    if isinstance(bound, RunnableBinding) and isinstance(bound.bound, BaseChatModel) and not bound.config:
        return partial(bound.bound.astream, **bound.kwargs)
    stream: Ask = bound.astream
    return stream


async def _answered(turn: Turn, ask: Ask, messages: Sequence[BaseMessage], key: str) -> ModelCompleted:
    """Ask until there is an answer, as often as is worth it; not at all while the model is known to be down."""
    breaker = turn.breaker
    admitted = breaker.admit(time.monotonic())
    if admitted is None:
        wait = breaker.wait_seconds(time.monotonic())
        text = f"the model has failed {breaker.failures} times in a row; it is asked again in {wait:.0f} s"
        failed = ModelFailed(error="ModelDown", text=text, attempt=1, max_attempts=1, reason="circuit_open")
        await turn.journal.model_failed(failed)
        raise ModelDown(text)
    try:
        for attempt in range(1, turn.attempts + 1):
            try:
                event = await _ask(ask, messages, turn.journal, key)
                break
            except Exception as error:
                if isinstance(error, SikaError | GraphBubbleUp):
                    raise
                failed = _failure(error, attempt, turn.attempts)
                await turn.journal.model_failed(failed)
                if failed.wait_ms is None:
                    breaker.failed(admitted, time.monotonic(), retriable=classify(error)[1])
                    raise
                await asyncio.sleep(failed.wait_ms / 1000)
        breaker.succeeded(admitted)
        return event
    finally:
        breaker.freed(admitted)


async def _ask(ask: Ask, messages: Sequence[BaseMessage], journal: Journal, key: str) -> ModelCompleted:
    """One request to the model, shown while it is answered. If a person stops the run meanwhile, what was said is
    kept.
    """
    started = time.monotonic()
    identity = f"lc_run--{uuid7()}"
    previewer = journal.preview(identity)
    chunks: list[AIMessageChunk] = []
    try:
        await _collect(ask(messages), previewer, chunks)
    except asyncio.CancelledError:
        if journal.stopping and chunks:
            with anyio.CancelScope(shield=True):
                event = completed(merge(chunks), identity, key, started, previewer, stopped=True)
                if text_of(event.message["content"]):
                    await journal.model_completed(event)
        raise
    if not chunks:
        raise ValueError("the model sent an empty answer")
    return completed(merge(chunks), identity, key, started, previewer)


async def _collect(stream: AsyncIterator[AIMessage], previewer: Previewer | None, chunks: list[AIMessageChunk]) -> None:
    async for chunk in stream:
        assert isinstance(chunk, AIMessageChunk)
        chunks.append(chunk)
        if previewer is None:
            continue
        if chunk.additional_kwargs and (reasoning := chunk.additional_kwargs.get("reasoning_content")):
            await previewer.add("reasoning", str(reasoning))
        if chunk.content and (text := text_of(chunk.content)):
            await previewer.add("text", text)
        for part in chunk.tool_call_chunks:
            index = part["index"]
            await previewer.add(
                "call",
                part["args"] or "",
                index=index if isinstance(index, int) else 0,
                call_id=part["id"] or None,
                name=part["name"] or None,
            )


def _failure(error: Exception, attempt: int, attempts: int) -> ModelFailed:
    reason, retriable = classify(error)
    wait = pause_ms(error, attempt) if retriable and attempt < attempts else None
    return ModelFailed(
        error=type(error).__name__,
        text=(str(error) or type(error).__name__)[:2000],
        attempt=attempt,
        max_attempts=attempts,
        reason=reason,
        wait_ms=wait,
    )


async def _outcome(
    request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]], said: int
) -> tuple[Message, Json]:
    """Make the call: the tool message to record, and what else it changes in the state. Errors are for the model."""
    call_id, name = str(request.tool_call["id"]), request.tool_call["name"]
    try:
        result = await handler(request)
    except GraphBubbleUp:
        raise
    except SikaError as error:
        return tool_message(said, call_id, name, f"Error: {error}", "error"), {}
    except Exception as error:
        detail = str(error)[:ERROR_CHARACTERS]
        advice = "Go on with what you have, or try another way."
        text = f"Error: Tool '{name}' failed with {type(error).__name__}: {detail}. {advice}"
        return tool_message(said, call_id, name, text, "error"), {}
    if isinstance(result, ToolMessage):
        return _identified(dump(result), said, call_id), {}
    update = dict(result.update) if isinstance(result.update, dict) else {}
    messages = [m for m in update.pop("messages", ()) if isinstance(m, ToolMessage)]
    message = dump(messages[0]) if messages else tool_message(said, call_id, name, "OK")
    return _identified(message, said, call_id), update


def _identified(message: Message, said: int, call_id: str) -> Message:
    message["id"] = message.get("id") or f"tool-{said}-{call_id}"
    return message
