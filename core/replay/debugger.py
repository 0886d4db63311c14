"""The debugger of a replay: stops at breakpoints, shows the state and the next step, and changes recorded outcomes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from core.errors import Invalid
from core.events import Json, Opaque, Record, decode
from core.replay.breakpoints import Breakpoint
from core.runs.replay import ReplayJournal
from core.thread.state import ThreadState


class Moment(NamedTuple):
    """A stop: the folded state before a step, the step as recorded, and the step that the loop makes now."""

    thread: str
    run: str
    state: ThreadState
    record: Record
    now: Json


class Decision(NamedTuple):
    """The way on from a stop: the record to go on with, and whether the next step is a stop, too."""

    record: Record
    step: bool


Ask = Callable[[Moment], Awaitable[Decision]]


class Debugger:
    """Stops a replay (`core.runs.replay.Look`). Without breakpoints it stops at the first step."""

    def __init__(self, breakpoints: Sequence[Breakpoint], ask: Ask) -> None:
        self._breakpoints = breakpoints
        self._ask = ask
        self._stepping = not breakpoints

    async def look(self, journal: ReplayJournal, record: Record, now: Json) -> Record:
        """Returns the record to go on with."""
        if not self._stepping and not self._stops(record, now):
            return record
        moment = Moment(journal.thread_id, journal.id, journal.state, record, now)
        decision = await self._ask(moment)
        self._stepping = decision.step
        return decision.record

    def _stops(self, record: Record, now: Json) -> bool:
        if not self._breakpoints:
            return False
        steps = (msgspec.json.decode(record.raw) | {"seq": record.seq}, now | {"seq": record.seq})
        return any(breakpoint.matches(step) for breakpoint in self._breakpoints for step in steps)


def edited(record: Record, path: str, value: Any) -> Record:
    """Returns the record with another value at a path such as `message.content`. Raises `Invalid`."""
    body = msgspec.json.decode(record.raw)
    names = path.split(".")
    place: Any = body
    for name in names[:-1]:
        place = _item(place, name, path)
    if isinstance(place, list):
        _item(place, names[-1], path)
        place[int(names[-1])] = value
    elif isinstance(place, dict):
        place[names[-1]] = value
    else:
        raise Invalid(f"{path}: there is nothing to change in a {type(place).__name__}")
    changed = Record(record.seq, msgspec.json.encode(body))
    if changed.head != record.head:
        raise Invalid(f"{path}: the envelope of an event is not changed")
    event = decode(changed.head, changed.raw)
    if isinstance(event, Opaque):
        raise Invalid(f"{path}: {record.type} cannot be changed here")
    return changed


def _item(place: Any, name: str, path: str) -> Any:
    try:
        return place[int(name)] if isinstance(place, list) else place[name]
    except (LookupError, TypeError, ValueError):
        raise Invalid(f"{path}: there is no {name!r}") from None
