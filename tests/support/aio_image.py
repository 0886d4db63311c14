"""A stand-in of the all-in-one image's HTTP API, which does wrong what the image does.

As a process it is the container: `python -m tests.support.aio_image --address FILE` in bubblewrap, with a process
namespace and an `/mnt` of its own (`image`). It does wrong: a persistent shell per session, in which two commands at
once end in an error that looks like output; 404 for sessions that are gone; `timeout` ends only the waiting; output is
cut at 30 000 characters; bytes that are no UTF-8 are lost in output; `exit` in the shell never answers.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

from aiohttp import web

from adapters.sandboxes.confine.confinement import binary

CUT = 30_000
MAX_SESSIONS = 6
START_SECONDS = 120.0
WRONG_STATE = "'ErrorObservation' object has no attribute 'exit_code'"


class Session:
    """A bash that reads one command after another."""

    def __init__(self, process: asyncio.subprocess.Process, folder: Path) -> None:
        self._process, self._folder = process, folder
        self.busy = self._forgotten = False

    @classmethod
    async def made(cls, folder: Path) -> Session:
        folder.mkdir(parents=True)
        pipe = asyncio.subprocess.PIPE
        shell = await asyncio.create_subprocess_exec("bash", "--norc", stdin=pipe, stdout=pipe, cwd="/mnt")
        return cls(shell, folder)

    async def run(self, command: str) -> tuple[str, str, int]:
        if self.busy:
            return WRONG_STATE, "", 0
        self.busy = True
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin
        assert stdout
        (self._folder / "command").write_text(command, encoding="utf-8", errors="surrogateescape")
        words = f'. {self._folder}/command >{self._folder}/out 2>{self._folder}/err </dev/null; echo "$?"\n'
        stdin.write(words.encode())
        await stdin.drain()
        if not (line := await stdout.readline()):
            await asyncio.Event().wait()  # `exit`: the image waits for ever
        self.busy = False
        if self._forgotten:
            self._process.kill()
        out, err = ((self._folder / name).read_bytes().decode(errors="replace") for name in ("out", "err"))
        return out, err, int(line)

    def forget(self) -> None:
        """Ends the shell when its command has ended."""
        self._forgotten = True
        if not self.busy and self._process.returncode is None:
            self._process.kill()


class Image:
    def __init__(self, folder: Path, *, old: bool) -> None:
        self._folder, self._old, self._sessions = folder, old, dict[str, Session]()
        self.failures: list[str] = []
        """What the next requests get: `502`, `reset` before, or `lost` after the work."""

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 30, middlewares=[self._fail])
        app.router.add_get("/v1/sandbox", self._sandbox)
        app.router.add_post("/v1/shell/exec", self._shell)
        if not self._old:
            app.router.add_post("/v1/bash/exec", self._bash)
        app.router.add_post("/v1/file/upload", self._upload)
        app.router.add_get("/v1/file/download", self._download)
        app.router.add_post("/test", self._test)
        return app

    @web.middleware
    async def _fail(self, request: web.Request, handler: Any) -> web.StreamResponse:
        failure = self.failures.pop(0) if self.failures and request.path != "/test" else ""
        if failure == "502":
            return web.Response(status=502, text="<html>nginx</html>")
        if failure != "reset":
            response: web.StreamResponse = await handler(request)
        if failure:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        return response

    async def _test(self, request: web.Request) -> web.Response:
        orders = await request.json()
        self.failures += orders.get("failures", [])
        if orders.get("forget"):
            self._keep(0)
        return _answer({"left": len(self.failures)})

    async def _sandbox(self, request: web.Request) -> web.Response:
        return _answer({"home_dir": "/mnt/home", "workspace": "/mnt", "version": "1", "detail": None})

    async def _bash(self, request: web.Request) -> web.Response:
        body = await request.json()
        return await self._exec(body, body.get("session_id"), body.get("max_output_length") or CUT, separate=True)

    async def _shell(self, request: web.Request) -> web.Response:
        body = await request.json()
        limit = CUT if body.get("truncate", True) else sys.maxsize
        return await self._exec(body, body.get("id"), limit, separate=False)

    async def _exec(self, body: Any, name: str | None, limit: int, *, separate: bool) -> web.Response:
        if name is not None and name not in self._sessions:
            return _answer(None, status=404, message="Session not found")
        if name is None:
            name = uuid4().hex
            self._sessions[name] = await Session.made(self._folder / name)
            self._keep(MAX_SESSIONS)
        run = asyncio.ensure_future(self._sessions[name].run(body["command"]))
        try:
            out, err, code = await asyncio.wait_for(asyncio.shield(run), body.get("timeout") or 120)
        except TimeoutError:  # the command runs on
            return _answer({"session_id": name, "status": "running" if separate else "no_change_timeout"})
        if not separate:
            return _answer(
                {"session_id": name, "status": "completed", "output": (out + err)[:limit], "exit_code": code}
            )
        parts = {"stdout": out[:limit], "stderr": err[:limit], "exit_code": code}
        return _answer({"session_id": name, "command_id": uuid4().hex, "status": "completed", **parts})

    def _keep(self, count: int) -> None:
        """Forgets the oldest sessions."""
        while len(self._sessions) > count:
            self._sessions.pop(next(iter(self._sessions))).forget()

    async def _upload(self, request: web.Request) -> web.Response:
        path, size = "", 0
        async for part in await request.multipart():
            if part.name == "path":  # type: ignore[union-attr]
                path = await part.text()  # type: ignore[union-attr]
                continue
            with Path(path).open("wb") as file:  # noqa: ASYNC230
                while block := await part.read_chunk(1 << 18):  # type: ignore[union-attr]
                    size += file.write(block)
        return _answer({"file_path": path, "file_size": size})

    async def _download(self, request: web.Request) -> web.StreamResponse:
        path = Path(request.query["path"])
        return web.FileResponse(path) if path.is_file() else _answer(None, status=404, message="File not found")


def _answer(data: Any, *, status: int = 200, message: str = "") -> web.Response:
    return web.json_response({"success": status < 400, "message": message, "data": data, "hint": None}, status=status)


class Container:
    """The stand-in in a process of its own. `root` is its `/mnt`."""

    def __init__(self, root: Path, *, old: bool = False) -> None:
        self.root, self._old = root, old
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def start(self) -> None:
        (self.root / "home").mkdir(parents=True, exist_ok=True)
        address = self.root.parent / f"address-{uuid4().hex}"
        words = [str(binary()), "--dev-bind", "/", "/", "--bind", str(self.root), "/mnt", "--unshare-pid"]
        words += ["--proc", "/proc", "--die-with-parent", "--", sys.executable, "-m", "tests.support.aio_image"]
        words += ["--address", str(address), *(["--old"] if self._old else [])]
        environment = {name: value for name, value in os.environ.items() if "KEY" not in name}
        self._process = subprocess.Popen(words, env=environment, cwd=Path(__file__).parents[2])
        deadline = time.monotonic() + START_SECONDS
        while not address.exists() or not address.read_text():
            assert self._process.poll() is None, "the stand-in of the image ended"
            assert time.monotonic() < deadline, "the stand-in of the image did not start"
            time.sleep(0.02)
        self.url = address.read_text()

    def clear(self) -> None:
        """Makes it a new container: nothing of the last test is left but its shells."""
        for name in ("home", "user-data", "skills", "readonly", "shared"):
            shutil.rmtree(self.root / name, ignore_errors=True)
        (self.root / "home").mkdir()

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = None


@contextlib.contextmanager
def image(root: Path, *, old: bool = False) -> Iterator[Container]:
    container = Container(root, old=old)
    try:
        container.start()
        yield container
    finally:
        container.stop()


async def main(address: Path, old: bool) -> None:
    server = web.AppRunner(Image(Path("/mnt/sessions"), old=old).app())
    await server.setup()
    site = web.TCPSite(server, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
    draft = address.with_suffix(".draft")
    draft.write_text(f"http://127.0.0.1:{port}")
    draft.rename(address)
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", type=Path)
    parser.add_argument("--old", action="store_true")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.address, arguments.old))
