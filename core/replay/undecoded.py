"""Display of events that do not decode, or that this version does not know."""

from __future__ import annotations

from typing import Any

import msgspec

from core.events import Envelope, Opaque, Record


def problem_of(record: Record) -> str:
    """Returns the reason why the event does not decode; empty if it does, or for types of extensions and newer
    versions.
    """
    return (record.event.problem or "") if isinstance(record.event, Opaque) else ""


def fields_of(record: Record) -> str:
    """Returns the stored fields of an event, without its envelope, as JSON."""
    envelope = {field.encode_name for field in msgspec.structs.fields(Envelope)}
    try:
        stored = msgspec.json.decode(record.raw, type=dict[str, Any])
    except msgspec.DecodeError:
        return record.raw.decode(errors="replace")
    fields = {name: value for name, value in stored.items() if name not in envelope}
    return msgspec.json.encode(fields).decode() if fields else ""
