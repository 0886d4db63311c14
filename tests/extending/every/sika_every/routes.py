"""A protocol of one route."""

from __future__ import annotations

from aiohttp import web

from sika.http import API, Route


async def get_word(request: web.Request) -> web.Response:
    """Tell a word."""
    return web.Response(text="every")


ROUTES = (Route("GET", "/every", get_word, {200: "text/plain"}, mounts=API),)
