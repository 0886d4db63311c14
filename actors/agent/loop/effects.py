"""The innermost middleware: asks models, and makes tool calls after their intent is recorded."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import msgspec
import structlog
from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.callbacks import AsyncCallbackManager
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage, ToolCall, ToolMessage
from langchain_core.runnables.base import RunnableBinding
from langchain_core.runnables.config import ensure_config
from langgraph.config import get_config
from langgraph.errors import GraphBubbleUp, GraphInterrupt
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command

from actors.agent.loop.aside import complete
from actors.agent.loop.files import SandboxFiles
from actors.agent.loop.stage import Stage
from actors.agent.messages.content import messages_of
from actors.agent.messages.convert import dump, load
from actors.agent.model.ask import Ask, answered
from actors.agent.model.last_answer import tool_choice
from actors.agent.policies.safety.approvals import answered as answered_by_person
from actors.agent.policies.safety.approvals import has_asked
from actors.agent.run.attempt import (
    Answer,
    Attempt,
    Candidate,
    ModelHandler,
    ToolHandler,
    ToolResult,
    error_result,
    no_progress,
)
from core.bus.errors import BusUnavailable
from core.bus.rpc import sendable_value
from core.config.redaction import Stream, redactor
from core.errors import SikaError, is_defect, sentence_of
from core.events import Interrupt, ToolCompleted
from core.ports.models import Pieces
from core.runs.journal import CallRef
from core.runtime import stalls
from core.thread.approvals import answers_to_approval
from core.thread.messages import SPEAKER
from core.thread.subagents import TOOLS
from core.tools import Completion, Files, Prompt, Question, Response

log = structlog.get_logger("sika.agent")

SCRATCHPAD = "__pregel_scratchpad"
"""Key of the answers for `interrupt()` in a task's configuration (langgraph's `CONFIG_KEY_SCRATCHPAD`)."""
TOOL_SECONDS = 7200.0
"""Deadline of one tool call: longer than that of any request to an actor."""
SUBAGENT_SECONDS = 86_400.0
"""Deadline of a call of `task` and `tasks`, which end with the time of their run by themselves."""
ERROR_CHARACTERS = 500
"""Limit of an exception's text for the model (DeerFlow's middleware ToolErrorHandling)."""
BOUND = 64
"""Size of the cache of models bound to tools."""


class Settled(GraphBubbleUp):
    """The outcome of a call is recorded: the call is not made again, and no policy changes the outcome."""

    def __init__(self, outcome: ToolCompleted) -> None:
        super().__init__()
        self.outcome = outcome


@dataclass(frozen=True, slots=True)
class CallContext:
    """Implements `core.tools.ToolContext`."""

    thread: str
    user: str
    subagent: str | None
    channel_user: str
    ref: CallRef
    tool: str
    files: Files
    _stage: Stage
    _call: Callable[[str, Mapping[str, Any]], Awaitable[Any]]
    _ask: Callable[[Question], Awaitable[Response]]
    _complete: Callable[[Prompt], Awaitable[Completion]]
    _resumed: Callable[[], bool]
    _seconds_left: Callable[[], float | None]

    @property
    def run(self) -> str:
        return self.ref.run

    @property
    def call_id(self) -> str:
        return self.ref.key

    async def stage(self, text: str) -> None:
        await self._stage.show(text)

    def close(self) -> None:
        """Ends what the call shows."""
        self._stage.close()

    async def call(self, actor: str, request: Mapping[str, Any]) -> Any:
        return await self._call(actor, request)

    async def approved(self, step: Mapping[str, Any], text: str) -> bool:
        return (await self._ask(Question(text, step))).accepted is True

    async def ask(self, question: Question) -> Response:
        return await self._ask(question)

    async def complete(self, prompt: Prompt) -> Completion:
        return await self._complete(prompt)

    @property
    def resumed(self) -> bool:
        return self._resumed()

    @property
    def seconds_left(self) -> float | None:
        return self._seconds_left()


stalls.register(CallContext, "tool", "tool")
stalls.register(AgentMiddleware, "middleware")
stalls.register(BaseChatModel, "model")
tool_context: ContextVar[CallContext] = ContextVar("tool_context")
"""The context of the tool call being made in this task."""


class Effects(AgentMiddleware[Any, Attempt, Any]):
    """Executes requests as the policies around it left them."""

    name = "effects"

    def __init__(self) -> None:
        super().__init__()
        self._bound: dict[tuple[int, ...], tuple[list[Any], Ask]] = {}

    # ── models ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def awrap_model_call(self, request: ModelRequest[Attempt], handler: ModelHandler) -> ModelResponse[Any]:
        attempt = request.runtime.context
        messages: Sequence[BaseMessage] = request.messages
        if request.system_message:
            messages = [request.system_message, *messages]
        event = await answered(attempt, _candidates(attempt, request), partial(self._bind, request), messages)
        message = load(event.message)
        return Answer([message], event=event, original=message)

    def _bind(self, request: ModelRequest[Attempt], model: BaseChatModel) -> Ask:
        """Returns the model bound to the request's tools. Cached, because converting schemas is slow."""
        key = (id(model), *(id(tool) for tool in request.tools), hash(str(request.model_settings)))
        choice = tool_choice(model, request.tool_choice)
        if choice is not None:
            key = (*key, hash(str(choice)))
        if key not in self._bound:
            bound: Any = model
            if request.tools:
                bound = model.bind_tools(request.tools, tool_choice=choice, **request.model_settings)
            elif request.model_settings:
                bound = model.bind(**request.model_settings)
            if len(self._bound) >= BOUND:
                self._bound.clear()
            self._bound[key] = ([model, *request.tools], _asking(bound))  # kept alive: the ids stay theirs
        return self._bound[key][1]

    # ── tools ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def awrap_tool_call(self, request: ToolCallRequest, handler: ToolHandler) -> ToolResult:
        attempt = cast(Attempt, request.runtime.context)
        call_id, name = str(request.tool_call["id"]), request.tool_call["name"]
        effect = attempt.effects.get(name, "once") if request.tool is not None else "pure"
        outcome = await attempt.journal.tool_requested(call_id, name, effect, request.tool_call["args"])
        if outcome is not None:
            raise Settled(outcome)
        context = _context(attempt, request.tool_call)
        tool_context.set(context)
        try:
            return await _asking_people(attempt, request, handler)
        finally:
            context.close()


def _candidates(attempt: Attempt, request: ModelRequest[Attempt]) -> Sequence[Candidate]:
    """Returns the run's candidates, unless a policy chose another model."""
    if request.model is attempt.candidates[0].model:
        return attempt.candidates
    first = attempt.candidates[0]
    configured = next((candidate for candidate in attempt.candidates if candidate.model is request.model), None)
    return [configured or Candidate(first.name, request.model, first.breaker)]


def _asking(bound: Any) -> Ask:
    """Returns the model's stream function, bypassing the slow configuration of a binding."""
    if isinstance(bound, RunnableBinding) and isinstance(bound.bound, BaseChatModel) and not bound.config:
        model, settings = bound.bound, bound.kwargs
    else:
        model, settings = bound, {}
    whole: Ask = partial(model.astream, **settings)
    if not isinstance(model, Pieces) or not model.in_pieces(settings):
        return whole
    pieces: Ask = partial(model.pieces, **settings)
    return lambda messages: whole(messages) if is_traced(model) else pieces(messages)


def is_traced(model: BaseChatModel) -> bool:
    """Tells whether there are listeners to LangChain's callbacks. Without them, reading an answer costs a tenth."""
    inherited = ensure_config().get("callbacks")
    return bool(AsyncCallbackManager.configure(inherited, model.callbacks, model.verbose).handlers)


def _context(attempt: Attempt, call: ToolCall) -> CallContext:
    call_id, name = str(call["id"]), call["name"]
    stream = Stream(redactor)

    async def progress(text: str) -> None:
        if text := stream.feed(text):
            await attempt.journal.progress(call_id, name, text)

    async def ask(actor: str, request: Mapping[str, Any]) -> Any:
        return await attempt.call(actor, request, progress)

    async def answer(question: Question) -> Response:
        return await answered_by_person(attempt, call, question)

    async def sandbox(request: Mapping[str, Any]) -> Any:
        return await attempt.call("sandbox", request, no_progress)

    about = attempt.thread, attempt.user, attempt.subagent, attempt.channel_user, attempt.call_ref(call_id), name
    files = SandboxFiles(sandbox, {"user": attempt.user, "thread": attempt.thread, "run": attempt.run})
    asking = ask, answer, partial(complete, attempt, call_id), partial(has_asked, attempt, call)
    return CallContext(*about, files, Stage(attempt, call_id, name), *asking, attempt.limits.seconds_left)


async def _asking_people(attempt: Attempt, request: ToolCallRequest, handler: ToolHandler) -> ToolResult:
    """Makes the call of a tool that may ask people (LangGraph's `interrupt()`).

    It is repeated for each answer with all answers so far. An open question pauses the run.
    """
    call = attempt.call_ref(str(request.tool_call["id"]))
    answers = attempt.journal.answers(call.id)
    if own := answers[answers_to_approval(attempt.state, attempt.run, call.id) :]:
        get_config()["configurable"][SCRATCHPAD].resume.extend(own)
    try:
        result = await _outcome(request, handler, attempt)
        return _attributed(result, attempt, str(request.tool_call["id"])) if answers else result
    except GraphInterrupt as pause:
        if attempt.subagent is not None:
            text = "the tool has a question to a person, which a subagent cannot ask. Say in your answer what is open."
            return error_result(request.tool_call, text)
        for number, interrupt in enumerate(pause.args[0] if pause.args else ()):
            identity = hashlib.blake2b(f"{call.key}-{len(answers) + number}".encode(), digest_size=16).hexdigest()
            value = msgspec.to_builtins(interrupt.value, str_keys=True, enc_hook=str)
            attempt.questions.append(Interrupt(id=identity, value=value, call_id=call.id))
        raise


def _attributed(result: ToolResult, attempt: Attempt, call_id: str) -> ToolResult:
    """Returns the result of a call whose question was answered, with who answered where several people talk."""
    run = attempt.state.runs.get(attempt.run)
    origin = run.request.origin if run is not None and run.request.resume is not None else None
    if origin is not None and origin.speaker is not None:
        for message in messages_of(result):
            if isinstance(message, ToolMessage) and message.tool_call_id == call_id:
                message.additional_kwargs[SPEAKER] = {"id": origin.speaker.id, "name": origin.speaker.name}
    return result


def _one(result: Any, call_id: str) -> ToolResult:
    """Returns the result of a call; of several, which LangChain's tools may return, a command with all of them."""
    if not isinstance(result, list):
        return cast(ToolResult, result)
    updates = [each.update for each in result if isinstance(each, Command) and isinstance(each.update, dict)]
    messages = [message for each in result for message in messages_of(each)]
    messages.sort(key=lambda message: getattr(message, "tool_call_id", None) != call_id)
    return Command(
        update={**{name: value for update in updates for name, value in update.items()}, "messages": messages}
    )


def _redacted(result: ToolResult) -> ToolResult:
    """Redacts a result: policies may put it into places that are not redacted again."""
    messages = [result] if isinstance(result, ToolMessage) else (result.update or {}).get("messages", ())
    for message in messages:
        if isinstance(message, ToolMessage):
            message.content = redactor.value(message.content)
    return result


def _recordable(result: ToolResult) -> ToolResult:
    """Returns a result as it is. Raises `TypeError` if it is not JSON: then it could not be recorded."""
    update = result.update if isinstance(result, Command) and isinstance(result.update, dict) else {}
    others = {name: value for name, value in update.items() if name != "messages"}
    try:
        msgspec.json.encode(sendable_value([*map(dump, messages_of(result)), others]))
    except (TypeError, ValueError) as error:
        raise TypeError(f"its result is not JSON: {error}") from error
    return result


async def _outcome(request: ToolCallRequest, handler: ToolHandler, attempt: Attempt) -> ToolResult:
    """Makes the call. Errors become results for the model, as in DeerFlow, and defects of the tool lines of the
    server's log, with the traceback.
    """
    call_id, name = str(request.tool_call["id"]), request.tool_call["name"]
    about = {"tool": name, "thread": attempt.thread, "run": attempt.run, "call": call_id}
    left = attempt.limits.seconds_left()
    seconds = SUBAGENT_SECONDS if name in TOOLS else TOOL_SECONDS
    if left is not None and name not in TOOLS:  # those report what was done until then
        seconds = max(0.0, min(seconds, left))
    try:
        async with asyncio.timeout(seconds) as deadline:
            return _redacted(_recordable(_one(await handler(request), call_id)))
    except (GraphBubbleUp, BusUnavailable):  # the outcome is unknown, or cannot be recorded: the run waits
        raise
    except SikaError as error:
        text = f"Error: {redactor.known(str(error))}"
        if is_defect(error):
            log.exception("tool failed", **about)
    except (Exception, asyncio.CancelledError) as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        log.exception("tool failed", **about)
        detail = redactor.known(sentence_of(error))[:ERROR_CHARACTERS]
        advice = "Go on with what you have, or try another way."
        text = f"Error: Tool '{name}' failed: {detail}. {advice}"
        if deadline.expired():
            text = f"Error: Tool '{name}' had not finished after {seconds:.0f} seconds"
    return ToolMessage(text, tool_call_id=call_id, name=name, status="error")
