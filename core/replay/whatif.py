"""What-if: a recorded run goes on from a moment under other conditions, on a journal that nobody else reads.

Theory of operation
-------------------
The events up to the fork point are folded as they were recorded: they cost nothing, and no model is asked. From there
on the agent's loop works on `Fork`, a journal in memory. So nothing of a what-if is on the bus: titles, memories,
suggestions, webhooks and chats cannot react to it, and sequences stay those of the thread. The rejected alternative is
a thread of its own on the log with a label, which each present and future actor would have to leave out.

Calls of the sandbox are made for true, in a copy of the thread's files. Calls that leave it are answered as recorded if
the same call was recorded and no earlier call had an effect; else they are refused.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import msgspec

from core.config.redaction import redactor
from core.errors import Invalid, NotFound
from core.events import (
    Event,
    Json,
    Message,
    MessageAdded,
    ModelCompleted,
    ModelFailed,
    Record,
    RunRequested,
    RunStarted,
    ThreadForked,
    ToolCompleted,
    ToolRequested,
    encode,
    written,
)
from core.ids import uuid7
from core.replay.diff import Row, aligned, steps
from core.thread.fold import fold
from core.thread.previews import Previewer, text_of
from core.thread.run import CallRef, outcome_of, tool_message
from core.thread.state import ThreadState
from core.thread.tokens import Tokens, tokens_of
from core.thread.usage import Price, in_context, model_of
from core.thread.values import unanswered
from core.thread.workspace import FileChange
from core.tools import Effect

E = TypeVar("E", bound=Event)
ACTOR = "whatif"
BLOCKED = "Error: blocked in what-if: {} acts outside the copy of the sandbox. It was not called."
SANDBOXED = frozenset(("bash", "write_file", "str_replace"))
"""Tools whose effects stay in the sandbox."""
MOST_SAMPLES = 100
ASK_COST = 1.0
"""Estimated cost of all samples, in the currency of the price, from which on a person is asked first."""
ASK_TOKENS = 500_000
"""The same for a model without a price."""
Z = 1.959964
"""Quantile of the normal distribution for 95 %."""
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
        raise Invalid(f"no run is at work after event {prefix[-1].seq}: name an earlier event, or give a message")
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


class Fork:
    """The journal of one sample (`core.thread.run.Journal`): events in memory, after those that were recorded."""

    stopping = False

    def __init__(self, point: Point, changes: Changes, allow_effects: bool = False) -> None:
        self._aggregate = point.prefix[0].aggregate
        self.thread_id = self._aggregate.id
        self.id = point.run
        self.state = fold(point.prefix)
        self.records: list[Record] = []
        self.made: list[Call] = []
        self.leaves: Callable[[str, Effect], bool] = lambda name, effect: effect != "pure" and name not in SANDBOXED
        """Tells whether a call acts outside the sandbox."""
        self.watch: Callable[[Record], None] = lambda record: None
        """Called with each new event."""
        self._allowed = allow_effects
        self._results = changes.results
        self._message = changes.message if point.run in self.state.runs else None
        self._recorded = _outcomes(point.after)
        self._touched = bool(changes.results or changes.message)
        self._last = point.prefix[-1].id
        self.append(ThreadForked(source=self.thread_id, source_seq=point.at, patches=[]), of_run=False)
        if point.run not in self.state.runs and changes.message:
            self._begin(changes.message, changes.model)

    def _begin(self, text: str, model: str | None) -> None:
        """Requests and starts a run with a message, with the options of the last one."""
        runs = list(self.state.runs.values())
        context = dict(runs[-1].request.context) if runs else {}
        context |= {"model_name": model} if model else {}
        self.append(RunRequested(input={"messages": [_human(text)]}, context=context))
        self.append(RunStarted(attempt=1, worker=ACTOR, lease=0))

    def append(self, event: Event, *, of_run: bool = True) -> None:
        """Adds an event of the run, and folds it."""
        run = self.id if of_run else None
        place: dict[str, Any] = {"kind": self._aggregate.kind, "aggregate_id": self._aggregate.id}
        at = datetime.now(UTC).isoformat()
        head = written(event, id=uuid7(), actor=ACTOR, at=at, run=run, cause=self._last, **place)
        record = Record(self.state.seq + 1, encode(event, head))
        self._last = record.id
        self.records.append(record)
        self.watch(record)
        self.state = fold([record], self.state)

    async def model_recorded(self, request: str) -> ModelCompleted | None:
        if not unanswered(self.state.messages):
            return None
        return ModelCompleted(message=next(m for m in reversed(self.state.messages) if m["type"] == "ai"))

    async def model_completed(self, event: ModelCompleted) -> None:
        self.append(event)

    async def model_failed(self, event: ModelFailed) -> None:
        self.append(event)

    async def fact(self, kind: type[E], key: str, make: Callable[[], Awaitable[E]]) -> E:
        event = redactor.struct(await make())
        self.append(event)
        return event

    async def confirm(self) -> None:
        """A what-if is nobody else's."""

    async def steered(self) -> list[Message]:
        if self._message is None or unanswered(self.state.messages):
            return []
        message, self._message = _human(self._message), None
        self.append(MessageAdded(messages=[message]))
        return [message]

    def answers(self, call_id: str) -> Sequence[Any]:
        return self.state.runs[self.id].answers.get(call_id, ())

    async def tool_requested(self, call_id: str, name: str, effect: Effect, args: Json) -> ToolCompleted | None:
        if done := outcome_of(self.state, call_id):
            return done
        if call_id not in self.state.runs[self.id].intents:
            self.append(ToolRequested(call_id=call_id, name=name, effect=effect, args=args))
        made, outcome = self._outcome(call_id, name, effect, args)
        self.made.append(Call(call_id, name, made))
        if outcome is None:
            self._touched = self._touched or effect != "pure"
            return None
        self.append(outcome)
        return outcome

    def _outcome(self, call_id: str, name: str, effect: Effect, args: Json) -> tuple[Made, ToolCompleted | None]:
        """Returns the outcome of a call that is not made, and why it is not."""
        call = CallRef.of(self, call_id)
        if call_id in self._results:
            return "replaced", ToolCompleted(call_id=call_id, message=tool_message(call, name, self._results[call_id]))
        if self._allowed or not self.leaves(name, effect):
            return "live", None
        recorded = self._recorded.get(_key(name, args))
        if recorded is not None and not self._touched:
            message = {**recorded.message, "id": call.message_id, "tool_call_id": call_id}
            return "recorded", ToolCompleted(call_id=call_id, message=message, update=recorded.update)
        self._touched = True
        message = tool_message(call, name, BLOCKED.format(name), "error")
        return "blocked", ToolCompleted(call_id=call_id, message=message)

    async def tool_completed(self, event: ToolCompleted) -> None:
        self.append(event)

    def preview(self, message: str) -> Previewer | None:
        return None

    async def progress(self, call_id: str, name: str, text: str) -> None:
        """Nobody looks."""


def _human(text: str) -> Message:
    return {"type": "human", "id": f"human-{uuid7()}", "content": text}


def _key(name: str, args: Any) -> str:
    return msgspec.json.encode((name, args), order="deterministic").decode()


def _outcomes(records: Sequence[Record]) -> dict[str, ToolCompleted]:
    """Returns recorded outcomes by tool and arguments; of equal calls the first one."""
    arguments: dict[str, str] = {}
    outcomes: dict[str, ToolCompleted] = {}
    for record in records:
        match record.event:
            case ModelCompleted() as answer:
                for call in answer.message.get("tool_calls") or ():
                    arguments[str(call.get("id"))] = _key(str(call.get("name")), call.get("args") or {})
            case ToolRequested(call_id=call_id, name=name, args=args) if args is not None:
                arguments[call_id] = _key(name, args)
            case ToolCompleted() as outcome if outcome.call_id in arguments:
                outcomes.setdefault(arguments[outcome.call_id], outcome)
    return outcomes


# ── results ─────────────────────────────────────────────────────────────────────────────────────────────────────────

Prices = Callable[[Mapping[str, Tokens]], Price]
"""Returns the cost of tokens by model."""


def future(
    state: ThreadState,
    run: str,
    records: Sequence[Record],
    prices: Prices,
    *,
    calls: Sequence[Call] | None = None,
    files: Sequence[FileChange] = (),
) -> Future:
    """Sums up events after a fork point. `calls`: as they were made; default: all as recorded."""
    answers = [record.event for record in records if isinstance(record.event, ModelCompleted)]
    outcomes = [record.event for record in records if isinstance(record.event, ToolCompleted)]
    named = {event.call_id: event.name for r in records if isinstance(event := r.event, ToolRequested)}
    used: dict[str, Tokens] = {}
    for answer in answers:
        model = model_of(answer.message, state.runs.get(run))
        used[model] = used.get(model, Tokens()).plus(tokens_of(answer.message))
    price = prices(used)
    ended = [record.type for record in records if record.type.startswith("run.") and record.run is not None]
    return Future(
        end=ended[-1] if ended else "",
        text=text_of(answers[-1].message.get("content", "")) if answers else "",
        answers=len(answers),
        tokens=sum(tokens.total for tokens in used.values()),
        cost=price.total,
        currency=price.currency,
        milliseconds=sum(one.duration_ms for one in answers) + sum(one.duration_ms for one in outcomes),
        calls=[Call(call, name, "recorded") for call, name in named.items()] if calls is None else calls,
        files=files,
        events=[msgspec.json.decode(record.raw) for record in records],
    )


def beside(point: Point, records: Sequence[Record]) -> list[Row]:
    """Returns the steps after the fork point beside each other: the recorded ones on the left."""
    shared = [record for record in point.prefix if record.run == point.run]
    sides = (*point.before, *point.after), (*shared, *records)
    return aligned(*([step for step in steps(side) if step.seq > point.at] for side in sides))


def estimated(point: Point, model: str | None, prices: Prices) -> Estimate:
    """Estimates a sample by the recorded one: each answer after the fork point pays its context."""
    state, later = fold(point.prefix), [r.event for r in point.after if isinstance(r.event, ModelCompleted)]
    name = model or (state.runs[point.run].model if point.run in state.runs else None) or ""
    tokens = Tokens(input=in_context(state))
    for answer in later:
        tokens = tokens.plus(tokens_of(answer.message))
    price = prices({name: tokens})
    return Estimate(tokens.total or tokens.input, price.total, price.currency)


def dear(estimate: Estimate, samples: int) -> bool:
    """Tells whether samples may cost so much that a person is asked first."""
    if estimate.cost is None:
        return estimate.tokens * samples >= ASK_TOKENS
    return estimate.cost * samples >= ASK_COST


def wilson(hits: int, count: int) -> tuple[float, float]:
    """Returns the 95 % interval of a share (Wilson's: the naive one covers 0.40 of 0.95 at 10 samples)."""
    if not count:
        return 0.0, 1.0
    share, square = hits / count, Z * Z / count
    middle = (share + square / 2) / (1 + square)
    half = Z / (1 + square) * math.sqrt(share * (1 - share) / count + square / (4 * count))
    return max(0.0, middle - half), min(1.0, middle + half)
