"""Who may knock: the defence of an unauthenticated server on loopback against web pages in the user's own browser.

Two attacks matter. *Cross-site requests*: a page anywhere can send simple POSTs to 127.0.0.1; browsers name its
`Origin`, so state-changing requests of foreign origins are refused. *DNS rebinding*: a page makes its own name
point to 127.0.0.1 and is then "same-origin"; it cannot forge the `Host` header, so only names that an attacker
cannot own are accepted there.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import urlsplit

from aiohttp import web

ORIGIN: web.RequestKey[str] = web.RequestKey("origin", str)
"""Set on requests of configured foreign origins: streamed responses need it before they are returned."""

EXPOSED = "Content-Location, Location, X-Pagination-Total, X-Pagination-Next"
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


class Rejected(Exception):
    """The request is refused before anybody looks at it."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


def is_loopback(host: str) -> bool:
    """Whether an address to bind to is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Rules:
    """What is accepted.

    `trusted`: bound to a container network, where peers use addresses and single-label service names.
    """

    def __init__(self, origins: Callable[[], Sequence[str]], *, trusted: bool = False) -> None:
        self._origins = origins
        self._trusted = trusted

    def check(self, request: web.Request) -> str | None:
        """The request's origin, if it is a foreign one that is configured. Raises `Rejected`."""
        host = request.headers.get("Host", "")
        if not self._host_allowed(host):
            raise Rejected(
                "host_not_allowed", f"Host {host!r} is not served here; use localhost, or configure http.cors_origins"
            )
        origin = request.headers.get("Origin")
        if origin is None or urlsplit(origin).netloc == host:
            return None
        if origin in self._origins():
            return origin
        if request.method not in _SAFE_METHODS or is_preflight(request):
            raise Rejected(
                "origin_not_allowed", f"Origin {origin!r} may not change anything here; see http.cors_origins"
            )
        return None

    def _host_allowed(self, host: str) -> bool:
        name = _name(host)
        if name in _LOOPBACK_NAMES:
            return True
        if self._trusted and ("." not in name or _is_address(name)):
            return True
        return any(urlsplit(origin).netloc == host for origin in self._origins())


def is_preflight(request: web.Request) -> bool:
    return request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers


def cors(origin: str) -> Mapping[str, str]:
    return {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Allow-Credentials": "true",
        "Access-Control-Expose-Headers": EXPOSED,
        "Vary": "Origin",
    }


def preflight(origin: str, request: web.Request) -> web.Response:
    allowed = {
        "Access-Control-Allow-Methods": "GET, POST, PUT, PATCH, DELETE",
        "Access-Control-Allow-Headers": request.headers.get("Access-Control-Request-Headers", "content-type"),
        "Access-Control-Max-Age": "600",
    }
    return web.Response(status=204, headers={**cors(origin), **allowed})


def _name(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
