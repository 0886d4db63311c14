"""What is wrong with the arguments of a tool of `/mcp`, in words that name the argument and what is expected of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from mcp.types import Tool
from pydantic import ValidationError

from core.events import Json

MOST_SHOWN = 80
"""Characters of a name or value that are shown."""
_TYPES: Mapping[str, str] = {
    "string": "a text",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
    "array": "a list",
    "object": "an object",
}


def problem_of(tool: Tool, sent: Json, error: ValidationError) -> str:
    """Returns what is wrong with the arguments that were sent to a tool, each named."""
    properties = tool.inputSchema["properties"]
    wrong = dict.fromkeys(str(each["loc"][0]) for each in error.errors(include_url=False))
    problems = [f"{_short(name)}: {tool.name} has no such argument" for name in wrong if name not in properties]
    problems += [_of_argument(name, properties[name], sent) for name in wrong if name in properties]
    return f"{tool.name}: {'; '.join(problems)}. Its arguments are: {', '.join(properties) or 'none'}."


def _of_argument(name: str, schema: Json, sent: Json) -> str:
    expected = " or ".join(_expected(schema))
    return f"{name}: expected {expected}, got {_got(sent[name])}" if name in sent else f"{name}: {expected} is missing"


def _expected(schema: Json) -> Iterator[str]:
    for kind in schema.get("anyOf", [schema]):
        if "enum" in kind:
            yield f"one of {', '.join(map(_short, kind['enum']))}"
        else:
            yield _TYPES.get(kind.get("type", ""), "a value") + _limits(kind)


def _limits(schema: Json) -> str:
    for least, most, unit in (("minLength", "maxLength", " characters"), ("minimum", "maximum", "")):
        low, high = schema.get(least), schema.get(most)
        words = " of" if unit else " from"
        if low is not None and high is not None:
            return f"{words} {low} to {high}{unit}"
        if high is not None:
            return f" of at most {high}{unit}"
        if low is not None:
            return f" of at least {low}{unit}"
    return ""


def _got(value: Any) -> str:
    match value:
        case list() | dict():
            return _TYPES["array" if isinstance(value, list) else "object"]
        case str() if len(value) > MOST_SHOWN or not value:
            return f"a text of {len(value)} characters"
        case str():
            return f"the text {_short(value)}"
    return _short(value)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"
