"""The answer of `read_file`: lines of a text, or what a file is that has none."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import PurePosixPath

from actors.sandbox import archives
from core.errors import Invalid
from core.files.encodings import Decoded, decoded
from core.files.paths import USER_DATA, join, parse
from core.ports.documents import KINDS, TEXTS, WHOLE, Selection
from core.ports.images import kind_of

LINE = 5000
"""Characters of a line that are shown."""
CODE = frozenset({"html", "csv"})
"""Kinds of documents that are read as they are: people and agents write them by hand. Pages of the uploads are not."""
UPLOADS = f"{USER_DATA}/uploads/"


def is_converted(path: str, only: Selection, convert: bool | None) -> bool:
    """Tells whether a file is read by its conversion: as the call says, else by its kind. Raises `Invalid` for a part
    of a file that has none.
    """
    kind = KINDS.get(PurePosixPath(path).suffix.lower())
    if kind is None:
        if only != WHOLE:
            raise Invalid(f"{path}: has no pages or sheets; name lines (start_line, end_line)")
        return False
    if only != WHOLE:
        return True
    if convert is None:
        return kind not in CODE or (kind == "html" and join(parse(path)).startswith(UPLOADS))
    return convert or kind not in TEXTS


def notes_of_document(path: str, only: Selection, pages: int | None) -> list[str]:
    """Returns what the reader of a document should know of it."""
    part = f"sheet {only.sheet}" if only.sheet else f"pages {only.pages}" if only.pages else "text"
    kind = KINDS.get(PurePosixPath(path).suffix.lower(), "")
    source = ["convert=false reads the source"] if kind in TEXTS else []
    return [f"{part} of a document{f' of {pages} pages' if pages else ''}", *source]


def answer(path: str, content: bytes, lines: tuple[int | None, int | None], limit: int, *, numbered: bool) -> str:
    """Returns lines of a file, at most `limit` characters, or a description of one that is no text."""
    text = decoded(content)
    if text is None or kind_of(content) is not None:
        return described(path, content)
    if not content:
        return "(empty)"
    return excerpt(text.text, lines, limit, notes_of(text), numbered=numbered)


def notes_of(text: Decoded) -> list[str]:
    notes = [] if text.encoding == "utf-8" else [f"encoded in {text.encoding}"]
    if "\r\n" in text.text:
        notes.append("lines end with CRLF")
    return notes


def excerpt(
    text: str, lines: tuple[int | None, int | None], limit: int, notes: Sequence[str], *, numbered: bool
) -> str:
    """Returns lines from the first to the last one that are named, and how to read on."""
    total = text.count("\n") + (not text.endswith("\n"))
    first, last = max(1, lines[0] or 1), min(total, lines[1] or total)
    if first > total:
        raise Invalid(f"start_line: {first} is beyond the end; the file has {total} lines")
    if last < first:
        raise Invalid(f"end_line: {lines[1]} is before start_line; the file has {total} lines")
    shown, size, long = list[str](), 0, list[int]()
    for number, raw in enumerate(islice(_lines(text, first), last + 1 - first), first):
        line, left = _line(raw, min(LINE, limit) if limit else LINE)
        long += [number] if left else []
        line = f"{number:>6}\t{line}" if numbered else line
        size += len(line) + 1
        if limit and size > limit and shown:
            break
        shown.append(line)
    end = first + len(shown) - 1
    about = list(notes)
    if (first, end) != (1, total):
        about.insert(0, f"lines {first} to {end} of {total}, {len(text)} characters in all")
    if end < last:
        about.append(f"read on with start_line={end + 1}")
    if long:
        about.append("long lines are cut: look at them with a command (cut -c, jq)")
    return "\n".join(shown) + (f"\n\n[{'; '.join(about)}]" if about else "")


def _lines(text: str, first: int) -> Iterator[str]:
    """Yields lines from the first one on. Splits no more than is read: all lines take far more memory than a text."""
    start = 0
    for _ in range(first - 1):
        start = text.index("\n", start) + 1
    while start < len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        yield text[start:end].removesuffix("\r")
        start = end + 1


def _line(line: str, limit: int) -> tuple[str, int]:
    left = len(line) - limit
    return (f"{line[:limit]} … [{left} more characters in this line]", left) if left > 0 else (line, 0)


# ── files that are no text ──────────────────────────────────────────────────────────────────────────────────────────


def described(path: str, content: bytes) -> str:
    """Returns what a file is: its kind, size and more where it is cheap to know."""
    size = f"{len(content)} bytes"
    if (kind := picture(content)) is not None:
        name, width, height = kind
        pixels = f", {width} × {height} pixels" if width else ""
        return f"{path} is a picture: {name}{pixels}, {size}. To see it, use view_image, if you have that tool."
    if (archive := archives.described(path, content)) is not None:
        return archive
    for start, kind_name, hint in _KINDS:
        if content.startswith(start):
            return f"{path} is {kind_name}, {size}{f': {hint}' if hint else ''}."
    return (
        f"{path} is binary, {size}; it begins with {content[:16].hex(' ')}. Look at it with a command (xxd, strings)."
    )


_KINDS = (
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", ""),
    (b"SQLite format 3\0", "an SQLite database", "query it with python3 (sqlite3)"),
    (b"\x7fELF", "a program or library (ELF)", ""),
    (b"PAR1", "a Parquet table", "read it with python3 (pandas)"),
    (b"%PDF-", "a PDF file", "rename it to .pdf, and read it again"),
)


def picture(content: bytes) -> tuple[str, int, int] | None:
    """Returns the kind of a picture, and its width and height, 0 if they are not known."""
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        return ("PNG", *(struct.unpack(">II", content[16:24]) if len(content) >= 24 else (0, 0)))
    if content[:6] in (b"GIF87a", b"GIF89a") and len(content) >= 10:
        return ("GIF", *struct.unpack("<HH", content[6:10]))
    if content.startswith(b"\xff\xd8\xff"):
        return ("JPEG", *_jpeg(content))
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return ("WebP", 0, 0)
    return None


def _jpeg(content: bytes) -> tuple[int, int]:
    """Returns the size in the frame header, which follows segments of known lengths."""
    place = 2
    while place + 9 <= len(content) and content[place] == 0xFF:
        marker, length = content[place + 1], int.from_bytes(content[place + 2 : place + 4])
        if marker in range(0xC0, 0xD0) and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", content[place + 5 : place + 9])
            return width, height
        place += 2 + max(length, 2)
    return 0, 0
