"""The state of a thread, and what can be read from it.

Theory of operation
-------------------
Every fact that changes what the agent sees carries a *patch* (`{"messages": [...], "title": ...}`), applied through
the reducers of the state's fields (`core.thread.values`). Each applied patch is a *commit*; a commit has a parent, so
history is a tree, as in git: a run that starts from an older checkpoint, or a state patch on one, gets that commit as
parent, and a rollback moves the head back. A checkpoint id is the log sequence of its commit. `values` is always the
state at the head; the state at any other commit is rebuilt from its chain.

Why patches and not snapshots: a turn writes what it adds to the thread, not what the thread holds. So does a copy of a
state, and what it takes in memory: of commits and runs that are long past see `core.thread.past`.

States come from facts, by `core.thread.fold`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple

from core import lifecycle
from core.events import (
    ApprovalRequested,
    ApprovalResolved,
    Event,
    FolderAttached,
    Json,
    Message,
    RunPaused,
    RunRequested,
    ThreadShared,
    VariableSet,
)
from core.lifecycle import ENDS
from core.thread import goals
from core.thread.entries import Commit as Commit
from core.thread.entries import Intent as Intent
from core.thread.entries import Run as Run
from core.thread.past import Commits, Runs
from core.thread.values import entitle, places_of, reduce

MAX_PROBLEMS = 100
_NEAR = 100
"""Commits behind the head at which the values are derived from those at the head."""
ROOT = 0
"""Sequence that stands for the checkpoint before the first input of a thread: there is no commit with it."""
STOPPED = "stopped"
"""The action of a decision by which an answer became the final one."""
TITLED = "TitleMiddleware.after_model"
"""The web page's name of the step that gives a conversation its title."""
COMPACTED = "SummarizationMiddleware.before_model"
"""Node of the step that replaces a conversation by its summary. Copies of threads write the nodes of their steps into
the log, so this name stays what the web page knows (DeerFlow's middleware Summarization).
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


class Share(NamedTuple):
    """What may be read by an address. `at`: when it was shared."""

    fact: ThreadShared
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
    noted_seq: int = 0
    """Sequence of the newest fact whose effect a rewound state keeps (`core.thread.rewind`)."""
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
    folder: FolderAttached | None = None
    """The folder of the person that it works on."""
    variables: Mapping[str, VariableSet] = field(default_factory=dict)
    """The variables that the person set for its commands, by name."""
    shares: Mapping[str, Share] = field(default_factory=dict)
    """What of it may be read by an address, by id, oldest first."""
    problems: tuple[Problem, ...] = ()
    """The first `MAX_PROBLEMS` events of the log that fold as nothing, and why."""
    size: int = 0
    """Bytes of the events it is made of."""

    def __copy__(self) -> ThreadState:
        return ThreadState(*_FIELDS(self))

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
        questions: dict[str, list[Json]] = {}
        for interrupt in self.paused.interrupts if self.paused else ():
            question = {"id": interrupt.id, "value": interrupt.value}
            questions.setdefault(interrupt.call_id or interrupt.id, []).append(question)
        return questions

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
        return materialise(self, index)[0] if shown is None else shown


_FIELDS = attrgetter(*(each.name for each in fields(ThreadState)))


def labels_of(state: ThreadState, run_id: str | None, events: Sequence[Event]) -> frozenset[str]:
    """Returns the labels of events that are to be appended for a run: its request and its end have some."""
    if any(isinstance(event, RunRequested) for event in events):
        return lifecycle.beginning(untitled=not state.values.get("title"))
    run = state.runs.get(run_id or "")
    if run is None or not any(type(event) in ENDS for event in events):
        return frozenset()
    goal = state.goal is not None and state.goal.listens
    return lifecycle.labels(run.request, state.used_tools(run), goal=goal)


def _without_newest(state: ThreadState, index: int) -> Json | None:
    """Returns the values at a commit that is not far behind the head, if since then messages were added and nothing
    else: so that the newest commits of a conversation cost the same in any.
    """
    added: set[str] = set()
    for step in islice(state.chain(state.head), _NEAR):
        if step == index:
            length = state.commits[index].length
            plain = length > 0 and all(state.places.get(identity, -1) >= length for identity in added)
            return {**state.values, "messages": state.messages[:length]} if plain else None
        patch = state.commits[step].patch
        messages = patch.get("messages")
        if len(patch) != 1 or not isinstance(messages, list) or not all(map(_is_added, messages)):
            return None
        added.update(str(message.get("id")) for message in messages)
    return None


def _is_added(message: Any) -> bool:
    return isinstance(message, dict) and isinstance(message.get("type"), str) and message["type"] != "remove"


def materialise(state: ThreadState, index: int) -> tuple[Json, dict[str, int]]:
    steps: list[int] = []
    values: Json = {}
    for step in state.chain(index):
        if (checkpoint := state.commits.values(step)) is not None:
            values = checkpoint
            break
        steps.append(step)
    places = places_of(values)
    for step in reversed(steps):
        reduce(values, places, state.commits[step].patch)
    entitle(values, state.title)
    return values, places
