"""Makes any conversation valid for providers: every tool call is followed at once by its one result.

Only the request to the model changes, as by DeerFlow's middleware DanglingToolCall. A result belongs to the nearest
earlier answer with a call of its id, else to the first later one. Some models reuse ids. A result without a call, or a
second result of one call, becomes hidden text at its place. Empty answers are left out.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, cast

import msgspec
from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from actors.agent.policies.repair.terminal_response import speaks
from actors.agent.run.attempt import Attempt, ModelHandler
from core.thread.messages import text_of

INTERRUPTED = "Error: interrupted before this call had a result."
INVALID = "Error: the arguments of this call were invalid, and nothing was done: "
ERROR_CHARACTERS = 500
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""OpenAI's pattern of function names."""


class DanglingCalls(AgentMiddleware[Any, Attempt, Any]):
    """Repairs the request, and records that with the answer."""

    name = "dangling_calls"

    async def awrap_model_call(self, request: ModelRequest[Attempt], handler: ModelHandler) -> ModelResponse[Any]:
        if is_valid(request.messages):
            return await handler(request)
        messages, defects = _mended(request.messages)
        response = await handler(request.override(messages=cast(Any, messages)))
        text = ", ".join(f"{count} {defect}" for defect, count in defects.items())
        request.runtime.context.decide(self.name, "repaired", text)
        return response


def repaired(messages: Sequence[BaseMessage]) -> Sequence[BaseMessage]:
    """Returns a valid conversation; the same object if it is valid already."""
    return messages if is_valid(messages) else _mended(messages)[0]


def is_valid(messages: Sequence[BaseMessage]) -> bool:
    """Tells whether every answer can be sent, and every call has exactly one result, right after its answer."""
    waiting: set[str] = set()
    for message in messages:
        if isinstance(message, ToolMessage):
            if message.tool_call_id not in waiting:
                return False
            waiting.remove(message.tool_call_id)
        elif waiting:
            return False
        elif isinstance(message, AIMessage):
            ids = _sendable_ids(message)
            if ids is None or not (ids or _speaks(message)):
                return False
            waiting = ids
    return not waiting


class _Call(NamedTuple):
    """A call of any form. `args` is text unless it is a JSON object. `error` says why it could not be made."""

    id: str
    name: str
    args: Any
    error: str | None = None


def _calls(message: AIMessage) -> list[_Call]:
    """Returns the calls of an answer; raw ones only if there are no structured ones."""
    calls = [_Call(call["id"] or "", call["name"], call["args"]) for call in message.tool_calls]
    for call in message.invalid_tool_calls:
        calls.append(_Call(call["id"] or "", call["name"] or "", call["args"], call["error"] or "they are not JSON"))
    raw = message.additional_kwargs.get("tool_calls")
    if isinstance(raw, list) and not message.tool_calls:
        ids = {call.id for call in calls}
        calls += [call for call in map(_parsed, raw) if call.id not in ids]
    return calls


def _parsed(raw: Any) -> _Call:
    call = raw if isinstance(raw, dict) else {}
    function = call.get("function")
    function = function if isinstance(function, dict) else {}
    identity, name = call.get("id"), function.get("name")
    return _Call(
        identity if isinstance(identity, str) else "",
        name if isinstance(name, str) else "",
        function.get("arguments"),
    )


def _sendable_ids(message: AIMessage) -> set[str] | None:
    """Returns the ids of an answer's calls; None if it cannot be sent unchanged."""
    structured, invalid = message.tool_calls, message.invalid_tool_calls
    ids: set[str] = set()
    for call in structured:
        if not (call["id"] and _is_name(call["name"]) and isinstance(call["args"], dict)):
            return None
        ids.add(call["id"])
    if not invalid and (structured or "tool_calls" not in message.additional_kwargs):
        return ids if len(ids) == len(structured) else None
    calls = _calls(message)
    texts = calls[len(structured) :]
    if not all(call.id and _is_name(call.name) and isinstance(call.args, str) for call in texts):
        return None
    ids.update(call.id for call in texts)
    raw = len(texts) > len(invalid)
    if len(ids) < len(calls) or not calls or (raw and not _is_sent_raw(message)):
        return None
    return ids


def _is_sent_raw(message: AIMessage) -> bool:
    """Tells whether LangChain sends the raw calls; it drops them beside invalid ones."""
    raw = message.additional_kwargs["tool_calls"]
    return not message.invalid_tool_calls and all(call.get("type") == "function" for call in raw)


@lru_cache(1024)
def _is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def _speaks(message: AIMessage) -> bool:
    extra = message.additional_kwargs
    return speaks(message.content) or bool(extra and ("function_call" in extra or "audio" in extra))


# ── repair ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _mended(messages: Sequence[BaseMessage]) -> tuple[list[BaseMessage], Counter[str]]:
    """Returns a valid conversation, and the counts of its defects."""
    defects: Counter[str] = Counter()
    answers = {place: message for place, message in enumerate(messages) if isinstance(message, AIMessage)}
    calls = {place: parsed for place, message in answers.items() if (parsed := _calls(message))}
    results = _results(messages, calls)
    used = {result for places in results.values() for result in places}
    mended: list[BaseMessage] = []
    for place, message in enumerate(messages):
        if place in calls:
            answer, own = _sendable(answers[place], calls[place], place)
            defects["rewritten"] += answer is not message
            defects["missing"] += results[place].count(None)
            defects["moved"] += sum(r is not None and not place < r <= place + len(own) for r in results[place])
            outcomes = [None if result is None else messages[result] for result in results[place]]
            mended += [answer, *map(_result, own, cast("list[ToolMessage | None]", outcomes))]
        elif isinstance(message, ToolMessage):
            if place not in used:
                defects["orphaned"] += 1
                mended.append(_as_text(message))
        elif place in answers and not _speaks(answers[place]):
            defects["empty"] += 1
        elif place in answers and "tool_calls" in message.additional_kwargs:
            defects["rewritten"] += 1
            mended.append(_rewritten(answers[place], []))
        else:
            mended.append(message)
    return mended, +defects


def _results(messages: Sequence[BaseMessage], calls: Mapping[int, Sequence[_Call]]) -> dict[int, list[int | None]]:
    """Returns for each answer with calls the places of their results."""
    waiting: dict[int, dict[str, deque[int]]] = {}
    latest: dict[str, deque[int]] = {}
    early: dict[str, deque[int]] = {}
    for place, message in enumerate(messages):
        if place in calls:
            ids = {call.id for call in calls[place]}
            waiting[place] = {identity: early.pop(identity, deque()) for identity in ids}
            latest.update(waiting[place])
        elif isinstance(message, ToolMessage):
            queue = latest.get(message.tool_call_id)
            (early.setdefault(message.tool_call_id, deque()) if queue is None else queue).append(place)
    return {
        place: [queues[call.id].popleft() if queues[call.id] else None for call in calls[place]]
        for place, queues in waiting.items()
    }


def _sendable(message: AIMessage, calls: Sequence[_Call], place: int) -> tuple[AIMessage, Sequence[_Call]]:
    """Returns an answer and its calls in a form that can be sent."""
    if _sendable_ids(message) is not None:
        return message, calls
    calls = _named(calls, place)
    return _rewritten(message, calls), calls


def _result(call: _Call, result: ToolMessage | None) -> ToolMessage:
    """Returns the result of a call, or an error in its place."""
    if result is None:
        text = INTERRUPTED if call.error is None else f"{INVALID}{call.error[:ERROR_CHARACTERS]}"
        return ToolMessage(text, tool_call_id=call.id, name=call.name, status="error")
    return result if result.tool_call_id == call.id else result.model_copy(update={"tool_call_id": call.id})


def _named(calls: Sequence[_Call], place: int) -> list[_Call]:
    """Returns the calls with unique ids, and names that can be sent."""
    taken, used = {call.id for call in calls}, set[str]()
    named = []
    for number, call in enumerate(calls):
        identity = call.id
        if not identity or identity in used:
            identity = f"call_{place}_{number}"
            while identity in taken:
                identity += "_"
        used.add(identity)
        taken.add(identity)
        name = re.sub(r"[^a-zA-Z0-9_-]", "_", call.name)[:64] or "unknown"
        named.append(call._replace(id=identity, name=name))
    return named


def _rewritten(message: AIMessage, calls: Sequence[_Call]) -> AIMessage:
    """Returns the answer with only these calls."""
    extra = {name: value for name, value in message.additional_kwargs.items() if name != "tool_calls"}
    good = [
        {"type": "tool_call", "id": call.id, "name": call.name, "args": call.args}
        for call in calls
        if isinstance(call.args, dict)
    ]
    bad = [
        {"type": "invalid_tool_call", "id": call.id, "name": call.name, "args": _text(call.args), "error": call.error}
        for call in calls
        if not isinstance(call.args, dict)
    ]
    return message.model_copy(update={"tool_calls": good, "invalid_tool_calls": bad, "additional_kwargs": extra})


def _text(args: Any) -> str:
    if args is None or isinstance(args, str):
        return args or ""
    return msgspec.json.encode(args, enc_hook=str).decode()


def _as_text(result: ToolMessage) -> HumanMessage:
    """Returns a result without a call as hidden text."""
    named = f" of {result.name}" if result.name else ""
    text = f"A result{named}, whose call is not in this conversation:\n{text_of(result.content)}"
    return HumanMessage(text, id=result.id, additional_kwargs={"hide_from_ui": True})
