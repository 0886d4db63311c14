"""Files of a thread, read and replaced by people: what a browser may show, and what it must only save."""

from __future__ import annotations

import errno
import hashlib
import io
import mimetypes
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar
from urllib.parse import quote

import msgspec
from aiohttp import web
from anyio import to_thread

from channels.http.accounts import view_links
from channels.http.endpoints.call import Call, OwnedThread, VisibleThread
from channels.http.endpoints.endpoint import Header, Routes
from channels.http.server.errors import BadRequest, Forbidden, HttpError
from channels.http.server.live import Outlet, Services
from channels.http.server.routes import API
from core.errors import Invalid, NotFound, Refused
from core.events import ArtifactReplaced
from core.files.folder import Folder, Version, version
from core.files.paths import MAX_PART, MAX_PATH, ROOTS, USER_DATA
from core.files.zips import Frugal, TooLong
from core.thread.state import ThreadState

T = TypeVar("T")

ANYTHING = "*/*"
CHUNK_BYTES = 256 * 1024
HEAD_BYTES = 8192
"""Bytes that are read to tell text from other content (as many as DeerFlow's)."""
MAX_MEMBER = 16 << 20
"""Bytes of a member of a `.skill` archive (DeerFlow's limit)."""
MAX_EDIT = 2 << 20
"""Bytes of a text that is replaced."""
MEMBER_CACHE = "private, max-age=300"
_ACTIVE = re.compile(
    r"text/html|(application|text)/xml|.*\+xml|multipart/.*|message/.*|(application|text)/javascript|text/css"
    r"|application/(wasm|x-shockwave-flash)"
)
"""Media types that can run scripts with the server's origin. PDF does not: viewers keep it apart, and
people read it in the page, as in DeerFlow.
"""
_TYPES = mimetypes.MimeTypes(filenames=())  # the same on every machine
for _kind, _suffixes in {
    "application/xhtml+xml": (".xhtml", ".xht"),
    "image/webp": (".webp",),
    "message/rfc822": (".mhtml",),
    "text/javascript": (".js", ".mjs"),
    "text/markdown": (".md",),
    "text/yaml": (".yaml", ".yml"),
}.items():
    for _suffix in _suffixes:
        _TYPES.add_type(_kind, _suffix)
_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")


class Replacement(msgspec.Struct):
    content: str
    expected_sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    """SHA-256 of the content to be replaced, as it was read."""


class Replaced(msgspec.Struct):
    """`path` as the agent sees it; `size` in bytes."""

    path: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class Content:
    """The content to send: an open file, or bytes that were in an archive."""

    name: str
    size: int
    tag: str
    head: bytes
    source: io.FileIO | bytes

    def read(self, at: int, count: int) -> bytes:
        if isinstance(self.source, bytes):
            return self.source[at : at + count]
        return os.pread(self.source.fileno(), count, at)

    def close(self) -> None:
        if not isinstance(self.source, bytes):
            self.source.close()


ROUTES = Routes(mounts=API)
_ONE = "/threads/{thread_id}/artifacts/{path:.+}"


@ROUTES("GET", _ONE, "files:read", answers={206: ANYTHING, 302: None, 304: None}, errors=(400, 403, 413, 416))
async def get(
    call: Call,
    thread: VisibleThread,
    path: str,
    *,
    download: Annotated[bool, "To be saved, not shown"] = False,
    view: Annotated[Literal["sandbox"] | None, "`sandbox`: redirects to where it can be shown in a frame"] = None,
    range: Annotated[str, Header("Range"), "One range of bytes"] = "",
    if_none_match: Annotated[str, Header("If-None-Match"), "ETags of copies"] = "",
    if_range: Annotated[str | None, Header("If-Range"), "ETag the range is of"] = None,
) -> Annotated[web.StreamResponse, ANYTHING]:
    """Read a file of a thread, by the path under which the agent sees it.

    Pages and drawings that could run scripts are always sent to be saved, and everything is with `download=true`.
    Files in a `.skill` archive are addressed as `x.skill/inner`. One range of bytes may be asked for, and a copy
    checked by its `ETag`. With `view=sandbox` pages, drawings and PDF can be shown in a frame of this server's pages:
    they may run scripts there and load files of their folder, and have no rights.
    """
    folder = Folder(call.services.home, call.user, thread.id)
    content = await to_thread.run_sync(_open, folder, _path(path))
    try:
        if view is not None:
            account = await view_links.account_of(call, call.user)
            ver = account.version if account is not None else 0
            return _elsewhere(view_links.address(call, call.user, ver, thread.id, _path(path)))
        headers = _headers(
            content, MEMBER_CACHE if isinstance(content.source, bytes) else "private, no-cache", download
        )
        if _known(if_none_match, content.tag):
            return web.Response(status=304, headers={name: headers[name] for name in ("Cache-Control", "ETag")})
        whole = if_range not in (None, content.tag)
        return await _send(call.request, content, headers, None if whole else _range(range, content))
    finally:
        content.close()


@ROUTES("PUT", _ONE, "files:write", errors=(400, 403, 409, 412, 413, 415))
async def put(call: Call, thread: OwnedThread, path: str, body: Replacement) -> Replaced:
    """Replace a text file in the outputs of a thread.

    412 if it is not the text any more that was read, 409 while a run is at work. Only UTF-8 text of at most 2 MiB.
    """
    path = _path(path)
    if not path.startswith(f"{USER_DATA}/outputs/"):
        raise BadRequest(f"path: only files in {USER_DATA}/outputs can be replaced")
    folder = Folder(call.services.home, call.user, thread.id)
    in_archive: bool = await to_thread.run_sync(_is_member, folder, path)
    if in_archive:
        raise BadRequest("path: files in an archive cannot be replaced")
    _idle(thread.id, thread.state)
    replacing = _replace(call.services, call.user, thread.id, path, body.content.encode(), body.expected_sha256)
    return await call.live.to_its_end(replacing)


def content_of(home: Path, user: str, thread_id: str, path: str) -> Content:
    """Opens a file of a thread, by the path under which the agent sees it. Blocks. Raises as `get` does."""
    return _open(Folder(home, user, thread_id), _path(path))


def _elsewhere(where: str) -> web.Response:
    headers = {"Location": where, "Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
    return web.Response(status=302, headers=headers)


async def send_view(
    request: web.Request, content: Content, policy: str, part: str, more: Mapping[str, str] | None = None
) -> web.StreamResponse:
    """Sends a file to be shown by itself under a Content-Security-Policy, with `more` headers, and closes it. Its fonts
    and modules need CORS, as its origin is opaque. A PDF is not under `sandbox`, with which browsers show none: their
    viewers keep it apart from every origin.
    """
    try:
        headers = _headers(content, "private, no-cache", False)
        pdf = headers["Content-Type"] == "application/pdf"
        headers |= {
            "Content-Disposition": disposition("inline", content.name),
            "Content-Security-Policy": "default-src 'none'; frame-ancestors 'self'" if pdf else policy,
            "Access-Control-Allow-Origin": "*",
            "Cross-Origin-Resource-Policy": "cross-origin",
            "Referrer-Policy": "no-referrer",
            "X-DNS-Prefetch-Control": "off",
            **(more or {}),
        }
        return await _send(request, content, headers, _range(part, content))
    finally:
        content.close()


async def send_saved(
    request: web.Request, content: Content, more: Mapping[str, str] | None = None
) -> web.StreamResponse:
    """Sends a file to be saved, with `more` headers, and closes it."""
    try:
        return await _send(request, content, {**_headers(content, "private, no-store", True), **(more or {})}, None)
    finally:
        content.close()


# ── finding ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _path(path: str) -> str:
    """The virtual path that is asked for. Raises `BadRequest`, and `Forbidden` for one that climbs."""
    path = "/" + path.lstrip("/")
    parts = path.split("/")
    if "\0" in path or "\\" in path:
        raise BadRequest("path: contains a NUL byte or a backslash")
    if ".." in parts:
        raise Forbidden("path: '..' is not allowed")
    size = len(path.encode("utf-8", "replace"))
    if size > MAX_PATH or any(len(part.encode("utf-8", "replace")) > MAX_PART for part in parts):
        raise BadRequest("path: too long")
    if not any(path.startswith(f"{USER_DATA}/{root}/") for root in ROOTS):
        raise BadRequest(f"path: must be in one of {', '.join(f'{USER_DATA}/{root}' for root in ROOTS)}")
    return path


def _split(path: str) -> tuple[str, str]:
    """The path of a file, and of the member if it is an archive."""
    head, mark, tail = path.partition(".skill/")
    return (f"{head}.skill", tail) if mark and tail.strip("/") else (path, "")


def _open(folder: Folder, path: str) -> Content:
    file, member = _file_or_archive(folder, path)
    try:
        whole = content_in(file, path.rpartition("/")[2])
        if not member:
            return whole
        data = _member(file, member)
        name = member.rstrip("/").rpartition("/")[2]
        inner = hashlib.sha256(member.encode("utf-8", "replace")).hexdigest()[:8]
    except BaseException:
        file.close()
        raise
    file.close()
    return Content(name, len(data), f'{whole.tag[:-1]}-{inner}"', data[:HEAD_BYTES], data)


def _file_or_archive(folder: Folder, path: str) -> tuple[Frugal, str]:
    """Returns the file of this path, or the archive on its way and the path in it. A folder may be called `x.skill`."""
    archive, member = _split(path)
    if member:
        try:
            return _open_file(folder, archive), member
        except BadRequest:  # no file
            pass
    return _open_file(folder, path), ""


def _is_member(folder: Folder, path: str) -> bool:
    if not _split(path)[1]:
        return False
    file, member = _file_or_archive(folder, path)
    file.close()
    return bool(member)


def content_in(file: io.FileIO, name: str) -> Content:
    """Returns the content of an open file. Blocks."""
    about = os.fstat(file.fileno())
    tag = f'"{about.st_mtime_ns:x}-{about.st_size:x}-{about.st_ino:x}"'
    return Content(name, about.st_size, tag, os.pread(file.fileno(), HEAD_BYTES, 0), file)


def _open_file(folder: Folder, path: str) -> Frugal:
    """A regular file. Raises `NotFound`, `Forbidden` for what leads out of the thread, `BadRequest` for no file."""
    try:
        with folder.tree().open(path) as opened:
            if not stat.S_ISREG(os.fstat(opened).st_mode):
                raise BadRequest(f"{path}: is not a file")
            return Frugal(os.dup(opened), "rb")
    except BadRequest:
        raise
    except Invalid as error:
        raise Forbidden(str(error)) from None
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
            raise NotFound(f"{path}: not found") from None
        if error.errno in (errno.EACCES, errno.EPERM, errno.ELOOP):
            raise Forbidden(f"{path}: {os.strerror(error.errno).lower()}") from None
        if error.errno in (errno.ENXIO, errno.EISDIR, errno.ENODEV, errno.EINVAL):
            raise BadRequest(f"{path}: is not a file") from None
        raise


# ── archives ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _member(file: Frugal, member: str) -> bytes:
    """A file in an archive: by its path, or by its path within the archive's one folder."""
    try:
        with zipfile.ZipFile(file) as archive:
            entries = {entry.filename: entry for entry in archive.infolist()}
            inside = next((name for name in entries if name.partition("/")[2] == member), "")
            entry = entries.get(member) or entries.get(inside)
            if entry is None or entry.is_dir():
                raise NotFound(f"{member}: not found in the archive")
            if entry.file_size > MAX_MEMBER:
                raise HttpError(413, f"{member}: larger than {MAX_MEMBER} bytes", "too_large")
            if entry.flag_bits & 1 or entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise BadRequest(f"{member}: is encrypted, or compressed in an unusual way")
            with archive.open(entry) as opened:
                return b"".join(iter(lambda: opened.read(CHUNK_BYTES), b""))
    except TooLong as error:
        raise HttpError(413, str(error), "too_large") from None
    except (zipfile.BadZipFile, zlib.error, ValueError, OSError, EOFError, NotImplementedError):
        raise BadRequest("the archive cannot be read; it is damaged, or not complete") from None


# ── sending ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _headers(content: Content, cache: str, download: bool) -> dict[str, str]:
    kind = type_of(content)
    active = any(_ACTIVE.fullmatch(name) for name in (kind.partition(";")[0], _guessed(content)[0] or ""))
    return {
        "Content-Type": kind,
        "Accept-Ranges": "bytes",
        "Cache-Control": cache,
        "Content-Disposition": disposition("attachment" if download or active else "inline", content.name),
        "ETag": content.tag,
        "X-Content-Type-Options": "nosniff",
        **({"Content-Security-Policy": "sandbox"} if active else {}),
    }


async def _send(
    request: web.Request, content: Content, headers: Mapping[str, str], part: tuple[int, int] | None
) -> web.StreamResponse:
    """Sends the content, or a part of it."""
    begin, end = part or (0, content.size)
    of = {"Content-Range": f"bytes {begin}-{end - 1}/{content.size}"} if part else {}
    if part and begin >= end:
        nothing = {"Content-Range": f"bytes */{content.size}"}
        raise HttpError(416, f"no such range: there are {content.size} bytes", "range", nothing)
    outlet = Outlet(request, headers["Content-Type"], {**headers, **of, "Content-Length": str(end - begin)})
    outlet.response.set_status(206 if part else 200)
    await outlet.response.prepare(request)
    while begin < end and request.method != "HEAD":
        data = await to_thread.run_sync(content.read, begin, min(CHUNK_BYTES, end - begin))
        if not data:  # it was made shorter while we read it: what was promised cannot be kept
            outlet.abort()
            raise ConnectionResetError("the file changed while it was sent")
        await outlet.write(data)
        begin += len(data)
    await outlet.response.write_eof()
    return outlet.response


def type_of(content: Content) -> str:
    """By the name; what has no known one is text if it looks like it. Text says so if it is UTF-8."""
    guessed, encoding = _guessed(content)
    if encoding is not None:
        return "application/octet-stream"
    text = b"\0" not in content.head
    kind = guessed or ("text/plain" if text else "application/octet-stream")
    if not kind.startswith("text/") or not _utf8(content.head):
        return kind
    return f"{kind}; charset=utf-8"


def _guessed(content: Content) -> tuple[str | None, str | None]:
    return _guess(content.name)


def _guess(name: str) -> tuple[str | None, str | None]:
    return _TYPES.guess_type(f"file:///{quote(name)}")


def media_type(name: str) -> str | None:
    """Returns the media type that the name of a file says; None if it says none, or that it is compressed."""
    kind, encoding = _guess(name)
    return kind if encoding is None else None


def _utf8(head: bytes) -> bool:
    try:
        head.decode()
    except UnicodeDecodeError as error:
        return len(head) == HEAD_BYTES and error.start > len(head) - 4  # cut within a character
    return True


def disposition(how: str, name: str) -> str:
    """With the name as RFC 5987 wants it: any name, and nothing that could end the header."""
    return f"{how}; filename*=UTF-8''{quote(name.encode('utf-8', 'replace'), safe='')}"


def _known(sent: str, tag: str) -> bool:
    """Tells whether the client has this already, by its `If-None-Match`."""
    return sent.strip() == "*" or tag in [known.strip().removeprefix("W/") for known in sent.split(",")]


def _range(sent: str, content: Content) -> tuple[int, int] | None:
    """Begin and end of what is asked for; None for all of it, which also answers what we do not understand."""
    match = _RANGE.fullmatch(sent.strip())
    if match is None or match[0] == "bytes=-":
        return None
    first, last = match[1], match[2]
    if not first:
        return max(0, content.size - int(last)), content.size
    if last and int(last) < int(first):
        return None
    return int(first), min(content.size, int(last) + 1) if last else content.size


# ── replacing ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _idle(thread_id: str, state: ThreadState) -> None:
    if any(state.runs.open()):
        raise Refused(f"Thread {thread_id} has an active run; its files cannot be replaced meanwhile")


async def _replace(services: Services, user: str, thread_id: str, path: str, data: bytes, expected: str) -> Replaced:
    """Replaces the file, then records that it was replaced.

    The file is the truth: reads and later edits look at it alone. If the process dies between the two, the new text
    stays without its fact, and the next scan of the workspace counts it among what changed.
    """
    folder = Folder(services.home, user, thread_id)
    sha256, new = await to_thread.run_sync(_publish, folder, path, data, expected)
    replaced = ArtifactReplaced(path=path, size=len(data), sha256=sha256, before=expected)
    await services.commands.record(user, thread_id, lambda: [replaced] if _version(folder, path) == new else [])
    return Replaced(path, sha256, len(data))


def _version(folder: Folder, path: str) -> Version | None:
    """Returns the version of the file that lies there now."""
    with suppress(BadRequest, NotFound):
        return _place(folder, path, version)
    return None


def _publish(folder: Folder, path: str, data: bytes, expected: str) -> tuple[str, Version | None]:
    """Compares and swaps, one edit of a thread at a time. Returns the SHA-256 of the new text, and its version.

    Non-guarantee: a command of the agent does not take the lock, and can write in between.
    """
    if len(data) > MAX_EDIT:
        raise HttpError(413, f"content: larger than {MAX_EDIT} bytes", "too_large")
    if b"\0" in data:
        raise HttpError(415, "content: is not text", "not_text")
    _compare(folder, path, expected)
    with closing(folder.draft()) as draft:
        draft.write(data)
        draft.seal()
        with folder.exclusive():
            _compare(folder, path, expected)
            _place(folder, path, draft.publish)
            return draft.sha256, _version(folder, path)


def _compare(folder: Folder, path: str, expected: str) -> None:
    """Raises `HttpError` if the file has other content, or is no text that can be edited."""
    with _open_file(folder, path) as file, io.BufferedReader(file) as reader:
        before = reader.read(MAX_EDIT + 1)
    if len(before) > MAX_EDIT:
        raise HttpError(413, f"{path}: larger than {MAX_EDIT} bytes", "too_large")
    if b"\0" in before or not _is_utf8(before):
        raise HttpError(415, f"{path}: is not UTF-8 text", "not_text")
    if hashlib.sha256(before).hexdigest() != expected:
        raise HttpError(412, f"{path}: has changed since it was read", "changed")


def _place(folder: Folder, path: str, act: Callable[[int, str], T]) -> T:
    """Does something to a file by its directory's descriptor and its name, if links are not the way to it. Returns the
    result.
    """
    try:
        with folder.tree().walk(path) as place:
            if place.fd is None or place.virtual != path:
                raise BadRequest(f"{path}: is a link, or behind one")
            return act(place.fd, place.name)
    except BadRequest:
        raise
    except Invalid as error:
        raise BadRequest(str(error)) from None


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
