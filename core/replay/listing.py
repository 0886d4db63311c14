"""Overview of recorded threads: their users, times, runs, models, tokens and failures."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from core.events import (
    Event,
    ModelCompleted,
    Record,
    RunRequested,
    RunStarted,
    StatePatched,
    ThreadCreated,
    ThreadErased,
    ThreadPruned,
    ThreadTitled,
)
from core.lifecycle import ENDS
from core.replay.find import is_failure
from core.replay.source import Source
from core.thread.previews import text_of
from core.thread.threads import KIND
from core.thread.tokens import Tokens, tokens_of


class Summary(msgspec.Struct, omit_defaults=True):
    """A thread at a glance. `status` is that of its last run; `text` is its title, else its first message."""

    thread: str
    user: str = ""
    status: str = "idle"
    text: str = ""
    created_at: str = ""
    updated_at: str = ""
    events: int = 0
    runs: int = 0
    models: list[str] = []
    input_tokens: int = 0
    output_tokens: int = 0
    failures: int = 0
    """Failed runs, model calls and tool calls."""
    titled: bool = False

    def add(self, record: Record) -> None:
        """Takes in the next event of the thread."""
        event, self.updated_at = record.event, record.at
        self.events += 1
        self.failures += is_failure(event)
        match event:
            case ThreadCreated(user=user):
                self.user, self.created_at = user, record.at
            case ThreadPruned():
                self.user, self.created_at = event.user, event.created_at
                self._title(event.values.get("title"))
            case ThreadTitled(title=title):
                self._title(title)
            case StatePatched(values=values):
                self._title(values.get("title"))
            case ThreadErased():
                self.status, self.text = "erased", ""
            case RunRequested():
                self.runs += 1
                self.status = "pending"
                self._asked(event)
            case RunStarted(model=model):
                self.status = "running"
                self.models += [model] if model and model not in self.models else []
            case ModelCompleted(message=message):
                used = tokens_of(message)
                self.input_tokens, self.output_tokens = self.input_tokens + used.input, self.output_tokens + used.output
            case Event() if end := ENDS.get(type(event)):
                self.status = end.name

    def _title(self, title: object) -> None:
        if isinstance(title, str) and title:
            self.text, self.titled = title[:200], True

    def _asked(self, event: RunRequested) -> None:
        messages = (event.input or {}).get("messages") or ()
        if not self.text and messages:
            self.text = text_of(messages[-1].get("content", ""))[:200]


class Filter(NamedTuple):
    """Conditions on threads. Those that are empty are met by every thread."""

    user: str = ""
    status: str = ""
    since: str = ""
    """Changed at this time (ISO 8601 in UTC) or later."""
    text: str = ""
    """Occurs in the title or the first message."""
    model: str = ""
    errors: bool = False

    def matches(self, summary: Summary) -> bool:
        """Tells whether a thread meets all conditions."""
        return (
            (not self.user or summary.user == self.user)
            and (not self.status or summary.status == self.status)
            and (not self.since or summary.updated_at >= self.since)
            and (not self.text or self.text.casefold() in summary.text.casefold())
            and (not self.model or self.model in summary.models)
            and (not self.errors or summary.failures > 0 or summary.status == "error")
        )


async def listed(source: Source, conditions: Filter = Filter()) -> list[Summary]:  # noqa: B008  a tuple
    """Returns the threads that meet conditions, the last changed first. One pass over all events.

    Keeps a summary of each thread, and no events.
    """
    summaries: dict[str, Summary] = {}
    async for record in source.events():
        if record.head.kind == KIND:
            name = record.head.aggregate_id
            (summaries.get(name) or summaries.setdefault(name, Summary(name))).add(record)
    hits = [summary for summary in summaries.values() if conditions.matches(summary)]
    return sorted(hits, key=lambda summary: summary.updated_at, reverse=True)


def totals(summaries: Iterable[Summary]) -> tuple[int, int, int, Tokens]:
    """Returns the sums of threads: runs, events, failures, tokens."""
    rows = list(summaries)
    used = Tokens(sum(row.input_tokens for row in rows), sum(row.output_tokens for row in rows))
    return sum(row.runs for row in rows), sum(row.events for row in rows), sum(row.failures for row in rows), used
