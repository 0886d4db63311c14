"""The HTTP application: the LangGraph Platform's API over the log, under `/api` and `/api/langgraph`."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from channels.http.accounts import access, auth
from channels.http.accounts.oidc import Oidc
from channels.http.debug import debugging, metrics
from channels.http.endpoints.table import all_routes, unbuilt
from channels.http.page import imports
from channels.http.page.news.hub import HUB, Hub
from channels.http.protocols.langgraph import erasure
from channels.http.protocols.mcp import server as mcp_server
from channels.http.server import compression, connections, errors, guard, traces
from channels.http.server.live import LIVE, Live, Services
from channels.http.server.routes import MOUNTED, mount
from core.config.settings import Config
from core.errors import Invalid, Refused

__all__ = ["Services", "build", "serve"]

STOP_SECONDS = 5.0


def build(services: Services, *, trusted: bool = False) -> web.Application:
    """The application. `trusted`: it is bound to a container network (see `serve`)."""
    http = services.config().http
    gate = access.Gate(services)
    rules = guard.Rules(lambda: services.config().http, trusted=trusted, accounts=lambda: gate.accounts)
    app = web.Application(
        middlewares=[
            compression.middleware(),
            errors.middleware(rules, http.max_body_bytes),
            connections.middleware(lambda: services.config().http),
            access.middleware(),
        ],
        client_max_size=http.max_body_bytes,
    )
    live = app[LIVE] = Live(services)
    app[HUB] = Hub(live)
    app[debugging.TURNS] = asyncio.Semaphore(debugging.EXPERIMENTS)
    app[imports.TURNS] = asyncio.Semaphore(imports.IMPORTS)
    app[access.GATE], oidc = gate, Oidc()
    app[auth.OIDC], app[mcp_server.ENDPOINT] = oidc, mcp_server.Endpoint()
    app.cleanup_ctx.extend(
        (live.running, app[HUB].running, erasure.running, gate.running, oidc.running, metrics.running)
    )
    app.on_response_prepare.extend((guard.protect, traces.answer))
    app[MOUNTED] = mount(app.router, (*all_routes(), *unbuilt()))
    return app


@asynccontextmanager
async def serve(services: Services, host: str, port: int) -> AsyncIterator[int]:
    """Serve until the block ends; gives the real port (0 asks for a free one).

    Without accounts (`auth.enabled`) only loopback addresses are served. `SIKA_TRUSTED_NETWORK=1` lifts that, and is
    for one case: a container whose port is published on the host's loopback address only.

    Raises `Invalid` for an address that may not or cannot be bound to, `Refused` if the port is in use.
    """
    check_host(services.config(), host)
    trusted = _trusted()
    app = build(services, trusted=trusted)
    # On a container network all of the host's clients have one address.
    places = connections.ConnectionLimit(lambda: services.config().http, counted=(lambda _: False) if trusted else None)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=STOP_SECONDS)
    await runner.setup()
    try:
        await _listen(runner, host, port, places)
        yield int(runner.addresses[0][1])
    finally:
        app[LIVE].stop()
        await runner.cleanup()


def check_host(config: Config, host: str) -> None:
    """Raises `Invalid` if others could reach the address, and there are no accounts."""
    if not (_trusted() or config.auth.enabled or guard.is_loopback(host)):
        raise Invalid(
            f"http.host: {host} is reachable from other machines and there is no authentication; "
            "use 127.0.0.1, or set auth.enabled"
        )


def _trusted() -> bool:
    return os.environ.get("SIKA_TRUSTED_NETWORK") == "1"


async def _listen(runner: web.AppRunner, host: str, port: int, places: connections.ConnectionLimit) -> None:
    try:
        await connections.Site(runner, host, port, places).start()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise Refused(f"port {port} is in use; stop what uses it, or choose another with --port") from None
        raise Invalid(f"http.host: cannot listen on {host}:{port}: {error.strerror or error}") from None
