"""The changes of a run to the files of its thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from channels.http.endpoints.call import Call, OwnedThread
from channels.http.endpoints.endpoint import Routes
from channels.http.server.routes import API
from core.errors import NotFound
from core.events import Aggregate
from core.files.workspace import (
    KIND,
    MAX_DIFF_BYTES,
    MAX_FILES,
    MAX_SCANNED,
    MAX_TOTAL_DIFF_BYTES,
    FileChange,
    WorkspaceScanned,
    WorkspaceUndone,
)
from core.log.reader import Read
from core.thread.state import Run, ThreadState

VERSION = 1
MOST_NAMED = 100
TAKEN_BACK = "(I took the changes of your last run back. These files are as they were before it, one a line:)\n{}"
HIDDEN = {"hide_from_ui": True}


class Summary(msgspec.Struct):
    """The number of files, and of lines of those that have a diff."""

    created: int = 0
    modified: int = 0
    deleted: int = 0
    symlink_created: int = 0
    additions: int = 0
    deletions: int = 0
    truncated: bool = False


class Limits(msgspec.Struct):
    """Sizes in bytes."""

    max_files: int = MAX_FILES
    max_scanned_files: int = MAX_SCANNED
    max_file_bytes_for_diff: int = MAX_DIFF_BYTES
    max_total_diff_bytes: int = MAX_TOTAL_DIFF_BYTES


class Changes(msgspec.Struct):
    """`available`: whether the files were looked at after the run, which takes a moment. `unpresented`: what the run
    wrote to the outputs and nobody was shown. `skipped`: directories that are not looked at. `later`: files that were
    changed after the run's end, too, before they were looked at: what the run did to them is not known.
    `undone`: whether a person took the changes back. `pending`: the folder will be looked at yet.
    """

    available: bool
    version: int
    summary: Summary
    files: list[FileChange]
    limits: Limits
    unpresented: list[str]
    skipped: list[str]
    undone: bool
    pending: bool = False
    later: list[str] = []


class Undone(msgspec.Struct):
    """The paths of the files that are as they were before the run."""

    paths: list[str]


ROUTES = Routes(mounts=API)


@ROUTES("GET", "/threads/{thread_id}/runs/{run_id}/workspace-changes", "files:read")
async def get(
    call: Call,
    thread: OwnedThread,
    *,
    include_files: Annotated[bool, "Not only the summary"] = True,
    include_diff: Annotated[bool, "With the differences in text"] = True,
) -> Changes:
    """The files that a run created, modified and deleted, with the differences in their text.

    Not available while the run is at work, for runs that used no tools, and for threads that have no files. What people
    did is not shown. Files that may hold secrets are named without their content.
    """
    run_id = call.run_id
    run = thread.state.runs.get(run_id)
    if run is None or run.removed:
        raise NotFound(f"Run {run_id} not found")
    scan, undone = await _scan(call.live.reading.read, thread.id, run.ended_seq)
    changes = _changes(scan, undone, thread.state.values.get("artifacts", ()))
    changes.pending = scan is None and thread.state.folder is not None and _looked_at(thread.state, run)
    if not include_files:
        changes.files = []
    elif not include_diff:
        changes.files = [msgspec.structs.replace(file, diff="") for file in changes.files]
    return changes


@ROUTES("POST", "/threads/{thread_id}/runs/{run_id}/undo", "files:write", errors=(409,))
async def undo(call: Call, thread: OwnedThread) -> Undone:
    """Take back what a run did to the files of the folder that the thread works on, or without one to those of the
    thread.

    All or nothing: refused (409) if a file was changed since, or what it was is not stored. Directories stay. The agent
    learns of it with the next message.
    """
    request = {"op": "undo", "user": call.user, "thread": thread.id, "run": call.run_id}
    paths = await call.services.call("workspace", request)
    if paths:
        note = {
            "type": "human",
            "content": TAKEN_BACK.format("\n".join(paths[:MOST_NAMED])),
            "additional_kwargs": HIDDEN,
        }
        await call.services.commands.write_state(call.user, thread.id, [{"messages": [note]}])
    return Undone(paths)


def _looked_at(state: ThreadState, run: Run) -> bool:
    """Tells whether the files are looked at after a run that has ended."""
    return run.ended_seq is not None and state.used_tools(run)


async def _scan(read: Read, thread_id: str, upto: int | None) -> tuple[WorkspaceScanned | None, bool]:
    """Returns the record of a run's changes, and whether they were taken back."""
    scan, undone = None, False
    if upto is not None:
        async for record in read(Aggregate(KIND, thread_id), after=upto):
            match record.event:
                case WorkspaceScanned(upto=at) if at == upto:
                    scan = record.event
                case WorkspaceUndone(upto=at) if at == upto:
                    undone = True
    return scan, undone


def _changes(scan: WorkspaceScanned | None, undone: bool, presented: Sequence[str]) -> Changes:
    files = list(scan.changes) if scan else []
    written = [file.path for file in files if file.root == "outputs" and file.status in ("created", "modified")]
    unpresented = [path for path in written if path not in presented]
    summary = Summary(truncated=scan.truncated if scan else False)
    for file in files:
        setattr(summary, file.status, getattr(summary, file.status) + 1)
        summary.additions += file.additions
        summary.deletions += file.deletions
    skipped = list(scan.skipped) if scan else []
    return Changes(
        scan is not None,
        VERSION,
        summary,
        files,
        Limits(),
        unpresented,
        skipped,
        undone,
        later=list(scan.later) if scan else [],
    )
