"""`sika mcp login` and `logout`: an account of yours at an MCP server."""

from __future__ import annotations

import webbrowser
from typing import TextIO

import anyio

from channels.client.aio import AsyncSikaClient
from channels.client.errors import ClientError, NotFound, Unavailable
from channels.client.events import Json
from channels.terminal.text import one_line

LOGIN_SECONDS = 600.0
PAUSE_SECONDS = 1.0


async def login(client: AsyncSikaClient, server: str, out: TextIO, *, register: bool, browser: bool) -> None:
    """Sends the person to the login, and waits until they are back. Raises `ClientError`."""
    before = await _access(client, server)
    url = await client.begin_mcp_login(server, register=register)
    print(f"Log in here, with the browser in which you use Sika:\n\n  {url}\n", file=out, flush=True)
    if browser:
        await anyio.to_thread.run_sync(webbrowser.open, url)
    with anyio.move_on_after(LOGIN_SECONDS):
        while True:
            await anyio.sleep(PAUSE_SECONDS)
            access = await _access(client, server)
            renewed = access["expires_at"] != before["expires_at"] or before["state"] != "connected"
            if access["state"] == "connected" and renewed:
                print(f"logged in to {server}", file=out)
                return
            if access["reason"] and access["state"] not in ("pending", "connected"):
                raise ClientError(one_line(access["reason"], 400), "mcp_login_failed")
    raise Unavailable(f"nobody came back within {LOGIN_SECONDS:g} s", "mcp_login_timeout")


async def logout(client: AsyncSikaClient, server: str, out: TextIO) -> None:
    """Gives access up. Raises `ClientError`."""
    ended = await client.end_mcp_login(server)
    remark = "" if ended["revoked"] else f"; its tokens may live on there: {one_line(ended['reason'], 300)}"
    print(f"logged out of {server}{remark}", file=out)


async def _access(client: AsyncSikaClient, server: str) -> Json:
    servers = await client.list_mcp_access()
    for access in servers:
        if access["server"] == server:
            return access
    names = ", ".join(str(access["server"]) for access in servers) or "none"
    raise NotFound(f"no MCP server {server!r} to log in to; there are: {names}", "not_found")
