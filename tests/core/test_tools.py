"""Tools are checked where they are declared: the reason, and the place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from core.errors import Invalid
from core.tools import Tool, ToolContext, tool


async def fine(ctx: ToolContext, text: str, count: int = 1) -> str:
    """Works."""
    return text * count


def plain(ctx: ToolContext, text: str) -> str:
    """Is not asynchronous."""
    return text


async def nothing() -> str:
    """Has no context."""
    return ""


async def no_context(text: str) -> str:
    """Has no context."""
    return text


async def bare(ctx: ToolContext, text) -> str:  # type: ignore[no-untyped-def]
    """Does not say what `text` is."""
    return str(text)


async def many(ctx: ToolContext, *texts: str) -> str:
    """Takes what no model can pass."""
    return "".join(texts)


async def silent(ctx: ToolContext) -> str:
    return ""


async def größe(ctx: ToolContext) -> str:
    """Has a name that providers refuse."""
    return ""


@pytest.mark.parametrize(
    ("function", "settings", "message"),
    [
        (silent, {"effect": "pur"}, "the docstring is its description and must not be empty"),
        (nothing, {"effect": "pur"}, "effect: one of pure, idempotent, once is expected, got 'pur'"),
        (plain, {}, "a tool is an async function; write `async def`"),
        (nothing, {}, "the first parameter is the context of the call; write `ctx: ToolContext`"),
        (no_context, {}, "the first parameter is the context of the call; write `ctx: ToolContext`"),
        (bare, {}, "text: without an annotation, a model does not know what to pass"),
        (many, {}, "*texts: 'str': models pass arguments by name"),
        (größe, {}, "the name goes to models, which take letters, digits, _ and -, at most 64"),
    ],
)
def test_a_tool_that_cannot_be_one_is_refused(function: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid) as caught:
        tool(**settings)(function)
    line = function.__code__.co_firstlineno
    assert str(caught.value) == f"test_tools.py:{line}: tool {function.__name__}: {message}"


def test_a_forgotten_bracket_is_explained() -> None:
    declare: Callable[[Any], Tool] = tool  # type: ignore[assignment]
    with pytest.raises(Invalid, match=r"^test_tools\.py:\d+: tool fine: write the brackets: @tool\(\) or"):
        declare(fine)
