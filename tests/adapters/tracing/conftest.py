"""Receivers of traces on a port of their own, and a real log."""

from __future__ import annotations

import gzip
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from core.log.store import EventLog
from tests.support.applications import running
from tests.support.nats import Nats, bus_on, log_on


@dataclass
class Request:
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """Keeps what it is sent. `answers`: what it says first; then 200."""

    url: str = ""
    requests: list[Request] = field(default_factory=list)
    answers: list[web.Response] = field(default_factory=list)
    otherwise: int = 200

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()
        if body[:2] == b"\x1f\x8b":
            body = gzip.decompress(body)
        self.requests.append(Request(request.path, dict(request.headers), body))
        return self.answers.pop(0) if self.answers else web.json_response({}, status=self.otherwise)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    found = Receiver()
    app = web.Application(client_max_size=1 << 26)
    app.router.add_route("*", "/{path:.*}", found.take)
    async with running(app) as found.url:
        yield found


@pytest.fixture
async def log(nats: Nats) -> AsyncIterator[EventLog]:
    async with bus_on(nats, f"t{uuid.uuid4().hex[:10]}") as bus, log_on(bus) as log:
        yield log
