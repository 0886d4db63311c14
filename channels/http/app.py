"""The HTTP application: the LangGraph Platform's API over the log, under `/api` and `/api/langgraph`."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from channels.http import errors, guard, native
from channels.http.bodies import plain
from channels.http.langgraph import assistants as agents
from channels.http.langgraph import runs, states, threads
from channels.http.live import LIVE, Live, Services
from core.errors import Invalid, Refused

__all__ = ["Services", "build", "serve"]

MOUNTS = ("/api", "/api/langgraph")
STOP_SECONDS = 5.0

_T, _R = "/threads/{thread_id}", "/threads/{thread_id}/runs/{run_id}"
_ROUTES: tuple[tuple[str, str, errors.Handler], ...] = (
    ("POST", f"{_T}/runs/stream", runs.create_stream),
    ("POST", f"{_T}/runs/wait", runs.create_wait),
    ("POST", f"{_T}/runs", runs.create),
    ("GET", f"{_T}/runs", runs.get_list),
    ("GET", _R, runs.get),
    ("GET", f"{_R}/join", runs.join),
    ("GET", f"{_R}/stream", runs.join_stream),
    ("POST", f"{_R}/stream", runs.join_stream),
    ("POST", f"{_R}/cancel", runs.cancel),
    ("GET", f"{_T}/state", states.get),
    ("POST", f"{_T}/state", states.update),
    ("POST", f"{_T}/state/checkpoint", states.post_checkpoint),
    ("GET", f"{_T}/state/{{checkpoint_id}}", states.get_at),
    ("GET", f"{_T}/history", states.get_history),
    ("POST", f"{_T}/history", states.post_history),
    ("GET", f"{_T}/log", native.get_log),
    ("POST", "/threads", threads.create),
    ("POST", "/threads/search", threads.search),
    ("POST", "/threads/count", threads.count),
    ("GET", _T, threads.get),
    ("PATCH", _T, threads.patch),
    ("DELETE", _T, threads.delete),
    ("POST", "/runs", runs.create_alone),
    ("POST", "/runs/stream", runs.create_stream_alone),
    ("POST", "/runs/wait", runs.create_wait_alone),
    ("POST", "/assistants/search", agents.search),
    ("GET", "/assistants/{assistant_id}", agents.get),
    ("GET", "/assistants/{assistant_id}/graph", agents.graph),
    ("GET", "/assistants/{assistant_id}/schemas", agents.schemas),
    ("POST", "/projections/rebuild", native.rebuild),
)


def build(services: Services, *, trusted: bool = False) -> web.Application:
    """The application. `trusted`: it is bound to a container network (see `serve`)."""
    http = services.config().http
    rules = guard.Rules(lambda: services.config().http.cors_origins, trusted=trusted)
    app = web.Application(
        middlewares=[errors.middleware(rules, http.max_body_bytes)], client_max_size=http.max_body_bytes
    )
    live = app[LIVE] = Live(services)
    app[agents.ASSISTANTS] = agents.Assistants(services.assistants)
    app.cleanup_ctx.append(live.running)
    for method, path, handler in _ROUTES:
        for mount in MOUNTS:
            app.router.add_route(method, mount + path, handler)
    for root in ("", *MOUNTS):
        app.router.add_get(f"{root}/ok", _ok)
        app.router.add_get(f"{root}/info", _info)
    app.router.add_get("/health", _health)
    return app


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
    return plain({"status": "healthy", "service": "sika", "version": request.app[LIVE].services.version})


async def _ok(_: web.Request) -> web.Response:
    return plain({"ok": True})


async def _info(request: web.Request) -> web.Response:
    flags = {"assistants": True, "crons": False, "langsmith": False}
    return plain({"version": request.app[LIVE].services.version, "service": "sika", "flags": flags})
