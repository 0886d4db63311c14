"""Logins of people at MCP servers: begins them, takes people's returns, and gives access up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Never, assert_never

import msgspec
import structlog

from core.actor import Actor, Progress
from core.errors import SikaError
from core.mcp.login import Logins
from core.mcp.servers import Directory

log = structlog.get_logger("sika.mcp")


class Request(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", forbid_unknown_fields=True):
    user: str


class Begin(Request, frozen=True, kw_only=True, tag="begin"):
    """Asks for the address to which the person is sent. `register`: with a new client."""

    server: str
    redirect: str
    register: bool = False


class Finish(Request, frozen=True, kw_only=True, tag="finish"):
    """A person is back, with these parameters. The answer names the server."""

    query: Mapping[str, str]


class Disconnect(Request, frozen=True, kw_only=True, tag="disconnect"):
    """Gives access up. The answer is the reason if the authorisation server was not told."""

    server: str


class States(Request, frozen=True, kw_only=True, tag="states"):
    """Asks how it stands with the access to each server that may need some."""


class McpLogin(Actor[Never]):
    def __init__(self, logins: Logins, servers: Directory, call: Callable[..., Awaitable[Any]]) -> None:
        self._logins, self._servers, self._call = logins, servers, call

    async def answer(self, request: Mapping[str, Any], progress: Progress) -> Any:
        command: Begin | Finish | Disconnect | States = self.parse(request, Begin | Finish | Disconnect | States)
        match command:
            case Begin(server=server, user=user, redirect=redirect, register=register):
                return await self._logins.begin(server, user, redirect, register=register)
            case Finish(user=user, query=query):
                server = await self._logins.finish(user, query)
                await self._list(server, user)
                return server
            case Disconnect(server=server, user=user):
                return await self._logins.disconnect(server, user)
            case States(user=user):
                return await self._states(user)
        assert_never(command)

    async def _list(self, server: str, user: str) -> None:
        """Has the server's tools listed with the new account. A failure shows among the servers."""
        try:
            await self._call("mcp", {"op": "list", "servers": [server], "user": user, "again": True})
        except SikaError as error:
            log.warning("MCP server not listed after a login", server=server, reason=str(error))

    async def _states(self, user: str) -> list[Any]:
        states = []
        for name, server in (await self._servers.all()).items():
            if server.enabled and server.transport != "stdio":
                states.append(await self._logins.status(await self._servers.authorised(name, user), user))
        return [msgspec.to_builtins(status) for status in states]
