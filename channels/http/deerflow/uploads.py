"""Files from people: streamed to disk under plain names, within limits, and each one a fact in its thread's log."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Container, Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec
from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import HttpProcessingError
from anyio import to_thread

from channels.http.endpoints.call import Call, OwnedThread, VisibleThread
from channels.http.endpoints.endpoint import Routes
from channels.http.server.errors import BadRequest, HttpError
from channels.http.server.live import STALLED_SECONDS, Live
from channels.http.server.routes import API, Form
from core.config.settings import Uploads
from core.control import sendable
from core.errors import Invalid, NotFound, Refused
from core.events import FileConverted, FileRejected, FileRemoved, FileUploaded, Record
from core.files.folder import Draft, Folder, Version
from core.files.folder import Text as MadeText
from core.files.paths import MAX_PART, USER_DATA
from core.files.uploads import plain_name
from core.ports.documents import KINDS
from core.runs.commands import FileFact
from core.runs.follow import Stopping

FIELD = "files"
CHUNK_BYTES = 256 * 1024
"""Bytes that are gathered before they are written to the disk."""
MAX_OTHER_BYTES = 1 << 20
"""Limit of all form fields that are no files; they are ignored."""
CONVERSION_SECONDS = 15.0
"""Time that the answer to an upload waits for the text of documents. They are converted in any case."""

MAX_LISTED = 10_000

T = TypeVar("T")
Unset = msgspec.UnsetType


class Converted(msgspec.Struct, kw_only=True):
    """`markdown_…`: the text of a file, if it was converted by now; `markdown_error`: why it could not be."""

    markdown_file: str | Unset = msgspec.UNSET
    markdown_path: str | Unset = msgspec.UNSET
    markdown_virtual_path: str | Unset = msgspec.UNSET
    markdown_artifact_url: str | Unset = msgspec.UNSET
    markdown_error: str | Unset = msgspec.UNSET

    def has_text(self, thread_id: str, name: str) -> None:
        self.markdown_file = name
        self.markdown_path = self.markdown_virtual_path = virtual(name)
        self.markdown_artifact_url = url(thread_id, name)


class File(Converted):
    """An upload. `size` in bytes; `path` as the agent sees it."""

    filename: str
    size: str
    path: str
    virtual_path: str
    artifact_url: str
    original_filename: str | Unset = msgspec.UNSET


class Uploaded(msgspec.Struct):
    """`skipped_files`: those that were not taken; `message` says why."""

    success: bool
    files: list[File]
    message: str
    skipped_files: list[str]


class Listed(Converted):
    """A file in the uploads. `modified`: seconds since 1970."""

    filename: str
    size: str
    path: str
    extension: str
    modified: float
    virtual_path: str
    artifact_url: str


class Listing(msgspec.Struct):
    files: list[Listed]
    count: int


class Limits(msgspec.Struct):
    """Sizes in bytes."""

    max_files: int
    max_file_size: int
    max_total_size: int


class Done(msgspec.Struct):
    success: bool
    message: str


class Text(msgspec.Struct):
    """The text of a document. `pages`: how many it has, if it has such."""

    filename: str
    markdown_file: str
    markdown_path: str
    markdown_virtual_path: str
    markdown_artifact_url: str
    pages: int | None


def too_much(text: str) -> HttpError:
    """More than is allowed: everything the request brought is dropped."""
    return HttpError(413, text, "too_large")


@dataclass(slots=True)
class Batch:
    """The files of one request. No file has its name before the request is complete."""

    folder: Folder
    limits: Uploads
    drafts: dict[str, Draft] = field(default_factory=dict)
    refused: list[Draft] = field(default_factory=list)
    """Their bytes count like those of the others."""
    originals: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    """Why, by the name as it was sent."""

    @property
    def all(self) -> list[Draft]:
        return [*self.drafts.values(), *self.refused]

    def close(self) -> None:
        for draft in self.all:
            draft.close()


ROUTES = Routes(mounts=API)
_ALL = "/threads/{thread_id}/uploads"


@ROUTES("POST", _ALL, "files:write", body=Form(files=(FIELD,)), errors=(400, 413))
async def upload(call: Call, thread: VisibleThread) -> Uploaded:
    """Upload files to a thread: form field `files`, as often as there are files.

    The thread need not exist yet. All files of a request are taken together: a limit that is exceeded drops them all.
    Names are made plain (`original_filename` is what was sent); a file of the same name is replaced. Documents are
    converted to Markdown if the server is so configured; what is not done within seconds is done later.
    """
    live, user, thread_id = call.live, call.user, thread.id
    folder = Folder(live.services.home, user, thread_id)
    await to_thread.run_sync(folder.make)
    batch = Batch(folder, live.services.config().uploads)
    try:
        await _receive(call.request, batch)
    except BaseException:
        batch.close()
        raise
    facts, records = await live.to_its_end(_finish(live, thread_id, user, batch))
    texts = await _texts(live, thread_id, records) if records else {}
    return _answer(thread_id, batch, facts, texts)


@ROUTES("GET", f"{_ALL}/list", "files:read")
async def listed(call: Call, thread: VisibleThread) -> Listing:
    """The files in the uploads of a thread, by name, with the texts that were made of documents."""
    folder = Folder(call.services.home, call.user, thread.id)
    files = await to_thread.run_sync(_files, folder)
    known = await call.services.commands.uploads(call.user, thread.id)
    names = {name for name, _, _ in files}
    shown = [
        Listed(
            filename=name,
            size=str(size),
            path=virtual(name),
            extension=Path(name).suffix,
            modified=modified,
            virtual_path=virtual(name),
            artifact_url=url(thread.id, name),
        )
        for name, size, modified in sorted(files)
    ]
    for file in shown:
        if (upload := known.get(file.filename)) is not None and upload.settled:
            if upload.text is not None and upload.text.name in names:
                file.has_text(thread.id, upload.text.name)
            elif upload.reason is not None:
                file.markdown_error = upload.reason
    return Listing(shown, len(shown))


@ROUTES("GET", f"{_ALL}/limits", "files:read")
async def limits(call: Call, thread: VisibleThread) -> Limits:
    """The limits of an upload: number and size of files."""
    uploads = call.config.uploads
    return Limits(uploads.max_files, uploads.max_file_size, uploads.max_total_size)


@ROUTES("DELETE", f"{_ALL}/{{filename}}", "files:write", errors=(400, 409))
async def delete(call: Call, thread: OwnedThread, filename: str) -> Done:
    """Remove an upload, and the text that was made of it. 409 if it cannot be removed: it stays then."""
    user, commands, thread_id, name = call.user, call.services.commands, thread.id, _named(filename)
    folder = Folder(call.services.home, user, thread_id)
    known = (await commands.uploads(user, thread_id)).get(name)
    gone, failed = await to_thread.run_sync(_unlink, folder, [name])
    if failed:
        raise Refused(f"{name}: cannot be deleted: {failed[name]}")
    if not gone and known is None:
        raise NotFound(f"{name}: not found")
    texts = [known.text] if known and known.text else []
    names = [name, *(text.name for text in texts)]
    failed = await to_thread.run_sync(_remove_texts, folder, texts)
    removed = [each for each in names if each not in failed]

    def true() -> list[FileFact]:
        there = folder.versions(removed)
        return [FileRemoved(name=each) for each in removed if each not in there]

    await commands.record(user, thread_id, true)
    left = f"; cannot be deleted: {_reasons(failed)}" if failed else ""
    return Done(True, f"Deleted {name}{left}")


@ROUTES("POST", f"{_ALL}/{{filename}}/convert", "files:write", errors=(400,))
async def convert(call: Call, thread: OwnedThread, filename: str) -> Text:
    """Convert an upload to Markdown now, whatever is configured.

    Repeating it is cheap: a file is converted once. 422 says why a file cannot be converted.
    """
    user, thread_id, name = call.user, thread.id, _named(filename)
    files = await to_thread.run_sync(_files, Folder(call.services.home, user, thread_id))
    if name not in {each[0] for each in files}:
        raise NotFound(f"{name}: not found")
    converted = await call.services.call(
        "documents", {"op": "convert", "thread": thread_id, "user": user, "name": name}
    )
    text = str(converted["markdown"])
    return Text(name, text, virtual(text), virtual(text), url(thread_id, text), converted["pages"])


def virtual(name: str) -> str:
    return f"{USER_DATA}/uploads/{name}"


def url(thread_id: str, name: str) -> str:
    return f"/api/threads/{thread_id}/artifacts{quote(virtual(name))}"


# ── names ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _claim(name: str, taken: Container[str]) -> str:
    """The name, or with `_1`, `_2`… if another file of the request has it. Raises `Invalid` if that gets too long."""
    path, claimed, number = Path(name), name, 0
    while claimed in taken:
        number += 1
        claimed = f"{path.stem}_{number}{path.suffix}"
    if len(claimed.encode()) > MAX_PART:
        raise Invalid(f"a file name has no more than {MAX_PART} bytes")
    return claimed


def _named(name: str) -> str:
    """The file name of the path: one that is no plain name cannot be there."""
    if "/" in name or "\\" in name or "\0" in name or name in (".", "..", ""):
        raise BadRequest("filename: must be a plain name")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise BadRequest("filename: is not UTF-8") from None
    if size > MAX_PART:
        raise BadRequest(f"filename: longer than {MAX_PART} bytes")
    return name


# ── receiving ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def _receive(request: web.Request, batch: Batch) -> None:
    """Read all parts. Raises `BadRequest` for what is no proper form, 413 as soon as a limit is exceeded."""
    with _well_formed():
        async for part, sent in _parts(request, FIELD):
            if sent:
                await _receive_file(request, part, sent, batch)
    if not batch.drafts and not batch.skipped:
        raise BadRequest(f"no files in the field '{FIELD}'")


async def receive_one(request: web.Request, name: str, draft: Draft, most: int) -> None:
    """Reads the one file of a form, in the field `name`, into a draft. Raises as `_receive` does."""
    files = 0
    with _well_formed():
        async for part, _ in _parts(request, name):
            files += 1
            while data := await _soon(request, part.read_chunk(CHUNK_BYTES)):
                if draft.size + len(data) > most:
                    raise too_much(f"{name}: larger than {most} bytes")
                await to_thread.run_sync(draft.write, bytes(data))
    if files != 1:
        raise BadRequest(f"one file is expected in the field '{name}', got {files}")


@contextmanager
def _well_formed() -> Iterator[None]:
    try:
        yield
    except (ValueError, AssertionError, LookupError, RuntimeWarning, HttpProcessingError, web.RequestPayloadError):
        raise BadRequest("the form is malformed, or not complete") from None


async def _parts(request: web.Request, name: str) -> AsyncIterator[tuple[BodyPartReader, str]]:
    """Yields the files of a form that are in a field, with their names as sent. Passes over other fields."""
    if not request.content_type.startswith("multipart/"):
        raise BadRequest(f"expected multipart/form-data with files in the field '{name}'")
    reader, other = await request.multipart(), 0
    while (part := await _soon(request, reader.next())) is not None:
        if not isinstance(part, BodyPartReader):
            raise BadRequest("a form within the form")
        if part.name is None:
            raise BadRequest("a part of the form has no name")
        if part.name == name and part.filename is not None:
            yield part, part.filename
            continue
        while data := await _soon(request, part.read_chunk(CHUNK_BYTES)):
            other += len(data)
            if other > MAX_OTHER_BYTES:
                raise too_much(f"more than {MAX_OTHER_BYTES} bytes of form fields other than files in '{name}'")


async def _receive_file(request: web.Request, part: BodyPartReader, sent: str, batch: Batch) -> None:
    if len(batch.all) >= batch.limits.max_files:
        raise too_much(f"more than {batch.limits.max_files} files (uploads.max_files)")
    shown, before, gathered = _encodable(sent), sum(draft.size for draft in batch.all), bytearray()
    draft = await to_thread.run_sync(batch.folder.draft)
    try:
        name = _claim(plain_name(sent), batch.drafts)
    except Invalid as error:
        batch.skipped[shown] = str(error)
        batch.refused.append(draft)
    else:
        batch.drafts[name] = draft
        batch.originals[name] = shown
    while data := await _soon(request, part.read_chunk(CHUNK_BYTES)):
        gathered += data
        size = draft.size + len(gathered)
        if size > batch.limits.max_file_size:
            raise too_much(f"{shown}: larger than {batch.limits.max_file_size} bytes (uploads.max_file_size)")
        if before + size > batch.limits.max_total_size:
            raise too_much(f"more than {batch.limits.max_total_size} bytes in all (uploads.max_total_size)")
        if len(gathered) >= CHUNK_BYTES:
            await to_thread.run_sync(draft.write, bytes(gathered))
            gathered.clear()
    await to_thread.run_sync(draft.write, bytes(gathered))
    await to_thread.run_sync(draft.seal)


async def _soon(request: web.Request, reading: Coroutine[Any, Any, T]) -> T:
    """Raises `ConnectionError` if the client sends nothing for a minute."""
    try:
        async with asyncio.timeout(STALLED_SECONDS):
            return await reading
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("the client does not send") from None


def _encodable(sent: str) -> str:
    """A name as it was sent, fit for JSON."""
    return sendable(sent)[:MAX_PART]


# ── taking ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _finish(live: Live, thread_id: str, user: str, batch: Batch) -> tuple[list[FileUploaded], list[Record]]:
    """Gives the files their names and records that. Returns what was taken, and the records: none without a thread,
    nor of files that others have replaced meanwhile.
    """
    commands = live.services.commands
    try:
        facts, versions = await to_thread.run_sync(_publish, batch)
    finally:
        await to_thread.run_sync(batch.close)
    known = await commands.uploads(user, thread_id)
    names = {fact.name for fact in facts}
    stale = [text for name in names & known.keys() if (text := known[name].text) and text.name not in names]
    await to_thread.run_sync(_remove_texts, batch.folder, stale)

    def true() -> list[FileFact]:
        there = batch.folder.versions(names)
        return [fact for fact in facts if fact.name in there and there[fact.name] == versions.get(fact.name)]

    return facts, await commands.record(user, thread_id, true)


def _publish(batch: Batch) -> tuple[list[FileUploaded], dict[str, Version]]:
    """All or, if that would be too much, none. What cannot be replaced is skipped. Returns the files' versions, too."""
    facts = []
    drafts = batch.drafts
    with batch.folder.exclusive(), batch.folder.open("uploads") as directory:
        stored = sum(size for name, size, _ in _scan(directory) if name not in drafts)
        if stored + sum(draft.size for draft in drafts.values()) > batch.limits.max_total_size:
            raise too_much(f"more than {batch.limits.max_total_size} bytes in all (uploads.max_total_size)")
        for name, draft in drafts.items():
            try:
                draft.publish(directory, name)
            except Invalid as error:
                batch.skipped[name] = str(error).removeprefix(f"{name}: ")
                continue
            sent = batch.originals[name]
            original = sent if sent != name else None
            facts.append(FileUploaded(name=name, size=draft.size, sha256=draft.sha256, original=original))
        return facts, batch.folder.versions(fact.name for fact in facts)


def _scan(directory: int) -> list[tuple[str, int, float]]:
    """Name, size and time of change of the regular files in a directory."""
    files = []
    for entry in os.scandir(directory):
        with suppress(OSError):
            about = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(about.st_mode):
                files.append((entry.name, about.st_size, about.st_mtime))
    return files


def _files(folder: Folder) -> list[tuple[str, int, float]]:
    try:
        with folder.open("uploads") as directory:
            files = _scan(directory)[:MAX_LISTED]
    except NotFound:
        return []
    return [(os.fsencode(name).decode("utf-8", "replace"), size, changed) for name, size, changed in files]


def _unlink(folder: Folder, names: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Removes files (of links the link): those that were there, and why the others stay."""
    gone: list[str] = []
    failed: dict[str, str] = {}
    with suppress(NotFound), folder.open("uploads") as directory:
        for name in names:
            try:
                os.unlink(name, dir_fd=directory)
            except FileNotFoundError:
                continue
            except OSError as error:
                failed[name] = os.strerror(error.errno or 0).lower()
            else:
                gone.append(name)
    return gone, failed


def _remove_texts(folder: Folder, texts: Sequence[MadeText]) -> dict[str, str]:
    """Removes Markdown files that were made. Returns why some stay."""
    failed: dict[str, str] = {}
    for text in texts:
        try:
            folder.remove_text(text)
        except OSError as error:
            failed[text.name] = os.strerror(error.errno or 0).lower()
    return failed


# ── answering ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def _texts(live: Live, thread_id: str, records: Sequence[Record]) -> dict[str, FileConverted | FileRejected]:
    """Returns the conversions of the documents among uploads, as far as they end within `CONVERSION_SECONDS`."""
    outcomes: dict[str, FileConverted | FileRejected] = {}
    if not live.services.config().uploads.auto_convert_documents:
        return outcomes
    facts = [record.event for record in records if isinstance(record.event, FileUploaded)]
    expected = {fact.name: fact.sha256 for fact in facts if Path(fact.name).suffix.lower() in KINDS}
    with suppress(TimeoutError, Stopping):
        async with (
            asyncio.timeout(CONVERSION_SECONDS),
            live.follow(thread_id) as follower,
            aclosing(follower.since(records[0].seq)) as batches,
        ):
            while outcomes.keys() != expected.keys():
                for item in await anext(batches):
                    event = item.event if isinstance(item, Record) else None
                    if (
                        isinstance(event, FileConverted | FileRejected)
                        and expected.get(event.name) == event.source_sha256
                    ):
                        outcomes[event.name] = event
    return outcomes


def _answer(
    thread_id: str,
    batch: Batch,
    facts: Sequence[FileUploaded],
    texts: Mapping[str, FileConverted | FileRejected],
) -> Uploaded:
    files = [_file(thread_id, fact, texts.get(fact.name)) for fact in facts]
    message = f"Successfully uploaded {len(files)} file(s)"
    if batch.skipped:
        message += f"; skipped {len(batch.skipped)}: " + _reasons(batch.skipped)
    refused = {name: text.reason for name, text in texts.items() if isinstance(text, FileRejected)}
    if refused:
        message += f"; not converted {len(refused)}: " + _reasons(refused)
    return Uploaded(not batch.skipped, files, message, [*batch.skipped])


def _reasons(reasons: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({reason})" for name, reason in reasons.items())


def _file(thread_id: str, fact: FileUploaded, text: FileConverted | FileRejected | None) -> File:
    name = fact.name
    file = File(
        filename=name,
        size=str(fact.size),
        path=virtual(name),
        virtual_path=virtual(name),
        artifact_url=url(thread_id, name),
    )
    if fact.original is not None:
        file.original_filename = fact.original
    if isinstance(text, FileConverted):
        file.has_text(thread_id, text.markdown)
    elif text is not None:
        file.markdown_error = text.reason
    return file
