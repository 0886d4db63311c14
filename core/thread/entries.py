"""Entries of a thread's state: its commits and runs, with what runs have open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from core import lifecycle
from core.events import (
    Message,
    RunFailed,
    RunPaused,
    RunRequested,
    ToolRequested,
    WebhookDelivered,
    WebhookFailed,
)
from core.lifecycle import Status
from core.thread.tokens import Tokens


class Commit(NamedTuple):
    """One step of the state. `parent` is an index into the commits, -1 for the root."""

    seq: int
    parent: int
    patch: Mapping[str, Any]
    source: str
    """`input`, `loop`, `update` or `fork`."""
    node: str
    at: str
    run: str | None
    step: int
    length: int
    """Messages of the values there."""

    @property
    def after_root(self) -> bool:
        """Tells whether it is the first on its branch that brought what a person said, in this thread or the one
        copied.
        """
        return self.parent < 0 and self.source in ("input", "fork")


class Intent(NamedTuple):
    """A `tool.requested` and its event id."""

    id: str
    event: ToolRequested


class Delegation(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call that a subagent answers."""

    call_id: str
    name: str
    description: str = ""
    model: str | None = None
    messages: int = 0
    """Number of its answers that were reported."""
    tokens: Tokens = Tokens()
    ended: str = ""
    """The status with which it has ended."""
    item: int | None = None
    """The item of a batch that it works on."""


class Items(msgspec.Struct, frozen=True, kw_only=True):
    """The items of a batch that have ended: a summary that does not grow with their number."""

    done: int = 0
    failures: Mapping[str, int] = {}
    """Numbers of the items that failed, by the kind of failure."""
    tokens: Mapping[str, Tokens] = {}
    """The usage of all attempts, by model."""
    examples: tuple[tuple[int, str, str], ...] = ()
    """The first results and the first failures: index, status, and the beginning of the text."""

    @property
    def failed(self) -> int:
        return sum(self.failures.values())

    @property
    def ended(self) -> int:
        return self.done + self.failed


class Run(msgspec.Struct, kw_only=True):
    """One run, as the log has it. Treat as frozen: only `fold` makes new ones, and changes them while it does."""

    id: str
    request: RunRequested
    requested_seq: int
    created_at: str
    updated_at: str
    status: Status = "pending"
    attempt: int = 0
    stalled: int = 0
    """Attempts since the last one that got anything done, but for those that were suspended."""
    suspensions: int = 0
    """Consecutive times that a worker gave the run back, as a part of the system did not answer."""
    worker: str = ""
    lease: int = 0
    delivery: int = 0
    model: str | None = None
    started_seq: int | None = None
    ended_seq: int | None = None
    cancel: str | None = None
    """The action of a requested cancel."""
    error: RunFailed | None = None
    before: int = -1
    """Index of the head when the run first started: where a rollback returns to."""
    resumed: tuple[RunPaused | None, Mapping[str, tuple[Any, ...]]] = (None, {})
    """Where the thread was paused before it started, and what had been answered."""
    last_id: str = ""
    """Id of the run's last event: the cause of the next."""
    turn_seq: int = 0
    """Sequence of the fact from which the model's next answer starts: the newest start, answer or failure. Previews of
    an answer that was begun before it are void.
    """
    said: str = ""
    """Id of the last `model.completed`: the cause of its tool calls."""
    answer: str = ""
    """Id of the last message that it said."""
    intents: Mapping[str, Intent] = {}
    """Tool calls that were started and have no outcome yet, by call id."""
    subagents: Mapping[str, Delegation] = {}
    """Calls that subagents answer, by the id of the subagent, oldest first. Of a batch: those at work only."""
    items: Items = Items()
    """The outcomes of the items of a batch so far."""
    sampled: Mapping[str, Tokens] = {}
    """Usage of what its tool calls asked models, by model."""
    steers: tuple[Message, ...] = ()
    """Messages for the agent that it has not taken in yet."""
    answers: Mapping[str, tuple[Any, ...]] = {}
    """Answers of people to the questions of unfinished tool calls, by call id, in order."""
    notes: tuple[Message, ...] = ()
    """Notes of policies for the model's next call."""
    calls: int = 0
    """Answers of its model so far."""
    stopped_by: str = ""
    """The policy that made the last answer the final one."""
    stopped: str = ""
    """The limit that was met, and what to set: a sentence for the person."""
    unread: str = ""
    """Type of the first of its events that this version does not know, while it was open."""
    unread_at: str = ""
    again: bool = False
    """The model is to be asked again although it was done."""
    removed: bool = False
    webhook: WebhookDelivered | WebhookFailed | None = None
    """The result of the last attempt to post the outcome."""

    @property
    def open(self) -> bool:
        return self.status in lifecycle.OPEN

    @property
    def batch(self) -> list[str] | None:
        """Returns the prompts of a batch; None for a run of an agent."""
        prompts: list[str] = (self.request.input or {}).get("prompts", [])
        return None if self.request.batch_table is None else prompts

    def awaits(self, after: int) -> bool:
        """Returns whether a preview is of the answer that is being made: one that was begun after the fact `after`."""
        return self.status == "running" and after >= self.turn_seq

    @property
    def shown(self) -> bool:
        """Tells whether people and programs get to see it."""
        return self.status != "rolled_back" and not self.removed


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
