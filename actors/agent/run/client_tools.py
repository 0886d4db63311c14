"""Tools of the application that asks for a run (AG-UI's front-end tools): the model calls them, the application acts.

A call pauses the run with an interrupt, whose value names the tool and its arguments. The answer, with which the
application goes on, is the call's result. Subagents have none: nobody could answer them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

import msgspec
from langgraph.types import interrupt

from core.thread.values import CLIENT_TOOL
from core.tools import Tool, ToolContext

MOST, MOST_BYTES = 64, 16 * 1024
"""Tools of one run, and bytes of the schema of one."""


class ClientTool(msgspec.Struct, frozen=True):
    name: str
    description: str = ""
    parameters: dict[str, Any] = {}


def parsed(value: Any) -> tuple[ClientTool, ...]:
    """Returns the tools of a request's `client_tools`; those that are none are left out."""
    tools = []
    for entry in value[:MOST] if isinstance(value, list) else ():
        try:
            tools.append(msgspec.convert(entry, ClientTool))
        except msgspec.ValidationError:
            continue
    return tuple(tools)


def as_tools(tools: Collection[ClientTool], known: Collection[str]) -> list[Tool]:
    """Returns them as tools of the agent, but for those with the name of one that it has. Raises `Invalid`."""
    schemas = ((tool, msgspec.json.encode(tool.parameters)) for tool in tools if tool.name not in known)
    return [_tool(tool.name, tool.description, schema) for tool, schema in schemas if len(schema) <= MOST_BYTES]


@lru_cache(256)
def _tool(name: str, description: str, schema: bytes) -> Tool:
    """Cached: tools are told apart by their identity."""

    async def call(ctx: ToolContext, **arguments: Any) -> str:
        answer = interrupt({CLIENT_TOOL: name, "args": arguments, "call_id": ctx.call_id})
        return answer if isinstance(answer, str) else msgspec.json.encode(answer).decode()

    parameters: Mapping[str, Any] = {"type": "object", "properties": {}, **msgspec.json.decode(schema)}
    return Tool(name, description or f"{name}, in the application of the user.", call, "idempotent", schema=parameters)
