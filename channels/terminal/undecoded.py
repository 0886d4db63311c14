"""Events that do not decode: shown with their reason, and passed over by everything else."""

from __future__ import annotations

from typing import Any

import msgspec

from core.errors import Invalid
from core.events import Envelope, Opaque, Record


class Undecoded(Opaque, frozen=True):
    """Stands for an event of a known type whose fields do not fit it."""

    problem: str = ""


def readable(record: Record) -> Record:
    """The record itself, or one whose event is `Undecoded` if its own does not decode."""
    try:
        record.event  # noqa: B018  # decoded when first asked for
    except Invalid as error:
        return Record(record.seq, record.raw, record.head, Undecoded(record.type, str(error)), record.audience)
    return record


def problem_of(record: Record) -> str:
    """Why the event does not decode; empty if it does, or if its type is of an extension or a newer version."""
    return str(getattr(record.event, "problem", "") or "") if isinstance(record.event, Opaque) else ""


def fields_of(record: Record) -> str:
    """The stored fields of an event, without its envelope, as JSON."""
    envelope = {field.encode_name for field in msgspec.structs.fields(Envelope)}
    try:
        stored = msgspec.json.decode(record.raw, type=dict[str, Any])
    except msgspec.DecodeError:
        return record.raw.decode(errors="replace")
    fields = {name: value for name, value in stored.items() if name not in envelope}
    return msgspec.json.encode(fields).decode() if fields else ""
