"""Arguments that a model sent as text where the tool's schema has a list, an object, a number or a boolean.

One rule for all tools, whoever made them: a text is decoded where the schema allows no text there, if it is JSON of a
type that the schema allows. A text that means nothing (`NOTHING`) is no value there: null if that is allowed, else the
argument is left out if it may be. Everything else stays as it was sent, for the tool to judge.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec
from langchain_core.tools import BaseTool
from langgraph.prebuilt.tool_node import ToolCallRequest

from core.events import Json
from core.nesting import VALUE_LEVELS, too_deep

Schema = Mapping[str, Any]
LEVELS = 32
"""Levels of a value in which texts are decoded: schemas may be recursive."""
ALTERNATIVES = 64
"""Alternatives of a schema that are looked at."""
NOTHING = frozenset({"", "null", "none", "undefined"})
"""Texts that models send for no value, in small letters."""
_REFERENCES = ("#/$defs/", "#/definitions/")


def decoded_request(request: ToolCallRequest) -> ToolCallRequest:
    """Returns the request with its arguments decoded by the schema of its tool."""
    call, tool = request.tool_call, request.tool
    if tool is None or not any(map(_may_hold_text, call["args"].values())):
        return request
    args = decoded(call["args"], schema_of(tool))
    return request if args == call["args"] else request.override(tool_call={**call, "args": args})


def schema_of(tool: BaseTool) -> Schema:
    schema: Any = tool.tool_call_schema
    return cast(Schema, schema if isinstance(schema, dict) else schema.model_json_schema())


def decoded(args: Json, schema: Schema) -> Json:
    """Returns the arguments of a call, decoded where the schema says so."""
    result: Json = _decoded(args, schema, {**schema.get("definitions", {}), **schema.get("$defs", {})}, LEVELS)
    return result


def _may_hold_text(value: Any) -> bool:
    """Tells whether a value may be, or hold, JSON text: most arguments are seen at once to be none."""
    if isinstance(value, str):
        return value.lstrip()[:1] in set("[{-0123456789tf") or _means_nothing(value)
    return isinstance(value, list | dict)


def _means_nothing(value: Any) -> bool:
    return isinstance(value, str) and value.strip().lower() in NOTHING


def _may_be_left_out(name: str, value: Any, schema: Any, alternatives: Sequence[Schema], definitions: Schema) -> bool:
    """Tells whether an argument is a text that means nothing, where the schema has neither text nor null."""
    if not _means_nothing(value) or any(name in each.get("required", ()) for each in alternatives):
        return False
    kinds = [_kinds(each) for each in _alternatives(schema, definitions)]
    return all(kinds) and not any({"string", "null"} & {*each} for each in kinds)


def _decoded(value: Any, schema: Any, definitions: Schema, levels: int) -> Any:
    if levels <= 0 or not isinstance(value, str | list | dict):
        return value
    alternatives = list(_alternatives(schema, definitions))
    if isinstance(value, str):
        value = _of_text(value, alternatives, levels)
    if isinstance(value, list):
        items = _parts(alternatives, "array", "items")
        return [_decoded(each, items, definitions, levels - 1) for each in value]
    if isinstance(value, dict):
        properties, others = (_parts(alternatives, "object", key) for key in ("properties", "additionalProperties"))
        return {
            name: _decoded(each, properties.get(name, others), definitions, levels - 1)
            for name, each in value.items()
            if not _may_be_left_out(name, each, properties.get(name, {}), alternatives, definitions)
        }
    return value


def _of_text(text: str, alternatives: Sequence[Schema], levels: int) -> Any:
    """Returns the value of a JSON text, or the text where that is allowed, or the JSON is not."""
    kinds = [_kinds(each) for each in alternatives]
    if not all(kinds) or any("string" in each for each in kinds):
        return text
    if _means_nothing(text):
        return None if any("null" in each for each in kinds) else text
    try:
        raw = text.encode()
        value = text if too_deep(raw, VALUE_LEVELS - LEVELS) else msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return text
    return value if any(_is_of(value, kind) for each in kinds for kind in each) else text


def _alternatives(schema: Any, definitions: Schema) -> Iterator[Schema]:
    """Yields the schemas of which a value fits one, without references."""
    open_, seen = [schema], 0
    while open_ and seen < ALTERNATIVES:
        each, seen = open_.pop(0), seen + 1
        if not isinstance(each, Mapping):
            yield {}
        elif isinstance(reference := each.get("$ref"), str):
            name = next((reference.removeprefix(p) for p in _REFERENCES if reference.startswith(p)), "")
            open_.append(definitions.get(name, {}))
        elif choices := [*each.get("anyOf", ()), *each.get("oneOf", ()), *each.get("allOf", ())]:
            open_ += choices
        else:
            yield each


def _kinds(schema: Schema) -> Sequence[str]:
    """Returns the types that a schema allows; none if it does not say."""
    kind = schema.get("type", ())
    return [kind] if isinstance(kind, str) else list(kind)


def _parts(alternatives: Sequence[Schema], kind: str, key: str) -> Any:
    """Returns a part of the first alternative of a kind that has it; an empty schema if none has."""
    parts = (each[key] for each in alternatives if kind in _kinds(each) and key in each)
    part: Any = next(parts, {})
    return part if isinstance(part, Mapping) else {}


def _is_of(value: Any, kind: str) -> bool:
    match kind:
        case "array":
            return isinstance(value, list)
        case "object":
            return isinstance(value, dict)
        case "boolean":
            return isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "integer":
            whole = isinstance(value, float) and value.is_integer()
            return whole or (isinstance(value, int) and not isinstance(value, bool))
        case _:
            return False
