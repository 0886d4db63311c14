"""Handlers of the requests of `/mcp`, with one list of tools: those declared here and the agent's own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import mcp.types as protocol
from mcp.server.lowlevel import Server

from channels.http.protocols.mcp import agent_tools, conversations, files
from channels.http.protocols.mcp.registry import SERVER, TOOLS, call_tool, current_call, failure

assert conversations  # its import declares its tools


async def _list_tools(_: protocol.ListToolsRequest) -> protocol.ListToolsResult:
    own = [declared.listed for declared in TOOLS.values()]
    return protocol.ListToolsResult(
        tools=[*own, *map(agent_tools.described, agent_tools.offered(current_call()).values())]
    )


async def _call_tool(request: protocol.CallToolRequest) -> protocol.CallToolResult:
    name, arguments = request.params.name, request.params.arguments or {}
    if (listing := agent_tools.offered(current_call()).get(name)) is not None:
        return await agent_tools.call_tool(current_call(), listing, dict(arguments))
    if (declared := TOOLS.get(name)) is not None:
        return await call_tool(declared, arguments)
    return failure(f"Unknown tool: {name}")


async def _list_resources(_: protocol.ListResourcesRequest) -> protocol.ListResourcesResult:
    return protocol.ListResourcesResult(resources=[])  # those of a conversation are listed by `artifacts_list`


async def _list_templates(_: protocol.ListResourceTemplatesRequest) -> protocol.ListResourceTemplatesResult:
    return protocol.ListResourceTemplatesResult(resourceTemplates=[files.TEMPLATE])


async def _read_resource(request: protocol.ReadResourceRequest) -> protocol.ReadResourceResult:
    return await files.read_resource(request.params.uri)


def _on(request: type[Any], handler: Callable[[Any], Awaitable[Any]]) -> None:
    async def handle(message: Any) -> protocol.ServerResult:
        return protocol.ServerResult(await handler(message))

    SERVER.request_handlers[request] = handle


_on(protocol.ListToolsRequest, _list_tools)
_on(protocol.CallToolRequest, _call_tool)
_on(protocol.ListResourcesRequest, _list_resources)
_on(protocol.ListResourceTemplatesRequest, _list_templates)
_on(protocol.ReadResourceRequest, _read_resource)


def server() -> Server[Any, Any]:
    return SERVER
