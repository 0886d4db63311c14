"""The port of a thread's uploads, as the agent reads them, and the outline of a text."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from core.errors import Invalid
from core.files.paths import MAX_PART

MOST_HEADINGS = 50
"""Limit of headings in an outline (DeerFlow's middleware Uploads)."""
PREVIEW_LINES = 5
"""Lines in the outline of a text without headings."""
LINE_CHARACTERS = 200
"""Limit of a line in an outline; a line of more than twice the length is no heading."""

_DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d|conin\$|conout\$)(\.|\Z)", re.IGNORECASE)
"""Names that are no files on Windows, where people may save what they get from here."""
_JOINERS = "\u200c\u200d"
"""Invisible, but part of words in some scripts and of emoji."""
_KINDS = r"(?i:item|part|section|chapter|appendix|article|annex|schedule|exhibit)"
_HASHES = re.compile(r"#{1,6}\s+(\S.*)")
_STRUCTURAL = re.compile(rf"\*\*({_KINDS}\s+(?:\d[\w.]*|[IVXLC]+|[A-Z])\b[^*]*)\*\*")
_SPLIT = re.compile(r"\*\*(\d+(?:\.\d+)*\.?)\*\*\s+\*\*([^*]+)\*\*")


def plain_name(sent: str) -> str:
    """A file name that is nothing else anywhere: no folder, no device, not hidden, no characters that deceive.

    Raises `Invalid` for what names no file.
    """
    name = unicodedata.normalize("NFC", sent.rpartition("/")[2])
    if "\\" in name:
        raise Invalid("a file name has no backslash")
    name = "".join(c for c in name if c in _JOINERS or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp"))
    name = name.strip().rstrip(". ")
    if not name:
        raise Invalid("names no file")
    if name.startswith(".") or _DEVICES.match(name):
        name = f"_{name}"
    if len(name.encode()) > MAX_PART:
        raise Invalid(f"a file name has no more than {MAX_PART} bytes")
    return name


class Heading(NamedTuple):
    """`line` counts from 1."""

    line: int
    title: str


class Outline(msgspec.Struct, frozen=True):
    """The headings of a text, or its first lines if it has none."""

    headings: Sequence[Heading] = ()
    more: bool = False
    """There are more headings than these."""
    preview: Sequence[str] = ()


class Upload(msgspec.Struct, frozen=True):
    """A file in a thread's uploads. `size` in bytes; `markdown`: the name of the file with its text, maybe itself."""

    name: str
    size: int
    markdown: str | None = None
    outline: Outline | None = None


class Uploads(Protocol):
    """Non-guarantee: the agent works in the same directory, so a file may be gone when it is looked at."""

    async def listing(self, user: str, thread: str, outlined: Collection[str]) -> Sequence[Upload]:
        """Returns the files of a thread, ordered by name; none if it has no directory. Files named in `outlined` come
        with their outlines. Links, and names that do not fit on one line, are left out.
        """
        ...


def outline(lines: Iterable[str]) -> Outline:
    """Returns the outline of a Markdown text. Fenced code has no headings."""
    headings: list[Heading] = []
    preview: list[str] = []
    fenced = False
    for number, raw in enumerate(lines, 1):
        line = raw.strip()
        if line.startswith("```"):
            fenced = not fenced
        if line and len(preview) < PREVIEW_LINES:
            preview.append(line[:LINE_CHARACTERS])
        if not fenced and (title := _title(line)):
            if len(headings) == MOST_HEADINGS:
                return Outline(headings, more=True)
            headings.append(Heading(number, title))
    return Outline(headings) if headings else Outline(preview=preview)


def _title(line: str) -> str | None:
    if not line.startswith(("#", "**")) or len(line) > 2 * LINE_CHARACTERS:
        return None
    if match := _HASHES.fullmatch(line):
        title = match[1].rstrip("#").replace("**", "")
    elif match := _SPLIT.fullmatch(line):
        title = f"{match[1]} {match[2]}"
    elif match := _STRUCTURAL.fullmatch(line):
        title = match[1]
    else:
        return None
    return " ".join(title.split())[:LINE_CHARACTERS] or None
