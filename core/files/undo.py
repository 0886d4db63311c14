"""Files as they were at a moment: recorded differences of later runs, undone from the newest on. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence

from core.events import FileUploaded, Record
from core.files.paths import USER_DATA
from core.files.workspace import FileChange, WorkspaceScanned

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


def later_changes(scans: Iterable[Record], at: int) -> tuple[list[FileChange], bool]:
    """Returns the changes of runs that ended after the event `at`, the newest first, and whether some are missing."""
    later = [r.event for r in scans if isinstance(r.event, WorkspaceScanned) and r.event.upto > at]
    return [change for scan in reversed(later) for change in scan.changes], any(scan.truncated for scan in later)


def later_uploads(records: Iterable[Record], at: int) -> list[str]:
    """Returns the paths of files that came after the event `at`."""
    names = [r.event.name for r in records if r.seq > at and isinstance(r.event, FileUploaded)]
    return [f"{USER_DATA}/uploads/{name}" for name in dict.fromkeys(names)]


def undone(change: FileChange, after: bytes) -> bytes | None:
    """Returns the content of a file before a change; None if the record does not hold it. `after`: the content now."""
    if change.diff_truncated or change.diff_unavailable_reason or change.sha256_before is None:
        return None
    if change.sha256_after is not None and hashlib.sha256(after).hexdigest() != change.sha256_after:
        return None
    try:
        lines = _reversed(after.decode().splitlines(), change.diff.split("\n")[2:])
    except UnicodeDecodeError:
        return None
    if lines is None:
        return None
    text = "\n".join(lines)
    contents = (text.encode(), f"{text}\n".encode())  # a difference does not tell whether the last line ended
    return next((content for content in contents if hashlib.sha256(content).hexdigest() == change.sha256_before), None)


def _reversed(after: Sequence[str], diff: Sequence[str]) -> list[str] | None:
    """Returns the lines before a unified diff; None if it does not fit."""
    before: list[str] = []
    place = 0
    for line in diff:
        if match := _HUNK.match(line):
            start, count = int(match[3]), int(match[4] if match[4] is not None else 1)
            begin = start - 1 if count else start
            before += after[place:begin]
            place = begin
        elif line.startswith("-"):
            before.append(line[1:])
        elif line.startswith(("+", " ")):
            if place >= len(after) or after[place] != line[1:]:
                return None
            before += [line[1:]] if line.startswith(" ") else []
            place += 1
    return [*before, *after[place:]]
