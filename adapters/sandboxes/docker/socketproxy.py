"""A proxy before the engine's socket, for a server that runs in a container: `python -m …docker.socketproxy`.

Whoever may create containers freely is root on the engine's machine, and a proxy that looks at paths only does not
change that. This one reads the bodies. Guarantees: a request reaches the engine if it is one
that the provider `docker` sends, and is forwarded as it was understood: path, query and body are written anew. A
container is created with the confinement of the provider only, of one image, and with mounts of the data directory
only. Other requests name a container that was created here. What is refused is logged and answered with the reason.
Non-guarantee: the engine resolves the source of a mount again, after the check. A server that is taken over could put a
link in its place meanwhile, and show a container, as an ordinary user without capabilities, another directory.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

import structlog

from adapters.sandboxes.docker.creation import Refused, Rules, permitted_body

log = structlog.get_logger("sika.sandbox")

MAX_HEAD, MAX_BODY = 64 << 10, 1 << 20
"""Bytes of a request. A creation with ten mounts has 3 KB."""
MAX_ANSWER = 4 << 20
"""Bytes of an answer that the proxy itself needs."""
MAX_CONNECTIONS = 256
"""Connections at once: one for each open shell (at most `MAX_SANDBOXES`) would be kept by a single server."""
REQUEST_SECONDS, ENGINE_SECONDS = 10.0, 30.0
"""Time for a request to arrive, and for the engine to answer one of the proxy's own."""
CHUNK = 64 << 10
_ID = r"(?P<container>[A-Za-z0-9][A-Za-z0-9_.-]{0,127})"
_ROUTES: tuple[tuple[str, str, frozenset[str]], ...] = (
    ("GET", r"/(version|info|_ping)", frozenset()),
    ("GET", r"/images/(?P<image>[^?]+)/json", frozenset()),
    ("GET", r"/containers/json", frozenset({"filters", "limit", "all", "size", "trunc_cmd"})),
    ("GET", rf"/containers/{_ID}/json", frozenset()),
    ("GET", rf"/containers/{_ID}/logs", frozenset({"stdout", "stderr", "tail", "timestamps", "follow"})),
    ("POST", r"/containers/create", frozenset({"name"})),
    ("POST", rf"/containers/{_ID}/start", frozenset()),
    ("POST", rf"/containers/{_ID}/exec", frozenset()),
    ("DELETE", rf"/containers/{_ID}", frozenset({"v", "link", "force"})),
    ("POST", r"/exec/(?P<exec>[0-9a-f]{64})/start", frozenset()),
)
"""Requests of the package `docker` on behalf of `Engine`, with the parameters of their queries."""
_VERSION = re.compile(r"(/v1\.\d{1,3})?(/.*)\Z", re.DOTALL)
_NAME = re.compile(r"sika-[a-z0-9-]{1,60}\Z")
_SHELL = {"/bin/sh"}


@dataclass(frozen=True)
class Request:
    """A request as it was understood."""

    method: str
    version: str
    path: str
    query: Mapping[str, str]
    body: Any
    names: Mapping[str, str]

    @property
    def target(self) -> str:
        return self.version + self.path + (f"?{urlencode(self.query)}" if self.query else "")


class Proxy:
    """Answers one request per connection, and one connection of the engine for each."""

    def __init__(self, engine: str, rules: Rules) -> None:
        self._engine, self._rules = engine, rules
        self._free = asyncio.Semaphore(MAX_CONNECTIONS)

    async def serve(self, listen: Path) -> None:
        listen.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._answer, str(listen), limit=MAX_HEAD)
        listen.chmod(0o666)  # only containers that mount the volume reach it
        async with server:
            await server.serve_forever()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Outlives every error of a connection."""
        try:
            if self._free.locked():
                return await _refuse(writer, 503, "too many connections")
            async with self._free:
                await self._handle(reader, writer)
        except Refused as error:
            log.warning("a request to the engine was refused", reason=str(error))
            with contextlib.suppress(OSError):
                await _refuse(writer, error.status, str(error))
        except (OSError, EOFError, TimeoutError, ValueError) as error:
            log.warning("a request to the engine failed", error=type(error).__name__, reason=str(error)[:200])
            with contextlib.suppress(OSError):
                await _refuse(writer, 502, "the engine, or the request, ended early")
        finally:
            writer.close()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(REQUEST_SECONDS):
            request = await _read(reader)
        async with asyncio.timeout(ENGINE_SECONDS):
            request = await self._permitted(request)
            engine_reader, engine_writer = await asyncio.open_unix_connection(self._engine)
        try:
            engine_writer.write(_head(request))
            await engine_writer.drain()
            if "exec" in request.names:
                await _both(reader, writer, engine_reader, engine_writer)
            else:
                await _copy(engine_reader, writer)
        finally:
            engine_writer.close()

    async def _permitted(self, request: Request) -> Request:
        """Returns the request that is forwarded. Raises `Refused`."""
        names, query, body = request.names, dict(request.query), None
        if names.get("image", self._rules.image) != self._rules.image:
            raise Refused(f"image {names['image']}: only {self._rules.image} is allowed", 404)
        if "container" in names:
            await self._owned(names["container"])
        if "exec" in names:
            await self._owned(str((await self._ask(f"/exec/{names['exec']}/json")).get("ContainerID")))
            body = {"Detach": False, "Tty": False}
        elif request.path == "/containers/create":
            if not _NAME.match(query.get("name", "")):
                raise Refused(f"name {query.get('name', '')!r}: expected sika-…")
            body = await asyncio.to_thread(permitted_body, request.body, self._rules)
        elif request.path == "/containers/json":
            query = {**query, "filters": _own(query.get("filters", "{}"), self._rules)}
        elif request.path.endswith("/exec"):
            body = _exec(request.body)
        elif request.path.endswith("/logs"):
            query["follow"] = "0"
        return Request(request.method, request.version, request.path, query, body, names)

    async def _owned(self, container: str) -> None:
        """Raises `Refused` with the engine's own answer for a container that does not exist."""
        state = await self._ask(f"/containers/{quote(container, safe='')}/json")
        labels = (state.get("Config") or {}).get("Labels") or {}
        if labels.get(self._rules.label) != self._rules.volume:
            raise Refused(f"No such container: {container}", 404)

    async def _ask(self, path: str) -> Mapping[str, Any]:
        return await ask(self._engine, path)


async def ask(engine: str, path: str) -> Mapping[str, Any]:
    """Returns the engine's answer to a GET; HTTP/1.0, so that it ends with the connection. Empty: not 200."""
    reader, writer = await asyncio.open_unix_connection(engine)
    try:
        writer.write(f"GET {path} HTTP/1.0\r\nHost: engine\r\n\r\n".encode())
        answer = b""
        while part := await reader.read(CHUNK):
            answer += part
            if len(answer) > MAX_ANSWER:
                raise ValueError(f"the engine's answer to {path} is too long")
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    result = json.loads(body) if head.split(b" ", 2)[1:2] == [b"200"] else {}
    return result if isinstance(result, dict) else {}


async def _read(reader: asyncio.StreamReader) -> Request:
    """Reads a request. Raises `Refused` if it is none of the known ones."""
    try:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("ascii").split("\r\n")
    except asyncio.LimitOverrunError as error:
        raise Refused(f"the request's head has more than {MAX_HEAD} bytes", 431) from error
    except UnicodeDecodeError as error:
        raise Refused("the request's head is not ASCII") from error
    method, _, rest = lines[0].partition(" ")
    target = rest.rpartition(" ")[0]
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    if "transfer-encoding" in headers:
        raise Refused("a body in chunks is not accepted", 411)
    length = headers.get("content-length", "0")
    if not length.isdecimal() or len(length) > 12 or int(length) > MAX_BODY:
        raise Refused(f"content-length {length[:20]}: expected 0 to {MAX_BODY}", 413)
    raw = await reader.readexactly(int(length))
    return _understood(method, target, json.loads(raw) if raw else None)


def _understood(method: str, target: str, body: Any) -> Request:
    path, _, text = target.partition("?")
    match = _VERSION.match(path)
    version, path = (match[1] or "", match[2]) if match else ("", path)
    for allowed, pattern, parameters in _ROUTES:
        if method == allowed and (route := re.fullmatch(pattern, path)):
            query = dict(parse_qsl(text, keep_blank_values=True))
            if unknown := sorted(query.keys() - parameters):
                raise Refused(f"{method} {path}: the parameter {unknown[0]} is not allowed")
            return Request(method, version, path, query, body, route.groupdict())
    raise Refused(f"{method} {path[:200]} is not allowed")


def _own(filters: str, rules: Rules) -> str:
    """Returns the filters of a list, with the label of this proxy's containers."""
    value = json.loads(filters)
    labels = value.get("label", []) if isinstance(value, dict) else None
    if not isinstance(labels, list) or set(value) - {"label"}:
        raise Refused("filters: expected labels only")
    return json.dumps({"label": [*map(str, labels), f"{rules.label}={rules.volume}"]})


def _exec(body: Any) -> dict[str, Any]:
    """Returns the creation of a shell in a container, as its user."""
    command = body.get("Cmd") if isinstance(body, dict) else None
    environment = (body.get("Env") or []) if isinstance(body, dict) else []
    if not isinstance(command, list) or len(command) != 1 or command[0] not in _SHELL:
        raise Refused("exec: only /bin/sh is allowed")
    if body.get("Privileged") or body.get("User") or not all(isinstance(item, str) for item in environment):
        raise Refused("exec: neither a user nor privileges are allowed")
    return {"Cmd": command, "Env": environment, "AttachStdin": True, "AttachStdout": True, "AttachStderr": True}


def _head(request: Request) -> bytes:
    body = b"" if request.body is None else json.dumps(request.body).encode()
    lines = [f"{request.method} {request.target} HTTP/1.1", "Host: engine", f"Content-Length: {len(body)}"]
    if body:
        lines.append("Content-Type: application/json")
    lines += ["Connection: Upgrade", "Upgrade: tcp"] if "exec" in request.names else ["Connection: close"]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def _both(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    engine_reader: asyncio.StreamReader,
    engine_writer: asyncio.StreamWriter,
) -> None:
    """Copies in both directions until the engine has ended; the end of the input is passed on."""
    upwards = asyncio.create_task(_copy(reader, engine_writer))
    try:
        await _copy(engine_reader, writer)
    finally:
        upwards.cancel()
        with contextlib.suppress(asyncio.CancelledError, OSError):
            await upwards


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while part := await reader.read(CHUNK):
        writer.write(part)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def _refuse(writer: asyncio.StreamWriter, status: int, reason: str) -> None:
    body = json.dumps({"message": f"refused by the socket proxy: {reason}" if status != 404 else reason}).encode()
    head = f"HTTP/1.1 {status} Refused\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    writer.write(head.encode() + b"Connection: close\r\n\r\n" + body)
    await writer.drain()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="socketproxy", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--engine", default="/var/run/docker.sock", help="the engine's socket")
    parser.add_argument("--listen", type=Path, required=True, help="the socket of the proxy")
    parser.add_argument("--data", type=Path, required=True, help="the data directory, as the server sees it")
    parser.add_argument("--volume", required=True, help="the engine's volume of the data directory")
    parser.add_argument("--image", required=True, help="the image of sandboxes")
    parser.add_argument("--runtime", default="", help="the runtime that sandboxes may name")
    options = parser.parse_args(arguments)

    async def run() -> None:
        volume = await ask(options.engine, f"/volumes/{quote(options.volume, safe='')}")
        if "Mountpoint" not in volume:
            parser.error(f"the engine has no volume {options.volume}")
        rules = Rules(options.data, str(volume["Mountpoint"]), options.volume, options.image, options.runtime)
        await Proxy(options.engine, rules).serve(options.listen)

    os.umask(0o077)
    asyncio.run(run())


if __name__ == "__main__":
    main()
