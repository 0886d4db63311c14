"""What is refused, and how: every error is `{"detail", "code"}` with the right status, and nothing is left behind."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import Any

import aiohttp
import anyio
import msgspec
import pytest

from channels.http.app import Services, serve
from channels.http.runs import inputs
from channels.http.server import guard
from channels.http.server.routes import MOUNTS
from core.config.settings import Http
from core.errors import Invalid, Refused
from core.events import Json
from core.runtime.readiness import Missing
from tests.channels.http.conftest import Api, Settings

pytestmark = pytest.mark.anyio

RUNS = "/threads/T/runs"
LARGE = b'{"metadata": {"a": "' + b"x" * 200_000 + b'"}}'


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "said"),
    [
        ("POST", RUNS, b'{"input": tru}', 422, "line 1, column 15"),
        ("POST", RUNS, b'{\n "input": {},\n "x" 1}', 422, "line 3, column 6"),
        ("POST", RUNS, b'{"input": {', 422, "truncated"),
        ("POST", RUNS, b'{"metadata": {"a": "\xff"}}', 422, "malformed JSON"),
        ("POST", RUNS, b'{"input":' + b"[" * 5000, 422, ""),
        ("POST", RUNS, b'{"x":' + b"[" * 5000 + b"]" * 5000 + b"}", 422, "deep"),
        ("POST", RUNS, b"[]", 422, "Expected object, got array"),
        ("POST", RUNS, {"input": 3}, 422, "$.input"),
        ("POST", RUNS, {"config": {"configurable": 3}}, 422, "config.configurable"),
        ("POST", RUNS, {"config": {"context": 3}}, 422, "config.context"),
        ("POST", RUNS, {"stream_mode": ["values", "smoke"]}, 422, "smoke"),
        ("POST", RUNS, {"stream_mode": "tools"}, 422, "stream_mode"),
        ("POST", RUNS, {"multitask_strategy": "fight"}, 422, "$.multitask_strategy"),
        ("POST", RUNS, {"on_disconnect": "x"}, 422, "$.on_disconnect"),
        ("POST", RUNS, {"after_seconds": -1}, 422, "after_seconds"),
        ("POST", RUNS, {"after_seconds": "soon"}, 422, "$.after_seconds"),
        ("POST", RUNS, {"checkpoint_id": "1f00-aa"}, 422, "checkpoint_id"),
        ("POST", RUNS, {"checkpoint": {"checkpoint_id": "5"}}, 422, "checkpoint"),
        ("POST", RUNS, {"assistant_id": "nobody"}, 422, "nobody"),
        ("POST", RUNS, {"assistant_id": "fe096781-5601-53d2-b2f6-0d3403f7e9ca"}, 404, "not found"),
        ("POST", RUNS, {"input": {"messages": ["a", {"role": "x", "content": ""}]}}, 400, "input.messages[1]"),
        ("POST", "/threads/unknown/runs", {}, 404, "Thread unknown not found"),
        ("POST", "/threads/unknown/runs/stream", {}, 404, "Thread unknown not found"),
        ("POST", "/threads/unknown/runs/wait", {"if_not_exists": "reject"}, 404, "Thread unknown not found"),
        ("GET", "/threads/unknown", None, 404, "Thread unknown not found"),
        ("PATCH", "/threads/unknown", {"metadata": {"a": 1}}, 404, "Thread unknown not found"),
        ("PATCH", "/threads/unknown", {}, 404, "Thread unknown not found"),
        ("DELETE", "/threads/unknown", None, 404, "Thread unknown not found"),
        ("GET", "/threads/unknown/state", None, 404, "Thread unknown not found"),
        ("POST", "/threads/unknown/state", {"values": {}}, 404, "Thread unknown not found"),
        ("POST", "/threads/unknown/history", {}, 404, "Thread unknown not found"),
        ("GET", "/threads/unknown/log", None, 404, "Thread unknown not found"),
        ("GET", "/threads/unknown/runs", None, 404, "Thread unknown not found"),
        ("GET", "/threads/unknown/runs/r/stream", None, 404, "Thread unknown not found"),
        ("GET", f"{RUNS}/unknown", None, 404, "Run unknown not found"),
        ("GET", f"{RUNS}/unknown/stream", None, 404, "Run unknown not found"),
        ("GET", f"{RUNS}/unknown/join", None, 404, "Run unknown not found"),
        ("GET", f"{RUNS}?limit=x", None, 422, "limit"),
        ("GET", f"{RUNS}?limit=0", None, 422, "limit"),
        ("GET", "/threads/T/log?after=x", None, 422, "after"),
        ("GET", "/threads/..%2f..%2fetc", None, 422, "thread_id"),
        ("GET", "/threads/a%00b", None, 422, "thread_id"),
        ("GET", "/threads/a.b/state", None, 422, "thread_id"),
        ("GET", "/threads/%3E", None, 422, "thread_id"),
        ("GET", f"{RUNS}/a%00b", None, 422, "run_id"),
        ("GET", f"{RUNS}/a.%2a", None, 422, "run_id"),
        ("POST", "/threads", {"thread_id": "../x"}, 422, "thread_id"),
        ("POST", "/threads", {"thread_id": "a\x00"}, 422, "thread_id"),
        ("POST", "/threads", {"thread_id": ""}, 422, "thread_id"),
        ("POST", "/threads", {"thread_id": "x" * 129}, 422, "thread_id"),
        ("POST", "/threads", {"thread_id": 7}, 422, "$.thread_id"),
        ("POST", "/threads", {"metadata": []}, 422, "$.metadata"),
        ("POST", "/threads", LARGE, 413, "100000 bytes"),
        ("POST", "/runs", {"config": {"configurable": {"thread_id": "../x"}}}, 422, "thread_id"),
        ("GET", "/nothing", None, 404, "no such route"),
        ("PUT", "/threads", {}, 405, "Method Not Allowed"),
    ],
)
async def test_table(api: Api, method: str, path: str, body: Any, status: int, said: str) -> None:
    await api.ask("POST", "/threads", {"thread_id": "T"})
    error = await api.ask(method, path, body, status=status)
    assert set(error) == {"detail", "code"}
    assert said in error["detail"]
    assert await api.ask("GET", RUNS) == []


async def test_nothing_internal_gets_out(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("channels.http.protocols.langgraph.threads.thread_object", lambda *_: 1 / 0)
    error = await api.ask("POST", "/threads", {}, status=500)
    assert error == {"detail": "Internal server error", "code": "internal"}


async def test_unavailable_says_when_to_try_again(api: Api, services: Services) -> None:
    await services.views.close()
    async with api.session.post(f"{api.url}/api/threads/count") as response:
        assert response.status == 503
        assert int(response.headers["Retry-After"]) > 0


async def test_plain_routes(api: Api) -> None:
    async with api.session.get(f"{api.url}/health") as response:
        health = await response.json()
    assert (health["status"], health["service"]) == ("healthy", "sika")
    for prefix in ("", "/api", "/api/langgraph"):
        async with api.session.get(f"{api.url}{prefix}/ok") as response:
            assert await response.json() == {"ok": True}
        async with api.session.get(f"{api.url}{prefix}/info") as response:
            assert "version" in await response.json()


@pytest.mark.parametrize(
    ("parts", "status", "word"),
    [((), 200, "ready"), (("configuration",), 200, "degraded"), (("configuration", "log"), 503, "unavailable")],
)
async def test_ready(services: Services, parts: tuple[str, ...], status: int, word: str) -> None:
    async def missing() -> list[Missing]:
        return [Missing(part, "broken") for part in parts]

    services = replace(services, missing=missing)
    async with serve(services, "127.0.0.1", 0) as port, aiohttp.ClientSession() as session:
        async with session.get(f"http://127.0.0.1:{port}/ready") as response:
            assert response.status == status
            broken = [{"part": part, "reason": "broken"} for part in parts]
            body = await response.json()
            load = body.pop("load")
            assert body == {"status": word, "missing": broken}
            assert (load["waiting"], load["bound"], load["change"]) == (0, None, None)
        async with session.get(f"http://127.0.0.1:{port}/health") as response:
            assert response.status == 200


@pytest.mark.parametrize("path", ["/health", "/openapi.json", "/docs", "/api/threads/{thread}", "/api/models"])
async def test_head_is_get_without_the_body(api: Api, path: str) -> None:
    url = api.url + path.format(thread=await api.thread())
    seen = []
    for method in ("GET", "HEAD"):
        async with api.session.request(method, url) as response:
            varying = ("Date", "X-Trace-Id")
            headers = {name: value for name, value in response.headers.items() if name not in varying}
            seen.append((response.status, headers))
            assert bool(await response.read()) == (method == "GET")
    assert seen[0] == seen[1]


async def test_streams_have_no_head(api: Api) -> None:
    """They might never end, and end a run."""
    thread = await api.thread()
    run = await api.run(thread)
    for path in (f"/runs/{run}/stream?action=interrupt", f"/runs/{run}/join", "/log", "/stream"):
        async with api.session.head(f"{api.url}/api/threads/{thread}{path}") as response:
            assert (response.status, "HEAD" in response.headers["Allow"]) == (405, False)
    assert (await api.ask("GET", f"/threads/{thread}/runs/{run}"))["status"] == "pending"


async def test_headers_of_every_answer(api: Api, config: Settings) -> None:
    config.http = Http(cors_origins=("https://ui.example",), heartbeat_seconds=0.2)
    thread = await api.thread()
    asked = [("GET", "/ok"), ("GET", "/nothing"), ("PUT", "/threads"), ("GET", f"/threads/{thread}/log?follow=1")]
    for given, shared in (
        ({}, False),
        ({"Referer": "https://evil.example/ui.example"}, False),
        ({"Referer": "https://ui.example.evil.example/"}, False),
        ({"Origin": "https://evil.example"}, False),
        ({"Origin": "https://ui.example"}, True),
        ({"Referer": "https://ui.example/chats"}, True),
        ({"Host": "evil.example"}, False),
    ):
        for method, path in asked:
            async with api.session.request(method, f"{api.url}/api{path}", headers=given) as response:
                found = response.headers
            assert (found["Server"], found["X-Content-Type-Options"]) == ("Sika", "nosniff")
            assert found.get("Cross-Origin-Resource-Policy") == (None if shared else "same-origin")
            assert len(found["X-Trace-Id"]) == 32


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"X-Trace-Id": "page-7:a.b_c"}, "page-7:a.b_c"),
        ({"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}, "a" * 32),
        ({"X-Trace-Id": "mine", "traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}, "mine"),
        ({"X-Trace-Id": "x" * 129}, None),
        ({"X-Trace-Id": "a b"}, None),
        ({"traceparent": "nonsense"}, None),
    ],
)
async def test_traces_are_named(api: Api, given: dict[str, str], expected: str | None) -> None:
    async with api.session.get(f"{api.url}/ok", headers=given) as response:
        found = response.headers["X-Trace-Id"]
    assert found == expected or (expected is None and len(found) == 32)


# ── who may knock ────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_what_is_refused_before_anybody_looks_at_it_is_answered(api: Api) -> None:
    async with api.session.get(f"{api.url}/ok", headers={"Expect": "a miracle", "X-Trace-Id": "t-1"}) as response:
        assert (response.status, response.headers["X-Trace-Id"]) == (417, "t-1")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:1", 200), ("127.0.0.1", 200), ("[::1]:80", 200), ("LOCALHOST", 200), ("ui.example", 200),
        ("evil.example", 403), ("127.0.0.1.evil.example", 403), ("localhost.evil.example:2026", 403),
        ("", 403), ("sika", 403), ("[::1].evil.example", 403), ("[::1]evil", 403), ("[::1", 403), ("[localhost]", 403),
        ("localhost:80:evil", 403), ("localhost:evil", 403), ("localhost:", 403), ("evil@localhost", 403),
    ],
)  # fmt: skip
async def test_hosts(api: Api, config: Settings, host: str, status: int) -> None:
    config.http = Http(cors_origins=("https://ui.example",))
    found = await api.ask("GET", "/ok", status=status, headers={"Host": host})
    assert status == 200 or found["code"] == "host_not_allowed"


@pytest.mark.parametrize(
    ("origin", "method", "status"),
    [
        ("https://ui.example", "POST", 200),
        ("https://ui.example", "GET", 405),
        ("same", "POST", 200),
        ("https://evil.example", "POST", 403),
        ("https://ui.example.evil.example", "POST", 403),
        ("null", "POST", 403),
        ("https://evil.example", "GET", 405),
        ("https://evil.example", "DELETE", 403),
    ],
)
async def test_origins(api: Api, config: Settings, origin: str, method: str, status: int) -> None:
    config.http = Http(cors_origins=("https://ui.example",))
    origin = api.url if origin == "same" else origin
    async with api.session.request(method, f"{api.url}/api/threads", headers={"Origin": origin}) as response:
        assert response.status == status
        allowed = response.headers.get("Access-Control-Allow-Origin")
        exposed = response.headers.get("Access-Control-Expose-Headers", "")
    assert allowed == ("https://ui.example" if origin == "https://ui.example" else None)
    assert ("Content-Location" in exposed) == bool(allowed)


@pytest.mark.parametrize(
    ("origin", "forwarded", "status"),
    [
        ("http://localhost:3000", "localhost:3000", 200),
        ("https://localhost", "localhost", 200),
        ("https://ui.example", "ui.example", 200),
        ("http://localhost:3000", None, 403),
        ("http://localhost:3000", "localhost:3001", 403),
        ("http://evil.example", "localhost:3000", 403),
        ("http://evil.example", "evil.example", 403),
        ("http://evil.example:3000", "evil.example:3000", 403),
        ("http://localhost.evil.example", "localhost.evil.example", 403),
        ("null", "null", 403),
    ],
)
async def test_pages_behind_a_web_server_of_this_machine(
    api: Api, config: Settings, origin: str, forwarded: str | None, status: int
) -> None:
    """Next.js passes `/api` on with our `Host` and its own in `X-Forwarded-Host`. Names that somebody else can own are
    not believed: such a name may have been made to lead to that web server.
    """
    config.http = Http(public_url="https://ui.example")
    headers = {"Origin": origin, **({"X-Forwarded-Host": forwarded} if forwarded else {})}
    async with api.session.post(f"{api.url}/api/threads", headers=headers) as response:
        assert response.status == status


async def test_another_site_cannot_say_that_its_pages_were_passed_on(api: Api) -> None:
    """A header of one's own needs a preflight, which is refused, whatever it brings itself."""
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-forwarded-host"}
    for origin in ("http://evil.example", "http://localhost:3000"):
        for brought in ({}, {"X-Forwarded-Host": origin.partition("://")[2]}):
            headers = {"Origin": origin, **asks, **brought}
            async with api.session.options(f"{api.url}/api/threads", headers=headers) as response:
                assert response.status == 403
                assert "Access-Control-Allow-Headers" not in response.headers


async def test_preflight_and_streams_have_cors_headers(api: Api, config: Settings) -> None:
    config.http = Http(cors_origins=("https://ui.example",))
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type,x-api-key"}
    for origin, status in (("https://ui.example", 204), ("https://evil.example", 403)):
        async with api.session.options(f"{api.url}/api/threads", headers={"Origin": origin, **asks}) as response:
            assert response.status == status
            if status == 204:
                assert response.headers["Access-Control-Allow-Headers"] == "content-type,x-api-key"
    thread = await api.thread()
    async with api.stream("POST", f"/threads/{thread}/runs/stream", {}, Origin="https://ui.example") as stream:
        assert stream.response.headers["Access-Control-Allow-Origin"] == "https://ui.example"
        await stream.until("metadata")


async def test_addresses(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Invalid, match="no authentication"):
        async with serve(services, "0.0.0.0", 0):
            pass
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(Refused, match=rf"port {port} is in use.*--port"):
            async with serve(services, "127.0.0.1", port):
                pass
    monkeypatch.setenv("SIKA_TRUSTED_NETWORK", "1")
    with pytest.raises(Invalid, match="cannot listen"):
        async with serve(services, "nowhere.invalid", 0):
            pass
    async with serve(services, "0.0.0.0", 0) as port, aiohttp.ClientSession() as session:
        for host, status in (("sika:2026", 200), ("10.0.0.7", 200), ("evil.example", 403)):
            async with session.get(f"http://127.0.0.1:{port}/ok", headers={"Host": host}) as response:
                assert response.status == status


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("x.example", False)],
)
async def test_loopback(host: str, expected: bool) -> None:
    assert guard.is_loopback(host) == expected


# ── messages as clients send them ────────────────────────────────────────────────────────────────────────────────────

TOOL_CALL = {"name": "f", "args": {"a": 1}, "id": "c"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("hi", {"type": "human", "content": "hi"}),
        (["user", "hi"], {"type": "human", "content": "hi"}),
        ({"role": "assistant", "content": "x"}, {"type": "ai", "content": "x"}),
        ({"type": "human", "content": [{"type": "text", "text": "x"}], "id": "1"}, {"type": "human", "id": "1"}),
        ({"type": "HumanMessage", "content": "x"}, {"type": "human"}),
        ({"type": "AIMessageChunk", "content": "x"}, {"type": "ai"}),
        ({"role": "developer", "content": "x"}, {"type": "system"}),
        ({"type": "human", "content": "x", "additional_kwargs": {"files": [1]}, "name": "n"}, {"name": "n"}),
        ({"type": "human", "data": {"content": "x", "id": "7"}}, {"id": "7", "content": "x"}),
        ({"lc": 1, "type": "constructor", "id": ["a", "HumanMessage"], "kwargs": {"content": "x"}}, {"type": "human"}),
        ({"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]}, {"content": "", "tool_calls": [TOOL_CALL]}),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": '{"a":1}'}}]},
            {"tool_calls": [TOOL_CALL]},
        ),
        ({"role": "tool", "content": "x", "tool_call_id": "c", "status": "error"}, {"status": "error"}),
        ({"type": "remove", "id": "1"}, {"type": "remove", "id": "1"}),
    ],
)
async def test_messages(given: Any, expected: Json) -> None:
    [message] = inputs.messages([given], "m")
    assert {key: message[key] for key in expected} == expected
    assert message["id"]


@pytest.mark.parametrize(
    "given",
    [
        3, None, {}, {"content": "x"}, {"role": "user"}, {"role": "user", "content": 3},
        {"role": "king", "content": ""},
        {"role": "user", "content": [3]}, {"role": "user", "content": "x", "id": 3}, {"type": "remove"}, ["user"],
        ["a", "b", "c"],
        {"role": "tool", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [{"args": {}}]},
        {"role": "assistant", "content": "", "tool_calls": {"a": 1}}, {"role": 3, "content": "x"},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]},
        {"role": "assistant", "content": "", "tool_calls": [{"name": "f", "args": [1]}]},
        {"role": "user", "content": "x", "additional_kwargs": [1]}, {"role": "user", "content": "x", "name": 3},
    ],
)  # fmt: skip
async def test_bad_messages(given: Any) -> None:
    with pytest.raises(Invalid, match=r"^m\[1\]"):
        inputs.messages(["ok", given], "m")


async def test_startup_is_light() -> None:
    """No LangChain behind the HTTP surface: `/health` must not wait for it."""
    code = "import sys, channels.http.app; print([m for m in sys.modules if m.startswith(('langchain', 'langgraph'))])"
    result = await anyio.run_process([__import__("sys").executable, "-c", code])
    assert result.stdout.strip() == b"[]"
    assert msgspec.json.decode(result.stdout) == []
    assert MOUNTS == ("/api", "/api/langgraph")
