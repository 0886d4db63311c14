"""Events in words, the same wherever people meet them: in `sika log`, the terminal, chats, the page and over HTTP.

An event has the words of its type (`Event.phrase`). A type without them, or that this process does not know, is named
by its type, and says its stored fields.
"""

from __future__ import annotations

from typing import Any

import msgspec

from core.events import ENVELOPE, Event, Opaque, Record, catalogue
from core.phrases import QUOTED, Language, detail, one_line


def name_of_type(kind: str, language: Language = "en") -> str:
    """Returns what events of a type are called: `Run failed`."""
    cls = catalogue().get(kind)
    if cls is None or cls.phrase is None:
        return one_line(kind.replace(".", " ").replace("_", " "), QUOTED)
    return cls.phrase.name(language)


def text_of_event(event: Event, language: Language = "en", limit: int = QUOTED) -> str:
    """Returns what an event says. `limit`: of the characters of a quoted text."""
    phrase = type(event).phrase
    return detail(phrase.template(language), event, limit) if phrase else _json(msgspec.to_builtins(event), limit)


def text_of_record(record: Record, language: Language = "en", limit: int = QUOTED) -> str:
    """Returns what a stored event says, of whatever type."""
    if not isinstance(record.event, Opaque):
        return text_of_event(record.event, language, limit)
    try:
        return _json(msgspec.json.decode(record.raw, type=dict[str, Any]), limit)
    except (msgspec.DecodeError, RecursionError):
        return one_line(record.raw[: limit * 8].decode(errors="replace"), limit)


def _json(event: dict[str, Any], limit: int) -> str:
    """Returns the own fields of an event."""
    fields = {name: value for name, value in event.items() if name not in ENVELOPE}
    return detail("{fields:json}", {"fields": fields}, limit)
