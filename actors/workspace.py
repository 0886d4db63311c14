"""Scans a thread's files at the end of a run, records the run's changes to them, and takes them back on request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import structlog
from anyio import to_thread

from core.actor import Actor, Context, Progress
from core.config.load import ConfigSource
from core.errors import Invalid, NotFound, Refused
from core.events import Aggregate, ThreadErased
from core.files.paths import Mount
from core.files.workspace import (
    KIND,
    MAX_FILES,
    Manifest,
    Scanned,
    WorkspaceForgotten,
    WorkspaceScanned,
    WorkspaceUndone,
    fold,
    with_people,
)
from core.files.workspace import Workspace as Port
from core.lifecycle import USED_TOOLS, RunEnded
from core.log.repository import Repository
from core.log.store import EventLog
from core.sandbox.folders import installation
from core.thread.ownership import owned
from core.thread.state import Run, ThreadState
from core.thread.threads import Threads

log = structlog.get_logger("sika.workspace")


class Undo(msgspec.Struct, frozen=True, tag_field="op", tag="undo"):
    """Requests that the changes of a run to files are taken back. The answer is their paths."""

    user: str
    thread: str
    run: str


class Workspace(Actor[RunEnded | ThreadErased]):
    """Records the changes of runs to files.

    There is no scan at the start of a run, which could come too late. The changes follow from the files' times, the
    scan after the previous run, and people's changes in the log. Of a folder of the person's there is a snapshot before
    the run's first effect, by the sandbox.
    """

    only = (USED_TOOLS, ThreadErased)

    def __init__(
        self,
        log: EventLog,
        workspace: Port,
        threads: Threads | None = None,
        config: ConfigSource | None = None,
        home: Path | None = None,
    ) -> None:
        self._workspace = workspace
        self._scans = Repository(log, KIND, fold, Manifest())
        self._threads, self._config, self._home = threads, config, home

    async def handle(self, event: RunEnded | ThreadErased, ctx: Context) -> None:
        thread_id = ctx.record.aggregate.id
        if isinstance(event, ThreadErased):
            await self._workspace.forget(event.by, thread_id)
            await self._forget(thread_id, ctx)
        elif ctx.record.run is not None:
            await self._look(thread_id, ctx.record.run, ctx)

    async def _look(self, thread_id: str, run_id: str, ctx: Context) -> None:
        state = await ctx.load()
        run = state.runs.get(run_id)
        if not state.exists or run is None or run.started_seq is None:
            return
        last = await ctx.load(self._scans)
        if ctx.record.seq in last.done:
            return
        after = max(last.done, default=0)
        records = await ctx.read(after=after)
        began = next((record.at for record in records if record.seq == run.started_seq), run.created_at)
        before = with_people(last.files, records)
        scan = await self._workspace.scan(
            state.user, thread_id, last.files, before, _seconds(began), _seconds(ctx.record.at)
        )
        project = await self._of_folder(state, thread_id, run_id, _seconds(ctx.record.at))
        if not last.files and not scan.seen and state.folder is None:
            return
        scanned = WorkspaceScanned(
            upto=ctx.record.seq,
            seen=scan.seen,
            gone=scan.gone,
            changes=[*project.changes, *scan.changes],
            truncated=scan.truncated or project.truncated,
            skipped=[*project.skipped, *scan.skipped],
            later=[*project.later, *scan.later],
        )
        await ctx.decide(lambda now: [] if scanned.upto in now.done else [scanned], self._scans, run=run_id)

    async def _of_folder(self, state: ThreadState, thread_id: str, run_id: str, until: float) -> Scanned:
        try:
            folder = await self._folder(state)
        except Invalid as error:
            log.warning("changes not looked at", thread=thread_id, error=str(error))
            return Scanned()
        return await self._workspace.after(state.user, thread_id, run_id, folder, until) if folder else Scanned()

    async def _folder(self, state: ThreadState) -> Mount | None:
        """Returns the folder of the person that the thread works on. Raises `Invalid` if it is gone."""
        if state.folder is None or self._config is None or self._home is None:
            return None
        return await to_thread.run_sync(installation(self._home, self._config).mount, state.folder)

    # ── requests ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def answer(self, request: Mapping[str, Any], progress: Progress) -> Sequence[str]:
        undo: Undo = self.parse(request, Undo)
        if self._threads is None:
            raise Invalid("undo: this server records no changes")
        state = owned(await self._threads.load(undo.thread), undo.thread, undo.user)
        run = state.runs.get(undo.run)
        if run is None or run.removed:
            raise NotFound(f"Run {undo.run} not found")
        if any(state.runs.open()):
            raise Refused(f"Thread {undo.thread} has a run in flight; take its changes back when that has ended")
        return await self._undo(undo, state, run)

    async def _undo(self, undo: Undo, state: ThreadState, run: Run) -> Sequence[str]:
        upto, now = run.ended_seq, await self._scans.load(undo.thread)
        if upto is None or upto not in now.done:
            raise Refused(f"Run {undo.run}: its changes to files are not recorded (yet)")
        if upto in now.undone:
            raise Refused(f"Run {undo.run}: its changes were taken back already")
        scan = await self._scan(undo.thread, upto)
        folder = await self._folder(state)
        if folder is None and scan.truncated:
            raise Refused(f"Run {undo.run}: it changed more files than are recorded")
        if scan.later:
            raise Refused(f"nothing was taken back: {', '.join(scan.later[:10])} changed after the run's end")
        paths = await self._workspace.undo(undo.user, undo.thread, undo.run, folder, scan.changes)
        undone = WorkspaceUndone(upto=upto, paths=list(paths)[:MAX_FILES], by=undo.user)
        await self._scans.decide(
            undo.thread, lambda now: [] if upto in now.undone else [undone], actor=self.name, run=undo.run
        )
        return paths

    async def _scan(self, thread_id: str, upto: int) -> WorkspaceScanned:
        async for record in self._scans.log.read(Aggregate(KIND, thread_id), after=upto):
            if isinstance(record.event, WorkspaceScanned) and record.event.upto == upto:
                return record.event
        raise Refused("the changes of this run are not stored any more")

    async def _forget(self, thread_id: str, ctx: Context) -> None:
        if (await ctx.load(self._scans)).done:
            await ctx.decide(lambda now: [WorkspaceForgotten()] if now.done else [], self._scans)
        await self._scans.erase(thread_id)


def _seconds(at: str) -> float:
    return datetime.fromisoformat(at).timestamp()
