"""A real HTTP server that plays a provider or a site, and names that lead to it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec
import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

from adapters import egress
from adapters.web import direct

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Asked:
    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class Site:
    """Answers each path as it is told, and remembers what it was asked."""

    port: int = 0
    pages: dict[str, Answer] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    leaving: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def at(self, name: str) -> str:
        return f"http://{name}:{self.port}"

    def say(self, path: str, body: Any = b"", *, status: int = 200, kind: str | None = None, **headers: str) -> None:
        """`body`: bytes or text as they are, all else as JSON."""
        data = (
            body.encode() if isinstance(body, str) else body if isinstance(body, bytes) else msgspec.json.encode(body)
        )
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if kind is not None:
            named["Content-Type"] = kind

        async def answer(request: web.Request) -> web.Response:
            return web.Response(body=data, status=status, headers=named)

        self.pages[path] = answer

    def never(self, path: str, begin: bytes | None = None) -> None:
        """No answer at all, or only the beginning of one."""

        async def answer(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Type": "text/html"})
            if begin is not None:
                await response.prepare(request)
                await response.write(begin)
            await self.leaving.wait()
            return response

        self.pages[path] = answer

    def endless(self, path: str, chunk: bytes, kind: str) -> None:
        async def answer(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Type": kind})
            await response.prepare(request)
            while not self.leaving.is_set():
                await response.write(chunk)
            return response

        self.pages[path] = answer

    async def handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        body = msgspec.json.decode(raw) if raw else None
        self.asked.append(Asked(request.method, request.path_qs, dict(request.headers), body))
        if request.path not in self.pages:
            return web.Response(status=404)
        return await self.pages[request.path](request)


@asynccontextmanager
async def serving() -> AsyncIterator[Site]:
    found = Site()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", found.handle)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    try:
        place = web.TCPSite(runner, "127.0.0.1", 0)
        await place.start()
        found.port = runner.addresses[0][1]
        yield found
    finally:
        found.leaving.set()
        await runner.cleanup()


class Names(AbstractResolver):
    """The names of the world: `table` says where each is."""

    table: ClassVar[dict[str, str]] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        if host not in self.table:
            raise OSError("no such name")
        address = self.table[host]
        return [
            ResolveResult(hostname=host, host=address, port=port, family=socket.AF_INET, proto=0, flags=0),
        ]

    async def close(self) -> None:
        pass


class AsIfPublic(egress.PublicResolver):
    """The real resolver; but `public.test` counts as outside, though the server that plays it is here."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        if host == "public.test":
            return await self._inner.resolve(host, port, family)
        return await super().resolve(host, port, family)


def world(monkeypatch: pytest.MonkeyPatch) -> None:
    """`public.test` is a site of the world, `inside.test` a name that leads into the network."""
    table = {
        "public.test": "127.0.0.1",
        "inside.test": "127.0.0.1",
        "both.test": "10.0.0.1",
        "out.test": "93.184.216.34",
    }
    monkeypatch.setattr(Names, "table", table)
    monkeypatch.setattr(egress, "DefaultResolver", Names)
    monkeypatch.setattr(direct, "PublicResolver", AsIfPublic)
