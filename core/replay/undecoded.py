"""Display of events that do not decode, or that this version does not know."""

from __future__ import annotations

from core.events import Opaque, Record


def problem_of(record: Record) -> str:
    """Returns the reason why the event does not decode; empty if it does, or for types of extensions and newer
    versions.
    """
    return (record.event.problem or "") if isinstance(record.event, Opaque) else ""
