"""Events of every type, with something in each field and in the required ones only, to be put in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import msgspec.inspect as types

from core.catalogue import installed
from core.events import Event

CALL = {"name": "bash", "args": {"command": "ls -l", "description": "Look around"}}
ANYTHING = {
    "type": "approval", "content": "So it is.", "action_requests": [CALL], "tool_calls": [CALL], "status": "error",
    "messages": [{"type": "human", "content": "Do it"}], "usage_metadata": {"input_tokens": 3, "output_tokens": 4},
}  # fmt: skip
"""A value of a field without a type."""


def examples() -> Iterator[Event]:
    """Yields two events of each type."""
    for cls in installed().values():
        for full in (True, False):
            yield msgspec.convert(_object(types.type_info(cls), full), cls)


def _object(info: Any, full: bool) -> dict[str, Any]:
    tag = {info.tag_field: info.tag} if getattr(info, "tag_field", None) else {}
    fields = [field for field in info.fields if full or field.required]
    return tag | {field.encode_name: _value(field.type, full) for field in fields}


def _value(info: types.Type, full: bool) -> Any:
    match info:
        case types.StructType() | types.DataclassType() | types.TypedDictType():
            return _object(info, full)
        case types.UnionType():
            return _value(next(one for one in info.types if not isinstance(one, types.NoneType)), full)
        case types.Metadata():
            return _value(info.type, full)
        case types.LiteralType():
            return info.values[-1 if full else 0]
        case types.StrType():
            return "2026-11-28T10:00:00Z <a> {b}"
        case types.BoolType():
            return True
        case types.IntType():
            return info.ge if info.ge is not None and info.ge > 1 else 1
        case types.FloatType():
            return 1250.5
        case types.ListType() | types.VarTupleType() | types.SetType() | types.FrozenSetType():
            return [_value(info.item_type, full)]
        case types.TupleType():
            return [_value(item, full) for item in info.item_types]
        case types.DictType():
            return ANYTHING if isinstance(info.value_type, types.AnyType) else {"key": _value(info.value_type, full)}
        case types.RawType() | types.AnyType():
            return ANYTHING
    raise NotImplementedError(info)
