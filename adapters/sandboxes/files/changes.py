"""Applies changes of files that are not idempotent (append, edit) once per call id."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator

import msgspec

from adapters.sandboxes.process.record import Record
from adapters.sandboxes.process.supervisor import publish
from core.errors import Invalid


class Change(msgspec.Struct, frozen=True):
    """`change.json` of a call: written before the file is touched (intent) and again after it (done)."""

    path: str
    before: str
    """The SHA-256 of the file that is replaced."""
    done: bool = False
    size: int | None = None
    """The size of the file that is appended to. `before` is empty then."""


def once(
    record: Record, path: str, old: bytes, change: Callable[[bytes], bytes], write: Callable[[bytes], None]
) -> None:
    """Writes `change(old)` unless this call did it before.

    The file decides on an intent that is not done. If it is unchanged, the crash came first, and the change is applied.
    If it differs, the change was applied (or the file was changed again since, and a repetition could only harm). A
    refusal by `change` leaves no trace.
    """
    before = hashlib.sha256(old).hexdigest()
    with _previous(record, path) as previous:
        if previous is None or (not previous.done and previous.before == before):
            new = change(old)
            _publish(record, Change(path, before))
            write(new)
        _publish(record, Change(path, before, done=True))


def applied(record: Record, path: str, content: bytes) -> bool:
    """Tells whether a call made its change before: the file then differs from the one that it was made for."""
    if not record.path.exists():
        return False
    with _previous(record, path) as previous:
        return previous is not None and (previous.done or previous.before != hashlib.sha256(content).hexdigest())


def append_once(record: Record, path: str, size: int, append: Callable[[int], None]) -> None:
    """Calls `append` with the size of the file before this call, unless the call was done before.

    An intent that is not done was made with the size from before the crash. So `append` must pass over what is there
    already. It is called without reading the file, which may be large.
    """
    with _previous(record, path) as previous:
        if previous is None:
            previous = Change(path, "", size=size)
            _publish(record, previous)
        if not previous.done and previous.size is not None:
            append(previous.size)
        _publish(record, msgspec.structs.replace(previous, done=True))


@contextlib.contextmanager
def _previous(record: Record, path: str) -> Iterator[Change | None]:
    """Locks the record of a call, and yields its intent, if any. Raises `Invalid` if that is for another file."""
    record.path.mkdir(parents=True, exist_ok=True)
    with record.locked(wait=True):
        previous = None
        with contextlib.suppress(FileNotFoundError):
            previous = msgspec.json.decode((record.path / "change.json").read_bytes(), type=Change)
        if previous is not None and previous.path != path:
            raise Invalid("call_id: was used for another change before")
        yield previous


def _publish(record: Record, change: Change) -> None:
    publish(record.path / "change.json", msgspec.json.encode(change))
