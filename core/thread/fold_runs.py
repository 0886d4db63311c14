"""The part of the fold that is about runs: what each of their facts changes besides the status (`core.lifecycle`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from core.events import (
    Decision,
    Event,
    Message,
    MessageAdded,
    ModelCompleted,
    ModelFailed,
    ModelSampled,
    Record,
    Resume,
    RunCancelRequested,
    RunFailed,
    RunPaused,
    RunRemoved,
    RunRolledBack,
    RunStarted,
    RunSteered,
    RunSuspended,
    ToolCompleted,
    ToolRequested,
    WebhookDelivered,
    WebhookFailed,
)
from core.thread.entries import Before, Intent, Run
from core.thread.state import STOPPED, ThreadState
from core.thread.steps import checkout, commit_patch
from core.thread.tokens import Tokens, reported

T = TypeVar("T")


def _started(state: ThreadState, record: Record, run: Run, event: RunStarted) -> None:
    if run.attempt == 0:
        _begin(state, record, run)
    run.status, run.attempt, run.turn_seq = "running", event.attempt, record.seq
    run.worker, run.lease, run.delivery = event.worker, event.lease, event.delivery
    run.stalled += 1
    run.model = event.model or run.model


def _begin(state: ThreadState, record: Record, run: Run) -> None:
    """Applies the first start: the run takes over what the thread was paused at, and its input is written."""
    run.started_seq, run.before, run.resumed = record.seq, state.head, (state.paused, state.answers)
    if run.request.resume and state.paused:
        run.answers = answered(state, run.request.resume)
    state.noted_seq = record.seq if state.steers else state.noted_seq
    run.steers = (*state.steers, *run.steers)
    state.paused, state.answers, state.steers = None, {}, ()
    base = state.head if run.request.base is None else state.commit_at(run.request.base)
    checkout(state, base)
    commit_patch(state, record, base)


def _suspended(state: ThreadState, record: Record, run: Run, event: RunSuspended) -> None:
    run.stalled = max(0, run.stalled - 1)
    run.suspensions += 1


def _cancel_requested(state: ThreadState, record: Record, run: Run, event: RunCancelRequested) -> None:
    run.cancel = event.action


def _steered(state: ThreadState, record: Record, run: Run, event: RunSteered) -> None:
    run.steers = (*run.steers, event.message)


def _message_added(state: ThreadState, record: Record, run: Run, event: MessageAdded) -> None:
    run.steers = run.steers[len(event.messages) :]
    commit_patch(state, record, state.head)


def _model_completed(state: ThreadState, record: Record, run: Run, event: ModelCompleted) -> None:
    run.stalled, run.suspensions, run.turn_seq = 0, 0, record.seq
    run.said, run.answer = record.id, str(event.message.get("id"))
    run.notes = _notes(event.decisions)
    run.calls += 1
    limit = next((decision for decision in event.decisions if decision.action == STOPPED), None)
    run.stopped_by, run.stopped = (limit.policy, limit.text) if limit else ("", "")
    run.again = limit is None and any(decision.again for decision in event.decisions)
    commit_patch(state, record, state.head)


def _model_failed(state: ThreadState, record: Record, run: Run, event: ModelFailed) -> None:
    run.turn_seq = record.seq


def _model_sampled(state: ThreadState, record: Record, run: Run, event: ModelSampled) -> None:
    used = run.sampled.get(event.model, Tokens()).plus(reported(event.usage, calls=1))
    run.sampled = {**run.sampled, event.model: used}


def _tool_requested(state: ThreadState, record: Record, run: Run, event: ToolRequested) -> None:
    run.intents = {**run.intents, event.call_id: Intent(record.id, event)}


def _tool_completed(state: ThreadState, record: Record, run: Run, event: ToolCompleted) -> None:
    run.stalled, run.suspensions = 0, 0
    run.notes = (*run.notes, *_notes(event.decisions))
    run.intents = without(run.intents, event.call_id)
    run.answers = without(run.answers, event.call_id)
    commit_patch(state, record, state.head)


def _paused(state: ThreadState, record: Record, run: Run, event: RunPaused) -> None:
    state.paused, state.answers, state.steers = event, run.answers, run.steers


def _failed(state: ThreadState, record: Record, run: Run, event: RunFailed) -> None:
    run.error = event
    if event.message is not None:
        run.answer = str(event.message.get("id"))
        commit_patch(state, record, state.head)


def _rolled_back(state: ThreadState, record: Record, run: Run, event: RunRolledBack) -> None:
    if run.attempt:
        checkout(state, run.before)
        state.paused, state.answers = run.resumed


def _removed(state: ThreadState, record: Record, run: Run, event: RunRemoved) -> None:
    run.removed = True


def _posted(state: ThreadState, record: Record, run: Run, event: WebhookDelivered | WebhookFailed) -> None:
    run.webhook = event


OF_RUN: Mapping[type[Event], Callable[[ThreadState, Record, Run, Any], None]] = {
    RunStarted: _started,
    RunSuspended: _suspended,
    RunCancelRequested: _cancel_requested,
    RunSteered: _steered,
    MessageAdded: _message_added,
    ModelCompleted: _model_completed,
    ModelFailed: _model_failed,
    ModelSampled: _model_sampled,
    ToolRequested: _tool_requested,
    ToolCompleted: _tool_completed,
    RunPaused: _paused,
    RunFailed: _failed,
    RunRolledBack: _rolled_back,
    RunRemoved: _removed,
    WebhookDelivered: _posted,
    WebhookFailed: _posted,
}
"""Changes of an event of a run besides the status. The run is a copy that the thread gets afterwards."""


def _notes(decisions: Sequence[Decision]) -> tuple[Message, ...]:
    return tuple(decision.note for decision in decisions if decision.note is not None)


def without(mapping: Mapping[str, T], key: str) -> Mapping[str, T]:
    return {name: value for name, value in mapping.items() if name != key} if key in mapping else mapping


def answered(state: ThreadState | Before, resume: Resume) -> Mapping[str, tuple[Any, ...]]:
    """Returns what the tool calls get that the thread is paused at: all earlier answers, and this one."""
    questions = {question.id: question for question in state.paused.interrupts} if state.paused else {}
    value = resume.value
    by_question = (
        value
        if isinstance(value, dict) and value and value.keys() <= questions.keys()
        else dict.fromkeys(questions, value)
    )
    answers = dict(state.answers)
    for identity, answer in by_question.items():
        if call_id := questions[identity].call_id:
            answers[call_id] = (*answers.get(call_id, ()), answer)
    return answers
