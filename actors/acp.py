"""Gives work to other agents (Agent Client Protocol): serves the tool `invoke_acp_agent`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Never

import msgspec

from core.actor import Actor, Progress
from core.config.load import ConfigSource
from core.errors import Invalid
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


class Acp(Actor[Never]):
    name = "acp"

    def __init__(self, config: ConfigSource, agents: OtherAgents) -> None:
        self._config, self._agents = config, agents

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
            asks=command.asks,
        )
        return await self._agents.advance(work, configured[command.agent], command.decisions, progress)
