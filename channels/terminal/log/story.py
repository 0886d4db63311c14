"""Story of a thread: a line of text per event. Pure; the words are those of the event types (`core.phrases`)."""

from __future__ import annotations

from typing import Any

import msgspec

import core.catalogue  # noqa: F401 - the fields of types that nothing imports would not be known
from channels.terminal.log.numbers import Numbers
from channels.terminal.text import Style, one_line
from core.events import Event, ModelCompleted, ModelFailed, Opaque, Record, RunFailed, ToolCompleted, ToolRequested
from core.phrases import QUOTED, UNCUT
from core.replay.undecoded import problem_of
from core.wording import text_of_event, text_of_record

WIDTH = 160
"""Width of lines where there is no terminal, and no pipe."""


class Story:
    """Story of a thread, event by event. It remembers the tool calls, to show the arguments of an intent."""

    def __init__(self, style: Style | None = None, width: int = WIDTH) -> None:
        self._style = style or Style()
        self._width = width
        self._args: dict[str, dict[str, Any]] = {}
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
        event = record.event
        if isinstance(event, ModelCompleted):
            calls = event.message.get("tool_calls") or ()
            self._args |= {str(call.get("id")): call.get("args") or {} for call in calls}
        if isinstance(event, ToolCompleted):
            self._args.pop(event.call_id, None)
        if isinstance(event, ToolRequested) and event.args is None:
            event = msgspec.structs.replace(event, args=self._args.get(event.call_id))
        limit = UNCUT if self._width >= UNCUT else QUOTED
        if problem := problem_of(record):
            text = f"does not decode: {problem}"
        elif isinstance(event, Opaque):
            text = text_of_record(record, limit=limit)
        else:
            text = text_of_event(event, limit=limit)
        actor, kind = one_line(record.head.actor, 12), one_line(record.type, 28)
        head = f"{self.numbers.of(record):>6}  {_clock(record.at)}  {actor:<9} {kind:<20} "
        line = head + one_line(text, max(20, self._width - len(head)))
        failed = bool(problem) or isinstance(event, RunFailed | ModelFailed) or is_error(event)
        return self._style.red(line) if failed else line


def is_error(event: Event | Opaque) -> bool:
    """Tells whether an event is the outcome of a tool call that failed, or whose command did."""
    return isinstance(event, ToolCompleted) and (event.message.get("status") == "error" or bool(event.exit_code))


def _clock(at: str) -> str:
    """Returns `23:10:05.123` for `2026-11-20T23:10:05.123456+00:00`."""
    return at[11:23]
