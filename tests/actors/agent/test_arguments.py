"""The arguments of tools: what models are shown of them, and how forgivingly what they send is read."""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_function

import adapters.tools
from actors.agent.loop.arguments import Arguments
from actors.agent.loop.described import as_langchain
from actors.agent.policies.context.deferred_tools import DeferredTools
from actors.agent.policies.interaction.todos import Todos
from core.errors import Invalid
from core.tools import Tool, ToolContext, described, tool


@tool(effect="pure")
async def copy(
    ctx: ToolContext,
    path: str,
    lines: list[str],
    first: int | None = None,
    mode: Literal["text", "bytes"] = "text",
    deep: bool = False,
) -> str:
    """Copies lines.

    Second paragraph.

    Args:
        path: The absolute path
            of the file.
        lines: What to copy.
        first: Counted from 1.
    """
    return ""


def _built_in() -> list[Tool]:
    modules = (
        importlib.import_module(f"adapters.tools.{each.name}") for each in pkgutil.iter_modules(adapters.tools.__path__)
    )
    declared = (getattr(module, module.__name__.rpartition(".")[2]) for module in modules)
    return [each if isinstance(each, Tool) else each({}) for each in declared]


BUILT_IN = _built_in()


def test_what_the_model_sees() -> None:
    assert copy.description == "Copies lines.\n\nSecond paragraph."
    assert Arguments.of(copy).schema() == {
        "type": "object",
        "properties": {
            "path": {"description": "The absolute path of the file.", "type": "string"},
            "lines": {"description": "What to copy.", "type": "array", "items": {"type": "string"}},
            "first": {"description": "Counted from 1.", "type": "integer"},
            "mode": {"enum": ["text", "bytes"], "type": "string", "default": "text"},
            "deep": {"type": "boolean", "default": False},
        },
        "required": ["path", "lines"],
    }


@pytest.mark.parametrize("each", BUILT_IN, ids=lambda each: each.name)
def test_every_argument_is_described_where_models_look(each: Tool) -> None:
    schema = Arguments.of(each).schema()
    assert {name for name, part in schema["properties"].items() if not part.get("description")} == set()
    assert set(each.arguments) == set(schema["properties"])
    assert "Args:" not in each.description


EVERY = [*map(as_langchain, BUILT_IN), *Todos().tools, *DeferredTools([as_langchain(copy)]).tools]
"""The tools of `adapters/tools`, and those of policies."""
ALL_CHARACTERS, ONE_CHARACTERS = 22_000, 1_600
"""Bounds of the schemas, each as JSON. All together are some 5 000 tokens, of which a run has the half."""
LEAST_WORDS = 12


def _wire(each: BaseTool) -> dict[str, Any]:
    """Returns what a provider is sent of a tool."""
    return convert_to_openai_function(each)


@pytest.mark.parametrize("each", EVERY, ids=lambda each: each.name)
def test_every_tool_says_what_it_does_and_what_its_arguments_are(each: BaseTool) -> None:
    wire = _wire(each)
    assert len(each.description.split()) >= LEAST_WORDS
    assert list(_undescribed(wire["parameters"], wire["parameters"].get("$defs", {}))) == []
    assert len(json.dumps(wire)) <= ONE_CHARACTERS


def _undescribed(schema: dict[str, Any], definitions: dict[str, Any], at: str = "") -> Iterator[str]:
    """Yields the places of properties without a description, also in the items of lists."""
    for name, part in schema.get("properties", {}).items():
        if not part.get("description"):
            yield f"{at}{name}"
        items = part.get("items", {})
        yield from _undescribed(
            definitions.get(items.get("$ref", "").rpartition("/")[2], items), definitions, f"{name}."
        )


def test_the_schemas_of_all_tools_have_a_bound() -> None:
    """A model reads them with each step."""
    sizes = {each.name: len(json.dumps(_wire(each))) for each in EVERY}
    assert len(sizes) == len(EVERY) >= 28
    assert sum(sizes.values()) <= ALL_CHARACTERS, sizes


@pytest.mark.parametrize("each", BUILT_IN, ids=lambda each: each.name)
def test_no_tool_demands_a_label_for_its_call(each: Tool) -> None:
    """The description of an agent (`setup_agent`) is its content."""
    assert each.name == "setup_agent" or "description" not in Arguments.of(each).schema().get("required", ())


NEEDED = {"path": "/a", "lines": ["x"]}


@pytest.mark.parametrize(
    ("sent", "values"),
    [
        ({"first": "3"}, {"first": 3}),
        ({"first": 3.0}, {"first": 3}),
        ({"first": ""}, {}),
        ({"first": None}, {"first": None}),
        ({"mode": None}, {}),
        ({"mode": ""}, {}),
        ({"deep": "true"}, {"deep": True}),
        ({"deep": None}, {}),
        ({"description": "why"}, {}),
        ({"path": "[1]"}, {"path": "[1]"}),
    ],
)
def test_what_can_be_understood_is_taken(sent: dict[str, Any], values: dict[str, Any]) -> None:
    assert Arguments.of(copy).read(NEEDED | sent) == (NEEDED | values, "")


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        ({"lines": []}, "copy: `path` is missing (The absolute path of the file)."),
        ({}, "`path` is missing (The absolute path of the file); `lines` is missing (What to copy)."),
        (NEEDED | {"first": "three"}, "`first`: input should be a valid integer"),
        (NEEDED | {"first": "three"}, 'got "three"'),
        (NEEDED | {"mode": "octal"}, "`mode`: input should be 'text' or 'bytes', got \"octal\""),
        (NEEDED | {"lines": ["x", 1]}, "`lines`: 1: Input should be a valid string"),
        (NEEDED | {"path": None}, "`path`: input should be a valid string, got null"),
        ({"lines": [], "file_path": "/a"}, "(Unknown: file_path.)"),
    ],
)
def test_a_refusal_says_what_to_do(sent: dict[str, Any], text: str) -> None:
    with pytest.raises(Invalid) as refusal:
        Arguments.of(copy).read(sent)
    assert text in str(refusal.value)
    takes = (
        "The arguments of copy are: path (required), lines (required), first, mode, deep. Correct it and call again."
    )
    assert str(refusal.value).endswith(takes)


def test_unknown_arguments_are_ignored_with_a_word() -> None:
    values, note = Arguments.of(copy).read({**NEEDED, "verbose": True, "reason": "x"})
    assert values == NEEDED
    assert note.startswith("\n(Ignored unknown arguments: verbose, reason. The arguments of copy are: path (required)")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(["path", "lines", "first", "mode", "deep", "description", "odd"]), json_values))
def test_any_arguments_are_read_or_refused_in_words(sent: dict[str, Any]) -> None:
    """Values that are taken have the types of the function; each unknown name is told."""
    try:
        values, note = Arguments.of(copy).read(sent)
    except Invalid:
        return
    assert isinstance(values["path"], str)
    assert all(isinstance(line, str) for line in values["lines"])
    assert isinstance(values.get("first"), int | None)
    assert values.get("mode", "text") in ("text", "bytes")
    assert isinstance(values.get("deep", False), bool)
    assert ("odd" in note) == ("odd" in sent)
    assert json.loads(json.dumps(values)) == values


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [
        ("Says.", ("Says.", {})),
        ("Says.\n\nArgs:\n    a: One.\n    b (int): Two\n        lines.", ("Says.", {"a": "One.", "b": "Two lines."})),
        ("Says.\n\nArgs:\n    a: One.\n\nReturns:\n    b", ("Says.\n\nArgs:\n    a: One.\n\nReturns:\n    b", {})),
        ("Says.\n\nArgs:\nno entry", ("Says.\n\nArgs:\nno entry", {})),
        ("Args: are fine", ("Args: are fine", {})),
    ],
)
def test_a_docstring_is_divided(docstring: str, expected: tuple[str, dict[str, str]]) -> None:
    assert described(docstring) == expected
