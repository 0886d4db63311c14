"""Applies changes of files that are not idempotent (append, replace) once per call id."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import msgspec

from adapters.sandboxes.record import Record
from adapters.sandboxes.supervisor import publish
from core.errors import Invalid


class Change(msgspec.Struct, frozen=True):
    """`change.json` of a call: written before the file is touched (intent) and again after it (done)."""

    path: str
    before: str
    done: bool = False


def once(
    record: Record, path: str, old: bytes, change: Callable[[bytes], bytes], write: Callable[[bytes], None]
) -> None:
    """Writes `change(old)` unless this call did it before.

    The file decides on an intent that is not done. If it is unchanged, the crash came first, and the change is applied.
    If it differs, the change was applied (or the file was changed again since, and a repetition could only harm). A
    refusal by `change` leaves no trace.
    """
    record.path.mkdir(parents=True, exist_ok=True)
    with record.locked(wait=True):
        before = hashlib.sha256(old).hexdigest()
        previous = _previous(record)
        if previous is not None and previous.path != path:
            raise Invalid("call_id: was used for another change before")
        if previous is None or (not previous.done and previous.before == before):
            new = change(old)
            _publish(record, Change(path, before))
            write(new)
        _publish(record, Change(path, before, done=True))


def _previous(record: Record) -> Change | None:
    try:
        return msgspec.json.decode((record.path / "change.json").read_bytes(), type=Change)
    except FileNotFoundError:
        return None


def _publish(record: Record, change: Change) -> None:
    publish(record.path / "change.json", msgspec.json.encode(change))
