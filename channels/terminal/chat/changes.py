"""Changes of a run to files, as lines: one for each file, and its difference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import anyio

from channels.client.aio import AsyncSikaClient
from channels.terminal.text import clean, one_line
from core.files.paths import PROJECT, USER_DATA

LOOKED_AT_SECONDS = 15.0
"""Deadline for the look at the files after a run."""
PAUSE_SECONDS = 0.2
LATEST = 10
"""Runs that are looked through for changes."""
MOST_LINES = 400
"""Limit of lines of differences that are shown."""
_MARKS = {"created": "A", "modified": "M", "deleted": "D", "symlink_created": "L"}
_STYLES = {"+": "green", "-": "red", "@": "cyan"}

Changes = Mapping[str, Any]


async def latest_changes(client: AsyncSikaClient, thread: str) -> tuple[str, Changes] | None:
    """Returns the latest run of a thread whose changes were not taken back, and these; None if there is none."""
    for run in await client.list_runs(thread, LATEST):
        changes = await _settled(client, thread, str(run["run_id"]))
        if changes["files"] and not changes["undone"]:
            return str(run["run_id"]), changes
    return None


async def _settled(client: AsyncSikaClient, thread: str, run: str) -> Changes:
    """Returns the changes of a run, once its files were looked at."""
    changes = await client.get_changes(thread, run)
    with anyio.move_on_after(LOOKED_AT_SECONDS):
        while changes["pending"]:
            await anyio.sleep(PAUSE_SECONDS)
            changes = await client.get_changes(thread, run)
    return changes


def change_lines(changes: Changes, only: str = "") -> Iterator[tuple[str, str]]:
    """Yields lines and their styles. `only`: a part of the paths that are shown."""
    left = MOST_LINES
    for file in changes["files"]:
        if only in str(file["path"]):
            yield _heading(file), "bold"
            lines = clean(str(file["diff"])).split("\n")[2:]
            yield from ((line, _STYLES.get(line[:1], "")) for line in lines[:left])
            if len(lines) > left:
                yield f"… {len(lines) - left} more lines: /diff {shown_path(str(file['path']))}", "dim"
            left = max(0, left - len(lines))
    if changes["summary"]["truncated"]:
        yield "there are more changes than are recorded", "yellow"
    if later := [shown_path(str(path)) for path in changes.get("later") or ()]:
        text = one_line(", ".join(later), 300)
        yield f"also changed after the run's end, so what the run did there is not known: {text}", "yellow"
    if changes["skipped"]:
        yield f"not looked at: {one_line(', '.join(changes['skipped']), 300)}", "dim"


def _heading(file: Mapping[str, Any]) -> str:
    counts = f" (+{file['additions']} −{file['deletions']})" if file["diff"] else ""
    reason = f" ({file['diff_unavailable_reason']}: no difference is shown)" if file["diff_unavailable_reason"] else ""
    return f"{_MARKS.get(str(file['status']), '?')} {one_line(shown_path(str(file['path'])), 300)}{counts}{reason}"


def shown_path(path: str) -> str:
    """Returns a path as the person knows it: in their folder, or among the thread's files."""
    return path.removeprefix(f"{PROJECT}/").removeprefix(f"{USER_DATA}/")
