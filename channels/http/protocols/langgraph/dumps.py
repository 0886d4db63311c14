"""Messages and values as clients see them: full LangChain dumps, each encoded once.

A message in a folded state never changes, and the same object is shared by all states that contain it. So its JSON
is kept by identity: the values of a long thread cost a lookup and a copy per message, not an encoding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from channels.http.runs.messages import full
from core.events import Json, Message
from core.thread import goals
from core.thread.messages import last_answers, timed
from core.thread.state import Run, ThreadState

KEPT_BYTES = 32 << 20
"""Encoded messages kept, over all threads; the oldest go first."""

__all__ = ["encode", "full", "raw", "timed_values", "values"]

encode = msgspec.json.Encoder().encode

_kept: dict[tuple[int, bool], tuple[Message, msgspec.Raw, int]] = {}
_size = 0


def raw(message: Message, run: Run | None = None) -> msgspec.Raw:
    """The full dump, encoded; to be put into anything that is encoded. `run`: the ended run whose last answer it is."""
    global _size
    key = (id(message), run is not None)
    kept = _kept.get(key)
    if kept is not None and kept[0] is message:
        return kept[1]
    data = encode(full(timed(message, run)))
    encoded = msgspec.Raw(data)
    if kept is not None:
        _size -= kept[2]
    _kept[key] = (message, encoded, len(data))
    _size += len(data)
    while _size > KEPT_BYTES:
        _size -= _kept.pop(next(iter(_kept)))[2]
    return encoded


def forget() -> None:
    """Drop what is kept."""
    global _size
    _kept.clear()
    _size = 0


def values(state_values: Mapping[str, Any]) -> Json:
    """State values, ready to be encoded."""
    messages: Sequence[Message] | None = state_values.get("messages")
    if messages is None:
        return dict(state_values)
    return {**state_values, "messages": [raw(message) for message in messages]}


def timed_values(state_values: Mapping[str, Any], state: ThreadState) -> Json:
    """The same, with the life of each run at its last answer; at the head, with the thread's goal."""
    if state_values is state.values and (goal := goals.shown(state.goal)):
        state_values = {**state_values, goals.KEY: goal}
    messages: Sequence[Message] | None = state_values.get("messages")
    if messages is None:
        return dict(state_values)
    run_of = last_answers(state)
    return {**state_values, "messages": [raw(message, run_of(str(message.get("id")))) for message in messages]}
