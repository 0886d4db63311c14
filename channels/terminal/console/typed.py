"""The line that a person types while a run works: Enter sends it to the agent, the rest begins the next message."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyPress
from prompt_toolkit.keys import Keys

MOST_CHARACTERS = 100_000


class TypedLine:
    """A line under construction. `shown` gets it after each key, `entered` gets it whole, `stopped` is for Ctrl-C."""

    def __init__(
        self, shown: Callable[[str], None], entered: Callable[[str], None], stopped: Callable[[], None]
    ) -> None:
        self.text = ""
        self._shown, self._entered, self._stopped = shown, entered, stopped

    def take(self, press: KeyPress) -> None:
        """Takes a key. Keys that mean nothing here are ignored."""
        match press.key:
            case Keys.ControlC:
                self._stopped()
            case Keys.ControlM | Keys.ControlJ:
                if text := self.text.strip():
                    self._entered(text)
                self.text = ""
            case Keys.ControlH | Keys.Backspace:
                self.text = self.text[:-1]
            case Keys.ControlU:
                self.text = ""
            case Keys.ControlW:
                self.text = self.text.rstrip().rpartition(" ")[0]
            case Keys.BracketedPaste:
                self.text += press.data
            case _ if len(press.data) == 1 and press.data.isprintable():
                self.text += press.data
        self.text = self.text[:MOST_CHARACTERS]
        self._shown(self.text)


@contextmanager
def reading(source: Input, line: TypedLine) -> Iterator[None]:
    """Reads keys into the line during the block. The terminal echoes none of them, and Ctrl-C is a key."""

    def ready() -> None:
        for press in source.read_keys():
            line.take(press)

    with source.raw_mode(), source.attach(ready):
        yield
