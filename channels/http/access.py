"""Who may: every request is somebody's before a handler sees it."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web
from aiohttp.typedefs import Middleware

from channels.http.live import PRINCIPAL
from channels.http.routes import ROUTE, Handler, Route
from core.identity.principal import LOCAL

MOUNTED: web.AppKey[Mapping[web.AbstractRoute, Route]] = web.AppKey("mounted", Mapping)
"""Which of our routes each of the router's is."""


def middleware() -> Middleware:
    """Establishes the request's route and principal."""

    @web.middleware
    async def handle(request: web.Request, handler: Handler) -> web.StreamResponse:
        route = request.app[MOUNTED].get(request.match_info.route)
        if route is not None:
            request[ROUTE] = route
        request[PRINCIPAL] = LOCAL
        return await handler(request)

    return handle
