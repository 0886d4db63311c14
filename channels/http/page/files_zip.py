"""The files of a thread, or of a folder in it, as one zip archive: made while it is sent, and never whole anywhere."""

from __future__ import annotations

import os
import re
import stat
import time
import zipfile
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Annotated, BinaryIO

from aiohttp import web
from anyio import to_thread

from channels.http.deerflow.artifacts import disposition
from channels.http.endpoints.call import Call, VisibleThread
from channels.http.endpoints.endpoint import Routes
from channels.http.page.files import MOST_DEPTH, File, Path, Walk, parts_of
from channels.http.server.errors import HttpError
from channels.http.server.live import Outlet
from channels.http.server.routes import API
from channels.http.streams import sse
from core.errors import Invalid, NotFound
from core.files.folder import Folder
from core.files.paths import USER_DATA, Tree, join

ZIP = "application/zip"
MOST_FILES = 10_000
MOST_BYTES = 1 << 30
"""Limits of the files of one archive."""
CHUNK_BYTES = 256 * 1024
LEVEL = 1
"""Level of compression: others cost several times as much for a tenth less."""
_ODD = re.compile(r'[\x00-\x1f\x7f\\:*?"<>|]')
"""Characters that some system cannot write as part of a name, or takes for a folder or a drive."""

ROUTES = Routes(mounts=API, tag="files")


@ROUTES("GET", "/threads/{thread_id}/files.zip", "files:read", errors=(400, 404, 413))
async def get(
    call: Call, thread: VisibleThread, *, under: Annotated[Path, "A folder, as the agent sees it"] = USER_DATA
) -> Annotated[web.StreamResponse, ZIP]:
    """Download the files of a thread, or of a folder in it, as one archive.

    Links are left out, and so is what is gone by the time it is its turn. Characters of names that some system cannot
    write are replaced.
    """
    tree, parts = Folder(call.services.home, call.user, thread.id).tree(), parts_of(under)
    page = await to_thread.run_sync(Walk(tree, parts, MOST_DEPTH, MOST_FILES).page)
    files = [file for file in page.files if file.kind == "file"]
    if not files:
        raise NotFound(f"{under[:200]}: there are no files")
    size = sum(file.size or 0 for file in files)
    if page.next is not None or page.truncated or size > MOST_BYTES:
        text = f"{under[:200]}: an archive has at most {MOST_FILES} files and folders, of {MOST_BYTES >> 20} MiB"
        raise HttpError(413, f"{text}; download a folder in it", "too_large")
    name = "files" if join(parts) == USER_DATA else parts[-1]
    headers = {"Content-Disposition": disposition("attachment", f"{name}.zip"), "Cache-Control": "private, no-store"}
    outlet = Outlet(call.request, ZIP, headers)
    async with sse.sending(outlet, "archive of files", thread=thread.id):
        with closing(_pieces(tree, join(parts), files)) as pieces:
            while (piece := await to_thread.run_sync(next, pieces, None)) is not None:
                await outlet.write(piece)
                if call.request.method == "HEAD":
                    break
    return outlet.response


class _Sink:
    """What `zipfile` writes to: it cannot go back, and holds what was not sent yet."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def write(self, data: bytes) -> int:
        self._buffer += data
        return len(data)

    def flush(self) -> None:
        """All that is written is there."""

    def taken(self) -> bytes:
        data = bytes(self._buffer)
        self._buffer.clear()
        return data


def _pieces(tree: Tree, under: str, files: list[File]) -> Generator[bytes]:
    """Yields the archive piece by piece. Blocks."""
    sink, names = _Sink(), set[str]()
    with zipfile.ZipFile(sink, "w", compresslevel=LEVEL) as archive:  # type: ignore[call-overload]
        for file in files:
            with suppress(Invalid, OSError), _opened(tree, file.path) as source:
                entry = _entry(_name(file.path.removeprefix(f"{under}/"), names), os.fstat(source.fileno()).st_mtime)
                with archive.open(entry, "w") as target:
                    for data in _content(source, file.size or 0):
                        target.write(data)
                        yield sink.taken()
    yield sink.taken()


@contextmanager
def _opened(tree: Tree, path: str) -> Iterator[BinaryIO]:
    """Opens a regular file. Raises `Invalid` for what is none any more."""
    with tree.open(path) as opened:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise Invalid(f"{path}: is not a file")
        with os.fdopen(os.dup(opened), "rb") as source:
            yield source


def _content(source: BinaryIO, size: int) -> Iterator[bytes]:
    """Yields as much of a file as it had when it was counted."""
    while data := source.read(min(CHUNK_BYTES, size)):
        yield data
        size -= len(data)


def _entry(name: str, modified: float) -> zipfile.ZipInfo:
    """Returns the entry of a file; the format knows no time before 1980."""
    year, *rest = time.localtime(modified)[:6]
    date = (year, *rest) if 1980 <= year < 2108 else (1980, 1, 1, 0, 0, 0)
    entry = zipfile.ZipInfo(name, date)  # type: ignore[arg-type]
    entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
    return entry


def _name(path: str, names: set[str]) -> str:
    """Returns a path that stays within the folder an archive is unpacked to, on any system, and that no other has."""
    plain = _ODD.sub("_", path)
    name, number = plain, 1
    while name.lower() in names:
        number += 1
        name = f"{plain}~{number}"
    names.add(name.lower())
    return name
