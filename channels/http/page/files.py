"""The files of a thread as a tree: what lies in its uploads, workspace and outputs, and which run changed it."""

from __future__ import annotations

import heapq
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Literal

import msgspec
from anyio import to_thread

from channels.http.deerflow.artifacts import media_type
from channels.http.endpoints.call import Call, OwnedThread, VisibleThread
from channels.http.endpoints.endpoint import Routes
from channels.http.server.errors import BadRequest
from channels.http.server.routes import API
from core.errors import Invalid
from core.files.folder import Folder
from core.files.paths import MAX_PATH, ROOTS, USER_DATA, Parts, Tree, join, parse, split
from core.ids import stamp

MOST_DEPTH = 32
MOST_CHARACTERS = 100_000
"""Limit of the text of a document that is shown."""
MOST_LOOKED_AT = 50_000
"""Entries of directories that one request reads: about half a second. The rest is left out, and that is said."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TOP = split(USER_DATA)

Kind = Literal["file", "directory", "link", "other"]


class File(msgspec.Struct):
    """An entry. `size`: of a file, in bytes. `run_id`: the run that changed it last, as far as that is known."""

    path: str
    name: str
    kind: Kind
    size: int | None
    modified_at: str
    media_type: str | None
    run_id: str | None


class DocumentText(msgspec.Struct):
    """The text of a document as Markdown. `truncated`: it is longer. `pages`: how many it has, if it has such."""

    path: str
    text: str
    truncated: bool
    pages: int | None


class Files(msgspec.Struct):
    """A page of entries. `next`: the `after` of the next page, null on the last. `truncated`: there is more than one
    request looks at; ask for a folder in it.
    """

    files: list[File]
    next: str | None
    truncated: bool


ROUTES = Routes(mounts=API)
Depth = Annotated[int, msgspec.Meta(ge=1, le=MOST_DEPTH)]
Limit = Annotated[int, msgspec.Meta(ge=1, le=1000)]
Path = Annotated[str, msgspec.Meta(max_length=MAX_PATH)]


@ROUTES("GET", "/threads/{thread_id}/files", "files:read", errors=(400,))
async def get_list(
    call: Call,
    thread: VisibleThread,
    *,
    under: Annotated[Path, "A folder, as the agent sees it"] = USER_DATA,
    depth: Annotated[Depth, "Levels of folders below it"] = MOST_DEPTH,
    limit: Limit = 200,
    after: Annotated[Path, "The `next` of the page before"] = "",
) -> Files:
    """The files of a thread: uploads, workspace and outputs, by name, each folder before what is in it.

    Links are named and not followed. A folder that is not there is empty: a thread has none before it needs them.
    """
    tree = Folder(call.services.home, call.user, thread.id).tree()
    page = await to_thread.run_sync(Walk(tree, parts_of(under), depth, limit, parts_of(after)).page)
    if page.files:
        changed = await call.live.changes.load(thread.id)
        for file in page.files:
            file.run_id = changed.paths.get(file.path) or None
    return page


@ROUTES("GET", "/threads/{thread_id}/texts/{path:.+}", "files:read", errors=(400,))
async def get_text(call: Call, thread: OwnedThread, path: str) -> DocumentText:
    """The text of a document of a thread (Word, Excel, PowerPoint, OpenDocument, PDF, mail…), by the path under which
    the agent sees it. Nothing is stored. 422 says why a file has no text.
    """
    virtual = join(parts_of(f"/{path}"))
    request = {"op": "show", "thread": thread.id, "user": call.user, "path": virtual, "limit": MOST_CHARACTERS}
    return msgspec.convert({"path": virtual, **await call.services.call("documents", request)}, DocumentText)


def parts_of(path: str) -> Parts:
    if not path:
        return ()
    try:
        parts = parse(path)
    except Invalid as error:
        raise BadRequest(str(error)) from None
    if parts[: len(_TOP)] != _TOP:
        raise BadRequest(f"{path[:80]}: must be in {USER_DATA}")
    return parts


@dataclass(slots=True)
class Walk:
    """A walk through a part of the tree, in the order of the paths' parts. Blocks."""

    tree: Tree
    under: Parts
    depth: int
    limit: int
    after: Parts = ()
    """The last entry of the page before."""
    files: list[File] = field(default_factory=list)
    looked_at: int = 0

    def page(self) -> Files:
        with suppress(Invalid, OSError), self.tree.walk(join(self.under)) as place:
            if place.fd is None:
                self._above()
            elif place.parts == self.under:
                self._enter(place.fd, place.name, self.under, self.depth)
        shown = self.files[: self.limit]
        return Files(shown, shown[-1].path if self._full else None, self.looked_at > MOST_LOOKED_AT)

    @property
    def _full(self) -> bool:
        return len(self.files) > self.limit

    def _above(self) -> None:
        """The three directories, as far as the thread has them."""
        for name in sorted(ROOTS):
            with suppress(Invalid, OSError), self.tree.walk(f"{USER_DATA}/{name}") as place:
                if place.fd is not None and self._wants((*_TOP, name)):
                    self._show((*_TOP, name), os.stat(place.fd))
                    if self.depth > 1:
                        self._list(os.dup(place.fd), (*_TOP, name), self.depth - 1)

    def _wants(self, parts: Parts) -> bool:
        """Tells whether an entry, or something in it, may come after the last page."""
        return not self._full and (parts > self.after or self.after[: len(parts)] == parts)

    def _enter(self, directory: int, name: str, parts: Parts, depth: int) -> None:
        with suppress(OSError):  # it is none, or not any more
            self._list(os.open(name, _DIRECTORY, dir_fd=directory), parts, depth)

    def _list(self, directory: int, parts: Parts, depth: int) -> None:
        """Shows what is in an open directory, and closes it."""
        try:
            for name in heapq.nsmallest(self.limit + 2, self._names(directory, parts)):
                with suppress(OSError):  # it is gone
                    info = os.stat(name, dir_fd=directory, follow_symlinks=False)
                    self._show((*parts, name), info)
                    if stat.S_ISDIR(info.st_mode) and depth > 1 and not self._full:
                        self._enter(directory, name, (*parts, name), depth - 1)
        finally:
            os.close(directory)

    def _names(self, directory: int, parts: Parts) -> Iterator[str]:
        """The names in a directory that may be shown; those that are no UTF-8 are left out."""
        with os.scandir(directory) as entries:
            for entry in entries:
                self.looked_at += 1
                if self.looked_at > MOST_LOOKED_AT:
                    return
                if self._wants((*parts, entry.name)) and _is_text(entry.name):
                    yield entry.name

    def _show(self, parts: Parts, info: os.stat_result) -> None:
        if parts > self.after and not self._full:
            self.files.append(_file(parts, info))


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _file(parts: Parts, info: os.stat_result) -> File:
    kinds: dict[int, Kind] = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}
    kind = kinds.get(stat.S_IFMT(info.st_mode), "other")
    is_file = kind == "file"
    return File(
        path=join(parts),
        name=parts[-1],
        kind=kind,
        size=info.st_size if is_file else None,
        modified_at=stamp(datetime.fromtimestamp(info.st_mtime, UTC)),
        media_type=media_type(parts[-1]) if is_file else None,
        run_id=None,
    )
