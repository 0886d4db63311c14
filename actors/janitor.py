"""Decides which threads go by themselves: those that nobody touched for long enough, and those of runs that had none of
their own. Removes the files of every thread that is erased.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import anyio.to_thread

from core.actor import Actor, Context
from core.events import Aggregate, Event, ThreadErased, ThreadExpirySet
from core.lifecycle import TEMPORARY, RunEnded
from core.paths import thread_root
from core.thread.intake import Intake
from core.thread.prune import prune
from core.thread.state import ThreadState
from core.thread.threads import Threads

TEMPORARY_SECONDS = 60.0
"""How long the thread of a run without one stays after the run: who joins right after the end still sees it."""
PAUSED_SECONDS = 86400
"""The same, while it waits for a person."""
SWEEP_SECONDS = 60.0
"""When the files of an erased thread are looked for again: a command that was running may have written more."""
AGAIN_SECONDS = 60.0
"""When a thread is looked at again that was due and could not go: it was busy, or had no past to forget."""
KEY = "due"
"""Of the one timer a thread has here: for whatever comes first."""


class Due(NamedTuple):
    """When something is to happen to a thread. `erase`: all of it goes, not only its past."""

    at: datetime
    erase: bool


class Janitor(Actor[ThreadExpirySet | ThreadErased | RunEnded]):
    only = (TEMPORARY, ThreadExpirySet, ThreadErased)

    def __init__(self, threads: Threads, intake: Intake, home: Path) -> None:
        self._threads = threads
        self._intake = intake
        self._home = home

    async def handle(self, event: ThreadExpirySet | ThreadErased | RunEnded, ctx: Context) -> None:
        await self._attend(await ctx.load(), ctx.record.aggregate, ctx)
        if isinstance(event, ThreadErased):
            await ctx.wake_at(_now(ctx) + timedelta(seconds=SWEEP_SECONDS), KEY)

    async def wake(self, aggregate: Aggregate, ctx: Context) -> None:
        await self._attend(await ctx.load(), aggregate, ctx)

    async def _attend(self, state: ThreadState, aggregate: Aggregate, ctx: Context) -> None:
        """Do what is due, and have the timer set to what is due next."""
        now = _now(ctx)
        if _next(state, now) is not None and state.status != "busy":
            state = await self._end(aggregate.id, now, ctx)
        if state.erased:
            await self._intake.erase(aggregate.id, by=state.user, actor=self.name)
            await anyio.to_thread.run_sync(remove_files, self._home, state.user, aggregate.id)
        elif moments := list(_moments(state)):
            await ctx.wake_at(max(min(due.at for due in moments), now + _pause(state, now)), KEY)

    async def _end(self, thread_id: str, now: datetime, ctx: Context) -> ThreadState:
        """Erase or prune the thread, if it is still due when that is decided: somebody may just have come back."""

        def decide(state: ThreadState) -> Sequence[Event]:
            due = _next(state, now)
            over = due is not None and due.erase and state.status != "busy"
            return [ThreadErased(by=state.user)] if over else []

        state, _ = await ctx.decide(decide)
        if (
            not state.erased
            and _next(state, now) is not None
            and await prune(self._threads, thread_id, actor=self.name)
        ):
            state = await ctx.load()
        return state


def _next(state: ThreadState, now: datetime) -> Due | None:
    """What is due by now; erasing before pruning."""
    return max((due for due in _moments(state) if due.at <= now), key=lambda due: due.erase, default=None)


def _moments(state: ThreadState) -> Iterator[Due]:
    if not state.exists:
        return
    temporary = PAUSED_SECONDS if state.paused else TEMPORARY_SECONDS
    for run in state.runs.values():
        if run.request.on_completion == "delete" and not run.open:
            yield Due(datetime.fromisoformat(run.updated_at) + timedelta(seconds=temporary), erase=True)
    if state.expiry is not None:
        idle = timedelta(minutes=state.expiry.minutes)
        yield Due(datetime.fromisoformat(state.updated_at) + idle, erase=state.expiry.strategy == "delete")


def _pause(state: ThreadState, now: datetime) -> timedelta:
    """What is still due could not be done: the thread was busy, or has no past that it could forget."""
    idle = state.expiry.minutes * 60 if state.expiry and state.status != "busy" else 0
    return timedelta(seconds=max(idle, AGAIN_SECONDS)) if _next(state, now) else timedelta()


def _now(ctx: Context) -> datetime:
    return datetime.fromisoformat(ctx.now()).astimezone(UTC)


# ── files ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def remove_files(home: Path, user: str, thread_id: str) -> None:
    """Remove what a thread has on disk; that nothing is there is fine. Commands of the thread may still be running:
    whatever they do to the tree meanwhile, nothing outside of it is touched. Raises `OSError`: then try again.
    """
    root = thread_root(home, user, thread_id)
    with suppress(FileNotFoundError):
        root.rename(root.with_name(f".{thread_id}-{secrets.token_hex(4)}"))
    for grave in root.parent.glob(f".{thread_id}-*"):
        _remove_tree(grave)


def _remove_tree(root: Path) -> None:
    """Each directory is first moved to the top, where no command can reach it by name. So trees of any depth can be
    removed, and a directory that is exchanged for a link cannot lead us anywhere.
    """
    pending = [root]
    while pending:
        directory = pending.pop()
        _make_accessible(directory)
        for path in list(directory.iterdir()):
            if directory != root and path.is_dir() and not path.is_symlink():
                _make_accessible(path)
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


def _make_accessible(directory: Path) -> None:
    """So that its owner, that is us, may look into it and move it. Never follows a link."""
    with suppress(OSError):
        descriptor = os.open(directory, getattr(os, "O_PATH", os.O_RDONLY) | os.O_NOFOLLOW | os.O_DIRECTORY)
        try:
            os.chmod(f"/proc/self/fd/{descriptor}", 0o700)
        finally:
            os.close(descriptor)
