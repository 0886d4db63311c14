"""The accounts of people at MCP servers: logging in, and giving access up."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Annotated, Any, Literal

import msgspec
from aiohttp import web

from channels.http.endpoints.call import Call
from channels.http.endpoints.endpoint import Routes
from channels.http.server.guard import SEEN
from channels.http.server.routes import API
from core.config.redaction import redactor
from core.errors import Invalid, NotFound, Refused, Unavailable
from core.mcp.oauth import CALLBACK, DOCUMENT, document

ACTOR = "mcp_login"
MOST_CHARACTERS = 8192
"""Limit of a parameter with which somebody returns."""
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<body style="font: 1rem sans-serif; max-width: 40rem; margin: 4rem auto"><h1>{title}</h1><p>{text}</p></body></html>
"""


class Access(msgspec.Struct, kw_only=True):
    """State of your account at a server. `state`: `failing` if access is there, and its renewal fails for the
    moment. `personal`: false if the access is configured, for all."""

    server: str
    state: Literal["none", "pending", "connected", "failing", "needs_login"]
    reason: str
    expires_at: str | None
    scope: str | None
    issuer: str | None
    personal: bool


class Accesses(msgspec.Struct):
    servers: list[Access]


class LoginBody(msgspec.Struct):
    """`register`: have the authorisation server register Sika again, if it has forgotten it."""

    register: bool = False


class Begun(msgspec.Struct):
    """`authorization_url`: where to log in, within ten minutes, with the browser that is signed in here."""

    authorization_url: str


class Ended(msgspec.Struct):
    """`reason`: why the authorisation server was not told, if so. The access is gone from here in any case."""

    revoked: bool
    reason: str


ROUTES = Routes(mounts=API, tag="mcp")


@ROUTES("GET", "/mcp/oauth", "assistants:read")
async def get(call: Call) -> Accesses:
    """Your access to the MCP servers that are reached over HTTP."""
    return Accesses(msgspec.convert(await call.services.call(ACTOR, {"op": "states", "user": call.user}), list[Access]))


@ROUTES("POST", "/mcp/oauth/{server}/login", "assistants:write", errors=(404, 409), secret=True)
async def login(call: Call, server: str, body: LoginBody) -> Begun:
    """Begin a login with an account of yours at an MCP server."""
    origin = call.config.http.public_url or call.request[SEEN].origin
    request = {"op": "begin", "user": call.user, "server": server, "redirect": f"{origin}{API[0]}{CALLBACK}"}
    return Begun(await call.services.call(ACTOR, {**request, "register": body.register}))


@ROUTES("GET", DOCUMENT, public=True)
async def client_document(call: Call) -> Mapping[str, Any]:
    """Describe Sika to authorisation servers, for which this address is its client id."""
    origin = call.config.http.public_url or call.request[SEEN].origin
    return document(f"{origin}{API[0]}{CALLBACK}")


@ROUTES("DELETE", "/mcp/oauth/{server}", "assistants:write", errors=(404,))
async def logout(call: Call, server: str) -> Ended:
    """Give your access to an MCP server up; its tokens are revoked."""
    reason = await call.services.call(ACTOR, {"op": "disconnect", "user": call.user, "server": server})
    return Ended(not reason, reason)


@ROUTES("GET", CALLBACK, "assistants:write", answers={400: "text/html"}, secret=True)
async def callback(call: Call) -> Annotated[web.Response, "text/html"]:
    """Where people return from a login. Only the person who began it can finish it."""
    query = {name: value for name, value in call.request.query.items() if len(value) <= MOST_CHARACTERS}
    try:
        server = await call.services.call(ACTOR, {"op": "finish", "user": call.user, "query": query})
    except (Invalid, NotFound, Refused, Unavailable) as error:
        return _page("Not logged in", redactor.text(str(error)), 400)
    return _page("Logged in", f"Sika may use your account at {server} now. You can close this page.", 200)


def _page(title: str, text: str, status: int) -> web.Response:
    body = _PAGE.format(title=escape(title), text=escape(text))
    return web.Response(text=body, status=status, content_type="text/html", headers=_HEADERS)
