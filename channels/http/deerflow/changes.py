"""What a run did to the files of its thread."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from aiohttp import web

from channels.http import live as alive
from channels.http.bodies import flag, plain
from channels.http.routes import API, Param, Route
from core.errors import NotFound
from core.events import Aggregate
from core.log.store import EventLog
from core.thread.workspace import (
    KIND,
    MAX_DIFF_BYTES,
    MAX_FILES,
    MAX_SCANNED,
    MAX_TOTAL_DIFF_BYTES,
    FileChange,
    WorkspaceScanned,
)

VERSION = 1


class Summary(msgspec.Struct):
    """How many files, and how many lines of those that have a diff."""

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
    wrote to the outputs and nobody was shown.
    """

    available: bool
    version: int
    summary: Summary
    files: list[FileChange]
    limits: Limits
    unpresented: list[str]


async def get(request: web.Request) -> web.Response:
    """The files that a run created, modified and deleted, with the differences in their text.

    Not available while the run is at work, for runs that used no tools, and for threads that have no files. What people
    did is not shown. Files that may hold secrets are named without their content.
    """
    thread_id, state = await alive.owned(request)
    run_id = alive.run_id(request)
    run = state.runs.get(run_id)
    if run is None or run.removed:
        raise NotFound(f"Run {run_id} not found")
    scan = None if run.ended_seq is None else await _scan(alive.of(request).services.log, thread_id, run.ended_seq)
    return plain(_shown(request, scan, state.values.get("artifacts", ())))


async def _scan(log: EventLog, thread_id: str, upto: int) -> WorkspaceScanned | None:
    async for record in log.read(Aggregate(KIND, thread_id), after=upto):
        if isinstance(record.event, WorkspaceScanned) and record.event.upto == upto:
            return record.event
    return None


def _shown(request: web.Request, found: WorkspaceScanned | None, presented: Sequence[str]) -> Changes:
    files = list(found.changes) if found else []
    written = [file.path for file in files if file.root == "outputs" and file.status in ("created", "modified")]
    unpresented = [path for path in written if path not in presented]
    summary = Summary(truncated=found.truncated if found else False)
    for file in files:
        setattr(summary, file.status, getattr(summary, file.status) + 1)
        summary.additions += file.additions
        summary.deletions += file.deletions
    if not _wanted(request, "include_files"):
        files = []
    elif not _wanted(request, "include_diff"):
        files = [msgspec.structs.replace(file, diff="") for file in files]
    return Changes(found is not None, VERSION, summary, files, Limits(), unpresented)


def _wanted(request: web.Request, name: str) -> bool:
    return name not in request.query or flag(request, name)


ROUTES = (
    Route(
        "GET",
        "/threads/{thread_id}/runs/{run_id}/workspace-changes",
        get,
        {200: Changes},
        query=(
            Param("include_files", bool, "Not only the summary; true if it is not given"),
            Param("include_diff", bool, "With the differences in text; true if it is not given"),
        ),
        errors=(404,),
        scope="files:read",
        mounts=API,
    ),
)
