"""A secret in each place that a secret can stand in; everybody says all, and all that leaves is read.

Each place has a secret of its own, so that a leak names it. None looks like a key: it is known by its place only.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from core.bus import embedded
from core.config.redaction import _forms
from tests.e2e.servers import Server, browser, request, serving
from tests.e2e.test_secrets import command, delivered, shown, stored
from tests.support.applications import running
from tests.support.model_server import Failure, ModelServer, Script, ToolCall, Turn
from tests.support.workers import configure

pytestmark = [pytest.mark.anyio, pytest.mark.long]

PLACES = (
    "key of a model",
    "address of a model",
    "parameter of a model",
    "header of a model",
    "variable of the server",
    "variable of the sandbox",
    "secret of webhooks",
    "header of a collector",
    "environment of an MCP server",
    "argument of an MCP server",
    "header of an MCP server",
    "address of an MCP server",
    "client secret of an MCP server",
    "access token of an MCP server",
    "MCP server that was entered",
    "secret of a skill",
    "token of a bot",
    "credential of the proxy",
    "environment of an ACP agent",
    "key of a search engine",
)
SECRETS = {place: f"zQ{number:02}w{hash_:08x}vLmK" for number, (place, hash_) in enumerate(
    (place, 0x9E3779B1 * (index + 7) % 2**32) for index, place in enumerate(PLACES)
)}  # fmt: skip
ALL = " ".join(SECRETS.values())
MARK = "zQ[0-9][0-9]w"
"""A regular expression of what all of them begin with."""
WORKSPACE = "/mnt/user-data/workspace"
REACH = (
    f"{{ env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline; grep -rhaosE '{MARK}[0-9a-f]+' "
    "/etc /home /root /tmp /run /var /opt /srv /mnt/skills; } > reach.bin 2>/dev/null; true"
)
ECHO = r"""
import json, os, sys
def send(**fields):
    print(json.dumps({"jsonrpc": "2.0", **fields}), flush=True)
told = " ".join([*sys.argv[1:], *os.environ.values()])
tool = {"name": "tell", "description": "Tells " + told, "inputSchema": {"type": "object", "description": told}}
print(told, file=sys.stderr, flush=True)
for line in sys.stdin:
    message = json.loads(line)
    match message.get("method"):
        case "initialize":
            version = message["params"]["protocolVersion"]
            about = {"name": "tells", "version": "1"}
            result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}
        case "tools/list":
            result = {"tools": [tool]}
        case "tools/call":
            result = {"content": [{"type": "text", "text": "I was started with " + told}]}
        case _:
            result = {}
    if "id" in message:
        send(id=message["id"], result=result)
"""


def call(name: str, **args: Any) -> ToolCall:
    return ToolCall(name, args)


SCRIPTS: dict[str, Script | list[Turn]] = {
    "fails": [Turn(error=Failure(status=400, message=f"refused: {ALL}", headers={"x-echo": ALL}))],
    "speaks": [Turn(text=f"I know {ALL}", reasoning=f"They are {ALL}")],
    "works": [
        Turn(text="Looking.", tool_calls=(call("bash", command=f"env; cat {WORKSPACE}/all.txt"),)),
        Turn(tool_calls=(call("bash", command=REACH), call("ls", path=WORKSPACE))),
        Turn(tool_calls=(call("tells_tell"), call("read_file", path=f"{WORKSPACE}/all.txt"))),
        Turn(tool_calls=(call("write_file", path=f"{WORKSPACE}/b.txt", content=ALL),)),
        Turn(tool_calls=(call("bash", command=f"cat /no/{SECRETS['token of a bot']}"),)),
        Turn(text="Done."),
    ],
}


class Elsewhere:
    """Servers of others: each repeats all secrets, in its answers and their headers."""

    async def take(self, request: web.Request) -> web.StreamResponse:
        await request.read()
        if request.path == "/token":
            token = SECRETS["access token of an MCP server"]
            return web.json_response({"access_token": token, "token_type": "Bearer", "expires_in": 3600, "note": ALL})
        return web.Response(status=410, text=f"no {ALL}", headers={"x-echo": ALL})


def settings(url: str, nats: embedded.Server) -> dict[str, Any]:
    s = SECRETS
    oauth = {
        "token_url": f"{url}/token",
        "client_id": "me",
        "client_secret": s["client secret of an MCP server"],
        "allow_private": True,
    }
    tells = {
        "command": sys.executable,
        "args": ["-c", ECHO, "--api-key", s["argument of an MCP server"]],
        "env": {"WHAT": s["environment of an MCP server"]},
        "trusted": True,
    }
    return {
        "more_models": [
            {
                "name": "away",
                "model": "m",
                "base_url": f"http://me:{s['address of a model']}@127.0.0.1:9/v1?api_key={s['parameter of a model']}",
                "api_key": s["key of a model"],
                "default_headers": {"X-Api-Key": s["header of a model"]},
                "max_retries": 0,
            }
        ],
        "runs": {"lease_seconds": 2, "max_model_attempts": 1},
        "sandbox": {
            "provider": "bubblewrap",
            "environment": {"DEPLOY_TOKEN": s["variable of the sandbox"]},
            "egress": {"credentials": [{"host": "example.org", "value": s["credential of the proxy"]}]},
        },
        "webhooks": {"secret": s["secret of webhooks"], "allow_private": True},
        "tracing": {"otlp": {"endpoint": url, "headers": {"X-Key": s["header of a collector"]}}},
        "mcp": {
            "servers": {
                "tells": tells,
                "far": {
                    "type": "http",
                    "url": f"{url}/mcp?api_key={s['address of an MCP server']}",
                    "headers": {"X-Key": s["header of an MCP server"]},
                },
                "farther": {"type": "http", "url": f"{url}/mcp", "oauth": oauth},
            }
        },
        "skills": {"secrets": {"weather": {"WEATHER_KEY": s["secret of a skill"]}}},
        "channels": {"telegram": {"enabled": False, "bot_token": s["token of a bot"]}},
        "acp_agents": {"coder": {"command": "true", "env": {"CODER": s["environment of an ACP agent"]}}},
        "tools": [
            {
                "name": "web_search",
                "use": "adapters.tools.web_search:web_search",
                "provider": "tavily",
                "api_key": s["key of a search engine"],
            }
        ],
        "nats": {"url": nats.url, "token": nats.token},
    }


async def run(session: aiohttp.ClientSession, server: Server, thread: str, model: str, hook: str) -> bytes:
    body = request(f"Go. {ALL}", model, stream_mode=["values", "messages-tuple", "updates", "custom"], webhook=hook)
    async with session.post(f"{server.url}/api/threads/{thread}/runs/stream", json=body) as response:
        return await response.read()


async def said(
    session: aiohttp.ClientSession, server: Server, path: str, method: str = "GET", body: Any = None
) -> bytes:
    async with session.request(method, f"{server.url}{path}", json=body) as response:
        return await response.read()


async def upload(session: aiohttp.ClientSession, server: Server, thread: str) -> bytes:
    form = aiohttp.FormData()
    name = f"{SECRETS['key of a model']}.txt"
    form.add_field("files", ALL.encode(), filename=name)
    async with session.post(f"{server.url}/api/threads/{thread}/uploads", data=form) as response:
        return await response.read()


COMMANDS = (
    ("threads",), ("mcp", "list"), ("mcp", "tools"), ("mcp", "test"), ("channels",), ("doctor",), ("plugins",),
    ("config", "check"), ("dlq", "list"), ("actors",), ("skill", "list"), ("log", "list"),
)  # fmt: skip
ASKED = (
    "/api/mcp/config", "/api/mcp/servers", "/api/channels/", "/api/channels/providers", "/api/models", "/ready",
    "/metrics", "/api/actors", "/api/plugins", "/api/skills", "/api/memory", "/api/console/usage", "/asyncapi.json",
)  # fmt: skip


async def test_a_planted_secret_comes_out_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_SERVICE_API_KEY", SECRETS["variable of the server"])
    seen: dict[str, bytes] = {}
    app = web.Application(client_max_size=1 << 26)
    app.router.add_route("*", "/{path:.*}", Elsewhere().take)
    async with (
        running(app) as url,
        ModelServer(SCRIPTS) as models,
        browser() as client,
        aiohttp.ClientSession() as session,
        embedded.start(tmp_path / "nats") as nats,
    ):
        config = configure(tmp_path / "config.yaml", models, **settings(url, nats))
        home = tmp_path / "home"
        _skill(home)
        async with serving(home, config) as server:
            entered = {"type": "http", "url": f"{url}/mcp", "headers": {"X": SECRETS["MCP server that was entered"]}}
            body = {"mcp_servers": {**json.loads(await said(session, server, "/api/mcp/config"))["mcp_servers"]}}
            body["mcp_servers"]["entered"] = entered
            seen["entering"] = await said(session, server, "/api/mcp/config", "PUT", body)
            assert b'"entered"' in seen["entering"]
            for name in ("tells", "farther"):
                seen[f"test of {name}"] = await said(session, server, f"/api/mcp/servers/{name}/test", "POST")
            threads = {}
            for model in ("fails", "away", "speaks", "works"):
                thread = threads[model] = await client.thread(server)
                if model == "works":
                    seen["upload"] = await upload(session, server, thread)
                    _write(server, thread)
                seen[f"{model} stream"] = await run(
                    session, server, thread, model, f"{url}/hook?token={SECRETS['key of a model']}"
                )
                await delivered(client, server, thread)
                seen |= {f"{model} {path}": text for path, text in (await shown(session, server, thread)).items()}
                for path in ("export", "export?redact=1", "events", "tree"):
                    seen[f"{model} log/{path}"] = await said(session, server, f"/api/threads/{thread}/log/{path}")
            seen |= {path: await said(session, server, path) for path in ASKED}
            of_thread: list[tuple[str, ...]] = [("log", word, threads["works"]) for word in ("show", "tree")]
            of_thread.append(("log", "export", threads["works"], "--out", str(tmp_path / "exported.jsonl")))
            for words in (*COMMANDS, *of_thread):
                seen[f"sika {' '.join(words)}"] = await command(server, config, *words)
            seen["bus"] = await stored(nats)
            reach = (_workspace(server, threads["works"]) / "reach.bin").read_bytes()
            tools = [m["content"] for m in await client.messages(server, threads["works"]) if m["type"] == "tool"]
            await server.terminate()
            seen["process log"] = server.said().encode()
        seen["requests to models"] = b"".join(json.dumps(record.body).encode() for record in models.requests)
    assert any("I was started with" in str(text) and "***" in str(text) for text in tools)
    assert b"PATH=" in reach
    seen |= _files(tmp_path)
    planted = {**SECRETS, "token of NATS": nats.token}
    forms = {place: {form.encode() for form in _forms(secret)} for place, secret in planted.items()}
    leaks = {
        (place, sink) for place, some in forms.items() for sink, text in seen.items() if any(f in text for f in some)
    }
    leaks |= {(place, "a command's reach") for place, some in forms.items() if any(form in reach for form in some)}
    leaks.discard(("variable of the sandbox", "a command's reach"))  # that is what it is for
    leaks -= {
        ("key of a model", sink) for sink in ("upload", "works /uploads/list")
    }  # the name that a person gave a file
    assert sorted(leaks) == []


def _skill(home: Path) -> None:
    folder = home / "skills" / "custom" / "weather"
    (folder / "scripts").mkdir(parents=True)
    (folder / "SKILL.md").write_text(
        "---\nname: weather\ndescription: Weather.\nsecrets: [WEATHER_KEY]\n---\nRun it.\n"
    )
    (folder / "scripts" / "now.sh").write_text("env\n")


def _workspace(server: Server, thread: str) -> Path:
    return server.home / f"users/default/threads/{thread}/user-data/workspace"


def _write(server: Server, thread: str) -> None:
    folder = _workspace(server, thread)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "all.txt").write_text(ALL)


def _files(folder: Path) -> dict[str, bytes]:
    """Returns all that was written, but for what a person put there."""
    mine = {"all.txt", "reach.bin", "config.yaml", f"{SECRETS['key of a model']}.txt"}
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in mine]
    own = ("secrets", "server.conf")
    return {str(path): path.read_bytes() for path in files if not any(name in path.parts for name in own)}
