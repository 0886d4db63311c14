"""Cuts a long text in the middle, and says so: how much is left out, and its lines that speak of errors."""

from __future__ import annotations

import re

from core.phrases import counted

LINE = 200
"""Characters of a line from the part that is left out."""
MOST_LINES = 12
BREAK = 400
"""Characters that a cut moves, so that it lies between two lines."""
_ERRORS = re.compile(r"\b(?:\w*error|\w*exception|traceback|fail(?:ed|ure|ures|s)?|fatal|panic\w*)\b", re.IGNORECASE)


def cut(text: str, limit: int, note: str = "") -> str:
    """Returns a third of the head and two thirds of the tail, where commands end with what went wrong. At most `limit`
    characters; 0 means no limit.
    """
    if limit <= 0 or len(text) <= limit:
        return text
    room = limit - len(note) - MOST_LINES * (LINE + 20) - 200
    if room < limit // 4:
        room = limit - len(_gap(text, note, ""))
        if room <= 0:
            return text[:limit]
        head = room // 3
        return text[:head] + _gap(text[head : len(text) - room + head], note, "") + text[len(text) - room + head :]
    head, tail = room // 3, len(text) - (room - room // 3)
    head = max(head - BREAK, text.rfind("\n", 0, head) + 1) if "\n" in text[head - BREAK : head] else head
    tail = text.find("\n", tail, tail + BREAK) + 1 if "\n" in text[tail : tail + BREAK] else tail
    middle = text[head:tail]
    return text[:head] + _gap(middle, note, errors(middle, text.count("\n", 0, head) + 1)) + text[tail:]


def errors(text: str, first: int = 1) -> str:
    """Returns the last lines of a text that speak of errors, with their numbers from `first` on."""
    lines = [(number, line) for number, line in enumerate(text.split("\n"), first) if _ERRORS.search(line[:10_000])]
    shown = [f"{number}: {line.strip()[:LINE]}" for number, line in lines[-MOST_LINES:]]
    more = f"\n(and {len(lines) - MOST_LINES} before them)" if len(lines) > MOST_LINES else ""
    return "\n".join(["", "Lines in it that speak of errors:", *shown]) + more if shown else ""


def _gap(middle: str, note: str, important: str) -> str:
    count = middle.count("\n") + (not middle.endswith("\n"))
    return f"\n... [{counted(len(middle), 'character')} in {counted(count, 'line')} left out{note}.{important}] ...\n"
