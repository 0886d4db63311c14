"""What-if: a recorded run goes on from a moment under other conditions, on a journal that nobody else reads.

Theory of operation
-------------------
The events up to the fork point are folded as they were recorded: they cost nothing, and no model is asked. From there
on the agent's loop works on a journal in memory (`core.replay.whatif.journal`). So nothing of a what-if is on the bus:
titles, memories, suggestions, webhooks and chats cannot react to it, and sequences stay those of the thread. The
rejected alternative is a thread of its own on the log with a label, which each present and future actor would have to
leave out.

Calls of the sandbox are made for true, in a copy of the thread's files. Calls that leave it are answered as recorded if
the same call was recorded and no earlier call had an effect; else they are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Literal, NamedTuple, Protocol

import msgspec

from core.errors import Invalid, NotFound
from core.events import Aggregate, Json, Record, RunRequested, RunStarted, ToolCompleted, thread
from core.files.workspace import FileChange
from core.ids import uuid7
from core.lifecycle import END_TYPES
from core.log.reader import Hold, Read
from core.replay.diff import Row
from core.thread.fold import fold
from core.thread.rewind import state_upto
from core.thread.state import ThreadState

ACTOR = "whatif"
MOST_SAMPLES = 100
Made = Literal["live", "recorded", "replaced", "blocked"]
"""Sources of a call's outcome: made, taken from the log, given with `Changes.results`, or refused."""


def _any_number(record: Record) -> None:
    """Allows any number of events."""


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions that differ from the recorded ones."""

    model: str | None = None
    prompt: str | None = None
    """The whole system prompt."""
    settings: Mapping[str, str] = {}
    """Keys of the configuration, and their values as YAML."""
    results: Mapping[str, str] = {}
    """Texts of tool results by call id."""
    message: str | None = None
    """A message of the person at the fork point."""

    def lines(self) -> list[str]:
        """Returns the changes in words."""
        lines = [f"model {self.model}"] if self.model else []
        lines += ["another system prompt"] if self.prompt is not None else []
        lines += [f"{key} = {value}" for key, value in self.settings.items()]
        lines += [f"another result of call {call}" for call in self.results]
        return lines + ([f"message “{self.message}”"] if self.message else [])


class Call(msgspec.Struct, frozen=True):
    """A tool call after the fork point."""

    call_id: str
    name: str
    made: Made


class Future(msgspec.Struct, frozen=True, kw_only=True):
    """The events after the fork point, summed up. `events` are their bodies."""

    end: str
    """The type of the last event of the run, such as `run.completed`; empty if it has not ended."""
    text: str
    """The last answer."""
    answers: int
    tokens: int
    cost: float | None
    currency: str | None
    milliseconds: int
    """Time that models and tools took."""
    calls: Sequence[Call]
    files: Sequence[FileChange] = ()
    events: Sequence[Json] = ()


class Sample(msgspec.Struct, frozen=True):
    """One future beside the recorded one, step by step from the fork point."""

    future: Future
    rows: Sequence[Row]

    @property
    def same_next(self) -> bool:
        """Tells whether the first answer after the fork point says and calls the same."""
        left = next((row.left for row in self.rows if row.left and row.left.kind == "answer"), None)
        right = next((row.right for row in self.rows if row.right and row.right.kind == "answer"), None)
        return left is not None and right is not None and left.output == right.output


class Estimate(msgspec.Struct, frozen=True):
    """The expected usage of one sample: the context as uncached input, and what the recorded run used after it."""

    tokens: int
    cost: float | None
    currency: str | None


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a what-if."""

    thread: str
    run: str
    at: int
    """The last event that both futures share."""
    changes: Sequence[str]
    recorded: Future
    samples: Sequence[Sample]
    not_restored: Sequence[str]
    """Files and other things of that moment that the copy of the sandbox lacks, each with its reason."""


class Point(NamedTuple):
    """The fork point: the thread there as changed, the run that goes on, and its recorded events after the point."""

    thread: Aggregate
    state: ThreadState
    """All shared events as changed, folded."""
    last: str
    """The id of the last one."""
    run: str
    after: Sequence[Record]
    at: int
    before: Sequence[Record]
    """The shared events of that run as they were recorded."""
    shared: Sequence[Record]
    """The same as changed."""


async def fork_point(read: Read, thread_id: str, at: int, changes: Changes, hold: Hold = _any_number) -> Point:
    """Returns the fork point after the event `at`. Of the log the events of one run are held, each of which `hold` is
    told.

    Raises `NotFound` for a moment before the thread, and `Invalid` where no run is at work and no message starts one,
    or for a tool result of an unknown call.
    """
    aggregate = thread(thread_id)
    state = await state_upto(read, thread_id, at)
    if not state.seq:
        raise NotFound(f"{aggregate}: no event up to {at}")
    at = state.seq
    begin = await _first_changed(read, aggregate, at, changes.results)
    pending = next((run for run in state.runs.open() if run.status == "pending"), None)
    if pending is not None and state.active is None and (start := await _start_after(read, aggregate, pending.id, at)):
        return await fork_point(read, thread_id, start, changes, hold)
    active = state.active
    run = active.id if active else uuid7()
    if active is None and not changes.message:
        raise Invalid(f"no run is at work after event seq:{at}: name an earlier event, or give a message")
    begin = min(begin, at + 1 if active is None else active.requested_seq)
    state, last, before = await state_upto(read, thread_id, begin - 1), "", list[Record]()
    async with aclosing(read(aggregate, after=begin - 1 if begin <= at else at - 1, upto=at)) as records:
        async for record in records:
            last = record.id
            if record.seq < begin:
                continue
            state = fold([_changed(record, run, changes)], state)
            if record.run == run:
                hold(record)
                before.append(record)
    after = await _run_after(read, aggregate, run if active else None, at, hold)
    return Point(aggregate, state, last, run, after, at, before, [_changed(record, run, changes) for record in before])


async def _first_changed(read: Read, aggregate: Aggregate, at: int, results: Mapping[str, str]) -> int:
    """Returns the sequence of the first outcome up to `at` that is changed, or the one after `at`. Raises `Invalid`."""
    unknown, first = set(results), at + 1
    if unknown:
        async with aclosing(read(aggregate)) as records:
            async for record in records:
                if isinstance(record.event, ToolCompleted) and record.event.call_id in results:
                    unknown.discard(record.event.call_id)
                    first = min(first, record.seq)
    if unknown:
        raise Invalid(f"no recorded outcome of the call {min(unknown)}")
    return first


async def _start_after(read: Read, aggregate: Aggregate, run: str, at: int) -> int | None:
    async with aclosing(read(aggregate, after=at)) as records:
        starts = (record.seq async for record in records if record.run == run and isinstance(record.event, RunStarted))
        return await anext(starts, None)


async def _run_after(read: Read, aggregate: Aggregate, run: str | None, at: int, hold: Hold) -> list[Record]:
    """Returns the events after `at` of a run, or else of the first that was requested after it."""
    after = list[Record]()
    async with aclosing(read(aggregate, after=at)) as records:
        async for record in records:
            run = run or (record.run if isinstance(record.event, RunRequested) else None)
            if run is not None and record.run == run:
                hold(record)
                after.append(record)
                if record.type in END_TYPES:
                    break
    return after


def _changed(record: Record, run: str, changes: Changes) -> Record:
    """Returns a shared event under the changed conditions."""
    event = record.event
    match event:
        case ToolCompleted() if event.call_id in changes.results:
            message = {**event.message, "content": changes.results[event.call_id]}
            return Record(record.seq, record.raw, record.head, msgspec.structs.replace(event, message=message))
        case RunStarted() if record.run == run and (changes.model or changes.prompt is not None):
            started = msgspec.structs.replace(event, model=changes.model or event.model)
            started = started if changes.prompt is None else msgspec.structs.replace(started, prompt=ACTOR)
            return Record(record.seq, record.raw, record.head, started)
        case RunRequested() if record.run == run and changes.model:
            context = {**event.context, "model_name": changes.model}
            return Record(record.seq, record.raw, record.head, msgspec.structs.replace(event, context=context))
    return record


class Experiment(Protocol):
    """A what-if under changed conditions."""

    async def point(self, thread_id: str, at: int, hold: Hold) -> Point:
        """Returns the fork point; `hold` is told each event that is held. Raises `NotFound` and `Invalid`."""
        ...

    def estimate(self, point: Point) -> Estimate:
        """Estimates the usage of one sample."""
        ...

    async def run(
        self, point: Point, samples: int, progress: Callable[[int], None], watch: Callable[[Record], None]
    ) -> Result:
        """Executes the samples one after the other; `progress` is called after each, `watch` with each event."""
        ...
