"""The origin of requests: address, scheme and site, and the rules for them.

Three attacks matter. *Cross-site requests*: a page anywhere can send simple POSTs to 127.0.0.1, or to a server that its
reader is signed in to; browsers name its `Origin`, so state-changing requests of foreign origins are refused. *DNS
rebinding*: a page makes its own name point to 127.0.0.1 and is then "same-origin"; it cannot forge the `Host` header,
so only names that an attacker cannot own are accepted there. With accounts the page would have no cookie of ours, so
addresses are accepted, too: names only if they are configured. *Forged forwarding*: anybody can send `X-Forwarded-For`,
so such headers count only if the peer is a configured proxy. Proxies rewrite some of them and pass on others: if two
contradict each other, neither is believed.

One header counts without that, for one question. A web server on this machine that passes `/api` on (Next.js' rewrites,
Vite's proxy) replaces `Host` by ours and puts the page's host into `X-Forwarded-Host`. So from loopback peers it says
whose pages are ours. No page of another site can send it: a header of its own needs a preflight, which is refused; and
a name that an attacker can own is accepted there no more than in `Host`, so that rebinding such a name to that web
server gains nothing.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from aiohttp import web

from channels.http.server.routes import changes
from core.config.settings import Http
from core.identity.lockout import network
from core.runs.share import CLIENT

ORIGIN: web.RequestKey[str] = web.RequestKey("origin", str)
"""Set on requests of configured foreign origins: streamed responses need it before they are returned."""

SHARED: web.RequestKey[bool] = web.RequestKey("shared", bool)
"""True if a page of a configured foreign origin asks, or shows what is asked for: `<img>` sends no `Origin`."""

EXPOSED = (
    "Content-Location, Location, Retry-After, X-Pagination-Total, X-Pagination-Next, X-Trace-Id, X-Waiting-Total, "
    "X-Heartbeat-Seconds"
)
_OWN = frozenset({"same-origin", "none"})
"""`Sec-Fetch-Site` of our own pages, and of addresses that a person enters. A page on another port is `same-site`."""
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::([0-9]{1,5}))?")
"""RFC 9112's `Host`, as browsers and proxies send it."""
_PORTS = {"http": 80, "https": 443}
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


class Rejected(Exception):
    """The request is refused before anybody looks at it."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


def is_loopback(host: str) -> bool:
    """Tells whether an address to bind to is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Seen(NamedTuple):
    """Where a request comes from and went to, by the connection and the proxies that count."""

    ip: str
    secure: bool
    host: str
    """As in `Host`."""
    page: str
    """The host whose pages are ours: the same, unless a web server on this machine passed the request on."""

    @property
    def origin(self) -> str:
        return f"{'https' if self.secure else 'http'}://{self.host}"

    @property
    def private(self) -> bool:
        """Tells whether nobody on the way can read it: encrypted, or on this machine."""
        return self.secure or _name(self.page) in _LOOPBACK_NAMES


SEEN: web.RequestKey[Seen] = web.RequestKey("seen", Seen)


class Rules:
    """The rules for requests.

    `trusted`: bound to a container network, where peers use addresses and single-label service names. `accounts`:
    whether one must sign in.
    """

    def __init__(
        self, http: Callable[[], Http], *, trusted: bool = False, accounts: Callable[[], bool] = lambda: False
    ) -> None:
        self._http = http
        self._trusted = trusted
        self._accounts = accounts

    def check(self, request: web.Request) -> str | None:
        """The request's origin, if it is a foreign one that is configured. Raises `Rejected`."""
        http = self._http()
        seen = request[SEEN] = observe(request, http.trusted_proxies)
        CLIENT.set(f"client {network(seen.ip)}")  # each request has a task, or its connection
        if not self._host_allowed(seen.host, http):
            raise Rejected(
                "host_not_allowed",
                f"Host {seen.host!r} is not served here; use localhost, or configure http.public_url",
            )
        origin = request.headers.get("Origin")
        request[SHARED] = (origin or _origin(request.headers.get("Referer", ""))) in http.cors_origins
        if origin is None:
            if _may_change(request) and request.headers.get("Sec-Fetch-Site", "none") not in _OWN:
                raise Rejected("origin_not_allowed", "Another site may not change anything here")
            return None
        if _same(origin, seen.secure, seen.host) or origin == http.public_url:
            return None
        if not is_preflight(request) and self._host_allowed(seen.page, http) and _same(origin, seen.secure, seen.page):
            return None
        if origin in http.cors_origins and origin != "null":
            return origin
        if _may_change(request) or is_preflight(request):
            raise Rejected(
                "origin_not_allowed", f"Origin {origin!r} may not change anything here; see http.cors_origins"
            )
        return None

    def _host_allowed(self, host: str, http: Http) -> bool:
        name = _name(host)
        if not name:
            return False
        if name in _LOOPBACK_NAMES:
            return True
        if self._trusted and ("." not in name or _is_address(name)):
            return True
        if self._accounts() and _is_address(name):
            return True
        ours = [*http.cors_origins, *([http.public_url] if http.public_url else [])]
        return any(_place(origin) in (("http", *_split(host, 80)), ("https", *_split(host, 443))) for origin in ours)


def observe(request: web.Request, proxies: Sequence[str]) -> Seen:
    """Returns the client's address, scheme and host: of the connection, or as a trusted proxy forwards them."""
    headers, peer = request.headers, _peer(request)
    host = headers.get("Host", "")
    page = (_last(headers.getall("X-Forwarded-Host", [])) if is_loopback(peer) else "") or host
    seen = Seen(peer, request.scheme == "https", host, page)
    if not trusts(tuple(proxies), peer):
        return seen
    chain = [part.strip() for value in headers.getall("X-Forwarded-For", []) for part in value.split(",")]
    listed = _behind(chain, proxies)
    forwarded = request.forwarded
    standard = _behind([hop.get("for", "") for hop in forwarded], proxies)
    ip = _agreed(listed, standard, _behind([headers.get("X-Real-IP", "")], proxies))
    nearest = forwarded[-1] if forwarded else {}
    scheme = _agreed(_last(headers.getall("X-Forwarded-Proto", [])), nearest.get("proto", "")).lower()
    host = _agreed(_last(headers.getall("X-Forwarded-Host", [])), nearest.get("host", ""))
    host = host or seen.host
    return Seen(ip or peer, scheme == "https" if scheme else seen.secure, host, host)


def _peer(request: web.Request) -> str:
    name = request.transport.get_extra_info("peername") if request.transport else None
    return str(name[0]) if isinstance(name, tuple) and name else ""


def _behind(chain: Sequence[str], proxies: Sequence[str]) -> str:
    """The last address in a list of hops that is not a proxy of ours; "" if there is none, or something else."""
    for hop in reversed(chain):
        address = _address(hop)
        if not address or not trusts(tuple(proxies), address):
            return address
    return ""


def _agreed(*claims: str) -> str:
    """Returns the value that all claims agree on; "" if they contradict each other."""
    values = {claim for claim in claims if claim}
    return values.pop() if len(values) == 1 else ""


def _last(values: Sequence[str]) -> str:
    """Returns the nearest proxy's value of a header that each proxy may append to."""
    return values[-1].rpartition(",")[2].strip() if values else ""


def _address(text: str) -> str:
    """An address in its usual form, without a port; "" if it is none."""
    for candidate in (text, _name(text)):
        try:
            address = ipaddress.ip_address(candidate)
        except ValueError:
            continue
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return str(mapped or address)
    return ""


@lru_cache(maxsize=1024)
def trusts(proxies: tuple[str, ...], ip: str) -> bool:
    """Tells whether this is the address of a proxy that counts."""
    address = _address(ip)
    return bool(address) and any(
        ipaddress.ip_address(address) in ipaddress.ip_network(proxy, strict=False) for proxy in proxies
    )


def _may_change(request: web.Request) -> bool:
    """Tells whether a request may change something; any message over a WebSocket may."""
    return request.headers.get("Upgrade", "").lower() == "websocket" or changes(request)


def _same(origin: str, secure: bool, host: str) -> bool:
    """Tells whether a page of this origin is ours. A proxy that is not configured may hide that we are behind https."""
    scheme, name, port = _place(origin)
    if not name or (scheme == "http" and secure):
        return False
    return scheme in _PORTS and (name, port) == _split(host, _PORTS[scheme])


def _origin(url: str) -> str:
    return "/".join(url.split("/", 3)[:3])


def _place(origin: str) -> tuple[str, str, int]:
    scheme, _, host = origin.partition("://")
    return (scheme, *_split(host, _PORTS.get(scheme, 0)))


def _split(host: str, default: int) -> tuple[str, int]:
    """Name and port; no name if it has not the form of `Host`."""
    parts = _HOST.fullmatch(host)
    if parts is None:
        return "", -1
    return (parts[1] or parts[2]).lower(), int(parts[3]) if parts[3] else default


async def protect(request: web.Request, response: web.StreamResponse) -> None:
    """For `Application.on_response_prepare`: headers of every answer."""
    response.headers["Server"] = "Sika"
    response.headers.setdefault("X-Content-Type-Options", "nosniff")
    if not request.get(SHARED, False):
        response.headers.setdefault("Cross-Origin-Resource-Policy", "same-origin")


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


def host_in(host: str) -> str:
    """Returns a host with its port as it may stand in a header of ours; "" if it has not the form of `Host`."""
    return host if _HOST.fullmatch(host) else ""


def _name(host: str) -> str:
    return _split(host, 0)[0]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
