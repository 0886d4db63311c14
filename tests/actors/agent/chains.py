"""Chains for tests and benchmarks: every policy there is, with whatever it needs."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from langchain_core.tools import BaseTool, tool

from actors.agent.loop.chain import Policy, Ports, arranged, policies
from actors.agent.run.options import Options
from actors.agent.setup.plan import RunSetup
from adapters.guardrails import AllowList
from core.config.load import Config
from core.events import Json

EVERYTHING: Json = {
    "budgets": {name: {"tokens": 10**9} for name in ("run", "thread", "user_per_day", "day")},
    "token_budget": {"enabled": True, "max_tokens": 10**9},
    "summarization": {"enabled": True, "trigger": [{"type": "tokens", "value": 10**9}]},
    "approvals": [{"tool": "bash", "match": "forbidden"}],
    "tool_search": {"enabled": True},
}
"""A configuration with every policy on, and none that has a reason to do anything."""
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


class Pictures:
    """Every image is the same pixel."""

    async def load(self, user: str, thread: str, path: str) -> bytes:
        return PIXEL


@tool
def rarely(what: str) -> str:
    """A tool that has to be looked up."""
    return what


def plan(config: Config, *, everything: bool = True) -> RunSetup:
    """A setup with nothing special, or with everything that one can have."""
    return RunSetup(
        config=config,
        options=Options(),
        agent=None,
        model="m",
        candidates=("m",),
        tools=(),
        deferred=(),
        prompt="p",
        personal=False,
        todos=everything,
        vision=everything,
        blind=frozenset(),
    )


def everything(config: Config, deferred: Sequence[BaseTool] = (rarely,)) -> list[Policy]:
    ports = Ports(Pictures(), AllowList())
    return arranged(policies(plan(config), ports, deferred), config.middlewares)
