"""Story of a thread: a line of text per event. Pure; the words are those of the event types (`core.phrases`)."""

from __future__ import annotations

import core.catalogue  # noqa: F401 - the fields of types that nothing imports would not be known
from channels.terminal.log.numbers import Numbers
from channels.terminal.text import Style, one_line
from core.events import Event, ModelFailed, Opaque, Record, RunFailed, ToolCompleted
from core.phrases import QUOTED, UNCUT
from core.replay.undecoded import problem_of
from core.wording import Narration

WIDTH = 160
"""Width of lines where there is no terminal, and no pipe."""


class Story:
    """Story of a thread, event by event."""

    def __init__(self, style: Style | None = None, width: int = WIDTH) -> None:
        self._style = style or Style()
        self._width = width
        self._narration = Narration()
        self._run: str | None = None
        self.numbers: Numbers = Numbers()

    def lines(self, record: Record) -> list[str]:
        """Returns the event's line, with a heading before it where another run begins."""
        heading = []
        if record.run is not None and record.run != self._run:
            self._run = record.run
            heading = [self._style.dim(f"── run {one_line(record.run, 60)} ──")]
        return [*heading, self.line(record)]

    def rest(self) -> list[str]:
        """Returns the lines held back: none."""
        return []

    def line(self, record: Record) -> str:
        """Returns the event's line."""
        problem = problem_of(record)
        text = self._narration.text(record, limit=UNCUT if self._width >= UNCUT else QUOTED)
        text = f"does not decode: {problem}" if problem else text
        actor, kind = one_line(record.head.actor, 12), one_line(record.type, 28)
        head = f"{self.numbers.of(record):>6}  {_clock(record.at)}  {actor:<9} {kind:<20} "
        line = head + one_line(text, max(20, self._width - len(head)))
        event = record.event
        failed = bool(problem) or isinstance(event, RunFailed | ModelFailed) or is_error(event)
        return self._style.red(line) if failed else line


def is_error(event: Event | Opaque) -> bool:
    """Tells whether an event is the outcome of a tool call that failed, or whose command did."""
    return isinstance(event, ToolCompleted) and (event.message.get("status") == "error" or bool(event.exit_code))


def _clock(at: str) -> str:
    """Returns `23:10:05.123` for `2026-11-20T23:10:05.123456+00:00`."""
    return at[11:23]
