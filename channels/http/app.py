"""The HTTP application: the LangGraph Platform's API over the log, under `/api` and `/api/langgraph`."""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Literal

import msgspec
from aiohttp import web

from channels.http import (
    access,
    actors,
    agui,
    asyncapi,
    auth,
    compression,
    connections,
    debugging,
    deerflow,
    errors,
    files,
    files_zip,
    folders,
    guard,
    langgraph,
    langgraph_events,
    mcp_server,
    metrics,
    native,
    news,
    openapi,
    page,
    pages,
    shares,
    traces,
    variables,
    views,
    waiting,
)
from channels.http.accounts.oidc import Oidc
from channels.http.call import Call
from channels.http.deerflow import pending
from channels.http.endpoint import Reply, Routes
from channels.http.langgraph import erasure
from channels.http.live import LIVE, Live, Services
from channels.http.news.hub import HUB, Hub
from channels.http.routes import MOUNTED, MOUNTS, ROOT, Route, mount
from core.config.settings import Config
from core.errors import Invalid, Refused
from core.plugins import PROTOCOLS, Plugin, examined
from core.runtime.readiness import DEGRADING, Missing

__all__ = ["Services", "build", "serve"]

STOP_SECONDS = 5.0

PACKAGES = (deerflow, langgraph, langgraph_events, news)
MODULES = (
    actors,
    agui,
    asyncapi,
    auth,
    debugging,
    files,
    files_zip,
    folders,
    mcp_server,
    metrics,
    native,
    openapi,
    page,
    pages,
    shares,
    variables,
    views,
    waiting,
)
"""Where the routes are: modules have a `ROUTES`, and all modules of a package are looked at."""


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
    app[debugging.LIMITS] = debugging.Limits()
    app[access.GATE], oidc = gate, Oidc()
    app[auth.OIDC], app[mcp_server.ENDPOINT] = oidc, mcp_server.Endpoint()
    app.cleanup_ctx.extend(
        (live.running, app[HUB].running, erasure.running, gate.running, oidc.running, metrics.running)
    )
    app.on_response_prepare.extend((guard.protect, traces.answer))
    app[MOUNTED] = mount(app.router, (*all_routes(), *pending.UNBUILT))
    return app


@functools.cache
def all_routes() -> tuple[Route, ...]:
    """Everything that is served and built."""
    return (*_built(), *(route for plugin in installed() if not plugin.problem for route in plugin.value.ROUTES))


def _built() -> tuple[Route, ...]:
    names = [name for package in PACKAGES for _, name, _ in iter_modules(package.__path__, f"{package.__name__}.")]
    modules = [*MODULES, *(import_module(name) for name in names)]
    return (*ROUTES, *(route for module in modules for route in getattr(module, "ROUTES", ())))


def installed() -> list[Plugin]:
    """Returns the protocols of installed packages. One with a route that is taken is not served."""
    taken = {place for route in (*_built(), *pending.UNBUILT) for place in _places(route)}

    def describe(plugin: Plugin) -> str:
        routes = getattr(plugin.value, "ROUTES", None)
        if not isinstance(routes, list | tuple) or not all(isinstance(route, Route) for route in routes):
            raise Invalid("a module with ROUTES, a list of Route, is expected")
        places = [place for route in routes for place in _places(route)]
        for method, path in places:
            if (method, path) in taken:
                raise Invalid(f"{method} {path} is taken")
        taken.update(places)
        return ", ".join(f"{method} {path}" for method, path in places)

    return examined(PROTOCOLS, describe)


def _places(route: Route) -> list[tuple[str, str]]:
    return [(route.method, prefix + route.path) for prefix in route.mounts]


@asynccontextmanager
async def serve(services: Services, host: str, port: int) -> AsyncIterator[int]:
    """Serve until the block ends; gives the real port (0 asks for a free one).

    Without accounts (`auth.enabled`) only loopback addresses are served. `SIKA_TRUSTED_NETWORK=1` lifts that, and is
    meant for one case: a container whose port is published on the host's loopback address only.

    Raises `Invalid` for an address that may not or cannot be bound to, `Refused` if the port is in use.
    """
    check_host(services.config(), host)
    trusted = _trusted()
    app = build(services, trusted=trusted)
    # On a container network all of the host's clients have one address.
    places = connections.Places(lambda: services.config().http, counted=(lambda _: False) if trusted else None)
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


async def _listen(runner: web.AppRunner, host: str, port: int, places: connections.Places) -> None:
    try:
        await connections.Site(runner, host, port, places).start()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise Refused(f"port {port} is in use; stop what uses it, or choose another with --port") from None
        raise Invalid(f"http.host: cannot listen on {host}:{port}: {error.strerror or error}") from None


class Ready(msgspec.Struct):
    """`degraded`: runs are done, but as it was configured before the file broke, or some are left to newer versions, or
    the log holds messages that are no events.
    """

    status: Literal["ready", "degraded", "unavailable"]
    missing: Sequence[Missing]


ROUTES = Routes(public=True, tag="server")


@ROUTES("GET", "/health", mounts=ROOT)
async def health(call: Call) -> dict[str, str]:
    """Tell that the server lives. `/ready` tells whether it can take work."""
    return {"status": "healthy", "service": "sika", "version": call.services.version}


@ROUTES("GET", "/ready", mounts=ROOT, answers={503: Ready})
async def ready(call: Call) -> Reply[Ready]:
    """Tell whether the server can take work, and what is missing: the log stores, the workers are loaded, the views are
    current, the configuration can be read.
    """
    missing = await call.services.missing()
    if any(part.part not in DEGRADING for part in missing):
        return Reply(Ready("unavailable", missing), 503)
    return Reply(Ready("degraded" if missing else "ready", missing))


@ROUTES("GET", "/ok", mounts=("", *MOUNTS))
async def ok() -> dict[str, bool]:
    """Tell that the server lives, as LangGraph's clients ask it."""
    return {"ok": True}


@ROUTES("GET", "/info", mounts=("", *MOUNTS))
async def info(call: Call) -> dict[str, Any]:
    """Version and abilities."""
    flags = {"assistants": True, "crons": True, "langsmith": False}
    return {"version": call.services.version, "service": "sika", "flags": flags}
