"""Scans a thread's files at the end of a run, and records the run's changes to them."""

from __future__ import annotations

from datetime import datetime

from core.actor import Actor, Context
from core.events import ThreadErased
from core.lifecycle import USED_TOOLS, RunEnded
from core.log.repository import Repository
from core.log.store import EventLog
from core.thread.workspace import KIND, Manifest, WorkspaceForgotten, WorkspaceScanned, fold, with_people
from core.thread.workspace import Workspace as Port


class Workspace(Actor[RunEnded | ThreadErased]):
    """Records the changes of runs to files.

    There is no scan at the start of a run, which could come too late. The changes follow from the files' times, the
    scan after the previous run, and people's changes in the log.
    """

    only = (USED_TOOLS, ThreadErased)

    def __init__(self, log: EventLog, workspace: Port) -> None:
        self._workspace = workspace
        self._scans = Repository(log, KIND, fold, Manifest())

    async def handle(self, event: RunEnded | ThreadErased, ctx: Context) -> None:
        thread_id = ctx.record.aggregate.id
        if isinstance(event, ThreadErased):
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
        if not last.files and not scan.seen:
            return
        scanned = WorkspaceScanned(
            upto=ctx.record.seq, seen=scan.seen, gone=scan.gone, changes=scan.changes, truncated=scan.truncated
        )
        await ctx.decide(lambda now: [] if scanned.upto in now.done else [scanned], self._scans)

    async def _forget(self, thread_id: str, ctx: Context) -> None:
        if (await ctx.load(self._scans)).done:
            await ctx.decide(lambda now: [WorkspaceForgotten()] if now.done else [], self._scans)
        await self._scans.erase(thread_id)


def _seconds(at: str) -> float:
    return datetime.fromisoformat(at).timestamp()
