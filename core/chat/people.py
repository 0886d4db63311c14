"""People whom messages mention: their names, and how they stand in the text that the agent reads."""

from __future__ import annotations

import re
import time

from cachetools import FIFOCache

from core.thread.messages import person

MENTION = r'@"(?:[^"\\]|\\.)*"(?: \([^()\s]*\))?'
"""Matches what `mention` returns for a person whose name is known."""
MOST_MENTIONS = 20
"""Limit of the people of a message whose names are looked up."""
NAME_SECONDS = 3600.0
"""Time after which a name is looked up again: people are renamed."""
_PLAIN = re.compile(r"[\w.@:+$-]{1,80}")


def mention(name: str, identity: str) -> str:
    """Returns a mention of a person as text: `@"Ann" (U012AB3CD)`, or `@U012AB3CD` if the name is not known. The name
    is data from a stranger: quoted, of one line, bounded, without control tags."""
    return f"@{person(name, identity)}" if name.strip() or not _PLAIN.fullmatch(identity) else f"@{identity}"


class Names(FIFOCache[str, tuple[str, float]]):
    """The names of the `limit` people who were looked up last, by id."""

    def of(self, identity: str) -> str | None:
        """Returns a name, empty if the platform tells none; None if it is to be looked up (again)."""
        name, at = self.get(identity, ("", 0.0))
        return name if identity in self and time.monotonic() - at < NAME_SECONDS else None

    def note(self, identity: str, name: str) -> None:
        self[identity] = (name, time.monotonic())
