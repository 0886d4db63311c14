"""Schemas of strangers: each is made such that any provider takes it, or refused with a reason."""

# ruff: noqa: E501  # a line is a schema
from __future__ import annotations

import json
import os
import re
from random import Random
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from langchain_core.utils.function_calling import convert_to_openai_tool

from actors.agent.loop.described import as_langchain
from core.errors import Invalid
from core.mcp.schemas import MOST_BYTES, plain_names, sound
from core.tools import Tool, ToolContext
from tests.support import hostile_mcp

COUNT = 10_000 if os.environ.get("SIKA_LONG") else 400
ANY: dict[str, Any] = {}


async def nothing(ctx: ToolContext, **_: Any) -> str:
    return ""


def shown(schema: Any) -> dict[str, Any]:
    """What a model's provider is sent of a tool with the schema."""
    tool = Tool(
        "t", "Does it.", nothing, "once", "mcp:s", False, {"properties": {}, **plain_names(sound(schema)[0])[0]}
    )
    function = convert_to_openai_tool(as_langchain(tool))["function"]
    return function["parameters"]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("schema", "parameters"),
    [
        (None, {"type": "object", "properties": {}}),
        ({"type": "object"}, {"type": "object", "properties": {}}),
        ({"properties": {"x": {"type": "string"}}}, {"type": "object", "properties": {"x": {"type": "string"}}}),
        ({"type": "object", "properties": {"x": {"$ref": "#/$defs/Missing"}}}, {"type": "object", "properties": {"x": ANY}}),
        (
            {"type": "object", "$defs": {"L": [{"type": "string"}]}, "properties": {"x": {"$ref": "#/$defs/L/0"}, "y": {"$ref": "#/$defs/L/1"}}},
            {"type": "object", "properties": {"x": {"type": "string"}, "y": ANY}},
        ),
        (
            {"anyOf": [{"properties": {"a": ANY, "b": ANY}, "required": ["a"]}, {"properties": {"a": ANY}, "required": ["a"]}]},
            {"type": "object", "properties": {"a": ANY, "b": ANY}, "required": ["a"]},
        ),
        (
            {"allOf": [{"properties": {"a": ANY}, "required": ["a"]}, {"properties": {"b": ANY}, "required": ["b"]}]},
            {"type": "object", "properties": {"a": ANY, "b": ANY}, "required": ["a", "b"]},
        ),
        (
            {"type": "object", "properties": {"x": {"type": "string"}, "required": ["x"]}},
            {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]},
        ),
        ({"type": "object", "properties": {"x": {"type": "array"}}}, {"type": "object", "properties": {"x": {"type": "array", "items": ANY}}}),
        ({"type": "object", "properties": {"x": True}}, {"type": "object", "properties": {"x": ANY}}),
        ({"type": "object", "properties": {"x": {"type": "any"}}}, {"type": "object", "properties": {"x": ANY}}),
        ({"type": "object", "properties": {"x": {"enum": []}}}, {"type": "object", "properties": {"x": ANY}}),
        ({"type": "object", "properties": [], "required": ["x"]}, {"type": "object", "properties": {}}),
        (
            {"type": "object", "$defs": {"N": {"type": "object", "properties": {"next": {"$ref": "#/$defs/N"}}}}, "properties": {"x": {"$ref": "#/$defs/N"}}},
            {"type": "object", "properties": {"x": {"type": "object", "properties": {"next": {"type": "object"}}}}},
        ),
        ({"type": "object", "properties": {"a b": {"type": "string"}}, "required": ["a b"]}, {"type": "object", "properties": {"a_b": {"type": "string"}}, "required": ["a_b"]}),
    ],
)  # fmt: skip
def test_what_providers_are_sent(schema: Any, parameters: Any) -> None:
    assert shown(schema) == parameters


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (True, "its schema is true instead of an object"),
        ([], "its schema is a list instead of an object"),
        ({"type": "string"}, "its arguments are of the type string instead of object"),
        ({"type": "object", "description": "x" * MOST_BYTES}, "its schema has "),
    ],
)
def test_what_is_refused(schema: Any, reason: str) -> None:
    with pytest.raises(Invalid, match=f"^{re.escape(reason)}"):
        sound(schema)


def test_names_of_arguments_find_their_way_back() -> None:
    schema = {"type": "object", "properties": {"a b": {}, "a_b": {}, "ü": {}}, "required": ["a b"]}
    plain, originals = plain_names(schema)
    assert {originals.get(name, name) for name in plain["properties"]} == {"a b", "a_b", "ü"}
    assert [originals[name] for name in plain["required"]] == ["a b"]


def test_any_schema_becomes_one_that_providers_take() -> None:
    """Draft 2020-12 is what they read; every array has items, nothing refers, and each name is plain."""
    for seed in range(COUNT):
        schema = hostile_mcp.schema(Random(seed))
        try:
            parameters = shown(schema)
        except Invalid:
            continue
        text = msgspec.json.encode(parameters).decode()
        assert "$ref" not in _keywords(parameters)
        jsonschema_rs.validator_for({"$schema": "https://json-schema.org/draft/2020-12/schema", **json.loads(text)})
        assert parameters["type"] == "object"
        assert not {"anyOf", "oneOf", "allOf", "enum", "not"} & parameters.keys()
        assert all(re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name) for name in parameters["properties"])


def _keywords(node: Any) -> set[str]:
    """The keywords of a schema, without names of arguments and values."""
    found = set[str]()
    if isinstance(node, dict):
        for key, part in node.items():
            found.add(key)
            if key in ("properties", "patternProperties", "dependentSchemas"):
                found |= set[str]().union(*map(_keywords, part.values()))
            elif key not in ("default", "const", "enum", "examples"):
                found |= _keywords(part)
    elif isinstance(node, list):
        found |= set[str]().union(*map(_keywords, node))
    return found


def good(random: Random, depth: int = 0) -> dict[str, Any]:
    """A schema as most servers write them."""
    kind = random.choice(("string", "integer", "number", "boolean", "array", "object")) if depth else "object"
    made: dict[str, Any] = {"type": kind, "description": "An argument."}
    match kind:
        case "object":
            names = random.sample("abcdefg", random.randrange(4)) if depth < 3 else []
            made["properties"] = {name: good(random, depth + 1) for name in names}
            if names:
                made["required"] = names[:1]
            made["additionalProperties"] = False
        case "array":
            made |= {"items": good(random, depth + 1) if depth < 3 else {}, "minItems": 1}
        case "string":
            made |= random.choice(
                ({"enum": ["x", "y"]}, {"maxLength": 9, "pattern": "^a"}, {"format": "date", "default": "2026-04-03"})
            )
        case "number" | "integer":
            made |= {"minimum": 0, "exclusiveMaximum": 10}
    return made if random.random() < 0.8 or not depth else {"anyOf": [made, {"type": "null"}]}


def test_a_good_schema_stays_as_it_is() -> None:
    for seed in range(200):
        schema = good(Random(seed))
        assert sound(schema) == (schema, "")


def test_references_that_double_end() -> None:
    schema, note = sound(hostile_mcp.bomb())
    assert len(msgspec.json.encode(schema)) <= MOST_BYTES
    assert "too deep" in note
