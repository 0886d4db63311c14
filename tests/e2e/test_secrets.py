"""A secret is planted wherever others could say it; then all that was stored, shown and sent is searched for it as
bytes. It is in the workspace's and the uploaded file, and nowhere else.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from actors.agent.model.answer import SECRET
from core.bus import embedded
from core.bus.connection import connect
from core.bus.endpoint import Endpoint
from core.config.redaction import _forms
from core.ports.guardrails import Decision, Reason, Request
from tests.e2e.servers import Browser, Server, browser, request, serving
from tests.support import warm
from tests.support.applications import running
from tests.support.model_server import Failure, ModelServer, Script, ToolCall, Turn
from tests.support.nats import eventually
from tests.support.workers import configure

pytestmark = pytest.mark.anyio

KEY = "sk-Kq7/vT2+zW9xY4mB8nD0"
PHRASE = "correct horse 9 battery staple"
VARIABLE = "dt_5f2c9e1b7a64"
PASSWORD = "pw-8f3kd92jq"
PLANTED = (KEY, PHRASE, VARIABLE, PASSWORD)
WORKSPACE = "/mnt/user-data/workspace"
SHELL = "echo $DEPLOY_TOKEN; printf user:%s $DEPLOY_TOKEN | base64; sleep 0.4; cat notes.txt; sleep 0.4; cat notes.txt"


def call(name: str, **args: Any) -> ToolCall:
    return ToolCall(name, {"description": "look", **args})


SCRIPTS: dict[str, Script | list[Turn]] = {
    "fails": [
        Turn(
            error=Failure(
                status=401,
                message=f"Incorrect API key provided: {KEY}. header was Bearer {KEY}",
                headers={"x-echo": KEY},
            )
        )
    ],
    "speaks": [Turn(text=f"I know {KEY} and {PHRASE} by heart", reasoning=f"They say {PHRASE} is secret")],
    "works": [
        Turn(text="Looking.", tool_calls=(call("bash", command=SHELL),)),
        Turn(tool_calls=(call("read_file", path=f"{WORKSPACE}/notes.txt"), call("read_file", path=f"/{KEY}"))),
        Turn(tool_calls=(call("read_file", path="/mnt/user-data/uploads/paper.txt"),)),
        Turn(tool_calls=(call("write_file", path=f"{WORKSPACE}/{VARIABLE}.txt", content=f"{PHRASE} {KEY}"),)),
        Turn(tool_calls=(call("bash", command=f"rm {KEY}*"), call("bash", command="cat $(cat notes.txt)"))),
        Turn(tool_calls=(call("ls", path="/denied"),)),
        Turn(text=f"The variable is {VARIABLE}."),
    ],
}


class Talkative:
    """A guardrail that gives away what it knows."""

    name = "talkative"

    def evaluate(self, request: Request) -> Decision:
        allowed = request.tool_input.get("path") != "/denied"
        return Decision(allowed, [Reason("policy", f"my own key is {KEY}")])


class Outside:
    """A receiver of webhooks and spans that answers with secrets."""

    def __init__(self) -> None:
        self.url = ""
        self.bodies: dict[str, list[bytes]] = {}

    async def take(self, request: web.Request) -> web.Response:
        self.bodies.setdefault(request.path, []).append(await request.read())
        if request.path == "/hook":
            return web.Response(status=410, text=f"no {KEY}", reason=f"Gone {KEY}", headers={"x-echo": KEY})
        return web.json_response({})


@asynccontextmanager
async def outside() -> AsyncIterator[Outside]:
    made, app = Outside(), web.Application(client_max_size=1 << 26)
    app.router.add_route("*", "/{path:.*}", made.take)
    async with running(app) as made.url:
        yield made


def settings(models: ModelServer, hooks: Outside, nats: embedded.Server) -> dict[str, Any]:
    proxied = {"name": "proxied", "model": f"m?api_key={KEY}", "base_url": f"http://me:{PASSWORD}@127.0.0.1:9/v1"}
    return {
        "more_models": [{**proxied, "api_key": KEY, "max_retries": 0}],
        "runs": {"lease_seconds": 2, "max_model_attempts": 1},
        "title": {"enabled": False},
        "memory": {"enabled": False},
        "sandbox": {"allow_host_bash": True, "environment": {"DEPLOY_TOKEN": VARIABLE}},
        "webhooks": {"secret": PHRASE, "allow_private": True},
        "guardrails": {"enabled": True, "provider": {"use": "tests.e2e.test_secrets:Talkative"}},
        "tracing": {"otlp": {"endpoint": hooks.url}},
        "nats": {"url": nats.url, "token": nats.token},
    }


async def stored(nats: embedded.Server) -> bytes:
    """All messages of all streams: on the disk they are compressed."""
    found = []
    async with connect(Endpoint(nats.url, token=nats.token), "test") as bus:
        js = bus.nc.jetstream()
        for stream in await js.streams_info():
            for seq in range(stream.state.first_seq, stream.state.last_seq + 1):
                try:
                    message = await js.get_msg(stream.config.name or "", seq)
                except Exception:
                    continue  # deleted
                found += [
                    message.data or b"",
                    json.dumps(message.headers or {}).encode(),
                    str(message.subject).encode(),
                ]
    return b"\n".join(found)


async def streamed(session: aiohttp.ClientSession, server: Server, thread: str, model: str, hook: str) -> list[bytes]:
    """What a client sees of a run as it comes, and its pieces joined."""
    url = f"{server.url}/api/threads/{thread}/runs/stream"
    body = request("Go", model, stream_mode=["values", "messages-tuple", "updates", "custom", "events"], webhook=hook)
    async with session.post(url, json=body) as response:
        raw = await response.read()
    parts: dict[str, str] = {}
    for line in raw.decode().splitlines():
        if not line.startswith("data: "):
            continue
        data = json.loads(line.removeprefix("data: "))
        if isinstance(data, list) and data and isinstance(data[0], dict):
            message = data[0]
            pieces = [c.get("args") or "" for c in message.get("tool_call_chunks") or ()]
            reasoning = message.get("additional_kwargs", {}).get("reasoning_content", "")
            for kind, text in (("text", str(message.get("content"))), ("args", "".join(pieces)), ("why", reasoning)):
                parts[f"{message.get('id')} {kind}"] = parts.get(f"{message.get('id')} {kind}", "") + text
        elif isinstance(data, dict) and "text" in data:  # progress of a tool
            parts["custom"] = parts.get("custom", "") + str(data["text"])
    return [raw, *(text.encode() for text in parts.values())]


async def command(server: Server, config: Path, *arguments: str) -> bytes:
    options = ("--home", str(server.home), "--config", str(config))
    done = await asyncio.to_thread(warm.run, "channels.cli", *arguments, *options)
    return (done.stdout + done.stderr).encode()


async def upload(session: aiohttp.ClientSession, server: Server, thread: str) -> bytes:
    form = aiohttp.FormData()
    form.add_field("files", f"The key is {KEY}.".encode(), filename="paper.txt")
    async with session.post(f"{server.url}/api/threads/{thread}/uploads", data=form) as response:
        assert response.status == 200, await response.text()
        return await response.read()


async def shown(session: aiohttp.ClientSession, server: Server, thread: str) -> dict[str, bytes]:
    """All that HTTP says of a thread afterwards."""
    found: dict[str, bytes] = {}
    for path in (
        "/state", "/history", "/log", "/runs", "/messages", "/uploads/list", "/approvals", "/token-usage", "",
    ):  # fmt: skip
        async with session.get(f"{server.url}/api/threads/{thread}{path}") as response:
            found[path] = await response.read()
    for path in ("/api/console/runs", "/api/models", "/metrics", "/api/no/such/" + KEY.replace("/", "%2F")):
        async with session.get(f"{server.url}{path}") as response:
            found[path] = await response.read()
    async with session.post(f"{server.url}/api/threads/search", json={"query": "key"}) as response:
        found["search"] = await response.read()
    return found


async def test_a_secret_that_others_say_is_found_nowhere(tmp_path: Path) -> None:
    seen: dict[str, bytes] = {}
    async with (
        ModelServer(SCRIPTS) as models,
        outside() as hooks,
        browser() as client,
        aiohttp.ClientSession() as session,
        embedded.start(tmp_path / "nats") as nats,
    ):
        config = configure(tmp_path / "config.yaml", models, **settings(models, hooks, nats))
        async with serving(tmp_path / "home", config) as server:
            threads = {}
            for model in ("fails", "proxied", "speaks", "works"):
                thread = threads[model] = await client.thread(server)
                if model == "works":
                    seen["upload"] = await upload(session, server, thread)
                    folder = server.home / f"users/default/threads/{thread}/user-data/workspace"
                    folder.mkdir(parents=True, exist_ok=True)
                    (folder / "notes.txt").write_text(f"{KEY}\n")
                parts = await streamed(session, server, thread, model, f"{hooks.url}/hook")
                seen |= {f"{model} stream {n}": part for n, part in enumerate(parts)}
                await delivered(client, server, thread)
                seen |= {f"{model} {path}": body for path, body in (await shown(session, server, thread)).items()}
            await check_runs(client, server, threads)
            seen["show"] = await command(server, config, "log", "show", threads["works"], "--json")
            seen["bus"] = await stored(nats)
            await server.terminate()
            seen["process log"] = server.said().encode()
        seen |= {f"sent to {path}": b"\n".join(bodies) for path, bodies in hooks.bodies.items()}
        assert any(path.startswith("sent to /v1/traces") for path in seen)
        secrets = {form for value in (*PLANTED, nats.token) for form in _forms(value)}
    mine = {"notes.txt", "paper.txt"}
    held = (path for folder in (tmp_path / "home", tmp_path / "nats") for path in folder.rglob("*"))
    own = ("secrets", "server.conf")
    files = [p for p in held if p.is_file() and p.name not in mine and not any(name in p.parts for name in own)]
    assert "views.db" in {path.name for path in files}
    seen |= {str(path.relative_to(tmp_path)): path.name.encode() + path.read_bytes() for path in files}
    leaks = {place for place, body in seen.items() for secret in secrets if secret.encode() in body}
    assert leaks == set()


async def delivered(client: Browser, server: Server, thread: str) -> None:
    async def probe() -> bool:
        return any(event["type"].startswith("webhook.") for event in await client.log(server, thread))

    await eventually(probe)


async def check_runs(client: Browser, server: Server, threads: dict[str, str]) -> None:
    """What was planted really came, and was replaced; what was recorded is what was executed."""
    messages = {model: await client.messages(server, thread) for model, thread in threads.items()}
    texts = {model: json.dumps(found) for model, found in messages.items()}
    assert "I know *** and *** by heart" in texts["speaks"]
    assert "my own key is ***" in texts["works"]
    assert "The variable is ***." in texts["works"]
    tools = [m["content"] for m in messages["works"] if m["type"] == "tool"]
    assert tools[0].startswith("***\ndXNlcjp***")
    assert tools[0].count("***") == 4
    assert "The key is ***." in tools
    assert tools.count(f"Error: {SECRET}") == 3
    workspace = server.home / f"users/default/threads/{threads['works']}/user-data/workspace"
    assert [path.name for path in workspace.iterdir() if not path.name.startswith(".")] == ["notes.txt"]
    log = await client.log(server, threads["fails"])
    assert any("Incorrect API key provided: ***" in json.dumps(event) for event in log)
