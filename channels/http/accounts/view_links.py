"""Addresses under which a page of a thread's files can be shown without any of the rights of who looks at it.

A document that an agent wrote may run scripts, and is shown on an opaque origin: no cookie goes with what it asks for,
so its pictures could not be found by the usual addresses. In their place is a prefix that nobody can guess, that stands
for one folder of one thread, and that ends by itself (`core/decisions/0043`).
"""

from __future__ import annotations

import time
from urllib.parse import quote

import msgspec
from aiohttp import web

from channels.http.accounts.access import GATE
from channels.http.endpoints.call import Call
from channels.http.server.guard import SEEN, host_in
from channels.http.server.routes import API
from core.errors import NotFound
from core.identity import sessions
from core.identity.accounts import Account
from core.identity.errors import Unauthenticated
from core.identity.installation import Installation

VALID_SECONDS = 3600
PATH = f"{API[0]}/views"
GONE = "this address is not valid, or not any more"


class View(msgspec.Struct, frozen=True):
    """A folder of a user's thread, by its virtual path; or the files of a `share` of a thread of another `owner`, by
    their whole paths. `ver`: the version of the account of `user`, who looks, which a new password and signing out
    everywhere change; `exp`: when it ends (Unix seconds).
    """

    user: str
    thread: str
    folder: str
    ver: int
    exp: int
    owner: str = ""
    share: str = ""


def address(call: Call, user: str, ver: int, thread: str, path: str) -> str:
    """Returns the address of a file, by its virtual path."""
    folder, _, name = path.rpartition("/")
    view = View(user, thread, folder, ver, int(time.time()) + VALID_SECONDS)
    return f"{_prefix(call, view)}/{quote(name.encode('utf-8', 'replace'), safe='')}"


async def of_share(call: Call, owner: str, thread: str, share: str) -> str:
    """Returns what the addresses of the files of a share begin with, for who looks at them."""
    account = await account_of(call, call.user)
    ver = account.version if account is not None else 0
    return _prefix(call, View(call.user, thread, "", ver, int(time.time()) + VALID_SECONDS, owner, share))


def _prefix(call: Call, view: View) -> str:
    return f"{PATH}/{sessions.sign(view, Installation(call.services.home).derived('views'))}"


async def account_of(call: Call, user: str) -> Account | None:
    """Returns the account whose version an address has; None where there are no accounts."""
    gate = call.request.app[GATE]
    return (await gate.directory.accounts()).by_id.get(user) if gate.accounts else None


def opened(call: Call, token: str) -> View:
    """Returns what an address leads to. Raises `NotFound` for one that is forged or has ended."""
    try:
        return sessions.read(token, Installation(call.services.home).derived("views"), View)
    except Unauthenticated:
        raise NotFound(GONE) from None


def policy(request: web.Request, token: str, path: str = PATH) -> str:
    """Returns the Content-Security-Policy of a document: it loads what lies below its token at a path, connects to
    nothing, goes nowhere, and is shown in a frame of ours only. There it may run scripts.
    """
    scripts = request.headers.get("Sec-Fetch-Dest") in ("iframe", "frame", "embed", "object")
    seen = request[SEEN]
    hosts = dict.fromkeys(host for host in (host_in(seen.host), host_in(seen.page)) if host)
    here = " ".join(f"http://{host}{path}/{token}/" for host in hosts)  # `http` allows https, too (CSP3 §6.7.2.8)
    return "; ".join(
        (
            f"sandbox{' allow-scripts' if scripts else ''}",
            "default-src 'none'",
            f"script-src 'unsafe-inline' 'unsafe-eval' blob: {here}" if scripts else "script-src 'none'",
            f"style-src 'unsafe-inline' {here}",
            f"img-src data: blob: {here}",
            f"media-src data: blob: {here}",
            f"font-src data: {here}",
            "connect-src 'none'",
            "form-action 'none'",
            "base-uri 'none'",
            "frame-ancestors 'self'",
        )
    )
