"""The port to the files that people gave a thread, as the agent is told of them, and the outline of a text."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple, Protocol

import msgspec

MOST_HEADINGS = 50
"""Shown of one text (contract runtime §5.2)."""
PREVIEW_LINES = 5
"""Shown of a text without headings."""
LINE_CHARACTERS = 200
"""Shown of a line; one that is more than twice as long is no heading."""

_KINDS = r"(?i:item|part|section|chapter|appendix|article|annex|schedule|exhibit)"
_HASHES = re.compile(r"#{1,6}\s+(\S.*)")
_STRUCTURAL = re.compile(rf"\*\*({_KINDS}\s+(?:\d[\w.]*|[IVXLC]+|[A-Z])\b[^*]*)\*\*")
_SPLIT = re.compile(r"\*\*(\d+(?:\.\d+)*\.?)\*\*\s+\*\*([^*]+)\*\*")


class Heading(NamedTuple):
    """`line` counts from 1."""

    line: int
    title: str


class Outline(msgspec.Struct, frozen=True):
    """What a text is about: its headings, or, if it has none, its first lines."""

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
        """The files of a thread, by name; none if it has no directory. Those `outlined` with their outlines. Names
        that do not fit on one line, and links, are left out.
        """
        ...


def outline(lines: Iterable[str]) -> Outline:
    """The outline of a Markdown text. What is fenced as code has no headings."""
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
    if found := _HASHES.fullmatch(line):
        title = found[1].rstrip("#").replace("**", "")
    elif found := _SPLIT.fullmatch(line):
        title = f"{found[1]} {found[2]}"
    elif found := _STRUCTURAL.fullmatch(line):
        title = found[1]
    else:
        return None
    return " ".join(title.split())[:LINE_CHARACTERS] or None
