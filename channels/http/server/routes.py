"""Routes: the one table from which the application, its permissions and its OpenAPI document are made.

Every module of endpoints has its `ROUTES` (`endpoint.Routes`); `app` lists the modules. Order does not matter: a fixed
segment of a path goes before a variable one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from core.config.load import Config

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

MOUNTS = ("/api", "/api/langgraph")
"""LangGraph's clients get either as their base address; DeerFlow's web UI uses both."""
API = ("/api",)
ROOT = ("",)

SSE = "text/event-stream"
BYTES = "application/octet-stream"

PAGING = {"X-Pagination-Total": "How many there are", "X-Pagination-Next": "The next offset, if there is more"}
LOCATION = {"Content-Location": "The run, without the mount"}
LOCATIONS = {**LOCATION, "Location": "Where to join it, without the mount"}
"""Headers that several routes send."""


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter of the query string, or (by `where`) a header."""

    name: str
    type: Any = str
    text: str = ""
    where: str = "query"
    required: bool = False
    endless: str = ""
    """Why the answer may never end with it, if so."""
    changes: bool = False
    """True if a GET with it changes something, as one that cancels a run."""
    default: Any = None


@dataclass(frozen=True, slots=True)
class Form:
    """A multipart or URL-encoded body.

    `files`: fields that are files, each once or several times; `fields`: text fields, and which of them are `required`.
    """

    files: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    media: str = "multipart/form-data"
    required: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Route:
    """One route. The handler's docstring is its description: its first sentence the summary.

    `answers`: what is sent, by status: a type that msgspec has a schema for (JSON), a media type (anything else), a
    pair of both (JSON or that, by `Accept`), or None (no body). Errors (`{"detail", "code"}`) are named by status in
    `errors`; those that any route may give (401, 403, 413, 422, 429, 500, 503) need not be.
    """

    method: str
    path: str
    handler: Handler
    answers: Mapping[int, Any]
    body: Any = None
    """A msgspec type (JSON), or a `Form`."""
    query: tuple[Param, ...] = ()
    errors: tuple[int, ...] = ()
    scope: str = ""
    """The scopes that an API key needs, all of them, as `crons:write runs:create`; "" for anybody who is signed in."""
    public: bool = False
    """True if it is answered to anybody."""
    role: str = ""
    """`admin`: nobody else."""
    mounts: tuple[str, ...] = MOUNTS
    tag: str = ""
    """The group in the document; by default the name of the handler's module."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers of the answer that mean something, and what."""
    endless: str = ""
    """Why the answer may never end, if so: tests that call everything leave it out."""
    metadata: str = ""
    """Path of the description of its authorisation (RFC 9728), which a 401 names."""
    opened: Callable[[Config], bool] | None = None
    """True if the configuration makes it public."""
    secret: bool = False
    """True if answers may hold a secret (a token, a code, an address that opens something): nobody may store them, and
    they are not compressed.
    """


ROUTE: web.RequestKey[Route] = web.RequestKey("route", Route)
"""The route of a request, once it is resolved."""
MOUNTED: web.AppKey[Mapping[web.AbstractRoute, Route]] = web.AppKey("mounted", Mapping)
"""Our route of each of the router's."""

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_OFF = frozenset({"", "0", "false", "no", "off"})


def changes(request: web.Request) -> bool:
    """Tells whether a request may change something: by its method, or by a parameter that is declared so."""
    if request.method not in _SAFE_METHODS:
        return True
    route = request.app.get(MOUNTED, {}).get(request.match_info.route)
    flags = [param.name for param in route.query if param.changes] if route else []
    return any(value.lower() not in _OFF for name in flags for value in request.query.getall(name, []))


def mount(router: web.UrlDispatcher, routes: Iterable[Route]) -> dict[web.AbstractRoute, Route]:
    """Add routes to a router, fixed segments first; which of ours each of its routes is. What GET answers at once, HEAD
    answers too: streams would have no end, and some change something.
    """
    mounted: dict[web.AbstractRoute, Route] = {}
    for route in sorted(routes, key=_specific):
        for prefix in route.mounts:
            for method in (route.method, "HEAD") if _has_head(route) else (route.method,):
                mounted[router.add_route(method, prefix + route.path, route.handler)] = route
    return mounted


def _has_head(route: Route) -> bool:
    sent = route.answers.get(200, ())
    return route.method == "GET" and not route.endless and SSE not in (sent if isinstance(sent, tuple) else (sent,))


def _specific(route: Route) -> list[tuple[int, str]]:
    """Segments as sorting keys: fixed ones, then variables, then those that take all the rest."""
    return [
        (2 if ":.*" in part or ":.+" in part else 1 if part.startswith("{") else 0, part)
        for part in route.path.split("/")
    ]
