"""The one way to a person's terminal: what a text may do there is the same for every command.

Names, titles, tool output and recorded files are untrusted text. Whatever of it reaches a terminal has lost what moves
the cursor, sets the clipboard or disguises text. Colours of ours pass; other outputs get every byte as it is.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Any, TextIO

from core.phrases import CONTROL, SEQUENCE

_COLOUR = re.compile(r"\x1b\[(?:0|1|2|3[1-6])?(?:;(?:0|1|2|3[1-6]))*m")
"""The colours of `Style` and of the log's lines. Black and white are left out: they hide text."""
_ANY = re.compile(f"{_COLOUR.pattern}|{SEQUENCE.pattern}|{CONTROL.pattern}")


def harmless(text: str) -> str:
    """Returns a text as it may be written to a terminal."""
    return _ANY.sub(lambda match: match[0] if _COLOUR.fullmatch(match[0]) else "", text)


class Harmless:
    """A terminal that is written to through `harmless`. A sequence that is cut by the end of a write loses its
    beginning, which makes the rest plain text.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write(harmless(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def guard_terminals() -> None:
    """Puts `Harmless` before standard output and standard error, where they are terminals."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream.isatty() and not isinstance(stream, Harmless):
            setattr(sys, name, Harmless(stream))


def unguarded(stream: TextIO) -> TextIO:
    """Returns the terminal itself, for what cleans its texts and moves the cursor."""
    return stream.stream if isinstance(stream, Harmless) else stream
