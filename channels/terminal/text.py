"""Text for a terminal: cleaning, shortening, colours."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TextIO

from core.phrases import about as about
from core.phrases import clean as clean
from core.phrases import one_line as one_line
from core.phrases import seconds as seconds

_PERIOD = re.compile(r"(\d{1,5})(m|min|h|d|w)")
_UNITS = {
    "m": timedelta(minutes=1),
    "min": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}
_MARKS = {"completed": "☑", "in_progress": "◐"}


def is_done(todo: Any) -> bool:
    return isinstance(todo, Mapping) and todo.get("status") == "completed"


def todo_line(todo: Mapping[str, Any]) -> str:
    """Returns the line of an item of a checklist."""
    return f"{_MARKS.get(str(todo.get('status')), '☐')} {one_line(str(todo.get('content', '')), 110)}"


def period(text: str) -> timedelta | None:
    """Returns the length of a period such as `90min`, `12h`, `7d`, `8w`; None for other texts."""
    match = _PERIOD.fullmatch(text)
    return int(match[1]) * _UNITS[match[2]] if match else None


def age(at: str, now: datetime) -> str:
    """Returns the age of an ISO time in its largest unit: `5 min`, `3 h`, `12 d`."""
    try:
        seconds = max(0, int((now - datetime.fromisoformat(at)).total_seconds()))
    except (ValueError, TypeError):
        return "?"
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


@dataclass(frozen=True, slots=True)
class Style:
    """Colours, if they are on."""

    on: bool = False

    def dim(self, text: str) -> str:
        return self._paint("2", text)

    def bold(self, text: str) -> str:
        return self._paint("1", text)

    def red(self, text: str) -> str:
        return self._paint("31", text)

    def green(self, text: str) -> str:
        return self._paint("32", text)

    def yellow(self, text: str) -> str:
        return self._paint("33", text)

    def plain(self, text: str) -> str:
        return text

    def _paint(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.on and text else text


def style_of(stream: TextIO, environ: Mapping[str, str] | None = None) -> Style:
    """Returns colours for a terminal, unless `NO_COLOR` is set."""
    names = os.environ if environ is None else environ
    return Style(stream.isatty() and not names.get("NO_COLOR") and names.get("TERM") != "dumb")


def money(cost: Mapping[str, float]) -> str:
    """Returns sums of money by currency as text: `0.0123 USD`; empty for none."""
    return " + ".join(f"{amount:.4g} {currency}" for currency, amount in cost.items())
