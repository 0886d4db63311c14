"""Differences of files as changes that are recorded and shown."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable
from dataclasses import dataclass

from adapters.sandboxes.files.search import BINARY_PROBE
from core.config.redaction import redactor
from core.files.paths import PROJECT, USER_DATA
from core.files.workspace import MAX_DIFF_BYTES, MAX_TOTAL_DIFF_BYTES, Entry, FileChange, Reason, Status

MAX_LINES = 4000
"""Limit of lines of a text that is compared: the time grows with their square."""


@dataclass(slots=True)
class Differences:
    """The differences of one run, together limited in bytes and time."""

    text: Callable[[Entry | None], bytes | None]
    """Returns the content of a file at a time, if it is stored."""
    sensitive: Callable[[str], bool]
    """Tells whether the content of a path may not be shown."""
    deadline: float
    """As of `time.monotonic`."""
    diffed: int = 0

    def change(self, path: str, before: Entry | None, after: Entry | None) -> FileChange:
        link = next((entry.link for entry in (after, before) if entry is not None and entry.link is not None), None)
        status: Status = "modified" if before and after else "created" if after else "deleted"
        if after is not None and after.link is not None and (before is None or before.link is None):
            status = "symlink_created"
        old, new = self.text(before), self.text(after)
        binary = any(text is not None and is_binary(text) for text in (old, new))
        reason = self._reason(path, link is not None, binary, before, after, old, new)
        diff, plus, minus = ("", 0, 0) if reason else _diff(path, old or b"", new or b"")
        room = MAX_TOTAL_DIFF_BYTES - self.diffed
        cut = len(diff) > room
        self.diffed += min(len(diff), room)
        return FileChange(
            path=path,
            root=_root(path),
            status=status,
            binary=binary,
            sensitive=self.sensitive(path),
            size_before=before.size if before else None,
            size_after=after.size if after else None,
            sha256_before=before.sha256 if before else None,
            sha256_after=after.sha256 if after else None,
            diff=diff[:room],
            diff_truncated=cut,
            diff_unavailable_reason=reason,
            additions=plus,
            deletions=minus,
            symlink=link is not None,
            symlink_target_before=before.link if before else None,
            symlink_target_after=after.link if after else None,
        )

    def _reason(
        self,
        path: str,
        link: bool,
        binary: bool,
        before: Entry | None,
        after: Entry | None,
        old: bytes | None,
        new: bytes | None,
    ) -> Reason | None:
        if link:
            return "symlink"
        if self.sensitive(path):
            return "sensitive"
        if binary:
            return "binary"
        if any(entry is not None and entry.size > MAX_DIFF_BYTES for entry in (before, after)):
            return "large"
        if any(text is not None and len(text.decode().splitlines()) > MAX_LINES for text in (old, new)):
            return "large"
        lost = (before is not None and old is None) or (after is not None and new is None)
        return "truncated" if lost or self.diffed >= MAX_TOTAL_DIFF_BYTES or time.monotonic() > self.deadline else None


def same(before: Entry, after: Entry) -> bool:
    if before.sha256 is None or after.sha256 is None:
        return (before.size, before.link, before.changed) == (after.size, after.link, after.changed)
    return before.sha256 == after.sha256


def is_binary(text: bytes) -> bool:
    if b"\0" in text[:BINARY_PROBE]:
        return True
    try:
        text.decode()
    except UnicodeDecodeError:
        return True
    return False


def _root(path: str) -> str:
    if path.startswith(f"{PROJECT}/"):
        return "project"
    return path.removeprefix(f"{USER_DATA}/").partition("/")[0]


def _diff(path: str, old: bytes, new: bytes) -> tuple[str, int, int]:
    before, after = (redactor.data(text).decode().splitlines() for text in (old, new))  # as they are cached
    lines = list(difflib.unified_diff(before, after, f"a{path}", f"b{path}", lineterm=""))
    body = lines[2:]
    plus, minus = sum(line.startswith("+") for line in body), sum(line.startswith("-") for line in body)
    return "\n".join(lines), plus, minus
