"""Import over HTTP: an exported file, which may be anybody's, becomes a thread of the person who sends it."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import AsyncExitStack, closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio.to_thread
import msgspec
from aiohttp import web

from channels.http.deerflow.uploads import receive_one
from channels.http.endpoints.call import Call
from channels.http.endpoints.endpoint import Created, Routes
from channels.http.server.routes import API, Form
from core.errors import Invalid, Unavailable
from core.files.folder import Draft
from core.files.paths import thread_root
from core.ids import uuid7
from core.replay.exports.archive import Archive
from core.replay.exports.importing import restore, restore_files

FIELD = "file"
"""The field of the form that has the file."""
MOST_BYTES = 64 << 20
"""Limit of a file. `sika log import` has none."""
IMPORTS = 2
"""Imports that a process executes at the same time."""
ROUTES = Routes(mounts=API, tag="debugging")


TURNS: web.AppKey[asyncio.Semaphore] = web.AppKey("imports", asyncio.Semaphore)


class ImportedThread(msgspec.Struct):
    """The new thread. `cancelled`: the number of runs that had not ended; `files`: of the files that came along."""

    thread_id: str
    events: int
    cancelled: int
    files: int


@ROUTES("POST", "/threads/import", "threads:write", body=Form(files=(FIELD,)), errors=(400, 413))
async def import_thread(call: Call) -> Created[ImportedThread]:
    """Import a file that was exported, from the form field `file`, as a new thread of yours.

    The file is checked as a whole before anything is written. The thread has a new id, and an event says who imported
    it. Nobody reacts to its events; its runs that had not ended are cancelled; folders, variables, shares, webhooks and
    chats do not come along.
    """
    turns = call.request.app[TURNS]
    if turns.locked():
        raise Unavailable(f"{IMPORTS} files are being imported; try again when one is done")
    async with AsyncExitStack() as held:
        await held.enter_async_context(turns)
        folder = Path(held.enter_context(TemporaryDirectory(prefix="sika-import-")))
        draft = held.enter_context(closing(Draft(folder)))
        await receive_one(call.request, FIELD, draft, MOST_BYTES)
        return await call.live.to_its_end(_import(call, folder / draft.name, held.pop_all()))


async def _import(call: Call, path: Path, held: AsyncExitStack) -> ImportedThread:
    """Imports a file. `held`: what is given back at the end, also of a client that has left."""
    async with held:
        try:
            archive = held.enter_context(closing(await Archive.open(path)))
            files = await _files(archive, call, thread_id := uuid7())
            done = await restore(call.services.log, archive, thread=thread_id, user=call.user, by=call.user)
        except Invalid as error:  # it names the draft
            raise Invalid(str(error).replace(path.name, FIELD, 1)) from None
        return ImportedThread(done.thread, done.events, done.cancelled, files)


async def _files(archive: Archive, call: Call, thread_id: str) -> int:
    """Writes the files that come along, or none of them. Returns their number."""
    try:
        new, _ = await restore_files(archive, call.services.home, call.user, thread_id)
    except Invalid:
        root = thread_root(call.services.home, call.user, thread_id)
        await anyio.to_thread.run_sync(partial(shutil.rmtree, root, ignore_errors=True))
        raise
    return new
