"""Makes a change of a file that is not idempotent by nature (append, replace) happen once per call id."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import msgspec

from adapters.sandboxes.record import Record, publish
from core.errors import Invalid


class Change(msgspec.Struct, frozen=True):
    """`change.json` of a call: written before the file is touched (intent) and again after it (done)."""

    path: str
    before: str
    done: bool = False


def once(
    record: Record, path: str, old: bytes, change: Callable[[bytes], bytes], write: Callable[[bytes], None]
) -> None:
    """Write `change(old)` unless this call did it before.

    An intent that is not done is decided by the file: as it was before → the crash came first, do it; different → it
    was done (or somebody else has changed it since, and doing it again could only harm). A refusal by `change` leaves
    no trace.
    """
    record.path.mkdir(parents=True, exist_ok=True)
    with record.locked(wait=True):
        before = hashlib.sha256(old).hexdigest()
        seen = _seen(record)
        if seen is not None and seen.path != path:
            raise Invalid("call_id: was used for another change before")
        if seen is None or (not seen.done and seen.before == before):
            new = change(old)
            _publish(record, Change(path, before))
            write(new)
        _publish(record, Change(path, before, done=True))


def _seen(record: Record) -> Change | None:
    try:
        return msgspec.json.decode((record.path / "change.json").read_bytes(), type=Change)
    except FileNotFoundError:
        return None


def _publish(record: Record, change: Change) -> None:
    publish(record.path / "change.json", msgspec.json.encode(change))
