"""The HTTP application: the LangGraph Platform's API over the log, under `/api` and `/api/langgraph`."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any

from aiohttp import web

from channels.http import access, errors, guard, native
from channels.http.bodies import plain
from channels.http.langgraph import assistants as agents
from channels.http.langgraph import runs, states, threads
from channels.http.live import LIVE, Live, Services
from channels.http.routes import MOUNTS, ROOT, Route, mount
from core.errors import Invalid, Refused

__all__ = ["Services", "build", "serve"]

STOP_SECONDS = 5.0

MODULES: tuple[ModuleType, ...] = (agents, native, runs, states, threads)
"""Where the routes are: each has a `ROUTES`."""


def build(services: Services, *, trusted: bool = False) -> web.Application:
    """The application. `trusted`: it is bound to a container network (see `serve`)."""
    http = services.config().http
    rules = guard.Rules(lambda: services.config().http.cors_origins, trusted=trusted)
    app = web.Application(
        middlewares=[errors.middleware(rules, http.max_body_bytes), access.middleware()],
        client_max_size=http.max_body_bytes,
    )
    live = app[LIVE] = Live(services)
    app[agents.ASSISTANTS] = agents.Assistants(services.assistants)
    app.cleanup_ctx.append(live.running)
    app[access.MOUNTED] = mount(app.router, all_routes())
    return app


def all_routes() -> tuple[Route, ...]:
    """Everything that is served."""
    return (*_ROUTES, *(route for module in MODULES for route in module.ROUTES))


@asynccontextmanager
async def serve(services: Services, host: str, port: int) -> AsyncIterator[int]:
    """Serve until the block ends; gives the real port (0 asks for a free one).

    There is no authentication yet, so only loopback addresses are served. `SIKA_TRUSTED_NETWORK=1` lifts that, and
    is meant for one case: a container whose port is published on the host's loopback address only.

    Raises `Invalid` for an address that may not or cannot be bound to, `Refused` if the port is in use.
    """
    trusted = os.environ.get("SIKA_TRUSTED_NETWORK") == "1"
    if not (trusted or guard.is_loopback(host)):
        raise Invalid(
            f"http.host: {host} is reachable from other machines and there is no authentication; use 127.0.0.1"
        )
    app = build(services, trusted=trusted)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=STOP_SECONDS)
    await runner.setup()
    try:
        await _listen(runner, host, port)
        yield int(runner.addresses[0][1])
    finally:
        app[LIVE].stop()
        await runner.cleanup()


async def _listen(runner: web.AppRunner, host: str, port: int) -> None:
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise Refused(f"port {port} is in use; stop what uses it, or choose another with --port") from None
        raise Invalid(f"http.host: cannot listen on {host}:{port}: {error.strerror or error}") from None


async def _health(request: web.Request) -> web.Response:
    """Whether the server answers."""
    return plain({"status": "healthy", "service": "sika", "version": request.app[LIVE].services.version})


async def _ok(_: web.Request) -> web.Response:
    """Whether the server answers, as LangGraph's clients ask it."""
    return plain({"ok": True})


async def _info(request: web.Request) -> web.Response:
    """Version and abilities."""
    flags = {"assistants": True, "crons": False, "langsmith": False}
    return plain({"version": request.app[LIVE].services.version, "service": "sika", "flags": flags})


_ROUTES = (
    Route("GET", "/ok", _ok, {200: dict[str, bool]}, public=True, mounts=("", *MOUNTS)),
    Route("GET", "/info", _info, {200: dict[str, Any]}, public=True, mounts=("", *MOUNTS)),
    Route("GET", "/health", _health, {200: dict[str, str]}, public=True, mounts=ROOT),
)
