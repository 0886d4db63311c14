"""A site with MCP servers: the small server by hand, in sessions as a server has them."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from actors.mcp.actor import Mcp
from adapters.mcp.confine import confine
from adapters.mcp.sessions import Sessions, opened
from adapters.sandboxes.host.sandbox import Host
from core.bus.peers import Peers
from core.config.load import ConfigSource
from core.config.mcp import Mcp as Settings
from core.identity.seal import Seal
from core.mcp.servers import SCOPE, Directory, Installed, aggregates
from core.ports.sandbox import SandboxProvider, SandboxSetup
from tests.support.model_server import ModelServer, Script, Turn
from tests.support.workers import Client, site

SERVER = str(Path(__file__).with_name("mcp_server.py"))


def server(*words: str, **settings: Any) -> dict[str, Any]:
    """The settings of the small server."""
    return {"command": sys.executable, "args": [SERVER, *words], "trusted": True, "tool_call_timeout": 20, **settings}


@asynccontextmanager
async def sessions_of(home: Path, provider: SandboxProvider | None = None) -> AsyncIterator[Sessions]:
    """The sessions of a process whose configuration lies in `home`."""
    source: list[ConfigSource] = []

    def settings() -> Any:
        if not (home / "config.yaml").exists():
            return Settings()
        if not source:
            source.append(ConfigSource(home / "config.yaml"))
        return source[0].current().mcp

    async with opened(home, settings, partial(confine, provider or Host(SandboxSetup(home=home)), home)) as sessions:
        yield sessions


@asynccontextmanager
async def mcp_site(
    home: Path, servers: Mapping[str, Any], scripts: Mapping[str, Script | Sequence[Turn]], **more: Any
) -> AsyncIterator[tuple[Client, ModelServer]]:
    """A site whose agent has the tools of MCP servers."""
    mcp = {"servers": servers, **more.pop("mcp", {})}
    async with sessions_of(home, more.pop("provider", None)) as sessions:
        actor = partial(_actor, sessions, home)
        async with site(home, scripts, others=[actor, *more.pop("others", ())], mcp=mcp, **more) as (client, models):
            yield client, models


def _actor(sessions: Sessions, home: Path, running: Any, source: ConfigSource) -> Mcp:
    return Mcp(
        running.log, sessions, Directory(running.log, source.current, Seal(home)), Peers(running.bus, pause=0.05)
    )


async def installed(client: Client) -> Installed:
    """Returns what the log knows of the servers."""
    return await aggregates(client.system.log).load(SCOPE)
