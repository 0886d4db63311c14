"""Tools of `core.tools` as LangChain's."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool
from langchain_core.tools.base import TOOL_MESSAGE_BLOCK_TYPES
from langgraph.types import Command

from actors.agent.loop.arguments import Arguments
from actors.agent.loop.effects import tool_context
from actors.agent.messages.content import Content
from actors.agent.run.attempt import ToolResult
from core.errors import contained
from core.tools import Result, Tool

EXIT_CODE = "exit_code"
"""Metadata of a tool's message on its way to the recorder, which makes it a field of the outcome."""


def as_langchain(tool: Tool) -> BaseTool:
    """Returns the LangChain tool of a tool.

    Its arguments are the same without the context, which comes from `tool_context`.
    """
    if tool.schema is not None:
        return Described(name=tool.name, description=tool.description, args_schema=dict(tool.schema), tool=tool)
    arguments = Arguments.of(tool)
    return Described(
        name=tool.name, description=tool.description, args_schema=arguments.schema(), tool=tool, arguments=arguments
    )


class Described(BaseTool):
    """A tool whose arguments a schema describes. They may have any names, also those of LangChain's own arguments."""

    tool: Any
    arguments: Any = None
    """The `Arguments` of a declared tool. None: it gets what is sent."""

    def _to_args_and_kwargs(self, tool_input: Any, tool_call_id: str | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (tool_input,), {}

    def _run(self, arguments: Any) -> Any:
        raise NotImplementedError("tools are async")

    async def _arun(self, arguments: Any) -> Any:
        return await self.result(arguments)

    async def result(self, arguments: Any) -> ToolResult:
        """Makes the call whose context is `tool_context`. LangChain's callbacks do not hear of it."""
        context = tool_context.get()
        sent = arguments if isinstance(arguments, dict) else {}
        values, note = self.arguments.read(sent) if self.arguments is not None else (sent, "")
        with contained():
            result = await self.tool.function(context, **values)
        if isinstance(result, ToolMessage | Command):
            return result
        if isinstance(result, Result):
            return _command(replace(result, text=result.text + note), context.ref.id, self.name)
        content = result + note if isinstance(result, str) else _content(result)
        return ToolMessage(content, tool_call_id=context.ref.id, name=self.name)


def _content(value: Any) -> Content:
    """Returns a value as the content of a message: blocks as they are, anything else as JSON."""
    if isinstance(value, list) and all(
        isinstance(b, dict) and b.get("type") in TOOL_MESSAGE_BLOCK_TYPES for b in value
    ):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return str(value)


def _command(result: Result, call_id: str, name: str) -> Command[Any]:
    message = ToolMessage(
        result.text,
        tool_call_id=call_id,
        name=name,
        artifact=result.artifact,
        additional_kwargs=dict(result.fields),
        status="error" if result.failed else "success",
        response_metadata={} if result.exit_code is None else {EXIT_CODE: result.exit_code},
    )
    return Command(update={**result.update, "messages": [message]})
