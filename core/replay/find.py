"""Search for events: by type, text, tool, error, model, cost, duration, user and time. One pass, one event at a time.

Of the events that passed, the search keeps the models of the runs that are open, and, if a user is wanted, the users of
threads: its memory does not grow with the log.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable
from fnmatch import fnmatchcase
from typing import NamedTuple

import msgspec

from core.errors import Invalid
from core.events import (
    ApprovalRequested,
    Event,
    ModelCompleted,
    ModelFailed,
    Opaque,
    Record,
    RunFailed,
    ThreadCreated,
    ThreadPruned,
    ToolCompleted,
    ToolRequested,
)
from core.policy import stop_of
from core.replay.breakpoints import Breakpoint
from core.replay.money import Meter, Prices
from core.replay.source import Source


class Query(NamedTuple):
    """Conditions that an event meets. Those that are empty or None are met by every event."""

    types: tuple[str, ...] = ()
    """Names of types, or patterns such as `tool.*`."""
    text: re.Pattern[str] | None = None
    """Occurs in the stored event."""
    tool: str = ""
    errors: bool = False
    model: str = ""
    """The configured name of the model of the run, or of the answer."""
    user: str = ""
    since: str = ""
    """ISO 8601 in UTC; this and later."""
    until: str = ""
    seconds: float = 0.0
    """The event took at least so long."""
    cost: float = 0.0
    """The model call cost at least so much, in the currency of the model's price."""
    run: str = ""
    """The id of the run, or its beginning."""
    stops: tuple[Breakpoint, ...] = ()
    """A replay would stop at one of them."""

    @classmethod
    def of(cls, text: str | None, **conditions: object) -> Query:
        """Returns a query whose `text` is a regular expression. Raises `Invalid` for what is none."""
        try:
            pattern = re.compile(text, re.IGNORECASE) if text else None
        except re.error as error:
            raise Invalid(f"text {text!r}: no regular expression: {error}") from error
        return cls(text=pattern, **conditions)  # type: ignore[arg-type]


class Search:
    """Tests events of a log, or of several, in their order."""

    def __init__(self, query: Query, prices: Prices | None = None, meter: Meter | None = None) -> None:
        self._query = query
        self._meter = meter or Meter(prices)
        self._users: dict[tuple[str, str], str] = {}

    def matches(self, record: Record) -> bool:
        """Tells whether an event meets all conditions. To be called for every event, in order."""
        query = self._query
        if query.user and record.type in ("thread.created", "thread.pruned"):
            self._learn_user(record)
        hit = self._of_envelope(record) and self._of_text(record) and self._of_body(record) and self._of_stops(record)
        if query.model or query.cost:
            self._meter.learn(record)
        return hit

    def _of_envelope(self, record: Record) -> bool:
        query = self._query
        return (
            (not query.types or any(fnmatchcase(record.type, pattern) for pattern in query.types))
            and (not query.since or record.at >= query.since)
            and (not query.until or record.at <= query.until)
            and (not query.run or (record.run or "").startswith(query.run))
            and (not query.user or self._users.get(record.aggregate) == query.user)
        )

    def _of_text(self, record: Record) -> bool:
        pattern = self._query.text
        return pattern is None or pattern.search(record.raw.decode(errors="replace")) is not None

    def _of_body(self, record: Record) -> bool:
        query = self._query
        if not (query.tool or query.errors or query.model or query.seconds or query.cost):
            return True
        event = record.event
        return (
            (not query.tool or _tool_of(event) == query.tool)
            and (not query.errors or is_failure(event))
            and (not query.model or self._meter.model_of(record) == query.model)
            and (not query.seconds or getattr(event, "duration_ms", 0) >= query.seconds * 1000)
            and (not query.cost or self._costs(record) >= query.cost)
        )

    def _of_stops(self, record: Record) -> bool:
        if not self._query.stops:
            return True
        step = msgspec.json.decode(record.raw) | {"seq": record.seq}
        return any(stop.matches(step) for stop in self._query.stops)

    def _learn_user(self, record: Record) -> None:
        if isinstance(created := record.event, ThreadCreated | ThreadPruned):
            self._users[record.aggregate] = created.user

    def _costs(self, record: Record) -> float:
        used = self._meter.used(record)
        return max(used.cost.values(), default=0.0) if used else 0.0


async def find(source: Source, query: Query, prices: Prices | None = None) -> AsyncIterator[Record]:
    """Yields the events of all logs that meet a query, one at a time."""
    search = Search(query, prices)
    async for record in source.events():
        if search.matches(record):
            yield record


def picked(records: Iterable[Record], query: Query) -> list[Record]:
    """Returns the events of a log that meet a query."""
    search = Search(query)
    return [record for record in records if search.matches(record)]


def is_bad_end(event: Event | Opaque) -> bool:
    """Tells whether a run failed with an event, or was stopped by a policy."""
    return isinstance(event, RunFailed) or (isinstance(event, ModelCompleted) and stop_of(event) is not None)


def is_failure(event: Event | Opaque) -> bool:
    """Tells whether an event is a failure: of a run, a model call, a tool call or its command, or to decode; or an
    answer by which a policy stopped the run.
    """
    match event:
        case RunFailed() | ModelCompleted():
            return is_bad_end(event)
        case ModelFailed():
            return True
        case ToolCompleted():
            return event.unknown or bool(event.exit_code) or event.message.get("status") == "error"
        case Opaque():
            return event.problem is not None
    return getattr(event, "status", "") in ("failed", "timed_out")


def _tool_of(event: Event | Opaque) -> str:
    match event:
        case ToolRequested(name=name) | ApprovalRequested(tool=name):
            return name
        case ToolCompleted(message=message):
            return str(message.get("name", ""))
    return ""
