"""What is in an archive: names and sizes, read here from bytes that may be an attack.

Only headers are read. Nothing is unpacked to the disk, and no library parses them: a directory of a hostile ZIP file
may have millions of entries, and `tarfile` has followed sizes in a circle. So each step goes forward, entries and
unpacked bytes have limits, and what is beyond them is said.
"""

from __future__ import annotations

import bz2
import lzma
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from core.phrases import counted

NAMED = 200
"""Members that are named."""
COUNTED = 20_000
"""Members that are counted."""
HEADERS = 4 * COUNTED
"""Headers of a tar archive that are read: each member may have some that describe it."""
NAME_CHARACTERS = 200
MAX_UNPACKED = 64 << 20
"""Bytes that are unpacked of a compressed archive."""
LZMA_MEMORY = 64 << 20
_CHUNK = 1 << 20
_BLOCK = 512
_LONG = 8192
"""Bytes of an entry that are read for a name."""
_LONG_NAME, _PAX = b"L", b"x"
_BESIDE = b"LKxgV"
"""Types of entries that describe the next one, or the archive."""


class Member(NamedTuple):
    name: str
    size: int


class Contents(NamedTuple):
    """The first members of an archive, and the number of all that were counted. `more`: there are others."""

    members: Sequence[Member]
    total: int
    more: bool


class Unpacker(Protocol):
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...


class Unpacked(NamedTuple):
    """The beginning of a compressed file. `whole`: it is all of it, and undamaged."""

    content: bytes
    whole: bool


PACKED: dict[bytes, tuple[str, Callable[[], Unpacker]]] = {
    b"\x1f\x8b": ("gzip", lambda: _Gzip()),
    b"BZh": ("bzip2", bz2.BZ2Decompressor),
    b"\xfd7zXZ": ("xz", lambda: lzma.LZMADecompressor(memlimit=LZMA_MEMORY)),
}
"""Kinds of compressed files by their first bytes: name, and what unpacks one."""


def described(path: str, content: bytes) -> str | None:
    """Returns what an archive holds, or a compressed file; None for other files. Blocks for seconds at most."""
    if content.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _listing(path, "a ZIP archive", len(content), _zip(content))
    if _is_tar(content):
        return _listing(path, "a tar archive", len(content), _tar(content, whole=True))
    for start, (name, make) in PACKED.items():
        if content.startswith(start):
            unpacked = _unpacked(content, make())
            if _is_tar(unpacked.content):
                return _listing(path, f"a tar archive ({name})", len(content), _tar(*unpacked))
            return _packed(path, name, len(content), unpacked)
    return None


def _listing(path: str, kind: str, size: int, contents: Contents | None) -> str:
    if contents is None:
        return f"{path} is {kind}, {size} bytes, damaged or not complete."
    lines = [f"{_printable_name(member.name)} ({member.size} bytes)" for member in contents.members]
    left = contents.total - len(lines)
    least = "at least " if contents.more else ""
    more = [f"… and {least}{left} more"] if left or contents.more else []
    return "\n".join([f"{path} is {kind} of {least}{counted(contents.total, 'file')}, {size} bytes:", *lines, *more])


def _printable_name(name: str) -> str:
    """Returns a name on one line, and a word about one that an unpacker must not follow."""
    plain = "".join(character if character.isprintable() else "�" for character in name[:NAME_CHARACTERS])
    leads_out = name.startswith(("/", "\\")) or ".." in name.replace("\\", "/").split("/")
    return f"{plain} [leads out of the archive]" if leads_out else plain


def _packed(path: str, name: str, size: int, unpacked: Unpacked) -> str:
    least = "" if unpacked.whole else "at least "
    text = b"\0" not in unpacked.content[:8192]
    reader = {"gzip": "zcat", "bzip2": "bzcat", "xz": "xzcat"}[name]
    what = f"a text of {least}{len(unpacked.content)} bytes" if text else f"{least}{len(unpacked.content)} bytes"
    return f"{path} is a {name} file, {size} bytes: unpacked {what}. Look at it with a command ({reader})."


# ── ZIP ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _zip(content: bytes) -> Contents | None:
    """Returns what the directory at the end of a ZIP file names; None if there is none."""
    end = content.rfind(b"PK\x05\x06", -65_557)
    if end < 0 or len(content) < end + 22:
        return None
    size, start = struct.unpack_from("<II", content, end + 12)
    locator = content.rfind(b"PK\x06\x07", 0, end)
    if 0xFFFFFFFF in (size, start) and locator == end - 20:
        (wide,) = struct.unpack_from("<Q", content, locator + 8)
        if content[wide : wide + 4] != b"PK\x06\x06" or len(content) < wide + 56:
            return None
        size, start = struct.unpack_from("<QQ", content, wide + 40)
    if start + size > end:
        return None
    return _counted(_entries(content, start, start + size))


def _entries(content: bytes, place: int, end: int) -> Iterator[Member]:
    while place + 46 <= end and content[place : place + 4] == b"PK\x01\x02":
        flags, size = struct.unpack_from("<H", content, place + 8)[0], struct.unpack_from("<I", content, place + 24)[0]
        name, extra, comment = struct.unpack_from("<HHH", content, place + 28)
        raw = content[place + 46 : place + 46 + name]
        wide = content[place + 46 + name : place + 46 + name + extra]
        if size == 0xFFFFFFFF and len(wide) >= 12 and wide[:2] == b"\x01\0":
            (size,) = struct.unpack_from("<Q", wide, 4)
        yield Member(raw.decode("utf-8" if flags & 0x800 else "cp437", "replace"), size)
        place += 46 + name + extra + comment


def _counted(members: Iterator[Member | None], *, whole: bool = True) -> Contents:
    """Returns the members. One that is None stands for those that were not looked at."""
    named, count = list[Member](), 0
    for member in members:
        if member is None or count >= COUNTED:
            return Contents(named, count, True)
        count += 1
        if len(named) < NAMED:
            named.append(member)
    return Contents(named, count, not whole)


# ── tar ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _is_tar(content: bytes) -> bool:
    return content[257:262] == b"ustar"


def _tar(content: bytes, whole: bool) -> Contents:
    return _counted(_headers(content), whole=whole)


def _headers(content: bytes) -> Iterator[Member | None]:
    """Yields the members, with the names that entries before them give."""
    place, name, headers = 0, "", 0
    while place + _BLOCK <= len(content):
        if (headers := headers + 1) > HEADERS:
            yield None
            return
        header = content[place : place + _BLOCK]
        if not header.strip(b"\0") or (size := _number(header[124:136])) is None:
            return
        kind, body = header[156:157], content[place + _BLOCK : place + _BLOCK + min(size, _LONG)]
        if kind == _LONG_NAME:
            name = _text(body)
        elif kind == _PAX:
            name = _pax_path(body) or name
        elif kind not in (*map(bytes, zip(_BESIDE)),):
            prefix = _text(header[345:500]) if header[257:263] == b"ustar\0" else ""
            yield Member(name or "/".join(filter(None, (prefix, _text(header[:100])))), size)
            name = ""
        place += _BLOCK + (size + _BLOCK - 1) // _BLOCK * _BLOCK


def _number(field: bytes) -> int | None:
    """Returns the size in a header, octal or binary; None for one that is neither, or negative."""
    if field[0] & 0x80:
        return int.from_bytes(field[1:], "big") if field[0] == 0x80 else None
    with suppress(ValueError):
        size = int(field.strip(b" \0") or b"0", 8)
        return size if size >= 0 else None
    return None


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "replace")


def _pax_path(body: bytes) -> str:
    """Returns the path in an extended header, whose lines are `length key=value`."""
    line = next((part for part in body.split(b"\n") if part.partition(b" ")[2].startswith(b"path=")), b"")
    return line.partition(b"=")[2].decode("utf-8", "replace")


# ── compressed files ────────────────────────────────────────────────────────────────────────────────────────────────


class _Gzip:
    """zlib's unpacker of gzip files, with the interface of the others."""

    def __init__(self) -> None:
        self._unpacker = zlib.decompressobj(31)

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        return self._unpacker.decompress(self._unpacker.unconsumed_tail + data, max_length)

    @property
    def eof(self) -> bool:
        return self._unpacker.eof

    @property
    def unused_data(self) -> bytes:
        return self._unpacker.unused_data


def _unpacked(content: bytes, unpacker: Unpacker) -> Unpacked:
    """Returns the beginning of a compressed file, at most `MAX_UNPACKED` bytes."""
    parts, size, place = list[bytes](), 0, 0
    try:
        while not unpacker.eof and size < MAX_UNPACKED:
            data, place = content[place : place + _CHUNK], place + _CHUNK
            while size < MAX_UNPACKED and not unpacker.eof and (part := unpacker.decompress(data, MAX_UNPACKED - size)):
                parts.append(part)
                size, data = size + len(part), b""
            if place >= len(content):
                break
    except (zlib.error, lzma.LZMAError, OSError, EOFError, ValueError):
        return Unpacked(b"".join(parts), False)
    return Unpacked(b"".join(parts), unpacker.eof and not unpacker.unused_data and place >= len(content))
