"""Digest of a story: folds routine steps into one line, and keeps all other events. Pure."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

import msgspec

from channels.terminal.log.numbers import Numbers
from channels.terminal.log.story import Story, is_error
from channels.terminal.text import Style, one_line, seconds
from core.events import Event, ModelCompleted, ModelFailed, Opaque, Record, ToolCompleted, ToolRequested

NAMES = 6
"""Limit of tools that are named for a stretch."""


class Digest:
    """Digest of a thread, event by event. It holds lines back: call `rest` at the end."""

    def __init__(self, story: Story, style: Style | None = None) -> None:
        self._story = story
        self._style = style or Style()
        self._stretch = _Stretch()
        self._failure: tuple[Record, list[str]] | None = None
        """The last failed attempt of a model call, and its lines."""
        self._at: str | None = None
        """Time of the last event."""

    @property
    def numbers(self) -> Numbers:
        return self._story.numbers

    @numbers.setter
    def numbers(self, numbers: Numbers) -> None:
        self._story.numbers = numbers

    def lines(self, record: Record) -> list[str]:
        """Returns the lines to print after this event."""
        lines, event = self._story.lines(record), record.event
        before, self._at = self._at, record.at
        if len(lines) == 1 and is_routine(event):
            output = self._after_failure()
            self._stretch.add(event, before or record.at, record.at)
            return output
        if isinstance(event, ModelFailed):
            return self._failed(record, event, lines)
        return [*self.rest(), *lines]

    def rest(self) -> list[str]:
        """Returns the lines that were held back."""
        return [*self._after_failure(), *self._after_stretch()]

    def _failed(self, record: Record, event: ModelFailed, lines: list[str]) -> list[str]:
        """Folds repeated attempts of a call that fail in the same way: the last one stands for all."""
        output: list[str] = []
        if self._failure is not None and _is_retry(self._failure[0], record, event):
            lines = [*self._failure[1][:-1], *lines]
        else:
            output = self.rest()
        self._failure = record, lines
        return output

    def _after_failure(self) -> list[str]:
        lines, self._failure = self._failure[1] if self._failure else [], None
        return lines

    def _after_stretch(self) -> list[str]:
        stretch, self._stretch = self._stretch, _Stretch()
        return [self._style.dim(f"      … {stretch.summary()}")] if stretch.summary() else []


def is_routine(event: Event | Opaque) -> bool:
    """Tells whether an event is a routine step.

    The agent's messages to people, decisions of policies, and errors are not.
    """
    match event:
        case ModelCompleted():
            return bool(event.message.get("tool_calls")) and not event.decisions
        case ToolCompleted():
            return not (is_error(event) or event.unknown or event.decisions)
    return isinstance(event, ToolRequested)


class _Stretch(msgspec.Struct):
    """A stretch of routine steps."""

    models: int = 0
    outcomes: int = 0
    tokens: int = 0
    tools: Counter[str] = msgspec.field(default_factory=Counter)
    begin: str = ""
    end: str = ""

    def add(self, event: Event | Opaque, begin: str, end: str) -> None:
        self.begin, self.end = self.begin or begin, end
        match event:
            case ModelCompleted():
                usage = event.message.get("usage_metadata") or {}
                self.models += 1
                self.tokens += usage.get("input_tokens", 0) + usage.get("output_tokens", 0)
            case ToolRequested():
                self.tools[one_line(event.name, 40)] += 1
            case ToolCompleted():
                self.outcomes += 1

    def summary(self) -> str:
        """Returns `48 model calls, 48 tool calls (ls 28, bash 20), 12 345 tokens, 3.2 s`; empty without steps."""
        calls = self.tools.total()
        parts = [_count(self.models, "model call")] if self.models else []
        parts += [f"{_count(calls, 'tool call')} ({self._names()})"] if calls else []
        parts += [_count(self.outcomes, "outcome")] if self.outcomes and not parts else []
        parts += [_count(self.tokens, "token")] if self.tokens else []
        return ", ".join([*parts, _took(self.begin, self.end)]) if parts else ""

    def _names(self) -> str:
        """Returns the tools, the most used first."""
        ranked = sorted(self.tools.items(), key=lambda item: (-item[1], item[0]))
        others = ["…"] if len(ranked) > NAMES else []
        return ", ".join([*(f"{name} {count}" for name, count in ranked[:NAMES]), *others])


def _is_retry(before: Record, record: Record, event: ModelFailed) -> bool:
    previous = before.event
    if not isinstance(previous, ModelFailed) or before.run != record.run:
        return False
    same = (previous.error, previous.reason, previous.model) == (event.error, event.reason, event.model)
    return same and event.attempt == previous.attempt + 1


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}".replace(",", " ")


def _took(begin: str, end: str) -> str:
    took = datetime.fromisoformat(end) - datetime.fromisoformat(begin)
    return seconds(max(0, round(took.total_seconds() * 1000)))
