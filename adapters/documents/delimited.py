"""Tables as text (CSV, TSV): the encoding and the separator are found, the values stay."""

from __future__ import annotations

import csv
import io
import sys
from collections import Counter
from collections.abc import Sequence
from typing import BinaryIO

from adapters.documents.job import Job, Rejected, joined, note
from adapters.documents.tables import escaped
from core.files.encodings import decoded

SEPARATORS = ",;\t|"
MOST_BYTES = 24 << 20
"""Limit of what is read: more than fits into a text."""
SAMPLE_CHARACTERS, SAMPLE_ROWS = 64 << 10, 50


def read(document: BinaryIO, job: Job) -> tuple[str, None]:
    job.whole()
    content = document.read(MOST_BYTES)
    size = document.seek(0, io.SEEK_END)
    if size > len(content):
        content = content[: content.rindex(b"\n") + 1] if b"\n" in content else content
    text = decoded(content)
    if text is None:
        raise Rejected("is not a readable CSV table, whatever its name says")
    end = note(f"the rest of {size >> 20} MB; {MOST_BYTES >> 20} MB are read") if size > MOST_BYTES else ""
    return joined([converted(text.text.lstrip("\ufeff"), job), end]), None


def converted(text: str, job: Job) -> str:
    """Returns a text with separators as a table, and a line about what did not fit into the time."""
    separator, text = _declared(text)
    csv.field_size_limit(sys.maxsize)
    reader = csv.reader(io.StringIO(text.replace("\0", ""), newline=""), delimiter=separator or separator_of(text))
    rows, lines, end = list[Sequence[str]](), 0, ""
    try:
        for row in reader:
            if any(field.strip() for field in row) or rows:
                rows.append([escaped(field) for field in row])
            lines += 1
            if lines % 1000 == 0 and job.late:
                end = note(f"lines below {reader.line_num}: the time for a document is over")
                break
    except csv.Error as error:
        end = note(f"lines below {reader.line_num}: {error}")
    return joined([_table(rows), end])


def separator_of(text: str) -> str:
    """Returns the separator that gives the most rows of one width (more than one), the usual one in doubt.

    `csv.Sniffer` takes any letter that is there equally often for a separator.
    """
    sample = text[:SAMPLE_CHARACTERS]
    if len(text) > len(sample):
        sample = sample.rpartition("\n")[0] or sample
    scores = {separator: _score(sample, separator) for separator in SEPARATORS}
    return max(SEPARATORS, key=lambda separator: scores[separator])


def _score(sample: str, separator: str) -> tuple[float, int]:
    """Returns the share of rows of the most usual width, and that width; (0, 0) if rows have one field."""
    try:
        reader = csv.reader(io.StringIO(sample, newline=""), delimiter=separator)
        widths = [len(row) for row, _ in zip(reader, range(SAMPLE_ROWS), strict=False) if row]
    except csv.Error:
        return 0.0, 0
    usual = Counter(width for width in widths if width > 1).most_common(1)
    if not usual:
        return 0.0, 0
    width, count = usual[0]
    first = widths[0] == width  # a comma in some of the texts is no separator, one in the head may be
    return count / len(widths) + (0.5 if first else 0), width


def _declared(text: str) -> tuple[str, str]:
    """Returns the separator of a first line `sep=;`, as Excel writes it, and the text without that line."""
    line, _, rest = text.partition("\n")
    declared = line.strip("\r").removeprefix("sep=")
    return (declared, rest) if line.startswith("sep=") and len(declared) == 1 else ("", text)


def _table(rows: list[Sequence[str]]) -> str:
    while rows and not any(rows[-1]):
        rows.pop()
    width = max((last for row in rows if (last := _width(row))), default=0)
    if not width:
        return ""
    lines = (f"| {' | '.join([*row[:width], *[''] * (width - len(row))])} |" for row in rows)
    return "\n".join((next(lines), f"| {' | '.join(['---'] * width)} |", *lines))


def _width(row: Sequence[str]) -> int:
    return next((number for number in range(len(row), 0, -1) if row[number - 1]), 0)
