"""Decisions of people on their threads, other than about runs (`intake`): one function for each, whatever the channel.

Every function takes the user who asks: a thread of somebody else does not exist for them (`ownership`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple

import structlog

from core.errors import Conflict, Invalid, NotFound, Refused, Unavailable
from core.events import (
    ArtifactReplaced,
    Event,
    FeedbackGiven,
    FeedbackRemoved,
    FileRemoved,
    FileUploaded,
    FolderAttached,
    FolderDetached,
    GoalCleared,
    GoalSet,
    Json,
    Record,
    StatePatched,
    ThreadCreated,
    ThreadExpirySet,
    ThreadForked,
    ThreadPruned,
    ThreadShared,
    ThreadTitled,
    ThreadUnshared,
    VariableRemoved,
    VariableSet,
    thread,
)
from core.files.folder import Upload, uploads
from core.ids import checkpoint_id, uuid7
from core.runs.copies import Step, all_steps, steps_to, write_steps
from core.runs.intake import Intake
from core.thread import turns
from core.thread.ownership import missing, owned, owned_or_absent
from core.thread.prune import prune
from core.thread.runs import shown_run, thread_metadata
from core.thread.state import Feedback, Share, ThreadState
from core.thread.threads import Threads

log = structlog.get_logger("sika.commands")

MOST_VARIABLES = 50
"""Limit of the variables of a thread's commands."""
MOST_SHARES = 20
"""Limit of the addresses by which a thread may be read at a time."""
MOST_RATINGS = 100
"""Limit of one run."""


class Rating(NamedTuple):
    """An opinion on a run, or on one of its messages. `value` is 1 or -1."""

    value: int
    comment: str | None = None
    message_id: str | None = None


class Branched(NamedTuple):
    """Where a branch begins: the checkpoint in the thread it comes from, and whether that is the latest turn's end."""

    parent: str
    latest: bool


class Commands:
    """The commands of one channel; `actor` is its name in the log."""

    def __init__(self, threads: Threads, intake: Intake, *, actor: str) -> None:
        self._threads = threads
        self._intake = intake
        self._uploads = uploads(threads.log)
        self._actor = actor

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def state(self, user: str, thread_id: str, *, at_least: int | None = None) -> ThreadState:
        """Returns the state of a user's thread, as `Threads.load` does. Raises `NotFound`."""
        return owned(await self._threads.load(thread_id, at_least=at_least), thread_id, user)

    async def check_owner(self, user: str, thread_id: str) -> None:
        """Raises `NotFound` unless the thread is there and the user's. Costs the same, however long its log is."""
        if await self._threads.owner(thread_id) != user:
            raise missing(thread_id)

    async def state_or_empty(self, user: str, thread_id: str, *, at_least: int | None = None) -> ThreadState:
        """Returns the state like `state`, or an empty one if there is no such thread. Raises `NotFound` only for the
        thread of somebody else.
        """
        return owned_or_absent(await self._threads.load(thread_id, at_least=at_least), thread_id, user)

    async def uploads(self, user: str, thread_id: str) -> Mapping[str, Upload]:
        """Returns the recorded files of a thread's uploads, by name."""
        await self.state_or_empty(user, thread_id)
        return (await self._uploads.load(thread_id)).files

    # ── threads ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def create(
        self, user: str, thread_id: str, metadata: Json, *, expiry: ThreadExpirySet | None, steps: Sequence[Step]
    ) -> tuple[ThreadState, bool]:
        """Creates the thread, with its time to live and the checkpoints it begins with, unless it exists. Returns its
        state, and whether it is new.
        """
        if steps or expiry:
            vacant = await self._intake.vacant(thread_id, user=user, actor=self._actor)
            first: list[Event] = [ThreadCreated(user=user, metadata=metadata), *([expiry] if expiry else [])]
            try:
                if not vacant.exists:
                    state = await write_steps(self._threads, thread_id, first, steps, actor=self._actor, after=vacant)
                    return state, True
            except Conflict as error:
                if error.expected != vacant.seq:
                    raise  # in the midst of the steps
        return await self._create(user, thread_id, metadata)

    async def ensure(self, user: str, thread_id: str, metadata: Json) -> None:
        """Creates the thread unless it exists. Reads nothing of a new one: if it exists, the log's guard says so.

        Raises `NotFound` for the thread of somebody else.
        """
        if self._threads.cached(thread_id) is None:
            with suppress(Refused):
                await self._create(user, thread_id, metadata)
        if not (await self.state_or_empty(user, thread_id, at_least=0)).exists:
            await self._create(user, thread_id, metadata)

    async def _create(self, user: str, thread_id: str, metadata: Json | None = None) -> tuple[ThreadState, bool]:
        """Creates the thread that a person names, unless it exists."""
        return await self._intake.create_thread(thread_id, user=user, metadata=metadata, actor=self._actor, again=True)

    async def set_expiry(self, user: str, thread_id: str, expiry: ThreadExpirySet) -> ThreadState:
        """Sets the thread's time to live, or lifts it."""
        state, _ = await self._decide(user, thread_id, lambda _: [expiry])
        return state

    async def write_state(
        self, user: str, thread_id: str, writes: Sequence[Json], *, node: str | None = None, base: int | None = None
    ) -> tuple[ThreadState, int]:
        """Writes values through the reducers, a checkpoint each, all or none: from the head, or from an older
        checkpoint (`base`). Returns the state and the sequence of the last checkpoint.

        Raises `Invalid` for an unknown checkpoint, `Refused` if messages are written while a run is at work.
        """

        def decide(state: ThreadState) -> Sequence[Event]:
            if base is not None and not state.has_checkpoint(base):
                raise Invalid(f"checkpoint_id: {base} is not a checkpoint of this thread")
            if state.active is not None and any("messages" in values for values in writes):
                raise Refused(f"Thread {thread_id} has an active run; its messages cannot be changed meanwhile")
            return [
                StatePatched(values=values, as_node=node, base=None if index else base)
                for index, values in enumerate(writes)
            ]

        state, records = await self._decide(user, thread_id, decide)
        return state, records[-1].seq

    async def erase(self, user: str, thread_id: str) -> None:
        """Forgets the thread's content. Repeating it is fine; raises `NotFound` if there never was such a thread."""
        if await self._owner(thread_id) != user:
            raise missing(thread_id)
        await self._intake.erase(thread_id, by=user, actor=self._actor)

    async def prune(self, user: str, thread_id: str, strategy: Literal["delete", "keep_latest"]) -> bool:
        """Erases the thread, or (`keep_latest`) its past. Returns whether that was done: a thread that is at work is
        left alone, as is one that is not there or not the user's.
        """
        if strategy == "keep_latest":
            return await prune(self._threads, thread_id, user=user, actor=self._actor)
        try:
            state = await self.state(user, thread_id)
        except NotFound:
            return False
        if state.status == "busy":
            return False
        await self._intake.erase(thread_id, by=user, actor=self._actor)
        return True

    async def copy(self, user: str, source: str, copy: str) -> ThreadState:
        """Makes the new thread `copy`: the metadata and all checkpoints of `source`, without its runs."""
        state = await self.state(user, source)
        return await self._fork(state, source, copy, thread_metadata(state), all_steps(state))

    async def branch(
        self, user: str, source: str, branch: str, answer: str, others: Sequence[str] = (), title: str | None = None
    ) -> Branched:
        """Makes the new thread `branch`: the conversation up to the end of the turn of the message `answer`. `others`
        are messages of the same turn.

        Raises `NotFound` and `Invalid` for other messages, `Refused` while a run is at work.
        """
        state = await self.state(user, source)
        turns.at_rest(source, state)
        messages = turns.conversation(state, answer)
        begin, end = turns.turn_of(messages, turns.index_of(messages, answer, "ai"))
        for other in others:
            if not begin <= turns.index_of(messages, other) < end:
                raise Invalid(f"message_ids: {other[:80]!r} is not of the turn of {answer[:80]!r}")
        last = turns.commit_of(state, str(messages[end - 1].get("id")))
        latest = messages is state.messages and end == len(messages)
        tip = state.head if latest else last
        steps = list(steps_to(state, tip))
        new_title = title or state.values.get("title")
        if title or (new_title and not latest):
            steps.append(Step({"title": new_title}, steps[-1].node, "update", len(steps) - 1))
        parent = checkpoint_id(state.commits[tip].seq)
        origin = {
            "branch_parent_thread_id": source,
            "branch_parent_checkpoint_id": parent,
            "branch_parent_message_id": answer,
        }
        await self._fork(state, source, branch, {**thread_metadata(state), **origin}, steps)
        return Branched(parent, latest)

    async def _fork(
        self, state: ThreadState, source: str, copy: str, metadata: Json, steps: Sequence[Step]
    ) -> ThreadState:
        first: list[Event] = [
            ThreadCreated(user=state.user, metadata=metadata),
            ThreadForked(source=source, source_seq=state.seq, patches=[]),
            *([ThreadTitled(title=state.title)] if state.title else []),
        ]
        return await write_steps(self._threads, copy, first, steps, actor=self._actor)

    async def _owner(self, thread_id: str) -> str | None:
        """Returns the thread's user, also if it was deleted, or its state cannot be folded."""
        try:
            state = await self._threads.load(thread_id)
            return state.user if state.seq else None
        except Unavailable:
            raise
        except Exception as error:
            log.warning("a thread whose state cannot be folded", thread=thread_id, error=str(error))
        async for record in self._threads.log.read(thread(thread_id)):
            if isinstance(record.event, ThreadCreated | ThreadPruned):
                return record.event.user
        return None

    # ── goals ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def set_goal(self, user: str, thread_id: str, goal: GoalSet) -> ThreadState:
        """Sets the thread's goal, in the place of an earlier one. A thread that does not exist is created. Raises
        `Refused` while a run is at work.
        """
        if not (await self.state_or_empty(user, thread_id)).exists:
            await self._create(user, thread_id)

        def decide(state: ThreadState) -> Sequence[Event]:
            if any(state.runs.open()):
                raise Refused(f"Thread {thread_id} has a run in flight; set its goal when that has ended")
            return [goal]

        return (await self._decide(user, thread_id, decide))[0]

    async def clear_goal(self, user: str, thread_id: str) -> None:
        """Gives the thread's goal up, if it has one. Its runs go on."""
        await self._decide(user, thread_id, lambda state: [GoalCleared(by=user)] if state.goal else [])

    # ── folders ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def attach_folder(self, user: str, thread_id: str, folder: FolderAttached) -> ThreadState:
        """Makes the thread work on a folder, in the place of an earlier one. A thread that does not exist is created.
        Raises `Refused` while a run is at work.
        """
        if not (await self.state_or_empty(user, thread_id)).exists:
            await self._create(user, thread_id)

        def decide(state: ThreadState) -> Sequence[Event]:
            _at_rest(thread_id, state, "its folder")
            return [] if state.folder == folder else [folder]

        return (await self._decide(user, thread_id, decide))[0]

    async def detach_folder(self, user: str, thread_id: str) -> None:
        """Ends the thread's work on a folder, if it has one. Raises `Refused` while a run is at work."""

        def decide(state: ThreadState) -> Sequence[Event]:
            _at_rest(thread_id, state, "its folder")
            return [FolderDetached(by=user)] if state.folder else []

        await self._decide(user, thread_id, decide)

    # ── variables ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def set_variable(self, user: str, thread_id: str, fact: VariableSet) -> ThreadState:
        """Sets a variable of the thread's commands. A thread that does not exist is created. Raises `Refused` while a
        run is at work, and for more than `MOST_VARIABLES`.
        """
        if not (await self.state_or_empty(user, thread_id)).exists:
            await self._create(user, thread_id)

        def decide(state: ThreadState) -> Sequence[Event]:
            _at_rest(thread_id, state, "its variables")
            if fact.name not in state.variables and len(state.variables) >= MOST_VARIABLES:
                raise Refused(f"Thread {thread_id} has {MOST_VARIABLES} variables already; remove one first")
            same = not fact.sealed and state.variables.get(fact.name) == fact
            return [] if same else [fact]

        return (await self._decide(user, thread_id, decide))[0]

    async def remove_variable(self, user: str, thread_id: str, name: str) -> ThreadState:
        """Removes a variable, if it is set. Raises `Refused` while a run is at work."""

        def decide(state: ThreadState) -> Sequence[Event]:
            _at_rest(thread_id, state, "its variables")
            return [VariableRemoved(name=name, by=user)] if name in state.variables else []

        return (await self._decide(user, thread_id, decide))[0]

    # ── shares ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def share(self, user: str, thread_id: str, fact: ThreadShared) -> Share:
        """Lets the conversation up to a checkpoint be read by an address. Raises `Refused` for more than `MOST_SHARES`,
        and if the checkpoint is gone.
        """

        def decide(state: ThreadState) -> Sequence[Event]:
            if len(state.shares) >= MOST_SHARES:
                raise Refused(f"Thread {thread_id} is shared {MOST_SHARES} times already; revoke a share first")
            if state.commit_at(fact.upto) < 0:
                raise Refused(f"Thread {thread_id} has changed meanwhile; share it again")
            return [fact]

        state, _ = await self._decide(user, thread_id, decide)
        return state.shares[fact.share]

    async def unshare(self, user: str, thread_id: str, share: str) -> None:
        """Makes the address of a share lead nowhere. Raises `NotFound` if there is no such share (any more)."""

        def decide(state: ThreadState) -> Sequence[Event]:
            if share not in state.shares:
                raise NotFound(f"Share {share[:80]} not found")
            return [ThreadUnshared(share=share, by=user)]

        await self._decide(user, thread_id, decide)

    # ── ratings ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def rate(self, user: str, thread_id: str, run_id: str, rating: Rating, *, by: str | None = None) -> Feedback:
        """Sets the one rating of a run as a whole of its user, or of somebody else (`by`), as of one of a group."""
        author = by or user

        def decide(state: ThreadState) -> Sequence[Event]:
            earlier = _whole_run(state, run_id, author)
            return [_feedback(state, run_id, author, rating, earlier[-1] if earlier else uuid7())]

        return await self._rate(user, thread_id, run_id, decide)

    async def add_rating(self, user: str, thread_id: str, run_id: str, rating: Rating) -> Feedback:
        """Adds a rating of a run, or of one of its messages."""
        identity = uuid7()
        return await self._rate(
            user, thread_id, run_id, lambda state: [_feedback(state, run_id, user, rating, identity)]
        )

    async def withdraw_rating(self, user: str, thread_id: str, run_id: str) -> None:
        """Removes the user's rating of a run as a whole. Raises `NotFound` if there is no such rating."""

        def decide(state: ThreadState) -> Sequence[Event]:
            earlier = _whole_run(state, run_id, user)
            if not earlier:
                raise NotFound(f"Run {run_id} has no feedback of yours")
            return [FeedbackRemoved(feedback_id=identity) for identity in earlier]

        await self._decide_on_run(user, thread_id, run_id, decide)

    async def remove_rating(self, user: str, thread_id: str, run_id: str, identity: str) -> None:
        """Removes one rating of a run or of one of its messages. Raises `NotFound`."""

        def decide(state: ThreadState) -> Sequence[Event]:
            if identity not in (rating.id for rating in ratings(state, run_id)):
                raise NotFound(f"Feedback {identity[:80]} not found")
            return [FeedbackRemoved(feedback_id=identity)]

        await self._decide_on_run(user, thread_id, run_id, decide)

    async def _rate(self, user: str, thread_id: str, run_id: str, decision: Decision) -> Feedback:
        state, [record] = await self._decide_on_run(user, thread_id, run_id, decision)
        assert isinstance(record.event, FeedbackGiven)
        return state.feedback[record.event.feedback_id]

    async def _decide_on_run(
        self, user: str, thread_id: str, run_id: str, decision: Decision
    ) -> tuple[ThreadState, list[Record]]:
        def decide(state: ThreadState) -> Sequence[Event]:
            shown_run(state, run_id)
            return decision(state)

        return await self._decide(user, thread_id, decide, run=run_id)

    # ── files ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def record(self, user: str, thread_id: str, facts: Callable[[], Sequence[FileFact]]) -> list[Record]:
        """Records events of a thread's files, after the files were changed. Returns the records; none if there is no
        such thread (yet, or any more), or it is not the user's.

        `facts` looks at the files and returns the events that are true of them. It is called for each attempt to
        append, so the last event about a file is of what lies there: one who changes it later records that later, and
        one who changes it between the look and the append has this append refused, if he was faster.
        """

        def decide(state: ThreadState) -> Sequence[Event]:
            return facts() if state.exists and state.user == user else []

        _, records = await self._threads.decide(thread_id, decide, actor=self._actor)
        return records

    async def _decide(
        self, user: str, thread_id: str, decision: Decision, *, run: str | None = None
    ) -> tuple[ThreadState, list[Record]]:
        def decide(state: ThreadState) -> Sequence[Event]:
            return decision(owned(state, thread_id, user))

        return await self._threads.decide(thread_id, decide, actor=self._actor, run=run)


Decision = Callable[[ThreadState], Sequence[Event]]
FileFact = FileUploaded | FileRemoved | ArtifactReplaced


def _at_rest(thread_id: str, state: ThreadState, what: str) -> None:
    if any(state.runs.open()):
        raise Refused(f"Thread {thread_id} has a run in flight; change {what} when that has ended")


def ratings(state: ThreadState, run_id: str) -> list[Feedback]:
    """Returns all ratings of a run, oldest first."""
    return [rating for rating in state.feedback.values() if rating.run == run_id]


def _whole_run(state: ThreadState, run_id: str, user: str) -> list[str]:
    """Returns the ids of a user's ratings of a run as a whole."""
    return [rating.id for rating in ratings(state, run_id) if rating.user == user and rating.message_id is None]


def _feedback(state: ThreadState, run_id: str, user: str, rating: Rating, identity: str) -> Event:
    if identity not in state.feedback and len(ratings(state, run_id)) >= MOST_RATINGS:
        raise Refused(f"Run {run_id} has {MOST_RATINGS} pieces of feedback already; remove one first")
    return FeedbackGiven(
        feedback_id=identity,
        rating=rating.value,
        user=user,
        comment=rating.comment,
        message_id=rating.message_id,
    )
