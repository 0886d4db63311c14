"""The routes of a server, made once for all servers of a process: mounting nearly 500 takes 50 ms, as long as all else
that a small test does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from aiohttp import web

from channels.http import app
from channels.http.endpoints.table import built, unbuilt
from channels.http.server.routes import Route, mount

_Made = tuple[Sequence[Route], Sequence[web.AbstractResource], Mapping[web.AbstractRoute, Route]]
_made: dict[tuple[int, ...], _Made] = {}
"""By the ids of the routes, which are alive as long as they are here."""


def share() -> None:
    """Let the servers of this process have the same resources, which know nothing of their server."""
    assert vars(app)["mount"] in (mount, _mount), "servers are mounted otherwise now"
    vars(app)["mount"] = _mount


def fill() -> None:
    """Make the resources of a server without installed packages."""
    _mount(web.UrlDispatcher(), (*built(), *unbuilt()))


def _mount(router: web.UrlDispatcher, routes: Iterable[Route]) -> dict[web.AbstractRoute, Route]:
    routes = tuple(routes)
    key = tuple(map(id, routes))
    if key in _made:
        for resource in _made[key][1]:
            router.register_resource(resource)
    else:
        mounted = mount(router, routes)
        _made[key] = routes, [*router.resources()], mounted
    return dict(_made[key][2])
