"""Events of the protocol as they are sent, and where they stand in the thread.

Theory of operation
-------------------
The events of a thread are numbered over the whole thread, whatever a client asks for, by the facts they come from: the
event in place `slot` of the fact with log sequence `n` has the number `n * STRIDE + slot`. Every replica, every
connection and every filter gives an event the same number, because the log does; so `since` is a place in the thread,
and a client that comes back with another filter, or to another replica, misses nothing that its new filter covers.

What a message says before it is finished (its start, the starts of its blocks, its deltas) is not a fact yet. Such
events have no number: they belong before the message's `message-finish`, which has one. A stream that goes on after
`since` has everything again of each message whose finish comes later, with the same ids as before, and clients know
events by their ids. For this to give the same text, a delta must be the same wherever it is sent: see `blocks`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import msgspec

from channels.http.streams.sse import Frame
from core.events import Json

STRIDE = 512
"""Numbers per fact. JavaScript counts exactly to 2**53: that is 17 * 10**12 facts."""

CHANNELS = ("values", "updates", "checkpoints", "messages", "tools", "custom", "lifecycle", "input", "tasks")

encode = msgspec.json.Encoder().encode

Namespace = tuple[str, ...]
ROOT: Namespace = ()


class Slot(IntEnum):
    """The order of one fact's events. Part of their numbers: append-only, and never renumbered."""

    RUNNING = 0
    ANSWERED = 1
    CUSTOM = 2
    TOOL = 3
    MESSAGE = 4
    TASK_RESULT = 5
    UPDATES = 6
    CHECKPOINT = 7
    VALUES = 8
    TASK = 9
    INPUT = 10
    """The first of a pause's questions; the others follow."""
    ENDED = STRIDE - 1
    ROOT = UPDATES
    """Of a run's start, which ends no step: the checkpoint before the first input."""


MOST_QUESTIONS = Slot.ENDED - Slot.INPUT


def place(seq: int, slot: int = 0) -> int:
    """The number of an event."""
    return seq * STRIDE + slot


def whole_upto(number: int) -> int:
    """Returns the newest fact all of whose events have a number up to this one; 0 or less for none."""
    return (number - Slot.ENDED) // STRIDE


class WireEvent(NamedTuple):
    """One event. `seq` is None for what is not a fact yet; an empty `id` is not sent."""

    channel: str
    method: str
    namespace: Namespace
    id: str
    seq: int | None
    at: int
    """Milliseconds."""
    data: bytes

    def encoded(self) -> bytes:
        """The event as JSON, on one line."""
        identity = b'"event_id":%b,' % encode(self.id) if self.id else b""
        number = b'"seq":%d,' % self.seq if self.seq is not None else b""
        params = b'{"namespace":%b,"timestamp":%d,"data":%b}' % (encode(self.namespace), self.at, self.data)
        return b'{"type":"event",%b%b"method":"%b","params":%b}' % (identity, number, self.method.encode(), params)

    def framed(self) -> bytes:
        """The event for SSE."""
        return Frame(self.method, self.encoded(), "" if self.seq is None else str(self.seq)).encoded()


def failure(identity: int | None, code: str, text: str) -> Json:
    """The answer to a command that was not carried out, or (without an id) why the stream ends."""
    return {"type": "error", "id": identity, "error": code, "message": text}
