"""MCP servers of others, as npm and PyPI have them, over all three transports: their tools work in a run."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from core.errors import Unavailable
from tests.actors.mcp.test_calls import calls, results
from tests.conformance.javascript import PACKAGE
from tests.conformance.releases import CACHE
from tests.support import certificates
from tests.support.applications import running
from tests.support.mcp import installed, mcp_site
from tests.support.ports import free_port

pytestmark = [pytest.mark.anyio, pytest.mark.long]
HERE = Path(__file__).parent / "mcp"
SECONDS = 180


def installing(name: str, files: tuple[Path, ...], *commands: list[str]) -> Path:
    """A folder of the cache in which the commands were run, once for each version of the files."""
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
    folder = CACHE / f"mcp-{name}-{digest}"
    if not (folder / "installed").exists():
        folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            shutil.copy(file, folder)
        for command in commands:
            done = subprocess.run(
                command,
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
                env=certificates.environment(),
            )
            if done.returncode:
                pytest.skip(f"{name} cannot be installed here: {done.stderr.strip()[-300:]}")
        (folder / "installed").touch()
    return folder


def node(package: str) -> list[str]:
    """The command of a server from npm."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node is not installed")
    folder = installing("js", tuple(HERE / "js" / name for name in PACKAGE), ["npm", "ci"])
    return ["node", str(folder / f"node_modules/@modelcontextprotocol/server-{package}/dist/index.js")]


def python(name: str) -> str:
    """The command of a server from PyPI, in an environment of its own: their requirements contradict each other."""
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    if not os.path.exists(uv):
        pytest.skip("uv is not installed")
    lock = HERE / "python" / f"{name}.lock"
    pip = [uv, "pip", "install", "--quiet", "--python", "env", "--require-hashes", "-r", lock.name]
    folder = installing(name, (lock,), [uv, "venv", "--quiet", "--python", sys.executable, "env"], pip)
    return str(folder / "env" / "bin" / f"mcp-server-{name}")


def stdio(command: str, *arguments: str, **settings: Any) -> Mapping[str, Any]:
    return {"command": command, "args": [*arguments], "trusted": True, "shared": "server", **settings}


@asynccontextmanager
async def everything(transport: str, port: int = 0) -> AsyncIterator[int]:
    """The port of server-everything over HTTP."""
    port = port or free_port()
    process = await asyncio.create_subprocess_exec(
        *node("everything"),
        transport,
        env={**os.environ, "PORT": str(port)},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(SECONDS):
            while b"port" not in (line := await process.stderr.readline()):
                assert line, "server-everything did not start"
        yield port
    finally:
        process.kill()
        await process.communicate()


async def test_all_transports(tmp_path: Path) -> None:
    async with everything("sse") as sse, everything("streamableHttp") as http:
        servers = {
            "pipe": stdio(*node("everything"), "stdio"),
            "events": {"type": "sse", "url": f"http://127.0.0.1:{sse}/sse"},
            "web": {"type": "http", "url": f"http://127.0.0.1:{http}/mcp"},
        }
        turns = calls(*((f"{name}_get-sum", {"a": 20, "b": 22}) for name in servers), ("web_get-tiny-image", {}))
        async with mcp_site(tmp_path, servers, {"m": turns}, mcp={"list_seconds": 60, "direct_tools": 200}) as site:
            client, _ = site
            messages = await client.said(await client.thread(), "Go")
            state = await installed(client)
    *sums, image = results(messages)
    assert ["42" in message["content"] for message in sums] == [True] * 3, sums
    assert "image/png" in image["content"]
    listings = [known.listing for known in state.known.values()]
    assert all(listing is not None and listing.tools and listing.prompts and listing.resources for listing in listings)


async def test_a_server_that_comes_back_is_called_again(tmp_path: Path) -> None:
    """After a restart it knows no session (404): the call is made in a new one."""
    ask = {"op": "call", "server": "web", "tool": "echo", "arguments": {"message": "hi"}, "user": "ada"}
    async with everything("streamableHttp") as port:
        pass
    servers = {"web": {"type": "http", "url": f"http://127.0.0.1:{port}/mcp"}}
    async with mcp_site(tmp_path, servers, {"m": []}) as (client, _):
        for _ in range(2):
            async with everything("streamableHttp", port):
                assert "hi" in (await client.system.call("mcp", ask))["text"]
        with pytest.raises(Unavailable, match="web"):
            await client.system.call("mcp", ask)


def committed(repository: Path) -> None:
    """Makes a repository with one commit."""
    git = ["git", "-c", "user.name=Ada", "-c", "user.email=ada@example.com"]
    subprocess.run([*git, "init", "-q", str(repository)], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "First commit"], cwd=repository, check=True)


async def test_servers_of_npm_and_pypi(tmp_path: Path) -> None:
    files, repository = tmp_path / "files", tmp_path / "repository"
    files.mkdir()
    (files / "note.txt").write_text("remember the milk")
    committed(repository)
    async with page("<html><body><h1>Local page</h1></body></html>") as url:
        servers = {
            "files": stdio(*node("filesystem"), str(files)),
            "git": stdio(python("git"), "--repository", str(repository)),
            "time": stdio(python("time"), "--local-timezone", "UTC"),
            "fetch": stdio(python("fetch"), "--ignore-robots-txt", "--allow-private-ips"),
            "db": stdio(python("sqlite"), "--db-path", str(tmp_path / "x.db")),
        }
        steps = [
            ("files_read_text_file", {"path": str(files / "note.txt")}, "remember the milk"),
            ("git_git_log", {"repo_path": str(repository)}, "First commit"),
            (
                "time_convert_time",
                {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"},
                "21:00",
            ),
            ("fetch_fetch", {"url": url}, "Local page"),
            ("db_create_table", {"query": "create table t (x int)"}, "success"),
            ("db_list_tables", {}, "'t'"),
        ]
        turns = calls(*((name, arguments) for name, arguments, _ in steps))
        mcp = {"list_seconds": 120, "direct_tools": 200}
        async with mcp_site(tmp_path, servers, {"m": turns}, mcp=mcp) as (client, _):
            run = await client.ended("t1", await client.ask(await client.thread(), "Go"), SECONDS)
            assert run.status == "success", run.error
            messages = (await client.state("t1")).messages
    for (name, _, expected), message in zip(steps, results(messages), strict=True):
        assert expected in message["content"], (name, json.dumps(message["content"])[:500])


@asynccontextmanager
async def page(html: str) -> AsyncIterator[str]:
    from aiohttp import web

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=html, content_type="text/html")

    app = web.Application()
    app.router.add_get("/", answer)
    async with running(app) as url:
        yield f"{url}/"
