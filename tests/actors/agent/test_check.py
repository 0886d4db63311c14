"""Policies of a configuration are checked before a run is held to them."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents.middleware import AgentMiddleware
from langchain_core.tools import StructuredTool

from actors.agent.check import check
from core.config.load import parse
from core.errors import Invalid
from core.tools import Tool, ToolContext, tool

HERE = __name__


@tool(group="bash")
async def bash(ctx: ToolContext, command: str) -> str:
    """Run a command."""
    return command


@tool()
async def odd(ctx: ToolContext, socket: Unknown) -> str:  # type: ignore[name-defined]  # noqa: F821
    """Takes what nobody can describe."""
    return str(socket)


class Shell(AgentMiddleware[Any, Any, Any]):
    """Brings a tool along."""

    name = "shell"

    def __init__(self, called: str = "run") -> None:
        super().__init__()
        self.tools = [StructuredTool.from_function(func=lambda: "", name=called, description="Run.")]


def problem(text: str, *tools: Tool) -> str | None:
    try:
        check(parse(text), [bash, *tools], None)
    except Invalid as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    "text",
    [
        "approvals: [{tool: bash}, {tool: 'b*'}, {tool: '*'}, {tool: write_todos}]",
        "approvals: [{tool: tool_search}]\ntool_search: {enabled: true}",
        f"approvals: [{{tool: run}}]\nmiddlewares: [{{use: '{HERE}:Shell', before: loop_detection}}]",
    ],
)
def test_rules_for_tools_that_there_are(text: str) -> None:
    assert problem(text) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "approvals: [{tool: bash}, {tool: bsh}]",
            "approvals[1].tool: bsh: there is no such tool; there are: bash, search_conversation, write_todos",
        ),
        (
            "approvals: [{tool: tool_search}]",
            "approvals[0].tool: tool_search: there is no such tool; there are: bash, search_conversation, write_todos",
        ),
        (
            f"middlewares: [{{use: '{HERE}:Shell', config: {{called: bash}}}}]",
            "middlewares: the tool bash of shell has the name of another tool",
        ),
        (
            f"middlewares: [{{use: '{HERE}:Shell', before: todos}}]",
            "middlewares[0]: there is no 'todos' to be placed at; there are: ",
        ),
    ],
    ids=["misspelt", "not-on", "taken", "not-in-every-run"],
)
def test_what_could_never_be_in_force_is_refused(text: str, expected: str) -> None:
    assert (problem(text) or "").startswith(expected)


def test_arguments_that_cannot_be_described_are_refused() -> None:
    assert problem("", odd) == "tool odd: its arguments cannot be described: name 'Unknown' is not defined"
