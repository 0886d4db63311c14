"""The values of a thread: how patches change them, and what a conversation's messages tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from core.events import Json, Message

REMOVE_ALL = "__remove_all__"
"""Id of a `remove` message that clears the list. Patches in the log have it, so it stays what LangGraph calls it."""
CLIENT_TOOL = "client_tool"
"""Key of an interrupt's value: the tool of the application that the model calls; `args` and `call_id` are beside it."""
CLARIFICATION = "clarification:"
"""Prefix of the ids of tool messages that are questions to the person."""


def unanswered(messages: Sequence[Message]) -> list[Json]:
    """Tool calls of the last assistant message that have no tool message yet."""
    answered = set()
    for message in reversed(messages):
        if message.get("type") == "tool":
            answered.add(str(message.get("tool_call_id")))
        elif message.get("type") == "ai":
            return [call for call in tool_calls(message) if call["id"] not in answered]
        else:
            return []
    return []


def tool_calls(message: Message) -> list[Json]:
    """The tool calls of a message, each with `id`, `name` and `args`. What has no id is no call, whoever wrote it."""
    return [
        call
        if isinstance(call.get("name"), str) and isinstance(call.get("args"), dict)
        else {**call, "name": str(call.get("name") or ""), "args": {}}
        for call in dicts(message.get("tool_calls"))
        if isinstance(call.get("id"), str)
    ]


def next_nodes(messages: Sequence[Message]) -> list[str]:
    """Returns what the agent would do next on these messages: `tools`, `model` or nothing."""
    if not messages:
        return []
    if unanswered(messages):
        return ["tools"]
    return [] if messages[-1].get("type") == "ai" or asks_person(messages) else ["model"]


def asks_person(messages: Sequence[Message]) -> bool:
    """Tells whether the agent has asked the person something, and waits for the next message (DeerFlow's
    middleware Clarification).
    """
    for message in reversed(messages):
        if message.get("type") != "tool":
            return False
        if str(message.get("id")).startswith(CLARIFICATION):
            return True
    return False


def with_prepared(input_: Json, prepared: Json) -> Json:
    """A run's input with what the server adds to it, or says differently: of messages by id, field by field."""
    if not prepared:
        return input_
    changes = {str(message.get("id")): message for message in dicts(prepared.get("messages"))}
    messages = [
        {**message, **changes[str(message.get("id"))]}
        if message.get("type") != "remove" and str(message.get("id")) in changes
        else message
        for message in dicts(input_.get("messages"))
    ]
    return {**input_, **prepared, "messages": messages}


def dicts(value: Any) -> list[Message]:
    """Returns the objects of a list, whatever else is in it; nothing if it is no list."""
    return [message for message in value if isinstance(message, dict)] if isinstance(value, list) else []


def entitle(values: Json, title: str) -> None:
    """Puts the thread's title into values that have none."""
    if title and not values.get("title"):
        values["title"] = title


def places_of(values: Json) -> dict[str, int]:
    """Returns the index of each message by id."""
    return {str(message.get("id")): place for place, message in enumerate(values.get("messages", ()))}


def reduce(values: Json, places: dict[str, int], patch: Mapping[str, Any]) -> None:
    """Apply one patch through the fields' reducers (DeerFlow's thread state)."""
    for name, new in patch.items():
        match name:
            case "messages":
                _add_messages(values.setdefault("messages", []), places, new)
            case "artifacts":
                shown = [path for path in new if isinstance(path, str)] if isinstance(new, list) else []
                values[name] = list(dict.fromkeys([*values.get(name, ()), *shown]))
            case "viewed_images":
                values[name] = {**values.get(name, {}), **new} if new and isinstance(new, dict) else {}
            case "todos" if new is None:
                pass
            case "promoted":
                values[name] = _promoted(values.get(name), new)
            case _:
                values[name] = new


def _promoted(old: Any, new: Any) -> Any:
    """Names of one catalogue add up; another catalogue begins anew."""
    if not (isinstance(old, dict) and isinstance(new, dict) and old.get("catalog_hash") == new.get("catalog_hash")):
        return new
    lists = [one["names"] for one in (old, new) if isinstance(one.get("names"), list)]
    names = [name for names in lists for name in names if isinstance(name, str)]
    return {**new, "names": sorted(set(names))}


def _add_messages(messages: list[Message], places: dict[str, int], new: Any) -> None:
    """LangGraph's `add_messages`: the same id replaces in place, `remove` deletes, everything else is appended.

    What is no message is passed over: whoever appends checks, and the fold is total.
    """
    for message in new if isinstance(new, list) else ():
        if not isinstance(message, dict) or not isinstance(message.get("type"), str):
            continue
        identity = str(message.get("id"))
        if message["type"] != "remove":
            if identity in places:
                messages[places[identity]] = message
            else:
                places[identity] = len(messages)
                messages.append(message)
            continue
        if identity == REMOVE_ALL:
            messages.clear()
        elif identity in places:
            del messages[places[identity]]
        places.clear()
        places.update((str(kept.get("id")), place) for place, kept in enumerate(messages))
