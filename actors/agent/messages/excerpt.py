"""Describes a long text and cuts its head and tail, for the model."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from core.control import neutralised
from core.phrases import counted

MAX_PARSED = 4 << 20
"""Characters; longer texts are not parsed as JSON."""
MAX_NAMES, MAX_NAME = 12, 40
"""Limits of keys and columns in a description, and of the characters of each."""
LOOKED_AT = 50
"""Lines that are examined to classify a text."""
LONG_LINE = 2000
"""Characters; longer lines cannot be read or searched by lines."""
_TIME = re.compile(r"\[?(\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d)")
_LEVEL = re.compile(r"\[?(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|FATAL|CRITICAL)\b")


class Ends(NamedTuple):
    """Lengths of a text's head and tail, in characters."""

    head: int
    tail: int

    def within(self, most: int) -> Ends:
        """Returns lengths that together are at most `most`."""
        if self.head + self.tail <= most:
            return self
        head = min(self.head, most - min(self.tail, most // 3))
        return Ends(head, min(self.tail, most - head))


def shortened(text: str, ends: Ends, between: str) -> str:
    """Returns head and tail of a text with a line about the omission between them."""
    tail = text[len(text) - ends.tail :] if ends.tail else ""
    return f"{text[: ends.head]}\n\n... [{between}] ...\n\n{tail}"


def kind_of(text: str) -> str:
    """Describes the kind of a text. The names in it come from the text, without control tags."""
    lines = text[: LOOKED_AT * LONG_LINE].splitlines()[:LOOKED_AT]
    return neutralised(_json(text) or _json_lines(text, lines) or _log(lines) or _table(text, lines) or "text")


def size_of(text: str) -> str:
    count = line_count(text)
    return f"{len(text)} characters in {counted(count, 'line')}"


def line_count(text: str) -> int:
    return text.count("\n") + (not text.endswith("\n"))


def how_to_read(text: str) -> str:
    """Returns advice on reading parts of a file with this text."""
    if len(text) > LONG_LINE * line_count(text) // 4:
        return "Its lines are long: look at parts of it with bash (head -c, cut -c, jq, python3)."
    return "Read parts of it with read_file (start_line and end_line), or search it with grep."


def _json(text: str) -> str:
    start = text[:LONG_LINE].lstrip()[:1]
    if start not in ("[", "{") or len(text) > MAX_PARSED:
        return ""
    value = _decoded(text)
    if isinstance(value, dict):
        return f"JSON object with the keys {_names(list(value))}"
    return _array(value) if isinstance(value, list) else ""


def _array(items: Sequence[Any]) -> str:
    if items and all(isinstance(item, dict) for item in items[:LOOKED_AT]):
        return f"JSON array of {len(items)} objects, the first with the keys {_names(list(items[0]))}"
    return f"JSON array of {len(items)}"


def _json_lines(text: str, lines: Sequence[str]) -> str:
    full = lines[:-1] if len(lines) > 1 else lines
    if len(full) < 2 or not all(isinstance(_decoded(line), dict) for line in full[:5]):
        return ""
    return f"{line_count(text)} JSON objects, one a line, the first with the keys {_names(list(_decoded(full[0])))}"


def _log(lines: Sequence[str]) -> str:
    filled = [line for line in lines if line.strip()]
    times = [time[1] for line in filled if (time := _TIME.match(line))]
    marked = [line for line in filled if _TIME.match(line) or _LEVEL.match(line)]
    if len(filled) < 3 or 2 * len(marked) < len(filled):
        return ""
    return f"log lines, the first of {times[0]}" if times else "log lines"


def _table(text: str, lines: Sequence[str]) -> str:
    full = [line[:LONG_LINE] for line in lines[:-1] if line]
    for name, mark in (("CSV", ","), ("CSV", ";"), ("tab-separated table", "\t")):
        rows = list(csv.reader(full, delimiter=mark)) if len(full) >= 3 and mark in full[0] else []
        if rows and len(rows[0]) > 1 and len({len(row) for row in rows}) == 1:
            return f"{name} of {line_count(text)} lines with the columns {_names(rows[0])}"
    return ""


def _names(names: Sequence[Any]) -> str:
    listed = [" ".join(str(name).split())[:MAX_NAME] for name in names[:MAX_NAMES]]
    return ", ".join(listed) + (f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else "")


def _decoded(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
