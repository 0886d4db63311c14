"""RTF by striprtf."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import BinaryIO

from striprtf.striprtf import rtf_to_text

from adapters.documents.job import Job, Rejected, joined
from adapters.documents.tables import table

_PAGE = re.compile(rb"\\ansicpg(\d+)")
_PICTURE = re.compile(r"\{\\\*?\\?(pict|objdata)\b[^{}]*\}")
_ROW, _CELL, _END, _PIPE = "\ue0f0", "\ue0f1", "\ue0f2", "\ue0f3"
"""Stand for the begin of a row, the ends of a cell and of a row, and a pipe, until the text is plain. They are of the
private use area: striprtf ends cells with pipes, which are the text's, too, and forgets where rows begin.
"""
_MARKS = ((r"\\trowd(?![a-z])", _ROW), (r"\\cell(?![a-z])", _CELL), (r"\\row(?![a-z])", _END), (r"\|", _PIPE))
_FAULTS = (LookupError, ValueError, IndexError, TypeError, RecursionError, AttributeError)
"""What striprtf raises for a text that is not as it expects."""


def read(document: BinaryIO, job: Job) -> tuple[str, None]:
    job.whole()
    content = document.read()
    page = _PAGE.search(content[:4096])
    source = _PICTURE.sub(
        "", content.decode(f"cp{int(page[1])}" if page and _is_known(page[1]) else "cp1252", "replace")
    )
    for pattern, mark in _MARKS:
        source = re.sub(pattern, f"{mark} " if mark != _PIPE else mark, source)
    try:
        text: str = rtf_to_text(source, errors="replace")  # type: ignore[no-untyped-call]
    except _FAULTS:
        raise Rejected("is damaged, or not complete") from None
    return joined(part.strip(" ") for part in _parts(text)).replace(_PIPE, "|"), None


def _is_known(page: bytes) -> bool:
    try:
        codecs.lookup(f"cp{int(page)}")
    except LookupError:
        return False
    return True


def _parts(text: str) -> Iterator[str]:
    """Yields the texts and the tables of a text with marks."""
    rows = list[list[str]]()
    for piece in text.split(_END):
        before, begun, row = piece.partition(_ROW)
        if rows and (before.strip() or not begun):
            yield table(rows)
            rows = []
        yield re.sub(r"\n{3,}", "\n\n", before.strip("\n"))
        if begun:
            cells = row.replace(_ROW, "").split(_CELL)
            rows.append([cell.replace(_PIPE, "|").strip() for cell in cells[:-1] or cells])
    if rows:
        yield table(rows)
