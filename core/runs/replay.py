"""Replay for debugging: execute recorded runs again, on their recorded outcomes, and report the first difference.

The loop that does runs live is the one that is executed here; only its journal is another. It asks for the same
things in the same order, or the first thing it asks for that was not recorded is the divergence: a changed prompt is
not one (its hash is reported by the run), a changed tool, policy or order is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import msgspec

from core.errors import Divergence, Unavailable
from core.events import (
    Aggregate,
    ApprovalRequested,
    ApprovalResolved,
    ContextCompacted,
    Event,
    Json,
    Message,
    MessageAdded,
    ModelCompleted,
    ModelFailed,
    ModelSampled,
    Record,
    RunCompleted,
    RunFailed,
    RunPaused,
    RunStarted,
    StatePatched,
    SubagentCompleted,
    SubagentProgressed,
    SubagentStarted,
    ToolCompleted,
    ToolRequested,
)
from core.lifecycle import ENDS
from core.log.kinds import KIND, SUBAGENT
from core.policy import REFUSED
from core.runs.intake import RUNS_BY
from core.runs.journal import Complete, Paused, outcome_of
from core.runs.previews import Previewer
from core.thread.fold import Folding, fold
from core.thread.ownership import missing
from core.thread.state import ThreadState
from core.thread.values import unanswered
from core.tools import Effect

if TYPE_CHECKING:
    from core.log import reader as log_reader

Call = Callable[[str, Mapping[str, Any], Callable[[str], Awaitable[None]]], Awaitable[Any]]
E = TypeVar("E", bound=Event)
OUTSIDE = ("guardrails", "read_before_write")
"""Policies that ask somebody before a call is made: a refusal of theirs is taken as it was."""
FACTS = (ContextCompacted, ApprovalRequested, ApprovalResolved, StatePatched)
"""Events of policies besides answers and outcomes."""
_STEPS: tuple[type[Event], ...] = (ModelCompleted, ToolRequested, ToolCompleted, *FACTS, *ENDS)
"""Events that the loop asks to append, or that end it."""
BESIDE = (SubagentStarted, SubagentProgressed, SubagentCompleted, ModelSampled)
"""Events that are recorded beside the run's own steps."""
Execute = Callable[["ReplayJournal", Call], Awaitable[None]]
Read = Callable[[Aggregate], Awaitable[Sequence[Record]]]
"""Reads all records of a log; none of one that is unknown."""
Look = Callable[["ReplayJournal", Record, Json], Awaitable[Record]]
"""Called with each recorded step before it is folded, and with the step that the loop makes now. Returns the record to
go on with: another one than the recorded is an edit.
"""
Verdict = Literal["identical", "same so far", "same decisions", "different"]
"""Results of a replay. `same so far`: a run has no recorded end. `same decisions`: the prompt, the configuration or a
model has changed, and no decision with it.
"""


class Report(msgspec.Struct):
    """The result of a replay: the number of reproduced runs and steps, and the first divergence if there was
    one, with both sides of it.
    """

    runs: int = 0
    steps: int = 0
    divergence: str | None = None
    recorded: Json | None = None
    """The event that the loop should have come to."""
    now: Json | None = None
    """The step that it came to instead."""
    unfinished: int = 0
    """The number of runs without a recorded end: they are the same so far."""
    changed: list[str] = []
    """Differences of the configuration from the recorded one; no divergence by themselves."""
    seq: int | None = None
    """The sequence of the first difference: of the recorded event that the loop did not come to."""
    edited: bool = False
    """A recorded outcome was changed on the way."""
    differing: str | None = None
    """The id of the log with the first difference: the thread, or a subagent."""

    @property
    def verdict(self) -> Verdict:
        if self.divergence is not None:
            return "different"
        if self.unfinished:
            return "same so far"
        return "same decisions" if self.changed or self.edited else "identical"


class ReplayJournal:
    """Serves a run's recorded outcomes to the loop, and raises `Divergence` when it asks for something else."""

    def __init__(
        self,
        thread_id: str,
        run: str,
        state: ThreadState,
        records: list[Record],
        started: RunStarted,
        look: Look | None = None,
    ) -> None:
        self.thread_id = thread_id
        self.id = run
        self.state = state
        self.steps = 0
        self._records = records
        self._models = [r for r in records if isinstance(r.event, ModelCompleted)]
        self._intents = [r for r in records if isinstance(r.event, ToolRequested)]
        self._outcomes = [r for r in records if isinstance(r.event, ToolCompleted)]
        self._added = [r for r in records if isinstance(r.event, MessageAdded)]
        self._paused = next((r.event for r in records if isinstance(r.event, RunPaused)), None)
        self._facts = [r for r in records if isinstance(r.event, FACTS) or _of_policy(r)]
        self._beside = [r for r in records if isinstance(r.event, BESIDE)]
        self._next_model = 0
        self._last: Record | None = None
        self._started = started
        self._look = look
        self.edited = False
        """A recorded outcome was changed: from there on, conversations differ from the recorded ones."""
        self.changed: list[str] = []
        self.differed: int | None = None
        """The sequence of the recorded event at which the loop differs."""

    stopping = False

    def planned(self, model: str, configured: bool, prompt: str, config: str) -> None:
        """Compares the plan of the run with the recorded one. `prompt` and `config` are hashes."""
        self.changed += [] if configured else [f"model: {model} is not configured any more"]
        for name, before, now in (
            ("prompt", self._started.prompt, prompt),
            ("configuration", self._started.config, config),
        ):
            if before is not None and before != now:
                self.changed.append(f"{name}: {before} → {now}")

    async def fact(self, kind: type[E], key: str, make: Callable[[], Awaitable[E]]) -> E:
        for record in self._facts:
            if isinstance(record.event, kind) and getattr(record.event, "call_id", "") == key:
                self._facts.remove(record)
                event = (await self._took(record)).event
                assert isinstance(event, kind)
                return event
        now = {"type": kind.__struct_config__.tag, "call_id": key}
        raise self.differs(f"after {self._end()}: the loop reaches a {now['type']}; the run did not", now)

    def _ahead(self) -> int:
        """Where the next answer of the model lies."""
        return self._models[self._next_model].seq if self._next_model < len(self._models) else self._records[-1].seq + 1

    async def steered(self, complete: Complete) -> list[Message]:
        if unanswered(self.state.messages):
            return []
        ahead = self._ahead()
        for fact in [one for one in self._facts if one.seq < ahead]:
            self._facts.remove(fact)
            await self._took(fact)
        messages: list[Message] = []
        while self._added and self._added[0].seq < ahead:
            event = (await self._took(self._added.pop(0))).event
            assert isinstance(event, MessageAdded)
            messages += event.messages
        return messages

    def answers(self, call_id: str) -> Sequence[Any]:
        return self.state.runs[self.id].answers.get(call_id, ())

    async def model_recorded(self, request: str) -> ModelCompleted:
        if unanswered(self.state.messages):
            return ModelCompleted(message=next(m for m in reversed(self.state.messages) if m["type"] == "ai"))
        if self._next_model >= len(self._models):
            now = {"type": "model.completed", "request": request}
            raise self.differs(f"after {self._end()}: the loop asks the model once more; the run did not", now)
        record = self._models[self._next_model]
        event = record.event
        assert isinstance(event, ModelCompleted)
        if event.request is not None and event.request != request and not self.edited:
            text = (
                f"{record.seq} model.completed: recorded for the conversation {event.request}, the loop sends {request}"
            )
            raise self.differs(text, {"type": "model.completed", "request": request}, record)
        self._next_model += 1
        event = (await self._took(record, {"type": "model.completed", "request": request})).event
        assert isinstance(event, ModelCompleted)
        return event

    async def tool_requested(self, call_id: str, name: str, effect: Effect, args: Json) -> ToolCompleted | None:
        if done := outcome_of(self.state, call_id):
            return done  # in the run that paused here
        intent, outcome = self._of_call(self._intents, call_id), self._of_call(self._outcomes, call_id)
        if intent is None and outcome is not None and _refused_outside(outcome):
            refusal = (await self._took(outcome)).event
            return refusal if isinstance(refusal, ToolCompleted) else None
        now = {"type": "tool.requested", "call_id": call_id, "name": name, "effect": effect, "args": args}
        if intent is None:
            raise self.differs(f"after {self._end()}: the loop calls {name} ({call_id}); the run did not", now)
        requested = intent.event
        assert isinstance(requested, ToolRequested)
        if requested.name != name or (requested.args is not None and requested.args != args):
            shown = msgspec.json.encode(args).decode()[:200]
            text = f"{intent.seq} tool.requested: {requested.name} was called, the loop calls {name} {shown}"
            raise self.differs(text, now, intent)
        if requested.effect != effect:
            text = f"{intent.seq} tool.requested: {name} was {requested.effect}, here it is {effect}"
            raise self.differs(text, now, intent)
        if outcome is None and self._paused is not None:
            raise Paused(self._paused.next, self._paused.interrupts)
        if outcome is None:
            raise Divergence(f"{intent.seq} tool.requested: {name} has no recorded outcome")
        event = (await self._took(outcome, now)).event
        assert isinstance(event, ToolCompleted)
        return event

    async def model_completed(self, event: ModelCompleted) -> None:
        raise Divergence("the loop recorded an answer of its own")

    async def tool_completed(self, event: ToolCompleted) -> None:
        """Returns the outcome of a call that was not made: refused, or answered by a policy."""
        record = self._of_call(self._outcomes, event.call_id)
        if record is None:
            text = f"after {self._end()}: the loop answers {event.call_id} itself; the run did not"
            raise self.differs(text, msgspec.to_builtins(event))
        recorded = record.event
        assert isinstance(recorded, ToolCompleted)
        if (event.message, event.update) != (recorded.message, recorded.update) and not self.edited:
            text = f"{record.seq} tool.completed: the loop answers {event.call_id} itself, and otherwise"
            raise self.differs(text, msgspec.to_builtins(event), record)
        await self._took(record, msgspec.to_builtins(event))

    async def model_failed(self, event: ModelFailed) -> None:
        raise Divergence(f"the model failed: {event.text}")

    async def confirm(self) -> None:
        """A replay is nobody else's."""

    def preview(self, message: str) -> Previewer | None:
        return None

    async def progress(self, call_id: str, name: str, text: str, *, stage: bool = False) -> None:
        """Nobody looks."""

    def rest(self) -> Record | None:
        """The first recorded answer the loop did not ask for."""
        return self._models[self._next_model] if self._next_model < len(self._models) else None

    def _of_call(self, records: Sequence[Record], call_id: str) -> Record | None:
        """Returns the recorded outcome of a call of the last answer: some models repeat call ids."""
        first = bisect_right(records, self.state.answer_seq(), key=lambda record: record.seq)
        return next((r for r in records[first:] if getattr(r.event, "call_id", "") == call_id), None)

    def differs(self, text: str, now: Json, recorded: Record | None = None) -> Divergence:
        """Returns the divergence at a record, by default the next one that the loop has not come to."""
        recorded = recorded or self._next()
        self.differed = recorded.seq if recorded else None
        return Divergence(text, self._payload(recorded) if recorded else None, now)

    def _payload(self, recorded: Record) -> Json:
        """Returns a recorded step; a call with its arguments, which its answer holds unless a policy changed them."""
        payload: Json = msgspec.json.decode(recorded.raw)
        if isinstance(call := recorded.event, ToolRequested) and call.args is None:
            calls = (c for c in unanswered(self.state.messages) if c.get("id") == call.call_id)
            payload["args"] = next((c.get("args") for c in calls), None)
        return payload

    def _next(self) -> Record | None:
        last = self._last.seq if self._last else 0
        return next((r for r in self._records if r.seq > last and isinstance(r.event, _STEPS)), None)

    async def _took(self, record: Record, now: Json | None = None) -> Record:
        """Folds a recorded step that the loop came to. Returns it, or the one that it was changed to."""
        if self._look is not None:
            recorded, record = record, await self._look(self, record, now or {"type": record.type})
            self.edited = self.edited or record is not recorded
        self.steps += 1
        self._last = record
        before = [beside for beside in self._beside if beside.seq < record.seq]
        del self._beside[: len(before)]
        self.state = fold([*before, record], self.state)
        return record

    def _end(self) -> str:
        """Returns the name of the last record that the loop came to."""
        return f"{self._last.seq} {self._last.type}" if self._last else "the start"


class Part(NamedTuple):
    """A run of a log that nobody holds. `state`: the thread after its start; `records`: those of the run after that."""

    run: str
    state: ThreadState
    started: RunStarted
    records: list[Record]


async def part_of(read: log_reader.Read, aggregate: Aggregate, run: str, hold: log_reader.Hold) -> Part | None:
    """Returns a run of a log, in one pass; None if it did not start. `hold` is called with each of its events."""
    folding, started, records = Folding(), None, list[Record]()
    async with aclosing(read(aggregate)) as stored:
        async for record in stored:
            if record.run == run:
                hold(record)
            if started is None:
                folding.apply(record)
                if record.run == run and isinstance(record.event, RunStarted) and record.event.attempt == 1:
                    started = record.event
            elif record.run == run:
                records.append(record)
    return None if started is None else Part(run, folding.state, started, records)


async def replay_part(
    read: Read, aggregate: Aggregate, part: Part, execute: Execute, of_subagents: Execute, look: Look | None = None
) -> Report:
    """Replays one run of a thread, as `replay` does. `read` reads the logs of its subagents."""
    report = Report()
    await _replay_run(_journal(aggregate, part, look), part.records, execute, report)
    await _replay_subagents(read, _called(part.records), of_subagents, report, look)
    return report


async def replay(
    read: Read,
    thread_id: str,
    until: int | None,
    execute: Execute,
    of_subagents: Execute | None = None,
    look: Look | None = None,
) -> Report:
    """Replays a thread's runs, oldest first, up to a sequence; then the runs of its subagents.
    Runs that did not complete are replayed as far as they got. Raises `NotFound`.
    """
    report = Report()
    subagents = await _replay(read, Aggregate(KIND, thread_id), until, execute, report, look)
    if of_subagents is not None:
        await _replay_subagents(read, subagents, of_subagents, report, look)
    return report


async def _replay_subagents(
    read: Read, subagents: list[str], execute: Execute, report: Report, look: Look | None
) -> None:
    while subagents and report.divergence is None:
        aggregate = Aggregate(SUBAGENT, subagents.pop(0))
        subagents += await _replay(read, aggregate, None, execute, report, look)


async def _replay(
    read: Read,
    aggregate: Aggregate,
    until: int | None,
    execute: Execute,
    report: Report,
    look: Look | None,
) -> list[str]:
    """Replays the runs of one log. Returns the subagents that they called."""
    records = [record for record in await read(aggregate) if until is None or record.seq <= until]
    if not records and aggregate.kind == KIND:
        raise missing(aggregate.id)
    state, folded = ThreadState(), 0
    of_run: dict[str | None, list[Record]] = {}
    for record in records:
        of_run.setdefault(record.run, []).append(record)
    for number, record in enumerate(records, 1):
        if isinstance(record.event, RunStarted) and record.event.attempt == 1 and record.run:
            state, folded = fold(records[folded:number], state), number
            following = [later for later in of_run[record.run] if later.seq > record.seq]
            part = Part(record.run, state, record.event, following)
            await _replay_run(_journal(aggregate, part, look), following, execute, report)
            if report.divergence:
                break
    return _called(records)


def _journal(aggregate: Aggregate, part: Part, look: Look | None) -> ReplayJournal:
    return ReplayJournal(aggregate.id, part.run, part.state, part.records, part.started, look)


def _called(records: Iterable[Record]) -> list[str]:
    """Returns the subagents that runs called."""
    return [record.event.subagent for record in records if isinstance(record.event, SubagentStarted)]


async def _replay_run(journal: ReplayJournal, records: Sequence[Record], execute: Execute, report: Report) -> None:
    end = next((record for record in reversed(records) if type(record.event) in ENDS), None)
    divergence = await _divergence(journal, end, execute)
    report.runs += 1
    report.steps += journal.steps
    report.edited = report.edited or journal.edited
    report.changed = list(dict.fromkeys([*report.changed, *journal.changed]))
    completed = isinstance(end.event, RunCompleted | RunPaused) if end else False
    if divergence and (completed or journal.rest() is not None):
        report.divergence = f"run {journal.id}: {divergence}"
        report.recorded, report.now, report.seq = divergence.recorded, divergence.now, journal.differed
        report.differing = journal.thread_id
    elif end is None:
        report.unfinished += 1


async def _divergence(journal: ReplayJournal, end: Record | None, execute: Execute) -> Divergence | None:
    """Executes a run; returns the first difference, if there is one."""
    try:
        steps = -1
        while steps < journal.steps:  # a run that was steered at its end went on
            steps = journal.steps
            await execute(journal, _no_call)
        if left := journal.rest():
            text = f"{left.seq} model.completed: the run asked the model, the loop ends before it"
            return journal.differs(text, {"type": "run.completed"}, left)
    except Divergence as error:
        return error
    except Paused as paused:
        if end is None or not isinstance(end.event, RunPaused):
            text = f"the loop pauses before {', '.join(paused.event.next)}; the run did not"
            return journal.differs(text, {"type": "run.paused", "next": paused.event.next})
    except Exception as error:
        if not (end and isinstance(end.event, RunFailed)):
            text = f"the loop failed: {type(error).__name__}: {error}"
            return journal.differs(text, {"type": "run.failed", "error": type(error).__name__, "text": str(error)})
    return None


async def _no_call(actor: str, request: Mapping[str, Any], progress: Callable[[str], Awaitable[None]]) -> Any:
    raise Unavailable(f"a replay asks nobody, and not the {actor} actor")


def _of_policy(record: Record) -> bool:
    """Tells whether a policy of an installed package recorded it."""
    return record.head.actor == RUNS_BY and type(record.event).__module__ != Event.__module__


def _refused_outside(outcome: Record) -> bool:
    event = outcome.event
    return isinstance(event, ToolCompleted) and any(
        one.policy in OUTSIDE or one.action == REFUSED for one in event.decisions
    )
