"""One conversion: which part of the document is wanted, what time is left, and what could not be read."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")
SPARE_SECONDS = 3.0
"""Processor time that is left of the limit for writing down what was read in time."""
_RANGE = re.compile(r"(\d*)(-?)(\d*)")


class Rejected(Exception):
    """The document is rejected. The text is fit for people; it follows the name of the file."""


class Job:
    """`pages`: ranges such as "2", "3-5" or "7-", of pages, slides, sheets or chapters, counted from 1; "" for all.
    `sheet`: the name of a sheet. `seconds`: limit of processor time.
    """

    def __init__(
        self,
        progress: Callable[[int, int], None] = lambda page, of: None,
        *,
        pages: str = "",
        sheet: str = "",
        seconds: float = 10.0,
    ) -> None:
        self.progress, self._pages, self._sheet = progress, pages, sheet
        self._last = max(0.0, seconds - SPARE_SECONDS)

    @property
    def late(self) -> bool:
        """Tells whether the time for reading is over."""
        return time.process_time() > self._last

    @property
    def left(self) -> float:
        """Returns the processor time that is left for reading, in seconds."""
        return max(0.0, self._last - time.process_time())

    @property
    def is_partial(self) -> bool:
        return bool(self._pages or self._sheet)

    def chosen(self, parts: Sequence[T], noun: str, names: Sequence[str] = ()) -> Iterator[tuple[int, T]]:
        """Yields the wanted parts with their numbers. Raises `Rejected` with what there is if none is wanted."""
        numbers = range(1, len(parts) + 1)
        if self._sheet:
            sheet = self._sheet.casefold()
            selected = [number for number in numbers if names and names[number - 1].casefold() == sheet]
        else:
            selected = [number for number in numbers if _within(number, self._pages)]
        if not selected and (self._sheet or self._pages):
            sheets = f" ({', '.join(names)})" if names else ""
            raise Rejected(f"has {len(parts)} {noun}{sheets}, and not {self._sheet or self._pages}")
        yield from ((number, parts[number - 1]) for number in selected)

    def whole(self) -> None:
        """Raises `Rejected` if a part is wanted of a document that has none."""
        if self.is_partial:
            raise Rejected("has no pages or sheets to choose from; read it whole")


def _within(number: int, ranges: str) -> bool:
    if not ranges:
        return True
    for text in ranges.split(","):
        match = _RANGE.fullmatch(text.replace(" ", ""))
        if match is None or not (match[1] or match[3]):
            raise Rejected(f"pages: a number or a range such as 2-5 is expected, not {text[:50]}")
        first, last = int(match[1] or 1), int(match[3] or (10**9 if match[2] else match[1]))
        if first <= number <= last:
            return True
    return False


def note(text: str) -> str:
    """Returns the line that says what of a document is not in its text, and why."""
    return f"> [Not converted: {' '.join(text.split())[:500]}]"


def joined(parts: Iterable[str]) -> str:
    """Returns blocks of Markdown with a blank line between them."""
    return "\n\n".join(part.strip("\n") for part in parts if part.strip())
