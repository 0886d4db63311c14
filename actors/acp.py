"""Gives work to other agents (Agent Client Protocol): serves the tool `invoke_acp_agent`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Never

import msgspec

from core.actor import Actor, Progress
from core.config.load import ConfigSource
from core.config.mcp import McpServer
from core.errors import Invalid
from core.events import Json
from core.identity.seal import Seal
from core.log.store import EventLog
from core.mcp import servers
from core.ports.agents import OtherAgents, Permission, Report, Work


class Run(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="run"):
    """Advances a call. `decisions`: those about its requests for permission so far."""

    user: str
    thread: str
    run: str
    call_id: str
    agent: str
    prompt: str
    asks: bool = True
    decisions: Mapping[str, bool] = {}


class Kill(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="kill"):
    """Stops a call."""

    user: str
    thread: str
    run: str
    call_id: str


def passed(server: McpServer, name: str) -> Json:
    """Returns an MCP server as the protocol writes it."""
    if server.transport == "stdio":
        env = [{"name": key, "value": value.reveal()} for key, value in server.env.items()]
        return {"name": name, "command": server.command, "args": list(server.args), "env": env}
    headers = [{"name": key, "value": value.reveal()} for key, value in server.headers.items()]
    return {"name": name, "type": server.transport, "url": server.url, "headers": headers}


class Acp(Actor[Never]):
    name = "acp"

    def __init__(self, config: ConfigSource, agents: OtherAgents, log: EventLog, home: Path) -> None:
        self._config, self._agents = config, agents
        self._installed, self._seal = servers.aggregates(log), Seal(home)

    async def answer(self, request: Mapping[str, Any], progress: Progress) -> Permission | Report | None:
        command: Run | Kill = self.parse(request, Run | Kill)
        if isinstance(command, Kill):
            await self._agents.stop(command.user, command.thread, command.call_id)
            return None
        configured = self._config.current().acp_agents
        if command.agent not in configured:
            there = ", ".join(sorted(configured)) or "none"
            raise Invalid(f"agent: there is no {command.agent[:80]!r}; there are: {there}")
        if not command.prompt.strip():
            raise Invalid("prompt: is empty")
        work = Work(
            user=command.user,
            thread=command.thread,
            key=command.call_id,
            agent=command.agent,
            prompt=command.prompt,
            servers=await self._servers(),
            asks=command.asks,
        )
        return await self._agents.advance(work, configured[command.agent], command.decisions, progress)

    async def _servers(self) -> list[Json]:
        """Returns the enabled MCP servers that are complete."""
        state = await self._installed.load(servers.SCOPE)
        there = servers.in_force(self._config.current(), state, self._seal.open)
        return [passed(server, name) for name, server in there.items() if server.enabled and server.problem is None]
