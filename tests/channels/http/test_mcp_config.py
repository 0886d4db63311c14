"""The routes of MCP servers: masked secrets that survive a round trip, and what may not be set over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from actors.mcp.actor import listing_fact
from core.config.load import Config, parse
from core.events import Aggregate
from core.identity.seal import Seal
from core.mcp.servers import KIND, SCOPE, Directory, McpConfigured, McpFailed, aggregates, config_of
from core.ports.mcp_frames import Listing, Offer
from core.runtime.system import System
from tests.channels.http.conftest import Api, services_of

pytestmark = pytest.mark.anyio

FILES = """
mcp:
  servers:
    files: {command: npx, args: [server-files], env: {TOKEN: hush-hush, MODE: x-ray-mode}, trusted: true, note: kept}
    web:
      type: http
      url: https://example.com/mcp
      headers: {Authorization: Bearer hush-two}
      oauth: {token_url: "https://example.com/token", client_id: me, client_secret: hush-three}
"""


@pytest.fixture
def config() -> Any:
    parsed = parse(FILES)
    return lambda: parsed


@pytest.fixture
def services(system: System, config: Any, tmp_path: Path) -> Any:
    return services_of(system, config, tmp_path)


async def shown(api: Api) -> dict[str, Any]:
    return dict((await api.ask("GET", "/mcp/config"))["mcp_servers"])


async def put(api: Api, servers: Mapping[str, Any], status: int = 200) -> Any:
    return await api.ask("PUT", "/mcp/config", {"mcp_servers": servers}, status=status)


async def stored(system: System, config: Any, home: Path) -> Any:
    return await Directory(system.log, config, Seal(home)).all()


async def test_secrets_are_masked_and_survive(api: Api, system: System, config: Any, tmp_path: Path) -> None:
    servers = await shown(api)
    assert servers["files"]["env"] == {"TOKEN": "***", "MODE": "***"}
    assert servers["files"]["note"] == "kept"
    assert servers["web"]["headers"] == {"Authorization": "***"}
    assert (servers["web"]["oauth"]["client_secret"], servers["web"]["oauth"]["client_id"]) == (None, "me")
    remarks = ["mcp_servers.files.note: unknown key"]
    assert await put(api, servers) == {"mcp_servers": servers, "remarks": remarks}
    servers["web"]["description"] = "The web."
    servers["web"]["headers"]["X-More"] = "hush-four"
    await put(api, servers)
    await put(api, await shown(api))
    now = await stored(system, config, tmp_path)
    assert {key: value.reveal() for key, value in now["web"].headers.items()} == {
        "Authorization": "Bearer hush-two",
        "X-More": "hush-four",
    }
    assert now["web"].oauth.client_secret.reveal() == "hush-three"
    assert now["files"] == config().mcp.servers["files"]
    raw = b"".join([record.raw async for record in system.log.read(Aggregate(KIND, SCOPE))])
    assert b"hush" not in raw
    assert b'"note"' not in raw  # what is as in the files stays with the files
    servers = await shown(api)
    servers["web"]["oauth"]["client_secret"] = ""
    servers["web"]["oauth"]["enabled"] = False
    await put(api, servers)
    assert (await stored(system, config, tmp_path))["web"].oauth.client_secret is None


SECRET_WORDS = {
    "stdio": ["x", "--api-key", "CANARY-1", "--token=CANARY-2", "--dsn=postgres://u:CANARY-3@h/db", "--verbose"],
    "http": "https://h.example/mcp?api_key=CANARY-4&team=a",
}


async def test_secrets_in_arguments_and_addresses_survive(
    api: Api, system: System, config: Any, tmp_path: Path
) -> None:
    """Many servers take their key there. Nobody gets it back, and no fact has it."""
    await put(
        api,
        {"s": {"command": "uvx", "args": SECRET_WORDS["stdio"]}, "h": {"type": "http", "url": SECRET_WORDS["http"]}},
    )
    servers = await shown(api)
    assert servers["s"]["args"] == ["x", "--api-key", "***", "--token=***", "--dsn=postgres://***@h/db", "--verbose"]
    assert servers["h"]["url"] == "https://h.example/mcp?api_key=***&team=a"
    servers["s"]["args"].append("--more")
    servers["h"]["description"] = "Changed."
    assert "CANARY" not in str(await put(api, servers))
    now = await stored(system, config, tmp_path)
    assert list(now["s"].args) == [*SECRET_WORDS["stdio"], "--more"]
    assert now["h"].url == SECRET_WORDS["http"]
    assert b"CANARY" not in b"".join([record.raw async for record in system.log.read(Aggregate(KIND, SCOPE))])
    refused = {**servers, "new": {"command": "uvx", "args": ["x", "***"]}}
    assert "there is none" in (await put(api, refused, 400))["detail"]


async def test_secrets_in_arguments_of_earlier_facts_stay_usable(system: System, config: Any, tmp_path: Path) -> None:
    raw = {"command": "uvx", "args": SECRET_WORDS["stdio"], "env": {}, "url": SECRET_WORDS["http"]}
    await aggregates(system.log).decide(SCOPE, lambda _: [McpConfigured(servers={"s": raw})], actor="test")
    server = (await stored(system, config, tmp_path))["s"]
    assert (list(server.args), server.url) == (SECRET_WORDS["stdio"], SECRET_WORDS["http"])


async def test_servers_are_added_changed_and_removed(api: Api) -> None:
    servers = await shown(api)
    added = {"command": "uvx", "args": ["mcp-server-time"], "x_custom": {"a": 1}}
    await put(api, {"web": servers["web"], "time": added})
    now = await shown(api)
    assert sorted(now) == ["time", "web"]
    assert now["time"]["x_custom"] == {"a": 1}
    await api.ask("PATCH", "/mcp/config", {"mcp_servers": {"time": {"enabled": False}}})
    now = await shown(api)
    assert (now["time"]["enabled"], now["time"]["command"], now["web"]) == (False, "uvx", servers["web"])
    await api.ask("PATCH", "/mcp/config", {"mcp_servers": {"gone": {"enabled": False}}}, status=404)
    await put(api, {**now, "files": servers["files"] | {"env": {}, "trusted": False}})
    assert sorted(await shown(api)) == ["files", "time", "web"]


async def test_settings_without_effect_are_kept_and_named(api: Api) -> None:
    await put(api, {"time": {"command": "uvx", "args": ["mcp-server-time"]}})
    settings = {"tool_name_prefix": False, "routing": {"a": 1}, "description": "d", "zebra": 1}
    answer = await api.ask("PATCH", "/mcp/config", {"mcp_servers": {"time": settings}})
    assert answer["mcp_servers"]["time"].items() >= settings.items()
    assert [remark.split(": ")[:2] for remark in answer["remarks"]] == [
        ["mcp_servers.time.tool_name_prefix", "has no effect"],
        ["mcp_servers.time.routing", "has no effect; see mcp.direct_tools"],
        ["mcp_servers.time.zebra", "unknown key"],
    ]
    assert (await api.ask("GET", "/mcp/config"))["remarks"] == answer["remarks"]


REFUSED = [
    ({"command": "/bin/sh"}, "'sh' is none of npx, uvx"),
    ({"command": "python3"}, "is none of"),
    ({"command": "npx", "args": ["-c", "id"]}, "executes what is no package"),
    ({"command": "npx", "args": ["--call=id"]}, "executes what is no package"),
    ({"command": "uvx", "args": ["x"], "env": {"LD_PRELOAD": "/x.so"}}, "LD_PRELOAD"),
    ({"command": "npx", "args": ["x"], "env": {"node_options": "--require x"}}, "node_options"),
    ({"command": "uvx", "args": ["x"], "env": {"PATH": "/tmp"}}, "PATH"),
    ({"command": "uvx", "args": ["x"], "trusted": True}, "config.yaml"),
    ({"command": "uvx", "args": ["x"], "env": {"A": "***"}}, "there is none"),
    ({"type": "carrier-pigeon"}, "mcp_servers.new.type"),
    ({"command": "uvx", "tool_call_timeout": -1}, "mcp_servers.new.tool_call_timeout"),
]


async def test_what_may_not_be_set(api: Api, system: System) -> None:
    servers = await shown(api)
    for settings, reason in REFUSED:
        assert reason in (await put(api, {**servers, "new": settings}, 400))["detail"]
    changed = servers["files"] | {"args": ["other"]}
    assert "config.yaml" in (await put(api, {"files": changed}, 400))["detail"]
    assert not (await aggregates(system.log).load(SCOPE)).changed
    assert sorted(await shown(api)) == sorted(servers)


async def test_more_commands_may_be_allowed(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEER_FLOW_MCP_STDIO_COMMAND_ALLOWLIST", "mine, other")
    await put(api, {"new": {"command": "mine"}})
    assert sorted(await shown(api)) == ["new"]


async def test_what_servers_offer(api: Api, system: System, config: Any) -> None:
    servers: Config = config()
    digest = config_of(servers.mcp.servers["files"])
    listing = Listing(tools=[Offer(name="read.all", description="Reads.", read_only=True)])
    failed = McpFailed(server="web", config=config_of(servers.mcp.servers["web"]), reason="it is down")
    before = McpFailed(server="web", config="another", reason="it was down")
    await aggregates(system.log).decide(SCOPE, lambda _: [listing_fact("files", digest, listing), before], actor="mcp")
    _, web = (await api.ask("GET", "/mcp/servers"))["servers"]
    assert (web["state"], web["error"]) == ("untried", None), "a failure is that of its configuration"
    await aggregates(system.log).decide(SCOPE, lambda _: [failed], actor="mcp")
    files, web = (await api.ask("GET", "/mcp/servers"))["servers"]
    assert (files["state"], web["state"]) == ("fine", "failed")
    [tool] = files["tools"]
    assert (files["listed"], files["error"], tool["tool"], tool["effect"]) == (True, None, "read.all", "pure")
    assert tool["name"].startswith("files_read_all_")
    assert (web["listed"], web["error"], web["tools"]) == (False, "it is down", [])
    assert (await api.ask("POST", "/mcp/cache/reset"))["success"] is True
    files, web = (await api.ask("GET", "/mcp/servers"))["servers"]
    assert (files["listed"], files["tools"], web["error"]) == (False, [], None)
