"""Messages as clients send them, brought into the form of the log: what LangChain accepts in the common cases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from channels.http.server.errors import BadRequest
from channels.http.server.parsing import check, decode
from core import reasons
from core.errors import Invalid
from core.events import Json, Message
from core.ids import uuid7
from core.thread.messages import RESERVED

_TYPES: Mapping[str, str] = {
    "user": "human",
    "human": "human",
    "assistant": "ai",
    "ai": "ai",
    "system": "system",
    "developer": "system",
    "tool": "tool",
    "remove": "remove",
}
_KEPT = ("name", "additional_kwargs", "response_metadata")
_KEPT_OF_TYPE: Mapping[str, tuple[str, ...]] = {
    "ai": ("tool_calls", "invalid_tool_calls", "usage_metadata"),
    "tool": ("tool_call_id", "artifact", "status"),
}


class _Promoted(msgspec.Struct):
    catalog_hash: str | None = None
    names: list[str] | None = None


_FIELDS: Mapping[str, Any] = {
    "promoted": _Promoted | None,
    "artifacts": list[str] | None,
    "viewed_images": dict[str, Any] | None,
}


def with_messages(values: Json, where: str) -> Json:
    """The values with their `messages` normalised. Raises `BadRequest` naming `<where>.messages[<index>]`, and
    `Invalid` naming another field with a reducer that cannot take what is in it.
    """
    check(values, _FIELDS, where)
    if values.get("messages") is None:
        return {key: value for key, value in values.items() if key != "messages"}
    return {**values, "messages": messages(values["messages"], f"{where}.messages")}


def messages(value: Any, where: str) -> list[Message]:
    """A list, a single message, or a string."""
    entries = value if isinstance(value, list) else [value]
    return [_message(entry, f"{where}[{index}]") for index, entry in enumerate(entries)]


def _message(entry: Any, where: str) -> Message:
    fields = _unwrapped(entry, where)
    kind = _type(fields, where)
    identity = fields.get("id")
    if identity is not None and not isinstance(identity, str):
        raise BadRequest(f"{where}.id: expected a string, got {reasons.kind_of(identity)}")
    message: Message = {"type": kind, "id": identity or uuid7()}
    if kind == "remove":
        if not identity:
            raise BadRequest(f"{where}: a remove message needs the id of what it removes")
        return message
    message["content"] = _content(fields.get("content"), kind, where)
    for field in (*_KEPT, *_KEPT_OF_TYPE.get(kind, ())):
        if fields.get(field):
            message[field] = fields[field]
    _check(message, where)
    if not RESERVED.isdisjoint(message.get("additional_kwargs", ())):
        message["additional_kwargs"] = {k: v for k, v in message["additional_kwargs"].items() if k not in RESERVED}
    return message


def _unwrapped(entry: Any, where: str) -> Json:
    """Strings, (role, content) pairs and the two serialised forms of LangChain become plain dumps."""
    match entry:
        case str():
            return {"type": "human", "content": entry}
        case [str(role), content]:
            return {"role": role, "content": content}
        case {"lc": _, "kwargs": dict(fields), "id": [*_, str(name)]}:
            return {**fields, "type": name}
        case {"type": str(kind), "data": dict(fields)} if "content" not in entry:
            return {**fields, "type": kind}
        case dict():
            return entry
    raise BadRequest(f"{where}: expected a message, got {reasons.kind_of(entry)}")


def _type(message: Json, where: str) -> str:
    named = message.get("role") or message.get("type")
    if not isinstance(named, str):
        raise BadRequest(f"{where}: a message needs a role or a type")
    kind = _TYPES.get(named) or _TYPES.get(named.removesuffix("Chunk").removesuffix("Message").lower())
    if kind is None:
        raise BadRequest(f"{where}: unknown role or type {named[:40]!r}")
    return kind


def _content(content: Any, kind: str, where: str) -> str | list[Any]:
    if content is None and kind == "ai":
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(block, str | dict) for block in content):
        return content
    raise BadRequest(f"{where}.content: expected a string or a list of blocks, got {reasons.kind_of(content)}")


def _check(message: Message, where: str) -> None:
    for field in ("additional_kwargs", "response_metadata", "usage_metadata"):
        if not isinstance(message.get(field, {}), dict):
            raise BadRequest(f"{where}.{field}: expected an object")
    if not isinstance(message.get("name", ""), str):
        raise BadRequest(f"{where}.name: expected a string")
    if "tool_calls" in message:
        message["tool_calls"] = _calls(message["tool_calls"], f"{where}.tool_calls")
    invalid = message.get("invalid_tool_calls", [])
    if not (isinstance(invalid, list) and all(isinstance(call, dict) for call in invalid)):
        raise BadRequest(f"{where}.invalid_tool_calls: expected a list of objects")
    if message["type"] == "tool" and not isinstance(message.get("tool_call_id"), str):
        raise BadRequest(f"{where}: a tool message needs a tool_call_id")


def _calls(calls: Any, where: str) -> list[Json]:
    if not isinstance(calls, list):
        raise BadRequest(f"{where}: expected a list")
    return [_call(call, f"{where}[{index}]") for index, call in enumerate(calls)]


def _call(call: Any, where: str) -> Json:
    """A tool call in LangChain's form, or in OpenAI's."""
    match call:
        case {"function": {"name": str(name), "arguments": str(text)}}:
            try:
                args: Any = decode(text.encode() or b"{}", Any)
            except (Invalid, UnicodeError):
                raise BadRequest(f"{where}.function.arguments: not JSON") from None
        case {"name": str(name)}:
            args = call.get("args") or {}
        case _:
            raise BadRequest(f"{where}: expected a tool call with a name")
    if not isinstance(args, dict):
        raise BadRequest(f"{where}: the arguments must be an object")
    return {"name": name, "args": args, "id": str(call.get("id") or uuid7())}
