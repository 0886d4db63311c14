"""Which trace a run belongs to: the `traceparent` of W3C Trace Context, level 1."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from core.events import RunRequested

TRACEPARENT = "traceparent"
"""The header, of HTTP requests as of messages on the bus; and the key of a run's metadata that means the same."""
_FORMAT = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


class Parent(NamedTuple):
    """The span that wanted something; as text, what is passed on."""

    trace: str
    span: str
    sampled: bool

    def __str__(self) -> str:
        return f"00-{self.trace}-{self.span}-{'01' if self.sampled else '00'}"


def parent(text: Any) -> Parent | None:
    """None if it is no `traceparent`: then there is no trace, and no error. Later versions may have more at the end."""
    found = _FORMAT.fullmatch(text) if isinstance(text, str) else None
    if found is None or (found[1] == "00" and found[5]):
        return None
    return Parent(found[2], found[3], bool(int(found[4], 16) & 1))


def of(request: RunRequested) -> Parent | None:
    """The span that wanted a run."""
    if request.traceparent is None and TRACEPARENT not in request.metadata:
        return None
    return parent(request.metadata.get(TRACEPARENT)) or parent(request.traceparent)


def header(request: RunRequested) -> str | None:
    """What whoever hears of the run is sent, so that they can join its trace."""
    found = of(request)
    return str(found) if found else None
