"""The shape of events: what happened, when and how long it took, without what was said.

Every text is replaced by `⟨text:number⟩`, equal texts by equal ones, but for those that are known to be no content:
ids, types, the names of tools, models and policies, and hashes. So a new field is replaced, not shown. Numbers and
truth values stay, and so do keys that could be names in a program.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from typing import Any

import msgspec

from core.events import ENVELOPE, Json, catalogue

KEPT = frozenset(
    (
        "action", "agent", "aggregate", "allowed", "approval", "as_node", "assistant", "at", "by", "call_id", "channel",
        "config", "created_at", "deadline", "digest", "error", "event", "evaluation", "failure", "id",
        "interrupt_after", "interrupt_before", "kept", "kind", "model", "name", "next", "not_before", "policy",
        "prompt", "reason", "release", "request", "root", "run", "setup", "setup_thread", "sha256", "sha256_after",
        "sha256_before", "source", "source_sha256", "stream_modes", "subagent", "thread", "tool", "traceparent", "user",
        "worker",
    )
)  # fmt: skip
"""Fields of events whose texts are no content. `user` and `worker` are private, and replaced as such."""
_CONTENT = frozenset(
    {
        ("file.converted", "name"), ("file.rejected", "name"), ("file.removed", "name"), ("file.uploaded", "name"),
        ("file.rejected", "reason"), ("goal.evaluated", "reason"), ("goal.paused", "reason"),
        ("goal.reached", "reason"), ("subagent.completed", "error"), ("subagent.started", "prompt"),
    }
)  # fmt: skip
"""Fields of the same names that are content."""
_MESSAGES = frozenset(("human", "ai", "tool", "system", "remove"))
_MESSAGE = frozenset(("type", "id", "name", "tool_call_id", "status"))
_INSIDE = {
    "tool_calls": frozenset(("name", "id", "type")),
    "response_metadata": frozenset(("model_name", "answered_by", "finish_reason", "model_provider")),
    "content": frozenset(("type",)),
    "messages": _MESSAGE,
    "todos": frozenset(("status",)),
    "context": frozenset(("model_name", "subagent_type")),
    "interrupts": frozenset(("id", "type")),
}
"""Keys whose texts are no content, by the key that they are below."""
_CALLER = frozenset(("thread", "caller", "run", "call", "subagent", "name"))
"""Keys of the metadata of a subagent: the logs that it works for."""
_FREE = frozenset(("args", "metadata", "update", "additional_kwargs"))
"""Keys below which everything is content, whatever it looks like."""
_NAME = re.compile(r"[A-Za-z_]\w{0,39}", re.ASCII)


class Shape:
    """The placeholders of one export."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}

    @property
    def count(self) -> int:
        """Returns the number of distinct texts."""
        return len(self._numbers)

    def of(self, event: Json) -> Json:
        """Returns an event without what was said in it."""
        types = _types(str(event["type"]))
        clean = {
            key: value if key in ENVELOPE else self._field(event, key, types.get(key)) for key, value in event.items()
        }
        clean.pop("call_texts", None)  # arguments as the model wrote them
        return clean

    def _field(self, event: Json, key: str, info: msgspec.inspect.Type | None) -> Any:
        value, content = event[key], (event["type"], key) in _CONTENT
        if info is None or _is_any(info):
            inside = _CALLER if key == "metadata" and event.get("kind") == "subagent" else _INSIDE.get(key, frozenset())
            return self._free(value, None if key in _FREE and not inside else inside)
        return self._typed(value, "" if content else key, info)

    def _typed(self, value: Any, key: str, info: msgspec.inspect.Type) -> Any:
        """Returns a value of a typed field: texts stay under keys that are kept, and where the type has a choice."""
        if isinstance(value, str):
            chosen = any(
                isinstance(part, msgspec.inspect.LiteralType) and value in part.values for part in _parts(info)
            )
            return value if chosen or key in KEPT else self._text(value)
        if isinstance(value, list):
            items = next(
                (part.item_type for part in _parts(info) if hasattr(part, "item_type")), msgspec.inspect.AnyType()
            )
            return [self._typed(item, key, items) for item in value]
        if isinstance(value, dict):
            for part in _parts(info):
                if isinstance(part, msgspec.inspect.StructType):
                    fields = {field.encode_name: field.type for field in part.fields}
                    return {
                        name: self._typed(item, name, fields[name]) for name, item in value.items() if name in fields
                    }
                if isinstance(part, msgspec.inspect.DictType) and not _is_any(part.value_type):
                    kept = key in KEPT
                    return {
                        name if kept else self._text(name): self._typed(item, key, part.value_type)
                        for name, item in value.items()
                    }
            return self._free(value, _INSIDE.get(key, frozenset()))
        return value

    def _free(self, value: Any, kept: frozenset[str] | None, key: str = "") -> Any:
        """Returns a value of any form: texts stay under keys that are kept. None: nothing stays below."""
        if isinstance(value, str):
            return value if kept and key in kept else self._text(value)
        if isinstance(value, list):
            return [self._free(item, kept, key) for item in value]
        if not isinstance(value, dict):
            return value
        here = _MESSAGE if kept is not None and value.get("type") in _MESSAGES else kept
        return {self._key(name): self._free(item, self._below(name, item, here), name) for name, item in value.items()}

    def _below(self, name: str, item: Any, here: frozenset[str] | None) -> frozenset[str] | None:
        if here is None or name in _FREE:
            return None
        return here if isinstance(item, str) else _INSIDE.get(name, frozenset())

    def _key(self, name: str) -> str:
        return name if _NAME.fullmatch(name) else self._text(name)

    def _text(self, text: str) -> str:
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:12]
        return f"⟨text:{self._numbers.setdefault(digest, len(self._numbers) + 1)}⟩" if text else text


@cache
def _types(event: str) -> dict[str, msgspec.inspect.Type]:
    """Returns the types of an event's fields; none for an unknown event."""
    cls = catalogue().get(event)
    info = msgspec.inspect.type_info(cls) if cls else None
    return (
        {field.encode_name: field.type for field in info.fields} if isinstance(info, msgspec.inspect.StructType) else {}
    )


def _parts(info: msgspec.inspect.Type) -> tuple[msgspec.inspect.Type, ...]:
    """Returns a type without its metadata, or its alternatives."""
    if isinstance(info, msgspec.inspect.Metadata):
        return _parts(info.type)
    return (
        tuple(p for part in info.types for p in _parts(part))
        if isinstance(info, msgspec.inspect.UnionType)
        else (info,)
    )


def _is_any(info: msgspec.inspect.Type) -> bool:
    """Tells whether a field may have any content: `Any`, or a JSON object."""
    return any(
        isinstance(part, msgspec.inspect.AnyType | msgspec.inspect.RawType)
        or (isinstance(part, msgspec.inspect.DictType) and isinstance(part.value_type, msgspec.inspect.AnyType))
        or (isinstance(part, msgspec.inspect.ListType) and _is_any(part.item_type))
        for part in _parts(info)
    )
