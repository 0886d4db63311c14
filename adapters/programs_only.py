"""Guard of small servers for programs: no page of a browser reaches them, whatever name it has given this machine.

A browser names the page that asks in `Origin` or `Sec-Fetch-Site`. A page that made its own name point to this machine
(DNS rebinding) is its own origin there, but its name stands in `Host`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Middleware

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def programs_only(*, any_host: bool = False) -> Middleware:
    """Answers 403 to browsers. `any_host`: requests show a key, so that their `Host` may be any name."""

    @web.middleware
    async def handle(request: web.Request, handler: _Handler) -> web.StreamResponse:
        headers = request.headers
        if "Origin" in headers or headers.get("Sec-Fetch-Site", "none") != "none":
            return web.json_response({"error": {"message": "browsers may not ask here"}}, status=403)
        if not any_host and not _is_address(headers.get("Host", "")):
            text = "Host: an address, or localhost, is expected"
            return web.json_response({"error": {"message": text}}, status=403)
        return await handler(request)

    return handle


def _is_address(host: str) -> bool:
    """Tells whether `Host` names a place that nobody can own: an IP address, or this machine."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or bool(ipaddress.ip_address(name))
    except ValueError:
        return False
