"""Schemas of tools of MCP servers, made such that any model's provider takes them, or refused with a reason.

A provider refuses a whole request for one schema that it does not understand, and so would every run with that tool in
it. What is wrong is left out of a schema where its arguments are still clear; the server judges the arguments anyhow.
References are put in their places, as providers and libraries know only some of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from core.control import sendable
from core.errors import Invalid
from core.events import Json

MOST_BYTES = 64 << 10
"""Limit of a schema, also with its references in their places."""
MOST_DEPTH = 24
"""Limit of schemas within schemas; what lies deeper may be anything."""
MOST_NODES = 5000
TYPES = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
"""Keywords with a list of schemas."""
_ONES = ("not", "contains", "propertyNames", "if", "then", "else")
"""Keywords with one schema."""
_MAPS = ("patternProperties", "dependentSchemas")
"""Keywords with schemas by name, beside `properties`."""
_COUNTS = (
    *("minLength", "maxLength", "minItems", "maxItems"),
    *("minProperties", "maxProperties", "minContains", "maxContains"),
)
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_TEXTS = ("title", "description", "format", "pattern", "$comment", "contentEncoding", "contentMediaType")
_FLAGS = ("uniqueItems", "readOnly", "writeOnly", "deprecated", "nullable")
_VALUES = ("default", "const")
_LITERALS = ("enum", "examples")
_KNOWN = frozenset(
    (*_LISTS, *_ONES, *_MAPS, *_COUNTS, *_BOUNDS, *_TEXTS, *_FLAGS, *_VALUES, *_LITERALS, "additionalProperties")
)
_TOP = ("anyOf", "oneOf", "allOf", "not", "enum", "if", "then", "else", "const", "items", "prefixItems")
"""Keywords that providers refuse at the top of a schema."""
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""Names of arguments that all providers take."""


def sound(schema: Any) -> tuple[Json, str]:
    """Returns the schema of a tool's arguments as any provider takes it, and what was left out of it, "" if nothing.
    Pure. Raises `Invalid` with the reason for what cannot be one.
    """
    if schema is None:
        return {"type": "object", "properties": {}}, ""
    if not isinstance(schema, Mapping):
        raise Invalid(f"its schema is {_word(schema)} instead of an object")
    if (size := _size(schema)) > MOST_BYTES:
        raise Invalid(f"its schema has {size} bytes, more than {MOST_BYTES}")
    walk = _Walk(schema)
    node = walk.schema(schema, 0, ())
    if node.get("type", "object") not in ("object", ["object"]) and "object" not in node.get("type", ()):
        raise Invalid(f"its arguments are of the type {str(node['type'])[:50]} instead of object")
    made = _object(node, walk)
    if (size := _size(made)) > MOST_BYTES:
        raise Invalid(f"its schema has {size} bytes with its references, more than {MOST_BYTES}")
    return made, "; ".join(walk.notes)


def plain_names(schema: Mapping[str, Any]) -> tuple[Json, Mapping[str, str]]:
    """Returns a sound schema with names of arguments that all providers take, and the server's names by those that were
    changed.
    """
    properties = schema.get("properties") or {}
    if all(_NAME.fullmatch(name) for name in properties):
        return dict(schema), {}
    names, originals = dict[str, str](), dict[str, str]()
    taken = {name for name in properties if _NAME.fullmatch(name)}
    for number, name in enumerate(properties):
        plain = name
        if not _NAME.fullmatch(name):
            plain = re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:50] or "_"
            plain = plain if plain not in taken else f"{plain}_{number}"
            originals[plain] = name
        taken.add(plain)
        names[name] = plain
    renamed = {names[name]: part for name, part in properties.items()}
    required = [names[name] for name in schema.get("required", ())]
    return {**schema, "properties": renamed, **({"required": required} if required else {})}, originals


def finite(value: Any, depth: int = 0) -> Any:
    """Returns JSON that can be written everywhere: numbers are finite and of 64 bits, characters are whole."""
    if depth > 100:
        return None
    match value:
        case bool() | None:
            return value
        case str():
            return sendable(value)
        case int():
            return value if -(1 << 63) <= value < 1 << 63 else str(value)
        case float():
            return value if math.isfinite(value) else str(value)
        case Mapping():
            return {finite(str(key)): finite(part, depth + 1) for key, part in value.items()}
        case list() | tuple():
            return [finite(part, depth + 1) for part in value]
    return str(value)


class _Walk:
    """One pass through a schema. `notes` say what was left out."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._nodes = 0
        self.notes: dict[str, None] = {}

    def schema(self, node: Any, depth: int, references: tuple[str, ...]) -> Json:
        self._nodes += 1
        if node is True or (isinstance(node, Mapping) and not node):
            return {}
        if not isinstance(node, Mapping):
            self._note(f"a schema that is {_word(node)}")
            return {}
        if depth > MOST_DEPTH or self._nodes > MOST_NODES:
            self._note("what lies too deep")
            return {}
        if (reference := node.get("$ref")) is not None:
            return self._referred(node, reference, depth, references)
        return dict(self._keywords(node, depth, references))

    def _referred(self, node: Mapping[str, Any], reference: Any, depth: int, references: tuple[str, ...]) -> Json:
        rest = self.schema({key: part for key, part in node.items() if key != "$ref"}, depth, references)
        if not isinstance(reference, str) or (target := self._target(reference)) is None:
            self._note(f"a reference that leads nowhere ({str(reference)[:100]})")
            return rest
        if reference in references:
            self._note(f"a schema within itself ({reference[:100]})")
            kind = self._type(target) if isinstance(target, Mapping) else None
            return {**({"type": kind} if kind else {}), **rest} if kind != "array" else {"type": kind, "items": {}}
        return {**self.schema(target, depth + 1, (*references, reference)), **rest}

    def _target(self, reference: str) -> Any:
        if reference == "#":
            return self._root
        if not reference.startswith("#/"):
            return None
        node: Any = self._root
        for word in reference[2:].split("/"):
            key = word.replace("~1", "/").replace("~0", "~").replace("%24", "$")
            if isinstance(node, Mapping):
                node = node.get(key)
            elif isinstance(node, list) and key.isdecimal() and len(key) < 6 and int(key) < len(node):
                node = node[int(key)]
            else:
                return None
        return node

    def _keywords(self, node: Mapping[str, Any], depth: int, references: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        """Yields the keywords that have a value of their type."""
        properties = self._properties(node, depth, references)
        kind = self._type(node)
        if kind:
            yield "type", kind
        for key, part in node.items():
            if key in _LISTS and isinstance(part, list) and part:
                yield key, [self.schema(one, depth + 1, references) for one in part]
            elif key in _ONES and isinstance(part, Mapping | bool):
                yield key, self.schema(part, depth + 1, references) if part is not False else {"not": {}}
            elif key in _MAPS and isinstance(part, Mapping):
                yield (
                    key,
                    {
                        finite(str(name)): self.schema(one, depth + 1, references)
                        for name, one in part.items()
                        if name != "$ref" and (key != "patternProperties" or _is_pattern(finite(str(name))))
                    },
                )
            elif key == "additionalProperties" and isinstance(part, Mapping | bool):
                yield key, part if isinstance(part, bool) else self.schema(part, depth + 1, references)
            elif self._is_plain(key, part):
                yield key, finite(part)
            elif key in _KNOWN:
                self._note(f"{key} that is {_word(part)}")
        if properties is not None:
            yield "properties", properties
            required = node.get(
                "required", node["properties"].get("required") if isinstance(node.get("properties"), Mapping) else None
            )
            names = (
                [name for name in required if isinstance(name, str) and name in properties]
                if isinstance(required, list)
                else []
            )
            if names:
                yield "required", list(dict.fromkeys(names))
        if kind == "array" or (isinstance(kind, list) and "array" in kind) or "items" in node:
            yield "items", self._items(node, depth, references)

    def _is_plain(self, key: str, part: Any) -> bool:
        number = isinstance(part, int | float) and not isinstance(part, bool) and abs(part) < 1 << 53
        return (
            (key in _COUNTS and number and part >= 0 and part == int(part))
            or (key in _BOUNDS and number and (key != "multipleOf" or part > 0))
            or (key in _TEXTS and isinstance(part, str) and (key != "pattern" or _is_pattern(finite(part))))
            or (key in _FLAGS and isinstance(part, bool))
            or (key in _LITERALS and isinstance(part, list) and bool(part) and not _refers(part))
            or (key in _VALUES and not _refers(part))
        )

    def _type(self, node: Mapping[str, Any]) -> Any:
        kind = node.get("type")
        if isinstance(kind, list):
            kinds = [one for one in dict.fromkeys(map(str, kind)) if one in TYPES]
            return kinds if len(kinds) > 1 else kinds[0] if kinds else None
        if kind is not None and (not isinstance(kind, str) or kind not in TYPES):
            self._note(f"the type {str(kind)[:50]}")
            return None
        return kind or ("object" if isinstance(node.get("properties"), Mapping) else None)

    def _properties(self, node: Mapping[str, Any], depth: int, references: tuple[str, ...]) -> Json | None:
        properties = node.get("properties")
        if not isinstance(properties, Mapping):
            if properties is not None:
                self._note(f"properties that are {_word(properties)}")
            return {} if node.get("type") == "object" else None
        made = Json()
        for name, part in properties.items():
            if isinstance(part, Mapping | bool) and name != "$ref":
                if part is not False:
                    made[finite(str(name))] = self.schema(part, depth + 1, references)
            else:
                self._note(f"the argument {str(name)[:50]}, which is {_word(part)}")
        return made

    def _items(self, node: Mapping[str, Any], depth: int, references: tuple[str, ...]) -> Json:
        items = node.get("items")
        if isinstance(items, list):
            return {"anyOf": [self.schema(one, depth + 1, references) for one in items]} if items else {}
        return self.schema(items, depth + 1, references) if isinstance(items, Mapping) else {}

    def _note(self, text: str) -> None:
        if len(self.notes) < 5:
            self.notes[finite(text)] = None


def _object(node: Json, walk: _Walk) -> Json:
    """Returns a schema whose top is an object with properties: alternatives at the top, which providers refuse, become
    one object with the arguments of all, of which those are required that are in each.
    """
    made = {key: part for key, part in node.items() if key not in _TOP}
    made |= {"type": "object", "properties": dict(node.get("properties") or {})}
    required = list(made.pop("required", ()))
    for key in ("allOf", "anyOf", "oneOf"):
        parts = [_object(part, walk) for part in node.get(key, ())]
        for part in parts:
            made["properties"] = {**part["properties"], **made["properties"]}
        always = [set(part.get("required", ())) for part in parts]
        common = set().union(*always) if key == "allOf" else set.intersection(*always) if always else set()
        required += sorted(common - set(required))
    if required:
        made["required"] = required
    return made


def _refers(value: Any) -> bool:
    """Tells whether a value has a key that libraries take for a reference wherever it is."""
    if isinstance(value, Mapping):
        return "$ref" in value or any(map(_refers, value.values()))
    return isinstance(value, list) and any(map(_refers, value))


def _is_pattern(text: str) -> bool:
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


def _size(value: Any) -> int:
    try:
        return len(msgspec.json.encode(finite(value)))
    except (RecursionError, ValueError, TypeError, OverflowError):
        return MOST_BYTES + 1


def _word(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return "a text"
        case int() | float():
            return "a number"
        case list() | tuple():
            return "a list"
    return "an object"
