"""The table of all routes: those in the rooms of `channels.http`, and those of installed packages."""

from __future__ import annotations

import functools
from importlib import import_module
from pkgutil import iter_modules

from channels.http.server.routes import Route
from core.errors import Invalid
from core.plugins import PROTOCOLS, Plugin, examined

ROOMS = (
    "accounts",
    "debug",
    "deerflow",
    "docs",
    "page",
    "page.news",
    "protocols",
    "protocols.langgraph",
    "protocols.langgraph_events",
)
"""Packages of `channels.http` in which every module is looked at: one with routes has them in its `ROUTES`."""
MODULES = ("protocols.mcp.server",)
"""Modules with routes beside others that are imported only when they are needed."""


@functools.cache
def all_routes() -> tuple[Route, ...]:
    """Everything that is served and built."""
    added = [route for plugin in installed() if not plugin.problem for route in plugin.value.ROUTES]
    return (*built(), *added)


@functools.cache
def built() -> tuple[Route, ...]:
    """The routes of this package."""
    return _of_rooms("ROUTES")


@functools.cache
def unbuilt() -> tuple[Route, ...]:
    """Routes of subsystems that are not built: clients ask for them, and the documents do not name them."""
    return _of_rooms("UNBUILT")


def _of_rooms(attribute: str) -> tuple[Route, ...]:
    rooms = [import_module(f"channels.http.{room}") for room in ROOMS]
    names = [name for room in rooms for _, name, _ in iter_modules(room.__path__, f"{room.__name__}.")]
    modules = [import_module(name) for name in (*names, *(f"channels.http.{module}" for module in MODULES))]
    return tuple(route for module in modules for route in getattr(module, attribute, ()))


def installed() -> list[Plugin]:
    """Returns the protocols of installed packages. One with a route that is taken is not served."""
    taken = {place for route in (*built(), *unbuilt()) for place in _places(route)}

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
