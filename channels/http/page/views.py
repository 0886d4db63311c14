"""Files of a thread as documents that may run scripts and have no rights (`view_links`)."""

from __future__ import annotations

from typing import Annotated

from aiohttp import web
from anyio import to_thread

from channels.http.accounts import share_links, view_links
from channels.http.deerflow.artifacts import ANYTHING, Content, content_of, send_view
from channels.http.endpoints.call import Call
from channels.http.endpoints.endpoint import Header, Routes
from channels.http.page.shares import copy_of
from channels.http.server.errors import BadRequest, Forbidden
from channels.http.server.routes import API
from core.errors import NotFound

ROUTES = Routes(mounts=API, tag="artifacts", public=True)


@ROUTES("GET", "/views/{token}/{path:.+}", answers={206: ANYTHING}, errors=(404, 413, 416))
async def get(
    call: Call,
    token: str,
    path: str,
    *,
    range: Annotated[str, Header("Range"), "One range of bytes"] = "",
) -> Annotated[web.StreamResponse, ANYTHING]:
    """Show a file on an origin of its own, by an address that `GET …/artifacts/{path}?view=sandbox` redirects to.

    The address stands for the file's folder, for an hour: a page finds its pictures, styles and scripts there. Scripts
    run in a frame of this server's pages only.
    """
    view = view_links.opened(call, token)
    content = await (_of_share if view.share else _of_thread)(call, view, path)
    return await send_view(call.request, content, view_links.policy(call.request, token), range)


async def _of_thread(call: Call, view: view_links.View, path: str) -> Content:
    """Opens a file of a thread. Raises `NotFound`, also if the thread is gone."""
    await call.services.commands.state(view.user, view.thread)
    await _check(call, view)
    try:
        file = f"{view.folder}/{path}"
        return await to_thread.run_sync(content_of, call.services.home, view.user, view.thread, file)
    except (BadRequest, Forbidden):
        raise NotFound(view_links.GONE) from None


async def _of_share(call: Call, view: view_links.View, path: str) -> Content:
    """Opens a file of a share with people who have an account. Raises `NotFound`, also if it was revoked."""
    await _check(call, view)
    _, share = await share_links.shared(call, view.thread, lambda known: known.get(view.share))
    return await to_thread.run_sync(copy_of, call.services.home, view.owner, view.thread, share, path)


async def _check(call: Call, view: view_links.View) -> None:
    """Raises `NotFound` if the account is gone, or the person has signed out everywhere since."""
    account = await view_links.account_of(call, view.user)
    if account is not None and (account.disabled or account.version != view.ver):
        raise NotFound(view_links.GONE)
