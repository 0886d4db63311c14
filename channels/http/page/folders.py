"""The folder of the person's machine that a thread works on: shown, attached, detached."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from channels.http.endpoints.call import Call, OwnedThread, ReadableThread
from channels.http.endpoints.endpoint import Routes
from channels.http.server.errors import Forbidden
from channels.http.server.guard import SEEN, is_loopback
from channels.http.server.routes import API
from core.events import FolderAttached
from core.files.paths import PROJECT
from core.files.secret_names import SHOWN
from core.identity.principal import LOCAL
from core.thread.state import ThreadState

Access = Literal["read-write", "read-only"]
Pattern = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]


class FolderBody(msgspec.Struct):
    """`path` is that of a directory on the machine of the server. `show`: patterns of names, or of paths in the folder,
    of files that the agent may read although they look like secrets (`.env`, `test/*.pem`).
    """

    path: Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
    access: Access = "read-write"
    show: Annotated[list[Pattern], msgspec.Meta(max_length=SHOWN)] = []


class Folder(msgspec.Struct):
    """`mounted`: where the agent sees it."""

    path: str
    access: Access
    show: list[str]
    mounted: str = PROJECT


class FolderAnswer(msgspec.Struct):
    folder: Folder | None


ROUTES = Routes(mounts=API, tag="folders")
_PATH = "/threads/{thread_id}/folder"


@ROUTES("GET", _PATH, "threads:read")
async def get(thread: ReadableThread) -> FolderAnswer:
    """The folder that a thread works on; null if there is none."""
    return _answer(thread.state)


@ROUTES("PUT", _PATH, "threads:write", errors=(409,))
async def put(call: Call, body: FolderBody) -> FolderAnswer:
    """Let a thread, which is created if it does not exist, work on a folder of the server's machine.

    Its agent sees the folder as `/mnt/project`, from the next run on; other threads do not. Without accounts the person
    at this machine may choose any folder of theirs. With accounts, administrators may, and others one of
    `sandbox.folders`. The data directory, the home directory itself, folders of the system and those of other people
    are refused.
    """
    await call.services.commands.state_or_empty(call.user, call.thread_id)
    anywhere = _may_choose(call)
    if not anywhere and not call.config.sandbox.folders:
        raise Forbidden("A folder of this machine is chosen by its administrator, or must be open in sandbox.folders")
    request = {"op": "folder", "user": call.user, "thread": call.thread_id, "path": body.path, "anywhere": anywhere}
    path = await call.services.call("sandbox", {**request, "writable": body.access == "read-write"})
    folder = FolderAttached(path=path, access=body.access, by=call.user, shown=tuple(body.show))
    return _answer(await call.services.commands.attach_folder(call.user, call.thread_id, folder))


@ROUTES("DELETE", _PATH, "threads:write", errors=(409,))
async def delete(call: Call, thread: OwnedThread) -> FolderAnswer:
    """Let a thread work on its folder no more. The folder stays as it is."""
    await call.services.commands.detach_folder(call.user, thread.id)
    return FolderAnswer(None)


def _may_choose(call: Call) -> bool:
    """Tells whether the caller may choose any folder: the person at this machine, or one who administers it."""
    principal = call.principal
    if principal is LOCAL:
        return is_loopback(call.request[SEEN].ip)
    return principal.is_admin


def _answer(state: ThreadState) -> FolderAnswer:
    folder = state.folder
    return FolderAnswer(Folder(folder.path, folder.access, list(folder.shown)) if folder else None)
