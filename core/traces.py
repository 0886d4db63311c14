"""The trace of a run: the `traceparent` of W3C Trace Context, level 1."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from core.events import RunRequested

TRACEPARENT = "traceparent"
"""The header of HTTP requests and of messages on the bus; also the key of a run's metadata with this meaning."""
_FORMAT = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


class Parent(NamedTuple):
    """The span of a request; its text is the header's value."""

    trace: str
    span: str
    sampled: bool

    def __str__(self) -> str:
        return f"00-{self.trace}-{self.span}-{'01' if self.sampled else '00'}"


def parent(text: Any) -> Parent | None:
    """Parses a `traceparent`. Returns None for any other value: a bad header is no error. Later versions may be
    longer."""
    match = _FORMAT.fullmatch(text) if isinstance(text, str) else None
    if match is None or (match[1] == "00" and match[5]):
        return None
    return Parent(match[2], match[3], bool(int(match[4], 16) & 1))


def of(request: RunRequested) -> Parent | None:
    """The span that requested a run."""
    if request.traceparent is None and TRACEPARENT not in request.metadata:
        return None
    return parent(request.metadata.get(TRACEPARENT)) or parent(request.traceparent)


def header(request: RunRequested) -> str | None:
    """Returns the header that lets recipients of the run join its trace."""
    span = of(request)
    return str(span) if span else None
