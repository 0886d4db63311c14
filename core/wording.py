"""Events in words, the same wherever people meet them: in `sika log`, the terminal, chats, the page and over HTTP.

An event has the words of its type (`Event.phrase`). A type without them, or that this process does not know, is named
by its type, and says its stored fields.
"""

from __future__ import annotations

from typing import Any

import msgspec

from core.events import ENVELOPE, Event, ModelCompleted, Opaque, Record, ToolCompleted, ToolRequested, catalogue
from core.phrases import QUOTED, Language, detail, one_line


def name_of(event: Event | Opaque, language: Language = "en") -> str:
    """Returns what events of its type are called: `Run failed`."""
    cls = catalogue().get(event.type) if isinstance(event, Opaque) else type(event)
    if cls is not None and cls.phrase is not None:
        return cls.phrase.name(language)
    kind = event.type if isinstance(event, Opaque) else str(type(event).__struct_config__.tag)
    return one_line(kind.replace(".", " ").replace("_", " "), QUOTED)


def text_of_event(event: Event, language: Language = "en", limit: int = QUOTED) -> str:
    """Returns what an event says. `limit`: of the characters of a quoted text."""
    phrase = type(event).phrase
    return detail(phrase.template(language), event, limit) if phrase else _json(msgspec.to_builtins(event), limit)


def line_of(event: Event, language: Language = "en", limit: int = QUOTED) -> str:
    """Returns the name of an event's type, and what it says: `Milestone reached: 10 runs`."""
    return ": ".join(filter(None, (name_of(event, language), text_of_event(event, language, limit))))


def is_for_chats(event: Event | Opaque) -> bool:
    """Tells whether chats, in a terminal or on a platform, say an event as it happens: one of a package, with words.

    Those of core are shown as the conversation itself. What has no words was written for those who read logs.
    """
    return isinstance(event, Event) and event.phrase is not None and not type(event).__module__.startswith("core.")


class Narration:
    """The texts of the events of a log, one after the other.

    It remembers the arguments of calls, which their requests leave to the answer before.
    """

    def __init__(self) -> None:
        self._args: dict[str, dict[str, Any]] = {}

    def text(self, record: Record, language: Language = "en", limit: int = QUOTED) -> str:
        """Returns what a stored event says, of whatever type."""
        event = record.event
        if isinstance(event, ModelCompleted):
            self._args |= {
                str(call.get("id")): call.get("args") or {} for call in event.message.get("tool_calls") or ()
            }
        if isinstance(event, ToolCompleted):
            self._args.pop(event.call_id, None)
        if isinstance(event, ToolRequested) and event.args is None:
            event = msgspec.structs.replace(event, args=self._args.get(event.call_id))
        return _stored(record, limit) if isinstance(event, Opaque) else text_of_event(event, language, limit)


def _stored(record: Record, limit: int) -> str:
    try:
        return _json(msgspec.json.decode(record.raw, type=dict[str, Any]), limit)
    except (msgspec.DecodeError, RecursionError):
        return one_line(record.raw[: limit * 8].decode(errors="replace"), limit)


def _json(event: dict[str, Any], limit: int) -> str:
    """Returns the own fields of an event."""
    fields = {name: value for name, value in event.items() if name not in ENVELOPE}
    return detail("{fields:json}", {"fields": fields}, limit)
