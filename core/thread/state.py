"""The state of a thread: a pure fold over its facts.

Theory of operation
-------------------
Every fact that changes what the agent sees carries a *patch* (`{"messages": [...], "title": ...}`), applied through
the reducers of the state's fields. Each applied patch is a *commit*; a commit has a parent, so history is a tree, as
in git: a run that starts from an older checkpoint, or a state patch on one, gets that commit as parent, and a
rollback moves the head back. A checkpoint id is the log sequence of its commit. `values` is always the state at the
head; the state at any other commit is rebuilt from its chain.

Laws (tested): the fold is total (any sequence of events gives a state), deterministic, and incremental:
`fold(a + b) == fold(b, fold(a))`. It never changes the state it is given.

Why patches and not snapshots: a turn writes what it adds to the thread, not what the thread holds. So does a copy of a
state, and what it takes in memory: of commits and runs that are long past see `core.thread.past`.

What may follow in the life of a run is a table (`core.lifecycle`). What an event changes is one function per type,
named in the tables `_OF_THREAD` and `_OF_RUN`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple, TypeVar, get_args

import msgspec

from core import lifecycle
from core.events import (
    ApprovalRequested,
    ApprovalResolved,
    ContextCompacted,
    Decision,
    Event,
    FeedbackGiven,
    FeedbackRemoved,
    Json,
    Message,
    MessageAdded,
    ModelCompleted,
    ModelFailed,
    ModelSampled,
    Opaque,
    Record,
    Resume,
    RunCancelRequested,
    RunFailed,
    RunPaused,
    RunRemoved,
    RunRequested,
    RunRolledBack,
    RunStarted,
    RunSteered,
    RunSuspended,
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
    ThreadTitled,
    ToolCompleted,
    ToolRequested,
    WebhookDelivered,
    WebhookFailed,
)
from core.lifecycle import ENDS
from core.thread import batches, goals
from core.thread.past import Commit as Commit
from core.thread.past import Commits, Delegation, Runs
from core.thread.past import Intent as Intent
from core.thread.past import Run as Run
from core.thread.tokens import Tokens, reported, tokens_of

T = TypeVar("T")

REMOVE_ALL = "__remove_all__"
"""Id of a `remove` message that clears the list. Patches in the log have it, so it stays what LangGraph calls it."""

MAX_PROBLEMS = 100
_NEAR = 100
"""Commits behind the head at which the values are told from those at the head."""
ROOT = 0
"""Sequence that stands for the checkpoint before the first input of a thread: there is no commit with it."""

STOPPED = "stopped"
"""The action of a decision by which an answer became the final one."""
CLARIFICATION = "clarification:"
"""Prefix of the ids of tool messages that are questions to the person."""
TITLED = "TitleMiddleware.after_model"
"""The web page's name of the step that gives a conversation its title."""
COMPACTED = "SummarizationMiddleware.before_model"
"""Node of the step that replaces a conversation by its summary. Copies of threads write the nodes of their steps into
the log, so this name stays what the web page knows (contract runtime §5.10).
"""


class Approval(NamedTuple):
    """A tool call that waits, or waited, for a person. `run` and `at`: when it was asked for."""

    request: ApprovalRequested
    run: str
    at: str
    resolved: ApprovalResolved | None = None


class Feedback(NamedTuple):
    """A rating of a run."""

    id: str
    run: str
    user: str
    rating: int
    comment: str | None
    message_id: str | None
    at: str


class Problem(NamedTuple):
    """An event that cannot be read, or that may not follow in the life of its run. It folds as nothing."""

    seq: int
    text: str


class Expiry(NamedTuple):
    """When a thread goes: after so many idle minutes. `at`: when that was decided."""

    minutes: float
    strategy: str
    at: str


@dataclass(slots=True)
class ThreadState:
    """A thread at one point of its log. Treat as frozen: only `fold` makes new ones."""

    seq: int = 0
    exists: bool = False
    erased: bool = False
    user: str = ""
    created_at: str = ""
    updated_at: str = ""
    metadata: Json = field(default_factory=dict)
    title: str = ""
    """The title of `thread.titled`. It stands in the values of every checkpoint that has no other, and makes none."""
    titled_seq: int = 0
    values: Json = field(default_factory=dict)
    commits: Commits = field(default_factory=Commits)
    head: int = -1
    runs: Runs = field(default_factory=Runs)
    places: dict[str, int] = field(default_factory=dict)
    """Index of each message of `values` by id."""
    paused: RunPaused | None = None
    """Where the last run stopped, until another one starts."""
    answers: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Earlier answers to the questions of the tool calls that the thread is paused at."""
    steers: tuple[Message, ...] = ()
    """Steering messages that the paused run did not read: for the one that goes on."""
    feedback: Mapping[str, Feedback] = field(default_factory=dict)
    expiry: Expiry | None = None
    approvals: Mapping[str, Approval] = field(default_factory=dict)
    goal: goals.Goal | None = None
    problems: tuple[Problem, ...] = ()
    """The first `MAX_PROBLEMS` events of the log that fold as nothing, and why."""
    size: int = 0
    """Bytes of the events it is made of."""

    @property
    def messages(self) -> list[Message]:
        found: list[Message] = self.values.get("messages", [])
        return found

    @property
    def active(self) -> Run | None:
        """The run that is being worked on (or whose worker died), if any."""
        return next((run for run in reversed(list(self.runs.open())) if run.status == "running"), None)

    @property
    def queued(self) -> list[Run]:
        """Runs nobody has started, oldest first."""
        return [run for run in self.runs.open() if run.status == "pending"]

    @property
    def undone(self) -> frozenset[str]:
        """Ids of the runs that were rolled back."""
        return self.runs.undone()

    @property
    def status(self) -> str:
        """`idle`, `busy`, `interrupted` or `error`."""
        if any(self.runs.open()):
            return "busy"
        if self.paused:
            return "interrupted"
        last = next(reversed(self.runs.values()), None)
        return last.status if last and last.status in ("error", "interrupted") else "idle"

    @property
    def interrupts(self) -> dict[str, list[Json]]:
        """The questions the thread waits on, as `{id, value}`, by the task that asked (a tool call)."""
        found: dict[str, list[Json]] = {}
        for asked in self.paused.interrupts if self.paused else ():
            found.setdefault(asked.call_id or asked.id, []).append({"id": asked.id, "value": asked.value})
        return found

    def commit_at(self, seq: int) -> int:
        """Index of the last commit with this sequence (a fork brings many), or -1."""
        after = self.commits.upto(seq)
        return after - 1 if after and self.commits[after - 1].seq == seq else -1

    def has_checkpoint(self, seq: int) -> bool:
        """Tells whether a run or a patch can start from there."""
        return self.commit_at(seq) >= 0 or (seq == ROOT and any(commit.after_root for commit in self.commits))

    def chain(self, index: int) -> Iterator[int]:
        """Yields the indices from a commit back to the root, newest first."""
        while index >= 0:
            yield index
            index = self.commits[index].parent

    def answer_seq(self) -> int:
        """Sequence of the newest model answer on the way back from the head, 0 if there is none."""
        index = self.head
        while index >= 0 and self.commits[index].node != "model":
            index = self.commits[index].parent
        return self.commits[index].seq if index >= 0 else 0

    def used_tools(self, run: Run) -> bool:
        """Tells whether a run called any tool, which may have had effects."""
        for commit in reversed(self.commits):
            if run.started_seq is None or commit.seq < run.started_seq:
                break
            if commit.run == run.id and commit.node == "tools":
                return True
        return bool(run.intents)

    def values_at(self, index: int) -> Json:
        """The values at any commit, rebuilt from its chain."""
        if index == self.head:
            return self.values
        shown = _without_newest(self, index)
        return _materialise(self, index)[0] if shown is None else shown


def fold(records: Iterable[Record], start: ThreadState | None = None) -> ThreadState:
    """The state after these records (of one thread, in order), beginning at `start`. Pure and total."""
    state = _thaw(start) if start else ThreadState()
    for record in records:
        _apply(state, record)
    return state


class Before(NamedTuple):
    """The values that a fact changed, as they were before it. It costs the same in any thread."""

    head: int
    commits: Sequence[Commit]
    """The commits up to `length`; later ones may follow them."""
    length: int
    runs: Mapping[str, Run]
    """The fact's run, if it was there."""
    paused: RunPaused | None
    answers: Mapping[str, tuple[Any, ...]]


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


def labels_of(state: ThreadState, run_id: str | None, events: Sequence[Event]) -> frozenset[str]:
    """Returns the labels of events that are to be appended for a run: its request and its end have some."""
    if any(isinstance(event, RunRequested) for event in events):
        return lifecycle.beginning(untitled=not state.values.get("title"))
    run = state.runs.get(run_id or "")
    if run is None or not any(type(event) in ENDS for event in events):
        return frozenset()
    goal = state.goal is not None and state.goal.listens
    return lifecycle.labels(run.request, state.used_tools(run), goal=goal)


def unanswered(messages: Sequence[Message]) -> list[Json]:
    """Tool calls of the last assistant message that have no tool message yet."""
    answered = set()
    for message in reversed(messages):
        if message.get("type") == "tool":
            answered.add(str(message.get("tool_call_id")))
        elif message.get("type") == "ai":
            return [call for call in tool_calls(message) if call["id"] not in answered]
        else:
            return []
    return []


def tool_calls(message: Message) -> list[Json]:
    """The tool calls of a message, each with `id`, `name` and `args`. What has no id is no call, whoever wrote it."""
    return [
        call
        if isinstance(call.get("name"), str) and isinstance(call.get("args"), dict)
        else {**call, "name": str(call.get("name") or ""), "args": {}}
        for call in _dicts(message.get("tool_calls"))
        if isinstance(call.get("id"), str)
    ]


def next_nodes(messages: Sequence[Message]) -> list[str]:
    """Returns what the agent would do next on these messages: `tools`, `model` or nothing."""
    if not messages:
        return []
    if unanswered(messages):
        return ["tools"]
    return [] if messages[-1].get("type") == "ai" or asks_person(messages) else ["model"]


def asks_person(messages: Sequence[Message]) -> bool:
    """Tells whether the agent has asked the person something, and waits for the next message (contract
    runtime §5.19).
    """
    for message in reversed(messages):
        if message.get("type") != "tool":
            return False
        if str(message.get("id")).startswith(CLARIFICATION):
            return True
    return False


def patch_of(record: Record, state: ThreadState) -> tuple[Mapping[str, Any], str, str] | None:
    """Returns what a record does to the values, as (patch, source, node); None if it does not change them."""
    match record.event:
        case ModelCompleted(message=message):
            return {"messages": [message]}, "loop", "model"
        case ToolCompleted(message=message, update=update):
            return {**update, "messages": [message]}, "loop", "tools"
        case StatePatched(values=values, as_node=node, source=source):
            return values, source, node or "__start__"
        case MessageAdded(messages=messages):
            return {"messages": messages}, "update", "__start__"
        case RunFailed(message=message) if message is not None:
            return {"messages": [message]}, "loop", "model"
        case ContextCompacted():
            return {"messages": _compacted(state, record.event)}, "loop", COMPACTED
        case RunStarted() if (run := state.runs.get(record.run or "")) and run.attempt == 0 and run.request.input:
            return with_prepared(run.request.input, record.event.prepared), "input", "__start__"
    return None


def with_prepared(given: Json, prepared: Json) -> Json:
    """A run's input with what the server adds to it, or says differently: of messages by id, field by field."""
    if not prepared:
        return given
    changes = {str(one.get("id")): one for one in _dicts(prepared.get("messages"))}
    messages = [
        {**one, **changes[str(one.get("id"))]} if one.get("type") != "remove" and str(one.get("id")) in changes else one
        for one in _dicts(given.get("messages"))
    ]
    return {**given, **prepared, "messages": messages}


def _dicts(given: Any) -> list[Message]:
    return [one for one in given if isinstance(one, dict)] if isinstance(given, list) else []


def _compacted(state: ThreadState, event: ContextCompacted) -> list[Message]:
    """The conversation after it was compacted, as a patch that replaces it. What was added meanwhile stays."""
    changed = {str(message.get("id")): message for message in event.messages}
    kept = [changed.get(one, state.messages[state.places[one]]) for one in event.kept if one in state.places]
    last = max((state.places[one] for one in event.kept if one in state.places), default=len(state.messages) - 1)
    return [{"type": "remove", "id": REMOVE_ALL}, event.summary, *kept, *state.messages[last + 1 :]]


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
        _report(state, record, f"{record.type}: its patch fails: {type(error).__name__}: {error}")
        return
    if "messages" in patch:
        _report(state, record, f"{record.type}: its patch changes messages")
    elif patch:
        _commit(state, record, patch, "update", "__start__", state.head)


def _report(state: ThreadState, record: Record, problem: str | None) -> None:
    if problem is not None:
        state.problems = (*state.problems, Problem(record.seq, problem))[:MAX_PROBLEMS]


# ── what facts do to a thread ────────────────────────────────────────────────────────────────────────────────────────


def _created(state: ThreadState, record: Record, event: ThreadCreated) -> None:
    state.exists, state.erased, state.user = True, False, event.user
    state.created_at, state.metadata = record.at, dict(event.metadata)


def _annotated(state: ThreadState, record: Record, event: ThreadAnnotated) -> None:
    state.metadata.update(event.metadata)


def _titled(state: ThreadState, record: Record, event: ThreadTitled) -> None:
    if not state.title:
        state.title, state.titled_seq = event.title, record.seq
    entitle(state.values, state.title)


def _forked(state: ThreadState, record: Record, event: ThreadForked) -> None:
    for patch in event.patches:
        _commit(state, record, patch, "fork", "__start__", state.head)


def _expiry_set(state: ThreadState, record: Record, event: ThreadExpirySet) -> None:
    state.expiry = None if event.minutes is None else Expiry(event.minutes, event.strategy, record.at)


def _pruned(state: ThreadState, record: Record, event: ThreadPruned) -> None:
    _forget(state)
    state.exists, state.erased, state.user = True, False, event.user
    state.created_at, state.metadata = event.created_at, dict(event.metadata)
    _commit(state, record, event.values, "update", "__start__", -1)


def _erased(state: ThreadState, record: Record, event: ThreadErased) -> None:
    _forget(state)
    state.user = event.by


def _feedback_given(state: ThreadState, record: Record, event: FeedbackGiven) -> None:
    feedback = Feedback(
        event.feedback_id, record.run or "", event.user, event.rating, event.comment, event.message_id, record.at
    )
    state.feedback = {**state.feedback, feedback.id: feedback}


def _feedback_removed(state: ThreadState, record: Record, event: FeedbackRemoved) -> None:
    state.feedback = _without(state.feedback, event.feedback_id)


def _patched(state: ThreadState, record: Record, event: StatePatched) -> None:
    base = state.head if event.base is None else state.commit_at(event.base)
    if base != state.head:
        state.paused, state.answers = None, {}
    _commit_patch(state, record, base)


def _compaction(state: ThreadState, record: Record, event: ContextCompacted) -> None:
    _commit_patch(state, record, state.head)


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
        _delegate(state, run, event.subagent, run.subagents.get(event.subagent, new))


def _subagent_progressed(state: ThreadState, record: Record, event: SubagentProgressed) -> None:
    run, subagent = _delegated(state, record, event.call_id)
    if run is not None and (known := run.subagents[subagent]).messages < event.index:
        tokens = known.tokens.plus(tokens_of(event.message))
        _delegate(state, run, subagent, msgspec.structs.replace(known, messages=event.index, tokens=tokens))


def _subagent_completed(state: ThreadState, record: Record, event: SubagentCompleted) -> None:
    run, subagent = _delegated(state, record, event.call_id)
    if run is not None and not (known := run.subagents[subagent]).ended:
        tokens = known.tokens.at_least(reported(event.usage, calls=0))
        if known.item is None:
            _delegate(state, run, subagent, msgspec.structs.replace(known, ended=event.status, tokens=tokens))
        else:
            state.size -= len(record.raw)
            changed = copy.copy(run)
            changed.subagents, changed.stalled = _without(run.subagents, subagent), 0
            changed.items = batches.after(run.items, known, event, tokens)
            state.runs[run.id] = changed


def _delegated(state: ThreadState, record: Record, call_id: str) -> tuple[Run | None, str]:
    """Returns the run, and the newest subagent that was given the call: some models repeat ids of calls."""
    run = state.runs.get(record.run or "")
    names = [name for name, known in run.subagents.items() if known.call_id == call_id] if run else []
    return (run, names[-1]) if names else (None, "")


def _delegate(state: ThreadState, run: Run, subagent: str, delegation: Delegation) -> None:
    changed = copy.copy(run)
    changed.subagents = {**run.subagents, subagent: delegation}
    changed.stalled = 0  # the work of its subagents is the run's own
    state.runs[run.id] = changed


_OF_THREAD: Mapping[type[Event], Callable[[ThreadState, Record, Any], None]] = {
    ThreadCreated: _created,
    ThreadAnnotated: _annotated,
    ThreadTitled: _titled,
    ThreadForked: _forked,
    ThreadExpirySet: _expiry_set,
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
        run = copy.copy(known)
        if type(event) not in _ASIDE:
            run.updated_at, run.last_id = record.at, record.id
        if end := ENDS.get(type(event)):
            run.status, run.ended_seq = end.status, record.seq
        if change := _OF_RUN.get(type(event)):
            change(state, record, run, event)
        state.runs[run_id] = run


def _request(state: ThreadState, record: Record, run_id: str, event: Event) -> None:
    assert isinstance(event, RunRequested)
    if event.multitask in ("interrupt", "rollback"):
        _cancel_open(state, event.multitask)
    state.runs[run_id] = Run(
        id=run_id,
        request=event,
        requested_seq=record.seq,
        created_at=record.at,
        updated_at=record.at,
        last_id=record.id,
    )


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
    run.steers = (*state.steers, *run.steers)
    state.paused, state.answers, state.steers = None, {}, ()
    base = state.head if run.request.base is None else state.commit_at(run.request.base)
    _checkout(state, base)
    _commit_patch(state, record, base)


def _suspended(state: ThreadState, record: Record, run: Run, event: RunSuspended) -> None:
    run.stalled = max(0, run.stalled - 1)
    run.suspensions += 1


def _cancel_requested(state: ThreadState, record: Record, run: Run, event: RunCancelRequested) -> None:
    run.cancel = event.action


def _steered(state: ThreadState, record: Record, run: Run, event: RunSteered) -> None:
    run.steers = (*run.steers, event.message)


def _message_added(state: ThreadState, record: Record, run: Run, event: MessageAdded) -> None:
    run.steers = run.steers[len(event.messages) :]
    _commit_patch(state, record, state.head)


def _model_completed(state: ThreadState, record: Record, run: Run, event: ModelCompleted) -> None:
    run.stalled, run.suspensions, run.turn_seq = 0, 0, record.seq
    run.said, run.answer = record.id, str(event.message.get("id"))
    run.notes = _notes(event.decisions)
    run.stopped_by = next((decision.policy for decision in event.decisions if decision.action == STOPPED), "")
    run.again = any(decision.again for decision in event.decisions)
    _commit_patch(state, record, state.head)


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
    run.intents = _without(run.intents, event.call_id)
    run.answers = _without(run.answers, event.call_id)
    _commit_patch(state, record, state.head)


def _paused(state: ThreadState, record: Record, run: Run, event: RunPaused) -> None:
    state.paused, state.answers, state.steers = event, run.answers, run.steers


def _failed(state: ThreadState, record: Record, run: Run, event: RunFailed) -> None:
    run.error = event
    if event.message is not None:
        run.answer = str(event.message.get("id"))
        _commit_patch(state, record, state.head)


def _rolled_back(state: ThreadState, record: Record, run: Run, event: RunRolledBack) -> None:
    if run.attempt:
        _checkout(state, run.before)
        state.paused, state.answers = run.resumed


def _removed(state: ThreadState, record: Record, run: Run, event: RunRemoved) -> None:
    run.removed = True


def _posted(state: ThreadState, record: Record, run: Run, event: WebhookDelivered | WebhookFailed) -> None:
    run.webhook = event


_OF_RUN: Mapping[type[Event], Callable[[ThreadState, Record, Run, Any], None]] = {
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
_ASIDE: frozenset[type[Event]] = frozenset((ModelFailed, ModelSampled, RunRemoved, WebhookDelivered, WebhookFailed))
"""Events that are not the cause of a run's next one, and do not count as its newest."""


def _notes(decisions: Sequence[Decision]) -> tuple[Message, ...]:
    return tuple(decision.note for decision in decisions if decision.note is not None)


def _without(mapping: Mapping[str, T], key: str) -> Mapping[str, T]:
    return {name: value for name, value in mapping.items() if name != key} if key in mapping else mapping


def answered(state: ThreadState | Before, resume: Resume) -> Mapping[str, tuple[Any, ...]]:
    """Returns what the tool calls get that the thread is paused at: all earlier answers, and this one."""
    asked = {one.id: one for one in state.paused.interrupts} if state.paused else {}
    value = resume.value
    each = value if isinstance(value, dict) and value and value.keys() <= asked.keys() else dict.fromkeys(asked, value)
    found = dict(state.answers)
    for identity, answer in each.items():
        if call_id := asked[identity].call_id:
            found[call_id] = (*found.get(call_id, ()), answer)
    return found


def _cancel_open(state: ThreadState, action: str) -> None:
    """A run that interrupts or rolls back the others says so itself: one fact, nothing in between."""
    for other in list(state.runs.open()):
        if other.cancel is None:
            state.runs[other.id] = cancelled = copy.copy(other)
            cancelled.cancel = action


def _forget(state: ThreadState) -> None:
    state.exists, state.erased = False, True
    state.metadata, state.values, state.places, state.head = {}, {}, {}, -1
    state.title, state.titled_seq = "", 0
    state.commits, state.runs = Commits(), Runs()
    state.paused, state.answers, state.steers, state.feedback, state.expiry = None, {}, (), {}, None
    state.approvals, state.goal, state.problems, state.size = {}, None, (), 0


def _commit(state: ThreadState, record: Record, patch: Mapping[str, Any], source: str, node: str, parent: int) -> None:
    if parent != state.head:
        _checkout(state, parent)
    step = state.commits[parent].step + 1 if parent >= 0 else -1 if source == "input" else 0
    reduce(state.values, state.places, patch)
    entitle(state.values, state.title)
    commit = Commit(record.seq, parent, patch, source, node, record.at, record.run, step)
    another = bool(state.commits) and state.commits[-1].seq == record.seq
    state.commits.append(commit, 0 if another else len(record.raw), state.values)
    state.head = len(state.commits) - 1


def _commit_patch(state: ThreadState, record: Record, parent: int) -> None:
    """Commits what the record says about the values, if it does."""
    if patched := patch_of(record, state):
        _commit(state, record, *patched, parent)


def _checkout(state: ThreadState, index: int) -> None:
    if index != state.head:
        state.values, state.places = _materialise(state, index)
        state.head = index


def _without_newest(state: ThreadState, index: int) -> Json | None:
    """Returns the values at a commit that is not far behind the head, if since then messages were added and nothing
    else: so that the newest commits of a conversation cost the same in any.
    """
    added: set[str] = set()
    for step in islice(state.chain(state.head), _NEAR):
        if step == index:
            left = len(state.messages) - len(added)
            plain = left > 0 and all(state.places.get(identity, -1) >= left for identity in added)
            return {**state.values, "messages": state.messages[:left]} if plain else None
        patch = state.commits[step].patch
        messages = patch.get("messages")
        if len(patch) != 1 or not isinstance(messages, list) or not all(map(_is_added, messages)):
            return None
        added.update(str(message.get("id")) for message in messages)
    return None


def _is_added(message: Any) -> bool:
    return isinstance(message, dict) and isinstance(message.get("type"), str) and message["type"] != "remove"


def _materialise(state: ThreadState, index: int) -> tuple[Json, dict[str, int]]:
    steps: list[int] = []
    values: Json = {}
    for step in state.chain(index):
        if (kept := state.commits.values(step)) is not None:
            values = kept
            break
        steps.append(step)
    places = places_of(values)
    for step in reversed(steps):
        reduce(values, places, state.commits[step].patch)
    entitle(values, state.title)
    return values, places


def entitle(values: Json, title: str) -> None:
    """Puts the thread's title into values that have none."""
    if title and not values.get("title"):
        values["title"] = title


def places_of(values: Json) -> dict[str, int]:
    """Returns the index of each message by id."""
    return {str(message.get("id")): place for place, message in enumerate(values.get("messages", ()))}


def reduce(values: Json, places: dict[str, int], patch: Mapping[str, Any]) -> None:
    """Apply one patch through the fields' reducers (contract runtime §4)."""
    for name, new in patch.items():
        match name:
            case "messages":
                _add_messages(values.setdefault("messages", []), places, new)
            case "artifacts":
                shown = [path for path in new if isinstance(path, str)] if isinstance(new, list) else []
                values[name] = list(dict.fromkeys([*values.get(name, ()), *shown]))
            case "viewed_images":
                values[name] = {**values.get(name, {}), **new} if new and isinstance(new, dict) else {}
            case "todos" if new is None:
                pass
            case "promoted":
                values[name] = _promoted(values.get(name), new)
            case _:
                values[name] = new


def _promoted(old: Any, new: Any) -> Any:
    """Names of one catalogue add up; another catalogue begins anew."""
    if not (isinstance(old, dict) and isinstance(new, dict) and old.get("catalog_hash") == new.get("catalog_hash")):
        return new
    lists = [one["names"] for one in (old, new) if isinstance(one.get("names"), list)]
    names = [name for names in lists for name in names if isinstance(name, str)]
    return {**new, "names": sorted(set(names))}


def _add_messages(messages: list[Message], places: dict[str, int], new: Any) -> None:
    """LangGraph's `add_messages`: the same id replaces in place, `remove` deletes, everything else is appended.

    What is no message is passed over: whoever appends checks, and the fold is total.
    """
    for message in new if isinstance(new, list) else ():
        if not isinstance(message, dict) or not isinstance(message.get("type"), str):
            continue
        identity = str(message.get("id"))
        if message["type"] != "remove":
            if identity in places:
                messages[places[identity]] = message
            else:
                places[identity] = len(messages)
                messages.append(message)
            continue
        if identity == REMOVE_ALL:
            messages.clear()
        elif identity in places:
            del messages[places[identity]]
        places.clear()
        places.update((str(kept.get("id")), place) for place, kept in enumerate(messages))
