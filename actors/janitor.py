"""Deletes or prunes expired threads, deletes temporary ones, and erases what deleted and pruned threads left."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import anyio.to_thread

from core.actor import Actor, Context
from core.chat.erasure import erase_words
from core.chat.facts import CONVERSATION, KIND
from core.chat.state import Chats
from core.errors import Unavailable
from core.events import Aggregate, Event, ThreadCreated, ThreadErased, ThreadExpirySet, ThreadPruned, type_of
from core.files.paths import make_accessible, thread_root
from core.lifecycle import TEMPORARY, RunEnded
from core.runs import setups
from core.runs.intake import Intake
from core.thread.prune import prune
from core.thread.state import ThreadState
from core.thread.threads import Threads
from core.user import schedules
from core.user.schedules import SchedulePaused, Schedules
from core.views.projections import remove_abandoned

TEMPORARY_SECONDS = 60.0
"""Lifetime of a temporary thread after its run, so that late clients can still read it."""
PAUSED_SECONDS = 86400
"""Lifetime of a temporary thread that waits for a person."""
SWEEP_SECONDS = 60.0
"""Delay of the second look at a deleted thread: a command may have written more files, a process a snapshot."""
ERASE_SECONDS = 60.0
"""Time for which events are erased at one go; then other threads have their turn."""
AGAIN_SECONDS = 60.0
"""Interval of attempts to erase or prune a thread that is busy, or has nothing to prune."""
ERASED = type_of(ThreadErased.__name__)
KEY = "due"
"""Key of a thread's only timer."""


class Expiry(NamedTuple):
    """The time at which a thread is erased or, without `erase`, pruned."""

    at: datetime
    erase: bool


class Janitor(Actor[ThreadExpirySet | ThreadErased | ThreadPruned | RunEnded]):
    only = (TEMPORARY, ThreadExpirySet, ThreadErased, ThreadPruned)

    def __init__(self, threads: Threads, chats: Chats, intake: Intake, home: Path) -> None:
        self._threads = threads
        self._setups = setups.of_threads(threads.log)
        self._schedules = schedules.aggregates(threads.log)
        self._intake = intake
        self._home = home
        self._chats = chats

    async def handle(self, event: ThreadExpirySet | ThreadErased | ThreadPruned | RunEnded, ctx: Context) -> None:
        aggregate = ctx.record.aggregate
        match event:
            case ThreadErased():
                again = _now(ctx) + timedelta(seconds=SWEEP_SECONDS)
                await ctx.wake_at(again, KEY)
                if (chat := await self._conversation(aggregate)) is not None:
                    await ctx.wake_at(again, KEY, chat)
                    await self._erase_words(chat)
                await self._wipe(aggregate, event.by, ctx.record.seq)
            case ThreadPruned():
                await self._erase(aggregate, before=ctx.record.seq)
            case _:
                await self._attend(await ctx.load(), aggregate, ctx)

    async def wake(self, aggregate: Aggregate, ctx: Context) -> None:
        if aggregate.kind == KIND:
            return await self._erase_words(aggregate)
        await self._attend(await ctx.load(), aggregate, ctx)

    async def _conversation(self, aggregate: Aggregate) -> Aggregate | None:
        """Returns the conversation on a chat platform in which a thread was begun. That it is the thread's is checked
        there: clients write metadata, too."""
        async for record in self._threads.log.read(aggregate):
            if isinstance(record.event, ThreadCreated | ThreadPruned):
                name = record.event.metadata.get("conversation")
                return Aggregate(KIND, name) if isinstance(name, str) and CONVERSATION.fullmatch(name) else None
        return None

    async def _erase_words(self, conversation: Aggregate) -> None:
        if not await erase_words(self._chats, self._threads, conversation, ERASE_SECONDS):
            raise Unavailable("erased in part; the rest follows")

    async def _attend(self, state: ThreadState, aggregate: Aggregate, ctx: Context) -> None:
        """Deletes or prunes an expired thread, and sets the timer of the next expiry."""
        now = _now(ctx)
        if _expired(state, now) and state.status != "busy":
            state = await self._end(aggregate.id, now, ctx)
        if state.erased:
            log = self._threads.log
            tombstones = [record.seq async for record in log.read(aggregate, bodies=False) if record.type == ERASED]
            await self._wipe(aggregate, state.user, tombstones[-1])
        elif expiries := list(_expiries(state)):
            await ctx.wake_at(max(min(expiry.at for expiry in expiries), now + _pause(state, now)), KEY)

    async def _wipe(self, aggregate: Aggregate, user: str, tombstone: int) -> None:
        """Removes all that is left of a deleted thread, and nothing that came after its tombstone. May be repeated."""
        await self._pause_schedules(user, aggregate.id)
        await anyio.to_thread.run_sync(remove_files, self._home, user, aggregate.id)
        await self._erase(aggregate, before=tombstone)
        await self._threads.log.erase_uploads(aggregate)
        await self._intake.queue.erase_letters(aggregate)
        await anyio.to_thread.run_sync(remove_abandoned, self._home)

    async def _pause_schedules(self, user: str, thread_id: str) -> None:
        """Pauses the schedules of a deleted thread: they are not for another one with its id."""

        def decide(state: Schedules) -> Sequence[Event]:
            own = (schedule for schedule in state.values() if schedule.plan.thread == thread_id and schedule.enabled)
            return [SchedulePaused(schedule=schedule.id, reason=f"Thread {thread_id} was deleted") for schedule in own]

        await self._schedules.decide(user, decide, actor=self.name)

    async def _erase(self, aggregate: Aggregate, before: int | None = None) -> None:
        """Erases events, and what models got with the conversation. Raises `Unavailable` if there are more: then the
        runtime calls again.
        """
        rest = self._intake.queue.rest
        if not await self._threads.erase(aggregate.id, before=before, seconds=ERASE_SECONDS, rest=rest):
            raise Unavailable("erased in part; the rest follows")
        if not await setups.erase(self._setups, aggregate.id, actor=self.name, seconds=ERASE_SECONDS):
            raise Unavailable("erased in part; the rest follows")

    async def _end(self, thread_id: str, now: datetime, ctx: Context) -> ThreadState:
        """Erases or prunes the thread, unless a new event has postponed its expiry."""

        def decide(state: ThreadState) -> Sequence[Event]:
            expiry = _expired(state, now)
            return [ThreadErased(by=state.user)] if expiry and expiry.erase and state.status != "busy" else []

        state, _ = await ctx.decide(decide)
        if not state.erased and _expired(state, now) and await prune(self._threads, thread_id, actor=self.name):
            state = await ctx.load()
        return state


def _expired(state: ThreadState, now: datetime) -> Expiry | None:
    """Returns an expiry that has passed; erasure before pruning."""
    return max((e for e in _expiries(state) if e.at <= now), key=lambda expiry: expiry.erase, default=None)


def _expiries(state: ThreadState) -> Iterator[Expiry]:
    if not state.exists:
        return
    temporary = PAUSED_SECONDS if state.paused else TEMPORARY_SECONDS
    for run in state.runs.values():
        if run.request.on_completion == "delete" and not run.open:
            yield Expiry(datetime.fromisoformat(run.updated_at) + timedelta(seconds=temporary), erase=True)
    if state.expiry is not None:
        idle = timedelta(minutes=state.expiry.minutes)
        yield Expiry(datetime.fromisoformat(state.updated_at) + idle, erase=state.expiry.strategy == "delete")


def _pause(state: ThreadState, now: datetime) -> timedelta:
    """Returns the pause before the next attempt if the thread is busy, or has nothing to prune."""
    idle = state.expiry.minutes * 60 if state.expiry and state.status != "busy" else 0
    return timedelta(seconds=max(idle, AGAIN_SECONDS)) if _expired(state, now) else timedelta()


def _now(ctx: Context) -> datetime:
    return datetime.fromisoformat(ctx.now()).astimezone(UTC)


# ── files ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def remove_files(home: Path, user: str, thread_id: str) -> None:
    """Removes the files of a thread, if there are any. Raises `OSError`: then try again.

    Running commands of the thread cannot make it touch anything outside of the thread's directory.
    """
    root = thread_root(home, user, thread_id)
    with suppress(FileNotFoundError):
        root.rename(root.with_name(f".{thread_id}-{secrets.token_hex(4)}"))
    for grave in root.parent.glob(f".{thread_id}-*"):
        _remove_tree(grave)


def _remove_tree(root: Path) -> None:
    """Removes a tree of any depth. Moves each directory to the top first, where no command can reach it by name.

    So a directory that is replaced by a link does not lead outside.
    """
    pending = [root]
    while pending:
        directory = pending.pop()
        make_accessible(directory)
        for path in list(directory.iterdir()):
            if directory != root and path.is_dir() and not path.is_symlink():
                make_accessible(path)
                moved = root / secrets.token_hex(8)
                path.rename(moved)
                path = moved
            if path.is_symlink() or not path.is_dir():
                path.unlink(missing_ok=True)
            else:
                pending.append(path)
        if directory != root:
            directory.rmdir()
    root.rmdir()
