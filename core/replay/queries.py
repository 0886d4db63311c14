"""Questions about a thread's log, with typed results: the terminal, HTTP and Python show the same ones.

Work that grows with the log is done in a thread: the event loop of a server goes on.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import anyio.to_thread
import msgspec

from core.errors import Invalid
from core.events import Aggregate, Json, Record
from core.replay import causes
from core.replay import diff as diffs
from core.replay.causes import Link, Logs
from core.replay.find import Query, Search, is_bad_end
from core.replay.moments import moment
from core.replay.moments.models import RunModels
from core.replay.money import Cost, Prices
from core.replay.named import LAST_FAILED, run_named
from core.replay.recorded import read_of
from core.replay.source import Source, records_of
from core.replay.tree import Span, tree
from core.runs import prompts
from core.thread.state import ThreadState
from core.thread.values import next_nodes

if TYPE_CHECKING:
    from core.log.reader import ReadAll

PAGE_BYTES = 8 << 20
"""Bytes of events after which a page ends."""
PAGE_SCANNED = 50_000
"""Events that are tested for one page."""
WHY_BYTES = 8 << 20
"""Bytes of events in a chain of causes that are returned with their bodies."""


class Entry(msgspec.Struct, frozen=True):
    """An event as stored, and its sequence in the stream."""

    seq: int
    event: msgspec.Raw


class EventPage(msgspec.Struct, frozen=True):
    """Events of a log. The next page begins after (of the newest first: before) the sequence `next`; None: there is no
    more.
    """

    events: list[Entry]
    next: int | None = None


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """A thread folded up to the event `seq`."""

    thread_id: str
    seq: int
    exists: bool
    erased: bool
    user: str
    status: str
    created_at: str
    updated_at: str
    metadata: Json
    checkpoint: int | None
    next: Sequence[str]
    """The nodes of the graph that would be executed next."""
    values: Json
    runs: Sequence[Any]
    messages: int
    """The number of messages that the values have there, also if some are left out."""
    older_runs: int = 0
    """The number of runs that are left out."""


class Cause(msgspec.Struct, frozen=True):
    """A fact of a chain of causes, the log that it is in, and the sequences of the other facts that it rests on."""

    kind: str
    aggregate: str
    seq: int
    event: msgspec.Raw
    beside: list[int] = []


class ComparedStep(msgspec.Struct, frozen=True):
    """A step of a run, as `core.replay.diff.Step`; or a `decision` of a replay."""

    kind: diffs.Kind | Literal["decision"]
    name: str
    seq: int
    input: Any
    output: Any
    tokens: int
    milliseconds: int
    cost: Cost
    """By currency, at the prices of today."""


class ComparedSteps(msgspec.Struct, frozen=True):
    """Two steps beside each other. None where one side has no such step; `difference` is empty if they are equal."""

    difference: Literal["", "input", "output", "only left", "only right"]
    left: ComparedStep | None
    right: ComparedStep | None


class ComparedValue(msgspec.Struct, frozen=True):
    """A value of the state that differs; `before` or `after` is left out where there is none."""

    path: str
    before: Any = msgspec.UNSET
    after: Any = msgspec.UNSET


class ComparedSetup(msgspec.Struct, frozen=True):
    """A part of what the models got besides the conversation, such as the system prompt, that differs."""

    part: str
    before: str | None
    after: str | None
    """Null for a text that is not there any more, or not in the file."""
    reason: str = ""
    """Why a text is not there."""


class Comparison(msgspec.Struct, frozen=True):
    """The differences of two moments of a thread (`values`), or of two runs or threads (`steps` and `setups`)."""

    same: bool
    first: ComparedSteps | None = None
    """The first difference of steps."""
    values: list[ComparedValue] = []
    steps: list[ComparedSteps] = []
    setups: list[ComparedSetup] = []


class Side(NamedTuple):
    """One side of a comparison: a thread, one of its runs (`run_of`), or up to an event."""

    thread: str
    run: int | str | None = None
    at: str | None = None

    @classmethod
    def of(cls, name: str) -> Side:
        """Reads `THREAD`, `THREAD#2` or `THREAD@17`. Raises `Invalid`."""
        match = re.fullmatch(r"(@?[^#@]+)(?:#(@?[\w-]{1,64})|@([\w:-]{1,64}))?", name)
        if match is None:
            raise Invalid(f"{name[:200]}: THREAD, THREAD#RUN or THREAD@EVENT is expected")
        return cls(match[1], match[2], match[3])


def run_of(records: Sequence[Record], name: str) -> str:
    """Returns the id of a run by its name (`core.replay.named.run_named`). Raises `NotFound` and `Invalid`."""
    failed = (
        [record.run for record in records if record.run and is_bad_end(record.event)] if name == LAST_FAILED else []
    )
    return run_named(name, runs_of(records), failed[-1] if failed else None)


def runs_of(records: Sequence[Record]) -> list[str]:
    """Returns the ids of the runs that the events name, in the order of their first events."""
    return list(dict.fromkeys(record.run for record in records if record.run))


class Compared(NamedTuple):
    """The differences of two sides: `changes` of two moments of a thread, else `rows` and `setups`."""

    rows: Sequence[diffs.Row] | None
    changes: Sequence[diffs.Change] = ()
    setups: Sequence[prompts.Difference] = ()

    @property
    def different(self) -> bool:
        return bool(self.changes) if self.rows is None else any(not row.same for row in self.rows)


def sequence_of(records: Sequence[Record], place: str | None) -> int | None:
    """Returns the sequence of the event at a place (`causes.find`); None for none. Raises `NotFound`."""
    return None if place is None else causes.find(records, place, records[0].aggregate).seq


async def events(
    records: AsyncIterable[Record], query: Query, models: RunModels | None = None, *, limit: int = 100
) -> EventPage:
    """Returns a page of those events that meet a query, in their order. `models`: for a query by model.

    A page ends after `limit` events, `PAGE_BYTES` or `PAGE_SCANNED` tested events. It may be empty and have a next one.
    """
    search, page, size, scanned = Search(query, meter=models), list[Entry](), 0, 0
    async for record in records:
        if models is not None:
            await models.prepare(record)
        scanned += 1
        if search.matches(record):
            page.append(Entry(record.seq, msgspec.Raw(record.raw)))
            size += len(record.raw)
        if len(page) >= limit or size >= PAGE_BYTES or scanned >= PAGE_SCANNED:
            return EventPage(page, record.seq)
    return EventPage(page)


async def state_at(source: Source, aggregate: Aggregate, at: str | None = None) -> Moment:
    """Returns the state after the event at a place (`causes.find`); None: after all. Raises `NotFound`."""
    records = await records_of(source, aggregate)
    return await anyio.to_thread.run_sync(lambda: moment_of(aggregate.id, moment.at(records, sequence_of(records, at))))


def moment_of(thread_id: str, state: ThreadState, *, runs: int | None = None, messages: int | None = None) -> Moment:
    """Returns a folded state with all that there is to show of it, or with the newest `runs` and `messages` only."""
    values, shown = dict(state.values), list(islice(state.runs.newest_first(), runs))[::-1]
    if messages is not None and state.messages:
        values["messages"] = state.messages[max(0, len(state.messages) - messages) :]
    return Moment(
        thread_id=thread_id,
        seq=state.seq,
        exists=state.exists,
        erased=state.erased,
        user=state.user,
        status=state.status,
        created_at=state.created_at,
        updated_at=state.updated_at,
        metadata=state.metadata,
        checkpoint=state.commits[state.head].seq if state.head >= 0 else None,
        next=list(next_nodes(state.messages)),
        values=values,
        runs=shown,
        messages=len(state.messages),
        older_runs=len(state.runs) - len(shown),
    )


async def why(read: ReadAll, aggregate: Aggregate, place: str) -> list[Cause]:
    """Returns the chain of causes of an event, the first cause first. Raises `NotFound` (see `causes.find`)."""
    return _causes(await causes.why(read, aggregate, place))


async def causes_of(logs: Logs, fact: Record) -> list[Cause]:
    """Returns the same of logs that are not held. Of what goes beyond `WHY_BYTES`, counted from the event, only the
    envelopes are returned.
    """
    return _causes(await causes.chain(logs, fact, WHY_BYTES))


def _causes(links: Sequence[Link]) -> list[Cause]:
    return [
        Cause(*link.record.aggregate, link.record.seq, msgspec.Raw(link.record.raw), [r.seq for r in link.beside])
        for link in links
    ]


async def spans(source: Source, aggregate: Aggregate, prices: Prices | None = None) -> list[Span]:
    """Returns the runs as trees of what took time, with those of subagents."""
    return await tree(read_of(source), aggregate, prices)


def comparison(compared: Compared) -> Comparison:
    """Returns differences in their typed form."""
    rows = [_steps(row) for row in compared.rows or ()]
    return Comparison(
        not compared.different,
        next((row for row in rows if row.difference), None),
        [ComparedValue(*change) for change in compared.changes],
        rows,
        [_setup(setup) for setup in compared.setups],
    )


def _setup(difference: prompts.Difference) -> ComparedSetup:
    sides = (difference.before, difference.after)
    before, after = (side if isinstance(side, str) else None for side in sides)
    reasons = [side.reason for side in sides if not isinstance(side, str)]
    return ComparedSetup(difference.part, before, after, reasons[0] if reasons else "")


def _steps(row: diffs.Row) -> ComparedSteps:
    left, right = (step and ComparedStep(*step) for step in row)
    return ComparedSteps(row.difference, left, right)
