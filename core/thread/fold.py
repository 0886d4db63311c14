"""The fold of a thread: what each fact does to the state.

Laws (tested): the fold is total (any sequence of events gives a state), deterministic, and incremental:
`fold(a + b) == fold(b, fold(a))`. It never changes the state it is given.

What may follow in the life of a run is a table (`core.lifecycle`). What an event changes is one function per type,
named in the tables `_OF_THREAD` and `OF_RUN` (`core.thread.fold_runs`); what it does to the values is a step
(`core.thread.steps`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_args

import msgspec

from core import lifecycle
from core.errors import line_of
from core.events import (
    ApprovalRequested,
    ApprovalResolved,
    ContextCompacted,
    Event,
    FeedbackGiven,
    FeedbackRemoved,
    FolderAttached,
    FolderDetached,
    ModelFailed,
    ModelSampled,
    Opaque,
    Record,
    RunRemoved,
    RunRequested,
    RunStarted,
    StatePatched,
    SubagentCompleted,
    SubagentProgressed,
    SubagentStarted,
    ThreadAnnotated,
    ThreadCreated,
    ThreadErased,
    ThreadExpirySet,
    ThreadForked,
    ThreadPruned,
    ThreadShared,
    ThreadTitled,
    ThreadUnshared,
    VariableRemoved,
    VariableSet,
    WebhookDelivered,
    WebhookFailed,
    is_foreign,
)
from core.lifecycle import ENDS
from core.thread import batches, goals
from core.thread.entries import Before, Delegation, Run
from core.thread.fold_runs import OF_RUN, without
from core.thread.past import Commits, Runs
from core.thread.state import MAX_PROBLEMS, Approval, Expiry, Feedback, Problem, Share, ThreadState
from core.thread.steps import commit, commit_patch
from core.thread.tokens import reported, tokens_of
from core.thread.values import entitle


def fold(records: Iterable[Record], start: ThreadState | None = None) -> ThreadState:
    """The state after these records (of one thread, in order), beginning at `start`. Pure and total."""
    state = _thaw(start) if start else ThreadState()
    for record in records:
        _apply(state, record)
    return state


class Folding:
    """Folds facts one by one into a state of its own: a fact costs what it adds, not what the thread holds.

    `state` is the newest; it changes with each fact. Laws (tested): the same as `fold`, and `start` stays as it is.
    """

    def __init__(self, start: ThreadState | None = None) -> None:
        self.state = _thaw(start) if start else ThreadState()
        self._before = self._now(None)

    def apply(self, record: Record) -> Before:
        """Returns what was before the fact. The newest fact may be applied again: the second time it
        changes nothing.
        """
        if record.seq > self.state.seq:
            self._before = self._now(record.run)
            _apply(self.state, record)
        return self._before

    def _now(self, run_id: str | None) -> Before:
        state = self.state
        run = state.runs.get(run_id or "")
        runs = {run.id: run} if run else {}
        return Before(state.head, state.commits, len(state.commits), runs, state.paused, state.answers)


def _thaw(state: ThreadState) -> ThreadState:
    mine = copy.copy(state)
    mine.metadata = dict(state.metadata)
    mine.values = dict(state.values)
    if "messages" in mine.values:
        mine.values["messages"] = list(mine.values["messages"])
    mine.commits = state.commits.copy()
    mine.runs = state.runs.copy()
    mine.places = dict(state.places)
    return mine


def _apply(state: ThreadState, record: Record) -> None:
    event = record.event
    state.seq, state.size = record.seq, state.size + len(record.raw)
    if state.erased and not isinstance(event, ThreadCreated):
        return
    if isinstance(event, Opaque):
        _report(state, record, event.problem)
        _leave_unread(state, record, event)
    elif change := _OF_THREAD.get(type(event)):
        change(state, record, event)
    elif record.run is not None and type(event) in lifecycle.EVENTS:
        _apply_to_run(state, record, record.run, event)
    else:
        _apply_extension(state, record, event)
    state.updated_at = record.at or state.updated_at


def _apply_extension(state: ThreadState, record: Record, event: Event) -> None:
    """Commits what an event of an extension says of the values. Its own failure is a problem of this event only."""
    try:
        patch = dict(event.patch(state.values))
    except Exception as error:
        _report(state, record, f"{record.type}: its patch fails: {line_of(error)}")
        return
    if "messages" in patch:
        _report(state, record, f"{record.type}: its patch changes messages")
    elif patch:
        commit(state, record, patch, "update", "__start__", state.head)


def _leave_unread(state: ThreadState, record: Record, event: Opaque) -> None:
    """Notes that an open run has a fact of a newer version. Types of other vendors concern no run of ours."""
    run = state.runs.get(record.run or "")
    if event.problem is None and run is not None and run.open and not run.unread and not is_foreign(record.type):
        _note(state, record, run)
        state.runs[run.id] = changed = copy.copy(run)
        changed.unread, changed.unread_at = record.type, record.at or state.updated_at


def _note(state: ThreadState, record: Record, run: Run) -> None:
    """Notes that a run changes otherwise than by its work: a rewound state has it as changed."""
    if run.status != "running":
        state.noted_seq = record.seq


def _report(state: ThreadState, record: Record, problem: str | None) -> None:
    if problem is not None:
        state.problems = (*state.problems, Problem(record.seq, problem))[:MAX_PROBLEMS]


# ── what facts do to a thread ────────────────────────────────────────────────────────────────────────────────────────


def _created(state: ThreadState, record: Record, event: ThreadCreated) -> None:
    state.exists, state.erased, state.user = True, False, event.user
    state.created_at, state.metadata, state.noted_seq = record.at, dict(event.metadata), record.seq


def _annotated(state: ThreadState, record: Record, event: ThreadAnnotated) -> None:
    state.noted_seq = record.seq
    state.metadata.update(event.metadata)
    for key in event.removed:
        state.metadata.pop(key, None)


def _titled(state: ThreadState, record: Record, event: ThreadTitled) -> None:
    if not state.title:
        state.title, state.titled_seq = event.title, record.seq
    entitle(state.values, state.title)


def _forked(state: ThreadState, record: Record, event: ThreadForked) -> None:
    for patch in event.patches:
        commit(state, record, patch, "fork", "__start__", state.head)


def _expiry_set(state: ThreadState, record: Record, event: ThreadExpirySet) -> None:
    state.expiry = None if event.minutes is None else Expiry(event.minutes, event.strategy, record.at)


def _folder_attached(state: ThreadState, record: Record, event: FolderAttached) -> None:
    state.folder = event if event.path else None


def _folder_detached(state: ThreadState, record: Record, event: FolderDetached) -> None:
    state.folder = None


def _variable_set(state: ThreadState, record: Record, event: VariableSet) -> None:
    others = {name: variable for name, variable in state.variables.items() if name != event.name}
    state.variables = {**others, event.name: event} if event.value or event.sealed else others


def _variable_removed(state: ThreadState, record: Record, event: VariableRemoved) -> None:
    state.variables = {name: variable for name, variable in state.variables.items() if name != event.name}


def _shared(state: ThreadState, record: Record, event: ThreadShared) -> None:
    if event.digest:
        state.shares = {**state.shares, event.share: Share(event, record.at)}


def _unshared(state: ThreadState, record: Record, event: ThreadUnshared) -> None:
    state.shares = without(state.shares, event.share)


def _pruned(state: ThreadState, record: Record, event: ThreadPruned) -> None:
    _forget(state)
    state.exists, state.erased, state.user = True, False, event.user
    state.created_at, state.metadata = event.created_at, dict(event.metadata)
    commit(state, record, event.values, "update", "__start__", -1)


def _erased(state: ThreadState, record: Record, event: ThreadErased) -> None:
    _forget(state)
    state.user = event.by


def _feedback_given(state: ThreadState, record: Record, event: FeedbackGiven) -> None:
    feedback = Feedback(
        event.feedback_id, record.run or "", event.user, event.rating, event.comment, event.message_id, record.at
    )
    state.feedback = {**state.feedback, feedback.id: feedback}


def _feedback_removed(state: ThreadState, record: Record, event: FeedbackRemoved) -> None:
    state.feedback = without(state.feedback, event.feedback_id)


def _patched(state: ThreadState, record: Record, event: StatePatched) -> None:
    base = state.head if event.base is None else state.commit_at(event.base)
    if base != state.head:
        state.paused, state.answers = None, {}
    commit_patch(state, record, base)


def _compaction(state: ThreadState, record: Record, event: ContextCompacted) -> None:
    commit_patch(state, record, state.head)


def _goal_changed(state: ThreadState, record: Record, event: goals.GoalChanged) -> None:
    state.goal = goals.after(state.goal, event, record)


def _approval_requested(state: ThreadState, record: Record, event: ApprovalRequested) -> None:
    state.approvals = {**state.approvals, event.approval: Approval(event, record.run or "", record.at)}


def _approval_resolved(state: ThreadState, record: Record, event: ApprovalResolved) -> None:
    if approval := state.approvals.get(event.approval):
        state.approvals = {**state.approvals, event.approval: approval._replace(resolved=event)}


def _subagent_started(state: ThreadState, record: Record, event: SubagentStarted) -> None:
    if run := state.runs.get(record.run or ""):
        new = Delegation(
            call_id=event.call_id, name=event.name, description=event.description, model=event.model, item=event.item
        )
        state.size -= 0 if event.item is None else len(record.raw)  # what is kept of items does not grow
        _delegate(state, record, run, event.subagent, run.subagents.get(event.subagent, new))


def _subagent_progressed(state: ThreadState, record: Record, event: SubagentProgressed) -> None:
    run, subagent = _delegated(state, record, event.call_id)
    if run is not None and (known := run.subagents[subagent]).messages < event.index:
        tokens = known.tokens.plus(tokens_of(event.message))
        _delegate(state, record, run, subagent, msgspec.structs.replace(known, messages=event.index, tokens=tokens))


def _subagent_completed(state: ThreadState, record: Record, event: SubagentCompleted) -> None:
    run, subagent = _delegated(state, record, event.call_id)
    if run is not None and not (known := run.subagents[subagent]).ended:
        tokens = known.tokens.at_least(reported(event.usage, calls=0))
        if known.item is None:
            _delegate(state, record, run, subagent, msgspec.structs.replace(known, ended=event.status, tokens=tokens))
        else:
            state.size -= len(record.raw)
            _note(state, record, run)
            changed = copy.copy(run)
            changed.subagents, changed.stalled = without(run.subagents, subagent), 0
            changed.items = batches.after(run.items, known, event, tokens)
            state.runs[run.id] = changed


def _delegated(state: ThreadState, record: Record, call_id: str) -> tuple[Run | None, str]:
    """Returns the run, and the newest subagent that was given the call: some models repeat ids of calls."""
    run = state.runs.get(record.run or "")
    names = [name for name, known in run.subagents.items() if known.call_id == call_id] if run else []
    return (run, names[-1]) if names else (None, "")


def _delegate(state: ThreadState, record: Record, run: Run, subagent: str, delegation: Delegation) -> None:
    _note(state, record, run)
    changed = copy.copy(run)
    changed.subagents = {**run.subagents, subagent: delegation}
    changed.stalled = 0  # the work of its subagents is the run's own
    state.runs[run.id] = changed


def _forget(state: ThreadState) -> None:
    state.exists, state.erased = False, True
    state.metadata, state.values, state.places, state.head = {}, {}, {}, -1
    state.title, state.titled_seq, state.noted_seq = "", 0, 0
    state.commits, state.runs = Commits(), Runs()
    state.paused, state.answers, state.steers, state.feedback, state.expiry = None, {}, (), {}, None
    state.approvals, state.goal, state.folder, state.problems, state.size = {}, None, None, (), 0
    state.variables, state.shares = {}, {}


_OF_THREAD: Mapping[type[Event], Callable[[ThreadState, Record, Any], None]] = {
    ThreadCreated: _created,
    ThreadAnnotated: _annotated,
    ThreadTitled: _titled,
    ThreadForked: _forked,
    ThreadExpirySet: _expiry_set,
    FolderAttached: _folder_attached,
    FolderDetached: _folder_detached,
    VariableSet: _variable_set,
    VariableRemoved: _variable_removed,
    ThreadShared: _shared,
    ThreadUnshared: _unshared,
    ThreadPruned: _pruned,
    ThreadErased: _erased,
    FeedbackGiven: _feedback_given,
    FeedbackRemoved: _feedback_removed,
    StatePatched: _patched,
    ContextCompacted: _compaction,
    ApprovalRequested: _approval_requested,
    ApprovalResolved: _approval_resolved,
    SubagentStarted: _subagent_started,
    SubagentProgressed: _subagent_progressed,
    SubagentCompleted: _subagent_completed,
    **dict.fromkeys(get_args(goals.GoalChanged), _goal_changed),
}


# ── what facts do to a run ───────────────────────────────────────────────────────────────────────────────────────────


def _apply_to_run(state: ThreadState, record: Record, run_id: str, event: Event) -> None:
    known = state.runs.get(run_id)
    if problem := lifecycle.problem(event, run_id, known.status if known else None):
        _report(state, record, problem)
    elif known is None:
        _request(state, record, run_id, event)
    else:
        if type(event) not in _UNDONE or _changed_early(known):
            _note(state, record, known)
        run = copy.copy(known)
        if type(event) not in _ASIDE:
            run.updated_at, run.last_id = record.at, record.id
        if end := ENDS.get(type(event)):
            run.status, run.ended_seq = end.status, record.seq
        if change := OF_RUN.get(type(event)):
            change(state, record, run, event)
        state.runs[run_id] = run


_ASIDE: frozenset[type[Event]] = frozenset((ModelFailed, ModelSampled, RunRemoved, WebhookDelivered, WebhookFailed))
"""Events that are not the cause of a run's next one, and do not count as its newest."""


def _changed_early(run: Run) -> bool:
    """Tells whether a run has changed before it began to work."""
    return bool(run.cancel or run.steers or run.unread or run.subagents or run.items.ended)


_UNDONE: frozenset[type[Event]] = frozenset((RunStarted, *ENDS))
"""Events of runs that are not at work whose effect a rewound state does not have."""


def _request(state: ThreadState, record: Record, run_id: str, event: Event) -> None:
    assert isinstance(event, RunRequested)
    if event.multitask in ("interrupt", "rollback"):
        _cancel_open(state, record, event.multitask)
    state.runs[run_id] = Run(
        id=run_id,
        request=event,
        requested_seq=record.seq,
        created_at=record.at,
        updated_at=record.at,
        last_id=record.id,
    )


def _cancel_open(state: ThreadState, record: Record, action: str) -> None:
    """A run that interrupts or rolls back the others says so itself: one fact, nothing in between."""
    for other in list(state.runs.open()):
        if other.cancel is None:
            _note(state, record, other)
            state.runs[other.id] = cancelled = copy.copy(other)
            cancelled.cancel = action
