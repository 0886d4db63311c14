"""The outermost middleware: records the model's answers and the results of tool calls, as the policies left them.

On a resumed run the first model call returns the recorded message with open tool calls, and tool calls return their
recorded outcomes. So resuming the loop is the same as starting it. The conversation is read from the folded log before
every call; the graph's own state only follows it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.messages import AIMessage, BaseMessage, RemoveMessage, ToolMessage
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command

from actors.agent.loop.described import EXIT_CODE
from actors.agent.loop.effects import Settled
from actors.agent.loop.json_arguments import decoded_request
from actors.agent.messages.convert import dump, load
from actors.agent.model.answer import redacted
from actors.agent.run.attempt import Answer, Attempt, ModelHandler, ToolHandler, ToolResult
from core.bus.rpc import sendable_value
from core.config.redaction import redactor
from core.events import Json, Message, ModelCompleted, StatePatched, ToolCompleted
from core.runs.journal import outcome_of, tool_message
from core.runs.previews import line_of
from core.thread.state import COMPACTED
from core.thread.values import REMOVE_ALL, asks_person, unanswered

GRAPH_ONLY = ("messages", "jump_to", "structured_response", "remaining_steps")
"""Fields of the graph's state that are not part of the thread's."""
HOOKS = "hooks"
"""The node of changes by before- and after-hooks."""


class Ended(Exception):
    """The agent asked the person a question: the run ends, and the next message continues the thread."""


class Recorder(AgentMiddleware[Any, Attempt, Any]):
    """Records into the journal of the run in the graph's context.

    With `watched`, it also records the changes that hooks of middlewares make to the graph's state.
    """

    name = "recorder"

    def __init__(self, *, watched: bool = False) -> None:
        super().__init__()
        self._watched = watched

    # ── model ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def awrap_model_call(self, request: ModelRequest[Attempt], handler: ModelHandler) -> ModelResponse[Any]:
        attempt = request.runtime.context
        with attempt.at_work():
            if self._watched:
                await adopt(attempt, cast(Mapping[str, Any], request.state))
            begun, messages = len(attempt.state.commits), list[Message]()
            while not messages or attempt.state.runs[attempt.run].again:
                messages += await self._step(attempt, request, handler)
            if _compacted_since(attempt, begun):
                return ModelResponse(result=[RemoveMessage(id=REMOVE_ALL), *attempt.conversation()])
            return ModelResponse(result=self._loaded(attempt, messages))

    def _loaded(self, attempt: Attempt, messages: Sequence[Message]) -> list[BaseMessage]:
        """Returns what was recorded as LangChain's objects: of their own if hooks may change them in place."""
        if self._watched:
            return [load(message) for message in messages]
        newest = {message.id: message for message in attempt.conversation()[-len(messages) :] if message.id}
        return [newest.get(message.get("id", "")) or load(message) for message in messages]

    async def _step(self, attempt: Attempt, request: ModelRequest[Attempt], handler: ModelHandler) -> list[Message]:
        """Returns one answer, recorded or new, after the messages that steered the agent meanwhile."""
        messages = attempt.state.messages
        opened = bool(unanswered(messages))
        if opened:
            attempt.breakpoints.resumed()
        elif asks_person(messages):
            raise Ended
        else:
            attempt.breakpoints.before_model(after_tools=bool(messages) and messages[-1]["type"] == "tool")
        steered = await attempt.steered()
        answer = await self._answer(attempt, request, handler)
        if answer.get("tool_calls") and not opened:
            attempt.breakpoints.after_model()
        return [*steered, answer]

    async def _answer(self, attempt: Attempt, request: ModelRequest[Attempt], handler: ModelHandler) -> Message:
        attempt.request = self._key(attempt)
        recorded = await attempt.journal.model_recorded(attempt.request)
        if recorded is not None:
            return recorded.message
        begun = len(attempt.state.commits)
        response = await handler(request.override(messages=cast(Any, attempt.conversation())))
        if _compacted_since(attempt, begun):
            attempt.request = self._key(attempt)
        event = redacted(_completed(attempt, response))
        await attempt.journal.model_completed(event)
        return event.message

    def _key(self, attempt: Attempt) -> str:
        """Returns the key of the next model call."""
        conversation, notes = attempt.conversation(), attempt.notes()
        return attempt.cache.hashes.of(attempt.journal.thread_id, [*conversation, *notes] if notes else conversation)

    # ── tools ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def awrap_tool_call(self, request: ToolCallRequest, handler: ToolHandler) -> ToolResult:
        attempt = cast(Attempt, request.runtime.context)
        with attempt.at_work():
            outcome = outcome_of(attempt.state, str(request.tool_call["id"])) or await _called(
                attempt, request, handler
            )
        result = load(outcome.message)
        assert isinstance(result, ToolMessage)
        state = {name: value for name, value in outcome.update.items() if name in request.state}
        return Command(update={**state, "messages": [result]}) if state else result


def _compacted_since(attempt: Attempt, begun: int) -> bool:
    return any(commit.node == COMPACTED for commit in attempt.state.commits[begun:])


async def _called(attempt: Attempt, request: ToolCallRequest, handler: ToolHandler) -> ToolCompleted:
    """Makes a call, and records its outcome."""
    request = decoded_request(request)
    call, name, started = attempt.call_ref(str(request.tool_call["id"])), request.tool_call["name"], time.monotonic()
    try:
        message, update = sendable_value(await _result(attempt, await _as_begun(attempt, request), handler))
    except Settled as settled:
        return settled.outcome
    message["id"] = message.get("id") or call.message_id
    message["name"] = message.get("name") or name
    exit_code = _exit_code(message)
    outcome = redactor.struct(
        ToolCompleted(
            call_id=call.id,
            message=message,
            update=update,
            duration_ms=int((time.monotonic() - started) * 1000),
            decisions=attempt.decided(call.id),
            exit_code=exit_code,
        )
    )
    await attempt.journal.tool_completed(outcome)
    return outcome


def _exit_code(message: Message) -> int | None:
    """Takes the exit code of a command out of the metadata of its message."""
    metadata = dict(message.pop("response_metadata", None) or {})
    exit_code = metadata.pop(EXIT_CODE, None)
    if metadata:
        message["response_metadata"] = metadata
    return exit_code if isinstance(exit_code, int) else None


async def _as_begun(attempt: Attempt, request: ToolCallRequest) -> ToolCallRequest:
    """Returns the request with the arguments of the recorded intent, if the call was begun before a crash.

    Raises `Settled` if the call must not be repeated, before any policy can refuse what may have happened.
    """
    call = request.tool_call
    intent = attempt.begun(str(call["id"]))
    if intent is None:
        return request
    event = intent.event
    if event.effect == "once":
        outcome = await attempt.journal.tool_requested(event.call_id, event.name, event.effect, call["args"])
        if outcome is not None:
            raise Settled(outcome)
    return request if event.args is None else request.override(tool_call={**call, "args": event.args})


async def _result(attempt: Attempt, request: ToolCallRequest, handler: ToolHandler) -> tuple[Message, Json]:
    """Returns the tool message to record, and the other changes of the call to the state."""
    call, name = attempt.call_ref(str(request.tool_call["id"])), request.tool_call["name"]
    broken = next((other.get("error") for other in unanswered(attempt.state.messages) if other["id"] == call.id), None)
    if broken:
        return tool_message(call, name, f"Error: {broken}", "error"), {}
    result = await handler(request)
    if isinstance(result, ToolMessage):
        return dump(result), {}
    update = dict(result.update) if isinstance(result.update, dict) else {}
    messages = [m for m in update.pop("messages", ()) if isinstance(m, ToolMessage)]
    message = dump(messages[0]) if messages else tool_message(call, name, "OK")
    return message, update


def _completed(attempt: Attempt, response: ModelResponse[Any]) -> ModelCompleted:
    """Returns the event of an answer, as the policies left it."""
    answer = response if isinstance(response, Answer) else Answer(response.result)
    event, message = answer.event, answer.result[-1]
    assert isinstance(message, AIMessage)
    decisions = attempt.decided()
    if event is None:
        return ModelCompleted(message=dump(message), request=attempt.request, decisions=decisions)
    if message is not answer.original and message != answer.original:
        event = _revised(event, dump(message))
    return msgspec.structs.replace(event, request=attempt.request, decisions=decisions)


def _revised(event: ModelCompleted, message: Message) -> ModelCompleted:
    """Returns the event of an answer with the message that policies changed."""
    if calls := message.get("tool_calls"):
        errors = {call["id"]: call["error"] for call in event.message.get("tool_calls", ()) if "error" in call}
        message["tool_calls"] = [
            call | {"error": errors[call["id"]]} if call["id"] in errors else call for call in calls
        ]
    texts = {call["id"]: event.call_texts[call["id"]] for call in calls or () if call["id"] in event.call_texts}
    order, line = event.order, line_of(event.message, event.call_texts, event.order)
    if line_of(message, texts, order) != line:
        order = [(piece.part, piece.index, len(piece.text)) for piece in line]  # the order in which clients saw it
    return msgspec.structs.replace(event, message=message, call_texts=texts, order=order)


async def adopt(attempt: Attempt, state: Mapping[str, Any]) -> None:
    """Records the changes that hooks of middlewares made to the graph's state since the last step."""
    values = attempt.state.values
    patch: Json = {
        name: value
        for name, value in state.items()
        if name not in GRAPH_ONLY and name not in attempt.untracked and value != values.get(name)
    }
    if not unanswered(attempt.state.messages) and (messages := _changed(attempt.conversation(), state["messages"])):
        patch["messages"] = messages
    if patch:
        await patched(attempt, patch)


async def patched(attempt: Attempt, patch: Json) -> None:
    """Records the changes that a middleware made to the state."""

    async def make() -> StatePatched:
        return StatePatched(values=msgspec.to_builtins(patch, enc_hook=str), as_node=HOOKS, source="loop")

    await attempt.journal.fact(StatePatched, "", make)


def _changed(before: Sequence[BaseMessage], after: Sequence[BaseMessage]) -> list[Message]:
    """Returns the messages to write so that the conversation `before` becomes `after`."""
    if [message.id for message in before] == [message.id for message in after[: len(before)]]:
        same = {message.id: message for message in before}
        return [dump(message) for message in after if same.get(message.id) != message]
    return [{"type": "remove", "id": REMOVE_ALL}, *(dump(message) for message in after)]
