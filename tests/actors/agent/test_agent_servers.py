"""The MCP servers of a custom agent: its runs have the tools of those only."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from actors.agent.setup.plan import Planner
from adapters.models.configured import Silent
from core.config.load import ConfigSource
from core.config.mcp import McpServer
from core.events import Aggregate, RunRequested
from core.mcp.servers import KIND, SCOPE, McpFailed, McpListed, config_of
from core.mcp.tools import Catalogue
from core.runtime import system as core
from core.runtime.system import System
from core.user.agents import Definition, Rosters, aggregates
from tests.support.nats import Nats

pytestmark = pytest.mark.anyio

SERVERS: dict[str, dict[str, Any]] = {name: {"command": name} for name in ("git", "time", "down")}


@pytest.fixture
async def system(nats: Nats, tmp_path: Path) -> AsyncIterator[System]:
    endpoint = nats.endpoint(f"t{uuid.uuid4().hex[:10]}")
    async with core.start(endpoint, tmp_path / "views.db", lease_seconds=2, slots=4) as system:
        yield system


@pytest.mark.parametrize(
    ("allowed", "tools", "unavailable"),
    [
        (None, ["git_look", "time_look"], ["down"]),
        (["git"], ["git_look"], []),
        (["down"], [], ["down"]),
        ([], [], []),
    ],
    ids=str,
)
async def test_the_servers_of_an_agent(
    system: System, tmp_path: Path, allowed: list[str] | None, tools: list[str], unavailable: list[str]
) -> None:
    (tmp_path / "config.yaml").write_text(json.dumps({"mcp": {"servers": SERVERS}, "agents_api": {"enabled": True}}))
    config = {name: config_of(McpServer(**raw)) for name, raw in SERVERS.items()}
    offer: Any = {"name": "look", "description": "Look.", "schema": {"type": "object"}}
    listed = [McpListed(server=name, config=config[name], hash="h", tools=[offer]) for name in ("git", "time")]
    failed = McpFailed(server="down", config=config["down"], reason="gone", again_at="9999-01-01T00:00:00.000000+00:00")
    await system.log.append(Aggregate(KIND, SCOPE), [*listed, failed], expected=0, actor="test")
    await Rosters(system.log, actor="test").create("ada", Definition("nurse", mcp_servers=allowed))
    source = ConfigSource(tmp_path / "config.yaml")
    planner = Planner(source, Silent(), lambda _: [], aggregates(system.log), tmp_path, mcp=Catalogue(system.log))
    plan = await planner.plan(RunRequested(context={"agent_name": "nurse"}), "ada")
    assert [tool.name for tool in plan.tools if tool.name.endswith("_look")] == tools
    assert [name for name in SERVERS if f"{name}: gone" in plan.prompt] == unavailable
