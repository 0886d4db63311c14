"""Markdown tables of cells: escaped, without what is empty to the end, and with a word for large gaps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

GAP = 5
"""Empty rows, and empty columns, in a row that are shown as they are; more are left out with a note."""
_PIPE = re.compile(r"(\\*)\|")
_LINES = re.compile(r"\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
Cells = Mapping[int, Mapping[int, str]]
"""Texts by row and column, both from 1."""


def escaped(text: str) -> str:
    """Returns the text of a cell: a pipe would end it, and a line break the row."""
    text = text.strip().replace("\t", " ").replace("\0", "")
    if "|" in text:
        text = _PIPE.sub(lambda match: match[1] * 2 + "\\|", text)
    return _LINES.sub("<br>", text) if _LINES.search(text) else text


def table(rows: Iterable[Sequence[str]]) -> str:
    """Returns rows as a table; the first is its head."""
    return grid({row: dict(enumerate(texts, 1)) for row, texts in enumerate(rows, 1)})


def grid(cells: Cells) -> str:
    """Returns cells as a table, with the notes about what is left out before it; "" if all are empty."""
    texts = {row: line for row, filled in cells.items() if (line := _filled(filled))}
    if not texts:
        return ""
    rows, gaps = _positions(sorted(texts))
    columns, wide = _positions(sorted({column for line in texts.values() for column in line}))
    notes = [*_notes(gaps, "rows", str), *_notes(wide, "columns", letters)]
    lines = [" | ".join(texts.get(row, {}).get(column, "") for column in columns) for row in rows]
    head = " | ".join("---" for _ in columns)
    body = "\n".join(f"| {line} |" for line in (lines[0], head, *lines[1:]))
    return "\n".join([*notes, "", body] if notes else [body])


def letters(column: int) -> str:
    """Returns the name of a column of a sheet: A, B, …, AA."""
    name = ""
    while column:
        column, letter = divmod(column - 1, 26)
        name = chr(65 + letter) + name
    return name


def _filled(line: Mapping[int, str]) -> dict[int, str]:
    return {column: cell for column, text in line.items() if text and (cell := escaped(text))}


def _positions(used: Sequence[int]) -> tuple[list[int], list[tuple[int, int]]]:
    """Returns the positions that are shown, and the gaps that are not."""
    positions, gaps = [used[0]], list[tuple[int, int]]()
    for position in used[1:]:
        last = positions[-1]
        if position - last - 1 > GAP:
            gaps.append((last + 1, position - 1))
        else:
            positions += range(last + 1, position)
        positions.append(position)
    return positions, gaps


def _notes(gaps: Sequence[tuple[int, int]], noun: str, name: object) -> Iterator[str]:
    assert callable(name)
    for first, last in gaps[:20]:
        yield f"> [{noun.capitalize()} {name(first)} to {name(last)} are empty and left out.]"
