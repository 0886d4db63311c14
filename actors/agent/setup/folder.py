"""The section of the prompt about the folder of the person that a thread works on."""

from __future__ import annotations

from core.control import neutralised
from core.events import FolderAttached
from core.files.paths import PROJECT, USER_DATA

_SECTION = """\
<project>
The person lets you work on their folder {path}. You see it as {project}, {access}. Commands begin there and relative \
paths lead there, whatever else says that they begin in the workspace. The person knows its files by the paths in it.
{rules}
- Git is for looking: status, diff, log, blame. Commit, stage, stash, switch, reset, merge or push only if you are \
asked to.
- Files that look like secrets (`.env`, keys, credentials) are hidden: commands find them empty, file tools refuse \
them. Work without their values; the person can show a file if the task needs it.
</project>\
"""
_WRITABLE = """\
- What you change there is changed for the person at once, who works there, too. Files that they did not ask for \
(drafts, downloads, logs) go to {data}/workspace.
- Settings of git, hooks and settings of editors are read-only: say what the person should change there."""
_READ_ONLY = """\
- You can change nothing there. What you make goes to {data}/outputs; show changes of its files as a patch."""


def section(folder: FolderAttached | None) -> str:
    if folder is None:
        return ""
    writable = folder.access == "read-write"
    return _SECTION.format(
        path=neutralised(folder.path),
        project=PROJECT,
        access="and read and write there" if writable else "read-only",
        rules=(_WRITABLE if writable else _READ_ONLY).format(data=USER_DATA),
    )
