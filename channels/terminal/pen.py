"""Who writes on a terminal, and where on the line: several writers, each on lines of their own."""

from __future__ import annotations

import re
from collections.abc import Callable

from channels.terminal.text import clean

Paint = Callable[[str], str]

_LINES = re.compile(r"[^\n]*\n|[^\n]+")


class Pen:
    """Every method returns the text to be written; what it is given is made harmless first."""

    def __init__(self) -> None:
        self._writer = ""
        self._at_start = True

    def is_in_line_of(self, writer: str) -> bool:
        return self._writer == writer and not self._at_start

    def turn_to(self, writer: str) -> str:
        """Somebody else writes: ends the line that is being written."""
        ends = "" if self._at_start or writer == self._writer else "\n"
        self._at_start = self._at_start or bool(ends)
        self._writer = writer
        return ends

    def line(self, writer: str, text: str, paint: Paint) -> str:
        """A line of its own, also if the writer was in the middle of one."""
        return self.turn_to(writer) + self.turn_to("") + self.write(writer, text + "\n", paint=paint)

    def write(self, writer: str, text: str, indent: str = "", paint: Paint | None = None) -> str:
        """Text that may go on in the middle of the writer's line, and may end there."""
        text = clean(text)
        if not text:
            return ""
        written = [self.turn_to(writer)]
        for line in _LINES.findall(text):
            body = line.rstrip("\n")
            if body:
                written.append((indent if self._at_start else "") + (paint(body) if paint else body))
            self._at_start = line.endswith("\n")
            written.append("\n" if self._at_start else "")
        return "".join(written)
