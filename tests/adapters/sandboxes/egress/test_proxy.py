"""The proxy and the forwarder, with real programs and real servers on loopback."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiohttp import web
from anyio.abc import Process

from adapters.sandboxes.egress import accesses, forwarder
from adapters.sandboxes.egress.authority import Authority, bundle
from adapters.sandboxes.egress.proxy import SOCKET, Credential, Proxy
from adapters.sandboxes.egress.rules import Place, Rules
from adapters.sandboxes.egress.wayout import WayOut
from core.config.sandbox import Egress
from core.config.sections import Secret
from core.ports.sandbox import Access
from tests.support.ports import free_port

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
BIG = 8 << 20
# Servers are at 127.0.0.2: commands reach 127.0.0.1 without the proxy.


async def _echo(request: web.Request) -> web.StreamResponse:
    body = await request.read()
    return web.json_response({"path": str(request.rel_url), "headers": dict(request.headers), "size": len(body)})


async def _big(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(BIG >> 16):
        await response.write(b"x" * (1 << 16))
    return response


async def _away(request: web.Request) -> web.StreamResponse:
    raise web.HTTPFound("http://127.0.0.3:1/secret")


@asynccontextmanager
async def site(context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    app = web.Application(client_max_size=2 * BIG)
    app.router.add_route("*", "/big", _big)
    app.router.add_route("*", "/away", _away)
    app.router.add_route("*", "/{rest:.*}", _echo)
    runner = web.AppRunner(app)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.2", port, ssl_context=context).start()
    try:
        yield port
    finally:
        await runner.cleanup()


@asynccontextmanager
async def forwarded(folder: Path, *words: str, **environment: str) -> AsyncIterator[Process]:
    """Runs a command behind the forwarder, which ends with the block: outside of a sandbox nothing else ends it."""
    head = [sys.executable, "-I", "-S", forwarder.__file__, str(folder / SOCKET)]
    variables = {"PATH": "/usr/bin:/bin", **environment}
    process = await anyio.open_process([*head, *words], env=variables, start_new_session=True)
    try:
        async with process:
            yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


async def command(folder: Path, *words: str) -> tuple[int, str]:
    """Runs a command behind the forwarder. Returns its exit code and its output."""
    async with forwarded(folder, *words) as process:
        assert process.stdout is not None
        with anyio.fail_after(60):
            text = b"".join([chunk async for chunk in process.stdout])
            return await process.wait(), text.decode(errors="replace")


def proxy(*allow: str, **more: Any) -> Proxy:
    return Proxy(Rules(allow, [entry for entry in allow if entry.startswith("127.0.0.2")]), **more)


def recorded(folder: Path) -> list[Access]:
    return list(accesses.read(folder))


async def test_plain_http(tmp_path: Path) -> None:
    async with site() as port, proxy(f"127.0.0.2:{port}").serving(tmp_path):
        url = f"http://127.0.0.2:{port}/a?b=c"
        code, text = await command(tmp_path, "curl", "-s", "-H", "Proxy-Authorization: x", "-d", "hello", url)
        answer = json.loads(text)
        assert (code, answer["path"], answer["size"]) == (0, "/a?b=c", 5)
        assert not {name for name in answer["headers"] if name.lower().startswith("proxy")}
    [entry] = recorded(tmp_path)
    assert (entry.host, entry.port, entry.connections, entry.reason) == ("127.0.0.2", port, 1, "")
    assert entry.sent > 5 < entry.received


async def test_the_host_of_a_request_is_the_one_that_is_allowed(tmp_path: Path) -> None:
    async with site() as port, proxy(f"127.0.0.2:{port}").serving(tmp_path):
        _, text = await command(tmp_path, "curl", "-s", "-H", "Host: elsewhere.example", f"http://127.0.0.2:{port}/")
        assert json.loads(text)["headers"]["Host"] == f"127.0.0.2:{port}"


async def test_a_tunnel_carries_bytes_both_ways(tmp_path: Path) -> None:
    async with site() as port, proxy(f"127.0.0.2:{port}").serving(tmp_path):
        url = f"http://127.0.0.2:{port}/big"
        code, size = await command(tmp_path, "curl", "-sp", "-o", "/dev/null", "-w", "%{size_download}", url)
        assert (code, int(size)) == (0, BIG)
        (tmp_path / "body").write_bytes(b"y" * BIG)
        _, text = await command(tmp_path, "curl", "-sp", "-T", str(tmp_path / "body"), f"http://127.0.0.2:{port}/up")
        assert json.loads(text)["size"] == BIG
    [entry] = recorded(tmp_path)
    assert (entry.connections, entry.received > BIG, entry.sent > BIG) == (2, True, True)


async def test_a_host_that_is_not_allowed_is_refused_and_recorded(tmp_path: Path) -> None:
    async with site() as port, proxy("example.com").serving(tmp_path):
        code, text = await command(tmp_path, "curl", "-s", f"http://127.0.0.2:{port}/")
        assert (code, text) == (0, f"sika sandbox: 127.0.0.2:{port} is not in the sandbox's list of allowed hosts\n")
        code, _ = await command(tmp_path, "curl", "-sp", f"http://127.0.0.2:{port}/")
        assert code == 56, "a tunnel is not opened"
    [entry] = recorded(tmp_path)
    assert (entry.connections, entry.sent, entry.received) == (2, 0, 0)
    assert "not in the sandbox's list" in entry.reason


async def test_a_redirect_to_a_private_address_is_refused(tmp_path: Path) -> None:
    async with site() as port, proxy("*:*", f"127.0.0.2:{port}").serving(tmp_path):
        _, text = await command(tmp_path, "curl", "-sL", f"http://127.0.0.2:{port}/away")
        assert text == "sika sandbox: 127.0.0.3 has no public address\n"


async def test_a_host_that_does_not_answer_is_said(tmp_path: Path) -> None:
    port = free_port()
    async with proxy(f"127.0.0.2:{port}").serving(tmp_path):
        _, text = await command(tmp_path, "curl", "-s", f"http://127.0.0.2:{port}/")
        assert text.startswith(f"sika sandbox: 127.0.0.2:{port}: ")


@pytest.mark.parametrize(
    "request_",
    [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x00\xff\r\n\r\n", b"GET http:// HTTP/1.1\r\nHost: x\r\n\r\n",
     b"CONNECT nothing HTTP/1.1\r\nHost: x\r\n\r\n", b"GET http://x/ HTTP/1.1\r\nA: " + b"a" * 100_000],
    ids=["no proxy request", "no HTTP", "no host", "a tunnel to a name that is not allowed", "a huge head"],
)  # fmt: skip
async def test_what_is_no_request_gets_an_answer_and_ends(tmp_path: Path, request_: bytes) -> None:
    async with proxy("example.com").serving(tmp_path):
        async with await anyio.connect_unix(tmp_path / SOCKET) as stream:
            await stream.send(request_)
            answer = b""
            with anyio.fail_after(120):
                while True:
                    try:
                        answer += await stream.receive()
                    except anyio.EndOfStream:
                        break
        assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 403", b"HTTP/1.1 431"))


async def test_a_host_longer_than_names_are_is_not_recorded(tmp_path: Path) -> None:
    async with proxy("*").serving(tmp_path), await anyio.connect_unix(tmp_path / SOCKET) as stream:
        await stream.send(b"CONNECT " + b"a" * 254 + b":443 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await stream.receive()).startswith(b"HTTP/1.1 400")
    assert recorded(tmp_path) == []


async def test_a_call_transfers_no_more_than_its_limit(tmp_path: Path) -> None:
    async with site() as port, proxy(f"127.0.0.2:{port}", most_bytes=1 << 20).serving(tmp_path):
        _, size = await command(
            tmp_path, "curl", "-s", "-o", "/dev/null", "-w", "%{size_download}", f"http://127.0.0.2:{port}/big"
        )
        assert int(size) < 2 << 20


async def test_another_server_goes_on_at_the_same_place(tmp_path: Path) -> None:
    async with site() as port:
        script = "curl -s $U > /dev/null && echo one; read line; curl -s $U > /dev/null && echo two"
        async with forwarded(tmp_path, "sh", "-c", script, U=f"http://127.0.0.2:{port}/") as process:
            assert process.stdout is not None
            assert process.stdin is not None
            with anyio.fail_after(60):
                async with proxy(f"127.0.0.2:{port}").serving(tmp_path):
                    while b"one" not in await process.stdout.receive():
                        pass
                async with proxy(f"127.0.0.2:{port}").serving(tmp_path):
                    await process.stdin.send(b"\n")
                    while b"two" not in await process.stdout.receive():
                        pass
    [entry] = recorded(tmp_path)
    assert entry.connections == 2


async def test_credentials_are_added_where_the_command_does_not_see_them(tmp_path: Path) -> None:
    authority, upstream = Authority(tmp_path / "secrets"), Authority(tmp_path / "upstream")
    assert (tmp_path / "secrets/sandbox-authority.pem").stat().st_mode & 0o77 == 0
    (tmp_path / "trusted.pem").write_bytes(bundle(authority.pem))
    async with site(upstream.context("127.0.0.2")) as port:
        credential = Credential(Place.of(f"127.0.0.2:{port}"), "X-Key", Secret("the-key"))
        rules = Rules([f"127.0.0.2:{port}"], [f"127.0.0.2:{port}"])
        made = Proxy(rules, [credential], authority)
        made._trust = ssl.create_default_context(cadata=upstream.pem.decode())
        words = ["curl", "-s", "--cacert", str(tmp_path / "trusted.pem"), "-H", "X-Key: mine"]
        async with made.serving(tmp_path):
            _, text = await command(tmp_path, *words, "-d", "abc", f"https://127.0.0.2:{port}/x")
            answer = json.loads(text)
            assert (answer["path"], answer["size"], answer["headers"]["X-Key"]) == ("/x", 3, "the-key")
            _, text = await command(tmp_path, *words, "-H", "Host: elsewhere.example", f"https://127.0.0.2:{port}/x")
            assert json.loads(text)["headers"]["Host"] == f"127.0.0.2:{port}", "the key goes to no other site"
            target = ["--request-target", "http://elsewhere.example/x"]
            _, text = await command(tmp_path, *words, *target, f"https://127.0.0.2:{port}/x")
            assert text == "sika sandbox: the path of a URL is expected\n"
            code, _ = await command(tmp_path, "curl", "-s", f"https://127.0.0.2:{port}/x")
            assert code == 60, "without the sandbox's authority it trusts nobody"
        made._trust = ssl.create_default_context()
        async with made.serving(tmp_path):
            _, text = await command(tmp_path, *words, f"https://127.0.0.2:{port}/x")
            assert "CERTIFICATE_VERIFY_FAILED" in text.upper().replace(" ", "_"), "the host is not who it says it is"


async def test_a_folder_may_have_a_longer_path_than_a_socket(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 100) / ("y" * 100)
    folder.mkdir(parents=True)
    async with proxy("example.com").serving(folder):
        assert (folder / SOCKET).is_socket()


async def test_an_error_of_what_is_served_is_raised(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        async with proxy("example.com").serving(tmp_path):
            raise OSError(errno.ENOSPC, "No space left on device")


CONNECTS = """
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
folder, count = sys.argv[1:]
sockets = []
for _ in range(int(count)):
    sockets.append(socket.socket(socket.AF_UNIX))
    sockets[-1].connect(folder)
print("connected", flush=True)
sys.stdin.read()
"""


@asynccontextmanager
async def connections(folder: Path, count: int) -> AsyncIterator[None]:
    """Holds connections to the proxy open that send nothing."""
    async with await anyio.open_process([sys.executable, "-c", CONNECTS, str(folder / SOCKET), str(count)]) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        with anyio.fail_after(60):
            assert (await process.stdout.receive()).startswith(
                b"connected"
            )  # unbuffered, the end of the line comes later
        for _ in range(4 * count):  # each is a turn of the loop, in which a connection can be accepted
            await anyio.lowlevel.checkpoint()
        yield
        await process.stdin.aclose()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
async def test_connections_that_wait_cost_no_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapters.sandboxes.egress.proxy.MOST_CONNECTIONS", 4)
    async with site() as port, proxy(f"127.0.0.2:{port}").serving(tmp_path):
        before = descriptors()
        async with connections(tmp_path, 100):
            assert descriptors() <= before + 4 + 5, "five are of the process that connects"
        _, text = await command(tmp_path, "curl", "-s", f"http://127.0.0.2:{port}/after")
        assert json.loads(text)["path"] == "/after"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
async def test_a_lack_of_descriptors_does_not_end_the_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapters.sandboxes.egress.proxy.ACCEPT_PAUSE", 0.01)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with site() as port, proxy(f"127.0.0.2:{port}").serving(tmp_path):
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors() + 40, limits[1]))
        try:
            async with connections(tmp_path, 100):
                with pytest.raises(OSError, match="Too many open files"):
                    os.listdir("/proc/self/fd")
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        _, text = await command(tmp_path, "curl", "-s", f"http://127.0.0.2:{port}/after")
        assert json.loads(text)["path"] == "/after"


async def test_a_command_that_cannot_be_watched_does_not_end_the_others(tmp_path: Path) -> None:
    way_out = WayOut(tmp_path, Egress(allow=("example.com",)))

    async def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(way_out.run)
        await anyio.wait_all_tasks_blocked()
        await way_out.hold(tmp_path / "a", full)
        await anyio.wait_all_tasks_blocked()
        await way_out.hold(tmp_path / "b", anyio.sleep_forever)
        assert (tmp_path / "b" / "egress" / SOCKET).is_socket()
        tasks.cancel_scope.cancel()
