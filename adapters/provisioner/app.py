"""The provisioner's HTTP API: the wire of DeerFlow's provisioner."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import hdrs, web

from adapters.programs_only import programs_only
from adapters.provisioner.cluster import Cluster
from core.errors import Invalid, NotFound, Unavailable

BODY_BYTES = 16 << 10

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _Create(msgspec.Struct):
    sandbox_id: str
    thread_id: str
    user_id: str = "default"


class Routes:
    """Each route needs the bearer key but `/health`."""

    def __init__(self, cluster: Cluster, key: str) -> None:
        self._cluster, self._key = cluster, key

    def app(self) -> web.Application:
        guard = programs_only(any_host=bool(self._key))
        app = web.Application(client_max_size=BODY_BYTES, middlewares=[guard, self._guarded])
        app.router.add_get("/health", self._health)
        app.router.add_post("/api/sandboxes", self._create)
        app.router.add_get("/api/sandboxes", self._list)
        app.router.add_get("/api/sandboxes/{id}", self._get)
        app.router.add_delete("/api/sandboxes/{id}", self._delete)
        return app

    @web.middleware
    async def _guarded(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Lets in who has the key, and turns errors into answers."""
        offered = request.headers.get(hdrs.AUTHORIZATION, "").removeprefix("Bearer ")
        right = hmac.compare_digest(offered.encode("utf-8", "replace"), self._key.encode())
        if self._key and not right and request.path != "/health":
            return _problem(401, "a bearer key is needed")
        try:
            return await handler(request)
        except (Invalid, msgspec.MsgspecError) as error:
            return _problem(400, str(error))
        except NotFound:
            return _problem(404, "there is no such sandbox")
        except Unavailable as error:
            return _problem(503, str(error))

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _create(self, request: web.Request) -> web.Response:
        body = msgspec.json.decode(await request.read(), type=_Create)
        return web.json_response(await self._cluster.create(body.sandbox_id, body.user_id, body.thread_id))

    async def _list(self, request: web.Request) -> web.Response:
        sandboxes = await self._cluster.listed()
        return web.json_response({"sandboxes": sandboxes, "count": len(sandboxes)})

    async def _get(self, request: web.Request) -> web.Response:
        return web.json_response(await self._cluster.get(request.match_info["id"]))

    async def _delete(self, request: web.Request) -> web.Response:
        name = request.match_info["id"]
        await self._cluster.delete(name)
        return web.json_response({"ok": True, "sandbox_id": name})


def _problem(status: int, detail: str) -> web.Response:
    return web.json_response({"detail": detail}, status=status)
