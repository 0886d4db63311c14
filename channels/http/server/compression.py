"""Compression of answers (gzip), for those who accept it.

Rules. Only whole answers: what is written piece by piece is a stream of events, a file or an export, and stays as it
is. Only text of some length: pictures and archives are compressed already. Never an answer that holds a secret, or sets
a cookie: a stranger who can put text into it and see how long it is could guess the secret letter by letter (BREACH).
Those are the routes that say so (`Route.secret`), and answers that nobody may keep (`no-store`).
"""

from __future__ import annotations

import re

from aiohttp import web
from aiohttp.typedefs import Middleware

from channels.http.server.routes import ROUTE, Handler
from channels.http.server.weights import weights

LEAST_BYTES = 1024
"""Shorter answers are sent as they are: they fit a packet either way."""
_TEXT = re.compile(r"text/.*|image/svg\+xml|application/(?:.*\+)?(?:json|xml|javascript|manifest)")


def middleware() -> Middleware:
    """Compresses what may be, and keeps answers with secrets from being stored. Outermost: errors and foreign origins
    are answered by then.
    """

    @web.middleware
    async def handle(request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await handler(request)
        if isinstance(response, web.Response) and not response.prepared:
            route = request.get(ROUTE)
            if route is not None and route.secret:
                response.headers.setdefault("Cache-Control", "no-store")
            if _may_be_compressed(response):
                _compress(request, response)
        return response

    return handle


def _may_be_compressed(response: web.Response) -> bool:
    body, cache = response.body, response.headers.get("Cache-Control", "")
    return (
        isinstance(body, bytes)
        and len(body) > LEAST_BYTES
        and response.status != 206
        and "Content-Encoding" not in response.headers
        and _TEXT.fullmatch(response.content_type) is not None
        and not response.cookies
        and "Set-Cookie" not in response.headers
        and "no-store" not in cache
        and "no-transform" not in cache
    )


def _compress(request: web.Request, response: web.Response) -> None:
    vary = response.headers.get("Vary")
    response.headers["Vary"] = f"{vary}, Accept-Encoding" if vary else "Accept-Encoding"
    if accepts_gzip(request):
        if (tag := response.headers.get("ETag", "")).startswith('"'):
            response.headers["ETag"] = f"W/{tag}"  # the same text, other bytes
        response.enable_compression(web.ContentCoding.gzip)


def accepts_gzip(request: web.Request) -> bool:
    """Tells whether the client takes gzip, by its `Accept-Encoding` (RFC 9110 §12.5.3)."""
    accepted = weights(",".join(request.headers.getall("Accept-Encoding", [])))
    return accepted.get("gzip", accepted.get("*", 0.0)) > 0
