"""Which optional parts this server has."""

from __future__ import annotations

import msgspec
from aiohttp import web

from channels.http import live as alive
from channels.http.bodies import plain
from channels.http.deerflow.models import Enabled
from channels.http.routes import API, Route


class Features(msgspec.Struct):
    agents_api: Enabled
    browser_control: Enabled
    mcp_tasks: Enabled


async def get(request: web.Request) -> web.Response:
    """Which optional parts of the API work here; clients hide the others."""
    config = alive.of(request).services.config()
    return plain(Features(Enabled(config.agents_api.enabled), Enabled(False), Enabled(False)))


ROUTES = (Route("GET", "/features", get, {200: Features}, mounts=API),)
