"""Makes any conversation one that a provider takes: every tool call is followed at once by its one result.

Only what the model is sent changes (contract runtime §5.4). A result belongs to the nearest answer before it that made
a call of that id (some models use the same ids in every answer), else to the first one after it. What is left over (a
result of no call, or a second one of the same) may not be sent as a result: it is told, at its place, as hidden text.
Answers that neither say nor call anything are left out.
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

from actors.lead.loop.turn import ModelHandler, Turn
from actors.lead.policies.terminal_response import speaks
from core.thread.previews import text_of

INTERRUPTED = "Error: interrupted before this call had a result."
INVALID = "Error: the arguments of this call were invalid, and nothing was done: "
ERROR_CHARACTERS = 500
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""What OpenAI takes as the name of a function."""


class DanglingCalls(AgentMiddleware[Any, Turn, Any]):
    """Repairs what the model is sent, and says so in the answer."""

    name = "dangling_calls"

    async def awrap_model_call(self, request: ModelRequest[Turn], handler: ModelHandler) -> ModelResponse[Any]:
        if is_valid(request.messages):
            return await handler(request)
        messages, wrong = _mended(request.messages)
        response = await handler(request.override(messages=cast(Any, messages)))
        text = ", ".join(f"{count} {what}" for what, count in wrong.items())
        request.runtime.context.decide(self.name, "repaired", text)
        return response


def repaired(messages: Sequence[BaseMessage]) -> Sequence[BaseMessage]:
    """The conversation as a provider takes it; the same object if it is one already."""
    return messages if is_valid(messages) else _mended(messages)[0]


def is_valid(messages: Sequence[BaseMessage]) -> bool:
    """Whether every answer can be sent, and has one result right after it for each of its calls, and nothing else is a
    result.
    """
    waiting: set[str] = set()
    for message in messages:
        if isinstance(message, ToolMessage):
            if message.tool_call_id not in waiting:
                return False
            waiting.remove(message.tool_call_id)
        elif waiting:
            return False
        elif isinstance(message, AIMessage):
            asked = _asked(message)
            if asked is None or not (asked or _speaks(message)):
                return False
            waiting = asked
    return not waiting


class _Call(NamedTuple):
    """A call of any form. `args` is a text where it is no JSON object; `error`: why it could not be made."""

    id: str
    name: str
    args: Any
    error: str | None = None


def _calls(message: AIMessage) -> list[_Call]:
    """The calls of an answer: raw ones count only if there are no structured ones (contract runtime §5.4)."""
    found = [_Call(call["id"] or "", call["name"], call["args"]) for call in message.tool_calls]
    for call in message.invalid_tool_calls:
        found.append(_Call(call["id"] or "", call["name"] or "", call["args"], call["error"] or "they are not JSON"))
    raw = message.additional_kwargs.get("tool_calls")
    if isinstance(raw, list) and not message.tool_calls:
        known = {call.id for call in found}
        found += [call for call in map(_parsed, raw) if call.id not in known]
    return found


def _parsed(raw: Any) -> _Call:
    given = raw if isinstance(raw, dict) else {}
    function = given.get("function")
    function = function if isinstance(function, dict) else {}
    identity, name = given.get("id"), function.get("name")
    return _Call(
        identity if isinstance(identity, str) else "",
        name if isinstance(name, str) else "",
        function.get("arguments"),
    )


def _asked(message: AIMessage) -> set[str] | None:
    """Ids of the calls of an answer; None if it cannot be sent as it is."""
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
    if not all(one.id and _is_name(one.name) and isinstance(one.args, str) for one in texts):
        return None
    ids.update(one.id for one in texts)
    raw = len(texts) > len(invalid)
    if len(ids) < len(calls) or not calls or (raw and not _is_sent_raw(message)):
        return None
    return ids


def _is_sent_raw(message: AIMessage) -> bool:
    """Whether raw calls are sent as they are: beside others, they would not be sent at all."""
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
    """The conversation in order, and how often what was wrong with it."""
    wrong: Counter[str] = Counter()
    answers = {place: message for place, message in enumerate(messages) if isinstance(message, AIMessage)}
    calls = {place: found for place, message in answers.items() if (found := _calls(message))}
    results = _results(messages, calls)
    used = {result for found in results.values() for result in found}
    mended: list[BaseMessage] = []
    for place, message in enumerate(messages):
        if place in calls:
            said, own = _said(answers[place], calls[place], place)
            wrong["rewritten"] += said is not message
            wrong["missing"] += results[place].count(None)
            wrong["moved"] += sum(r is not None and not place < r <= place + len(own) for r in results[place])
            outcomes = [None if result is None else messages[result] for result in results[place]]
            mended += [said, *map(_result, own, cast("list[ToolMessage | None]", outcomes))]
        elif isinstance(message, ToolMessage):
            if place not in used:
                wrong["orphaned"] += 1
                mended.append(_told(message))
        elif place in answers and not _speaks(answers[place]):
            wrong["empty"] += 1
        elif place in answers and "tool_calls" in message.additional_kwargs:
            wrong["rewritten"] += 1
            mended.append(_rewritten(answers[place], []))
        else:
            mended.append(message)
    return mended, +wrong


def _results(messages: Sequence[BaseMessage], calls: Mapping[int, Sequence[_Call]]) -> dict[int, list[int | None]]:
    """Where the results are of the calls of every answer that has some."""
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


def _said(message: AIMessage, calls: Sequence[_Call], place: int) -> tuple[AIMessage, Sequence[_Call]]:
    """An answer and its calls as they can be sent."""
    if _asked(message) is not None:
        return message, calls
    calls = _named(calls, place)
    return _rewritten(message, calls), calls


def _result(call: _Call, result: ToolMessage | None) -> ToolMessage:
    """What came of a call."""
    if result is None:
        text = INTERRUPTED if call.error is None else f"{INVALID}{call.error[:ERROR_CHARACTERS]}"
        return ToolMessage(text, tool_call_id=call.id, name=call.name, status="error")
    return result if result.tool_call_id == call.id else result.model_copy(update={"tool_call_id": call.id})


def _named(calls: Sequence[_Call], place: int) -> list[_Call]:
    """The calls, each with an id of its own and a name that can be sent."""
    known, seen = {call.id for call in calls}, set[str]()
    found = []
    for number, call in enumerate(calls):
        identity = call.id
        if not identity or identity in seen:
            identity = f"call_{place}_{number}"
            while identity in known:
                identity += "_"
        seen.add(identity)
        known.add(identity)
        name = re.sub(r"[^a-zA-Z0-9_-]", "_", call.name)[:64] or "unknown"
        found.append(call._replace(id=identity, name=name))
    return found


def _rewritten(message: AIMessage, calls: Sequence[_Call]) -> AIMessage:
    """The answer with these calls and no others."""
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


def _told(result: ToolMessage) -> HumanMessage:
    """A result of no call, as text that people are not shown."""
    named = f" of {result.name}" if result.name else ""
    text = f"A result{named}, whose call is not in this conversation:\n{text_of(result.content)}"
    return HumanMessage(text, id=result.id, additional_kwargs={"hide_from_ui": True})
