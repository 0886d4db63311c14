"""Changes that runs make to the files of their thread: scans of the tree, each recorded as a difference to the last.

The scans of a thread are an aggregate of their own (`workspace`), so that reading a thread costs nothing more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

import msgspec

from core.events import ArtifactReplaced, Event, FileConverted, FileRemoved, FileUploaded, Record, User
from core.files.paths import USER_DATA, Mount
from core.log.repository import Repository
from core.log.store import EventLog
from core.phrases import Phrase

MAX_FILES = 200
"""Limit of files shown of one run."""
MAX_SCANNED = 5000
MAX_DIFF_BYTES = 256 * 1024
"""Limit of a file, before and after, for a diff of it."""
MAX_TOTAL_DIFF_BYTES = 1 << 20
"""Limit of all diffs of one run."""

REMEMBERED = 16
CHANGE_BYTES = 200
"""Estimated memory of a file's or a run's entry, in bytes."""
KIND = "workspace"
"""Kind of the aggregate of a thread's scans."""

Status = Literal["created", "modified", "deleted", "symlink_created"]
Reason = Literal["binary", "large", "sensitive", "truncated", "symlink"]


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file at the time of a scan. `changed`: its ctime in nanoseconds; `sha256` is None for links and large files."""

    size: int
    sha256: str | None = None
    changed: int = 0
    link: str | None = None
    """Target of a symbolic link."""


class FileChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of one file. Sizes in bytes; `diff` is a unified diff, empty for `diff_unavailable_reason`."""

    path: str
    root: str
    status: Status
    binary: bool = False
    sensitive: bool = False
    size_before: int | None = None
    size_after: int | None = None
    sha256_before: str | None = None
    sha256_after: str | None = None
    diff: str = ""
    diff_truncated: bool = False
    diff_unavailable_reason: Reason | None = None
    additions: int = 0
    deletions: int = 0
    symlink: bool = False
    symlink_target_before: str | None = None
    symlink_target_after: str | None = None


class WorkspaceScanned(Event, frozen=True):
    """The files of a thread after a run, as far as they differ from the scan before (`seen`, `gone`), and what the run
    did to them. `upto`: sequence of the event by which the run ended.
    """

    phrase = Phrase(
        "Files of the run compared",
        "已比较运行的文件",
        "{changes:count} file<changes:count!=1?s> changed by the run",
        "运行改动了 {changes:count} 个文件",
    )
    upto: int
    seen: dict[str, Entry] = msgspec.field(default_factory=dict)
    gone: list[str] = msgspec.field(default_factory=list)
    changes: list[FileChange] = msgspec.field(default_factory=list)
    truncated: bool = False
    """There were more files than are looked at, or more changes than are kept."""
    skipped: list[str] = msgspec.field(default_factory=list)
    """Directories that are not looked at, as far as they are named: in the person's folder by relative paths."""
    later: list[str] = msgspec.field(default_factory=list)
    """Files that were changed after the end of the run, too, before they were looked at: so what the run did to them is
    not known. At most 20 are named.
    """


class WorkspaceUndone(Event, frozen=True):
    """A person took back what a run did to files. `upto`: as in the `workspace.scanned` of the run."""

    phrase = Phrase("Changes of files undone", "文件改动已撤销", "{paths}, by {by}", "{paths}，{by}")
    upto: int
    paths: list[str]
    by: User


class WorkspaceForgotten(Event, frozen=True):
    """The thread was erased, and with it the record of its files."""

    phrase = Phrase("Record of files erased", "文件记录已删除")


class Scan(msgspec.Struct, frozen=True):
    seen: dict[str, Entry]
    gone: list[str]
    changes: list[FileChange]
    truncated: bool
    skipped: list[str] = []
    """Directories that were not looked at."""
    later: list[str] = []
    """As in `WorkspaceScanned`."""


class Scanned(NamedTuple):
    """The changes of a run in a folder of the person's."""

    changes: Sequence[FileChange] = ()
    skipped: Sequence[str] = ()
    """Directories that were not looked at."""
    truncated: bool = False
    later: Sequence[str] = ()
    """As in `WorkspaceScanned`."""


class Workspace(Protocol):
    """Scans the files of threads."""

    async def scan(
        self, user: str, thread: str, last: Mapping[str, Entry], before: Mapping[str, Entry], since: float, until: float
    ) -> Scan:
        """Returns the difference to the `last` scan, and the changes against `before` (the last scan with what people
        did after it) between two times (Unix seconds).

        Guarantees: never follows a link, never takes longer than a few seconds. Non-guarantees: a file that is changed
        again before it is looked at counts for the later time.
        """
        ...

    async def before(self, user: str, thread: str, run: str, folder: Mount) -> None:
        """Takes a snapshot of a person's folder before the first effect of a run; later calls do nothing."""
        ...

    async def after(self, user: str, thread: str, run: str, folder: Mount, until: float) -> Scanned:
        """Returns what has changed since that snapshot, up to a time. Non-guarantee: what the person changed meanwhile
        is not told apart.
        """
        ...

    async def undo(
        self, user: str, thread: str, run: str, folder: Mount | None, changes: Sequence[FileChange]
    ) -> Sequence[str]:
        """Takes back what a run did to the person's folder, or without one its `changes`. Returns the paths.

        All or nothing: raises `Refused` with the reasons if a file was changed since, or what it was is not stored.
        """
        ...

    async def forget(self, user: str, thread: str) -> None:
        """Removes the snapshots of folders that a thread has worked on."""
        ...


class Manifest(msgspec.Struct, frozen=True):
    """The files of a thread by path as of the last scan, and after which events it was scanned lately."""

    files: Mapping[str, Entry] = msgspec.field(default_factory=dict)
    done: tuple[int, ...] = ()
    undone: tuple[int, ...] = ()


def fold(records: Iterable[Record], state: Manifest) -> Manifest:
    """Folds scans: pure and total."""
    for record in records:
        match record.event:
            case WorkspaceScanned(upto=upto, seen=seen):
                gone = set(record.event.gone)
                files = {path: entry for path, entry in {**state.files, **seen}.items() if path not in gone}
                state = Manifest(files, (*state.done, upto)[-REMEMBERED:], state.undone)
            case WorkspaceUndone(upto=upto):
                state = Manifest(state.files, state.done, (*state.undone, upto)[-REMEMBERED:])
            case WorkspaceForgotten():
                state = Manifest()
    return state


class RunChanges(NamedTuple):
    """The number of files that a run changed, and of lines. `undone`: a person took the changes back."""

    files: int
    additions: int
    deletions: int
    undone: bool = False


class Changed(msgspec.Struct, frozen=True):
    """Changes of runs as lists show them. `runs`: by the sequence of a run's end; `paths`: the run that changed a file
    last (empty: an older log does not name it).
    """

    runs: Mapping[int, RunChanges] = msgspec.field(default_factory=dict)
    paths: Mapping[str, str] = msgspec.field(default_factory=dict)


def changes(log: EventLog) -> Repository[Changed]:
    """Returns the repository of what runs changed, by thread."""
    return Repository(
        log, KIND, fold_changes, Changed(), weigh=lambda state: CHANGE_BYTES * (1 + len(state.runs) + len(state.paths))
    )


def fold_changes(records: Iterable[Record], state: Changed) -> Changed:
    """Folds scans: pure and total."""
    runs, paths = dict(state.runs), dict(state.paths)
    for record in records:
        match record.event:
            case WorkspaceScanned(upto=upto, changes=files):
                added = sum(file.additions for file in files)
                runs[upto] = RunChanges(len(files), added, sum(file.deletions for file in files))
                for file in files:
                    if file.status == "deleted":
                        paths.pop(file.path, None)
                    else:
                        paths[file.path] = record.run or ""
            case WorkspaceUndone(upto=upto) if upto in runs:
                runs[upto] = runs[upto]._replace(undone=True)
            case WorkspaceForgotten():
                runs, paths = {}, {}
    return Changed(runs, paths)


def with_people(files: Mapping[str, Entry], records: Iterable[Record]) -> dict[str, Entry]:
    """Returns the files with later changes by people, from the thread's events: those are no changes of a run."""
    known = dict(files)
    for record in records:
        match record.event:
            case FileUploaded(name=name, size=size, sha256=sha256):
                known[_upload(name)] = Entry(size, sha256)
            case FileConverted(markdown=name):
                known[_upload(name)] = ANYTHING
            case FileRemoved(name=name):
                known.pop(_upload(name), None)
            case ArtifactReplaced(path=path, size=size, sha256=sha256):
                known[path] = Entry(size, sha256)
    return known


ANYTHING = Entry(-1)
"""Stands for a file of which only the name is known."""


def _upload(name: str) -> str:
    return f"{USER_DATA}/uploads/{name}"
