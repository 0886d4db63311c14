"""The journal of one sample of a what-if (`core.replay.whatif`): events in memory, after those that were recorded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from core.config.redaction import redactor
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
from core.replay.whatif.running import ACTOR, Call, Changes, Made, Point
from core.runs.journal import CallRef, Complete, outcome_of, tool_message
from core.runs.previews import Previewer
from core.thread.fold import fold
from core.thread.values import unanswered
from core.tools import Effect

E = TypeVar("E", bound=Event)
BLOCKED = "Error: blocked in what-if: {} acts outside the copy of the sandbox. It was not called."
SANDBOXED = frozenset(("bash", "write_file", "str_replace"))
"""Tools whose effects stay in the sandbox."""


class SampleJournal:
    """A journal (`core.runs.journal.Journal`) of the shared events, as changed, and of the new ones of the sample."""

    stopping = False

    def __init__(self, point: Point, changes: Changes, allow_effects: bool = False) -> None:
        self._aggregate = point.thread
        self.thread_id = self._aggregate.id
        self.id = point.run
        self.state = point.state
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
        self._last = point.last
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
        """Does nothing: no other process works on a what-if."""

    async def steered(self, complete: Complete) -> list[Message]:
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

    async def progress(self, call_id: str, name: str, text: str, *, stage: bool = False) -> None:
        """Does nothing: a what-if has no spectators."""


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
