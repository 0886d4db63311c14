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
from typing import Literal, NamedTuple, Protocol

import msgspec

from core.errors import Invalid, NotFound
from core.events import Json, Record, RunRequested, RunStarted, ToolCompleted
from core.files.workspace import FileChange
from core.ids import uuid7
from core.replay.diff import Row
from core.thread.fold import fold

ACTOR = "whatif"
MOST_SAMPLES = 100
Made = Literal["live", "recorded", "replaced", "blocked"]
"""Sources of a call's outcome: made, taken from the log, given with `Changes.results`, or refused."""


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
    """The fork point: the shared events as changed, the run that goes on, and its recorded events after them."""

    prefix: Sequence[Record]
    run: str
    after: Sequence[Record]
    at: int
    before: Sequence[Record]
    """The shared events of that run as they were recorded."""


def fork_point(records: Sequence[Record], at: int, changes: Changes) -> Point:
    """Returns the fork point after the event `at`.

    Raises `NotFound` for a moment before the thread, and `Invalid` where no run is at work and no message starts one,
    or for a tool result of an unknown call.
    """
    prefix = [record for record in records if record.seq <= at]
    if not prefix:
        raise NotFound(f"no event up to {at}; the log begins with {records[0].seq if records else 'none'}")
    calls = {record.event.call_id for record in records if isinstance(record.event, ToolCompleted)}
    if unknown := [call for call in changes.results if call not in calls]:
        raise Invalid(f"no recorded outcome of the call {unknown[0]}")
    state = fold(prefix)
    if waiting := next((run for run in state.runs.open() if run.status == "pending"), None):
        starts = (r for r in records if r.run == waiting.id and isinstance(r.event, RunStarted) and r.seq > at)
        if state.active is None and (start := next(starts, None)):
            return fork_point(records, start.seq, changes)
    active, run = state.active, state.active.id if state.active else uuid7()
    if active is None and not changes.message:
        raise Invalid(f"no run is at work after event seq:{prefix[-1].seq}: name an earlier event, or give a message")
    following = next((r.run for r in records if r.seq > at and isinstance(r.event, RunRequested)), None)
    compared = run if active else following
    after = [record for record in records if record.seq > at and compared and record.run == compared]
    before = [record for record in prefix if record.run == run]
    return Point([_changed(record, run, changes) for record in prefix], run, after, prefix[-1].seq, before)


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

    async def point(self, thread_id: str, at: int) -> Point:
        """Returns the fork point. Raises `NotFound` and `Invalid`."""
        ...

    def estimate(self, point: Point) -> Estimate:
        """Estimates the usage of one sample."""
        ...

    async def run(
        self, point: Point, samples: int, progress: Callable[[int], None], watch: Callable[[Record], None]
    ) -> Result:
        """Executes the samples one after the other; `progress` is called after each, `watch` with each event."""
        ...
