"""Arguments that a model sends as JSON text, for tools of every make."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.tools import BaseTool, StructuredTool
from pydantic import BaseModel

from actors.agent.loop.described import as_langchain
from actors.agent.loop.json_arguments import NOTHING, decoded, schema_of
from actors.agent.policies.interaction.todos import Todos
from core.tools import Tool, ToolContext, tool
from tests.actors.agent.test_arguments import BUILT_IN
from tests.support.model_server import ToolCall, Turn
from tests.support.workers import site

NESTED = {
    "type": "object",
    "properties": {
        "rows": {"type": "array", "items": {"$ref": "#/$defs/Row"}},
        "any": {},
        "either": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "name": {"type": ["string", "null"]},
        "on": {"type": "boolean"},
        "share": {"type": "number"},
        "count": {"type": "integer"},
        "labels": {"type": "object", "additionalProperties": {"type": "integer"}},
        "mixed": {"oneOf": [{"type": "array", "items": {"type": "boolean"}}, {"type": "object"}]},
        "text_or_list": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
        "kind": {"enum": ["[1]", "b"]},
        "needed": {"type": "integer"},
    },
    "required": ["needed"],
    "$defs": {
        "Row": {
            "type": "object",
            "properties": {"n": {"type": "integer"}, "s": {"type": "string"}, "below": {"$ref": "#/$defs/Row"}},
        }
    },
}


@pytest.mark.parametrize(
    ("sent", "values"),
    [
        ({"rows": '[{"n": 1}]'}, {"rows": [{"n": 1}]}),
        ({"rows": ['{"n": 1}', {"n": "2"}]}, {"rows": [{"n": 1}, {"n": 2}]}),
        ({"rows": '["{\\"n\\": \\"3\\"}"]'}, {"rows": [{"n": 3}]}),
        ({"rows": [{"below": '{"below": {"n": "4"}}'}]}, {"rows": [{"below": {"below": {"n": 4}}}]}),
        ({"rows": [{"s": "[1]"}]}, {"rows": [{"s": "[1]"}]}),
        ({"either": "5"}, {"either": 5}),
        ({"on": "true"}, {"on": True}),
        ({"share": " 0.5"}, {"share": 0.5}),
        ({"count": "6.0"}, {"count": 6}),
        ({"labels": '{"a": "7"}'}, {"labels": {"a": 7}}),
        ({"mixed": '["false"]'}, {"mixed": [False]}),
        ({"mixed": "{}"}, {"mixed": {}}),
        ({"either": ""}, {"either": None}),
        ({"either": " None "}, {"either": None}),
        ({"count": "", "on": "null", "rows": "undefined"}, {}),
        ({"rows": [{"n": "", "s": ""}]}, {"rows": [{"s": ""}]}),
    ],
)
def test_json_text_is_decoded_where_the_schema_has_no_text(sent: dict[str, Any], values: dict[str, Any]) -> None:
    assert decoded(sent, NESTED) == values


@pytest.mark.parametrize(
    "sent",
    [
        {"name": "[1]"},
        {"any": "[1]"},
        {"kind": "[1]"},
        {"text_or_list": '["a"]'},
        {"rows": "[1"},
        {"rows": '{"n": 1}'},
        {"rows": "rows"},
        {"on": "1"},
        {"count": "6.5"},
        {"count": "true"},
        {"share": "NaN"},
        {"labels": "[]"},
        {"unknown": "[1]"},
        {"rows": "[" * 100_000},
        {"rows": "[" * 400 + "]" * 400},
        {"labels": "{\ud800}"},
        {"name": ""},
        {"any": ""},
        {"kind": "none"},
        {"text_or_list": "null"},
        {"unknown": ""},
        {"needed": ""},
    ],
)
def test_everything_else_stays_as_it_was_sent(sent: dict[str, Any]) -> None:
    assert decoded(sent, NESTED) == sent


class Item(BaseModel):
    name: str
    tags: list[str]


async def _pack(items: list[Item], fragile: bool = False) -> str:
    return f"{[item.name for item in items]} {fragile}"


@tool(effect="pure")
async def remote(ctx: ToolContext, things: list[int]) -> str:
    """Take what a server's schema says."""
    return f"{things!r}"


FROM_SCHEMA = Tool(
    "from_schema",
    "Takes what its schema says, as the tool of an MCP server does.",
    remote.function,
    schema={"type": "object", "properties": {"things": {"type": "array", "items": {"type": "integer"}}}},
)
LANGCHAIN = StructuredTool.from_function(coroutine=_pack, name="pack", description="Pack.")
EVERY: list[BaseTool] = [*map(as_langchain, [*BUILT_IN, FROM_SCHEMA]), *Todos().tools, LANGCHAIN]


def _example(part: dict[str, Any], definitions: dict[str, Any]) -> Any:
    """Returns a value of a schema."""
    if reference := part.get("$ref"):
        return _example(definitions[reference.rpartition("/")[2]], definitions)
    if choices := part.get("anyOf"):
        return _example(choices[0], definitions)
    if "enum" in part:
        return part["enum"][0]
    match part.get("type"):
        case "array":
            return [_example(part.get("items", {}), definitions)]
        case "object":
            return {name: _example(each, definitions) for name, each in part.get("properties", {}).items()}
        case "integer" | "number":
            return 3
        case "boolean":
            return True
        case _:
            return "text"


@pytest.mark.parametrize("each", EVERY, ids=lambda each: each.name)
def test_every_tool_takes_its_arguments_as_text(each: BaseTool) -> None:
    schema = schema_of(each)
    definitions = schema.get("$defs", {})
    values = {name: _example(part, definitions) for name, part in schema["properties"].items()}
    sent = {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}
    assert decoded(sent, schema) == values
    assert decoded(values, schema) == values


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from([*NESTED["properties"], "odd"]), json_values | json_values.map(json.dumps)))
def test_decoding_ends_and_changes_no_text_that_is_allowed(sent: dict[str, Any]) -> None:
    values = decoded(sent, NESTED)
    assert {str(sent[name]).strip().lower() for name in sent.keys() - values.keys()} <= NOTHING
    assert all(values[name] == sent[name] for name in ("name", "any", "kind", "odd", "text_or_list") if name in sent)
    assert decoded(values, NESTED) == values


STEPS = [{"content": "look", "status": "completed"}]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (ToolCall("write_todos", {"todos": json.dumps(STEPS)}), "Updated todo list"),
        (ToolCall("from_schema", {"things": '["1", 2]'}), "[1, 2]"),
        (ToolCall("remote", {"things": "[1, 2]"}), "[1, 2]"),
        (ToolCall("remote", {"things": "1, 2"}), "Error: remote: `things`: input should be a valid list"),
        (ToolCall("write_todos", {"todos": "look around"}), "Error"),
    ],
    ids=lambda case: case.name if isinstance(case, ToolCall) else None,
)
async def test_a_run_makes_the_call_that_was_meant(tmp_path: Path, call: ToolCall, answer: str) -> None:
    turns = [Turn(tool_calls=(call,)), Turn(text="Done.")]
    async with site(tmp_path, {"m": turns}, tools=[remote, FROM_SCHEMA]) as (client, _):
        messages = await client.said(await client.thread(), "Go")
    [text] = [str(message["content"]) for message in messages if message["type"] == "tool"]
    assert text.startswith(answer)
