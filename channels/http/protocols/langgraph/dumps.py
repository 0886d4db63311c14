"""Messages and values as clients see them: full LangChain dumps, each encoded once.

A message in a folded state never changes, and the same object is shared by all states that contain it. So its JSON
is kept by identity: the values of a long thread cost a lookup and a copy per message, not an encoding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from cachetools import LRUCache

from channels.http.runs.messages import full
from core.events import Json, Message, Record
from core.thread import goals
from core.thread.messages import NUMBER, last_answers, timed
from core.thread.numbers import number_of, numbers
from core.thread.state import Run, ThreadState

KEPT_BYTES = 32 << 20
"""Encoded messages kept, over all threads; the oldest go first."""

__all__ = ["encode", "full", "head", "numbered_values", "once", "raw", "timed_values", "values", "with_number"]

ONCE_BYTES = 8 << 20
"""Limit of the bytes that are made once for several clients, over all threads: those used last stay."""

encode = msgspec.json.Encoder().encode

_made: LRUCache[tuple[int, str], tuple[Record, bytes]] = LRUCache(ONCE_BYTES, lambda made: len(made[1]))

_cache: dict[tuple[int, bool, bool], tuple[Message, msgspec.Raw, int]] = {}
_size = 0


def raw(message: Message) -> msgspec.Raw:
    """The full dump, encoded; to be put into anything that is encoded."""
    return _known(message, None, numbered=False) or _encoded(message, None, None, numbered=False)


def head(message: Message, state: ThreadState) -> msgspec.Raw:
    """The same of a message that is in the state, with its number."""
    return _known(message, None, numbered=True) or _encoded(message, None, number_of(state, message), numbered=True)


def _known(message: Message, run: Run | None, *, numbered: bool) -> msgspec.Raw | None:
    entry = _cache.get((id(message), run is not None, numbered))
    return entry[1] if entry is not None and entry[0] is message else None


def _encoded(message: Message, run: Run | None, number: int | None, *, numbered: bool) -> msgspec.Raw:
    """Encodes and keeps a message. `run`: the ended run whose last answer it is."""
    global _size
    key = (id(message), run is not None, numbered)
    data = encode(with_number(full(timed(message, run)), number))
    encoded = msgspec.Raw(data)
    if (entry := _cache.pop(key, None)) is not None:
        _size -= entry[2]
    _cache[key] = (message, encoded, len(data))
    _size += len(data)
    while _size > KEPT_BYTES:
        _size -= _cache.pop(next(iter(_cache)))[2]
    return encoded


def with_number(dump: Json, number: int | None) -> Json:
    """Returns a full dump with its number, if it has one."""
    if number is None:
        return dump
    extra = dump["additional_kwargs"]
    return {**dump, "additional_kwargs": {**(extra if isinstance(extra, dict) else {}), NUMBER: number}}


def once(fact: Record, name: str, make: Callable[[], bytes]) -> bytes:
    """Returns what all clients are sent of a name for a fact, as its bytes, made once: those who follow a thread share
    its facts. It may depend on nothing but the thread up to the fact.
    """
    entry = _made.get((id(fact), name))
    if entry is not None and entry[0] is fact:
        return entry[1]
    data = make()
    if len(data) <= ONCE_BYTES:
        _made[id(fact), name] = fact, data
    return data


def forget() -> None:
    """Drop what is kept."""
    global _size
    _cache.clear()
    _made.clear()
    _size = 0


def values(state_values: Mapping[str, Any]) -> Json:
    """State values, ready to be encoded. The messages have no numbers."""
    messages: Sequence[Message] | None = state_values.get("messages")
    if messages is None:
        return dict(state_values)
    return {**state_values, "messages": [raw(message) for message in messages]}


def numbered_values(state_values: Mapping[str, Any], state: ThreadState) -> Json:
    """The same of values at the head of the state, with the numbers of the messages."""
    return _numbered(state_values, state, state.head, lambda _: None)


def timed_values(state_values: Mapping[str, Any], state: ThreadState, index: int) -> Json:
    """The same at a commit, with the life of each run at its last answer; at the head, with the thread's goal."""
    if state_values is state.values and (goal := goals.goal_for_clients(state.goal)):
        state_values = {**state_values, goals.KEY: goal}
    return _numbered(state_values, state, index, last_answers(state))


def _numbered(
    state_values: Mapping[str, Any], state: ThreadState, index: int, run_of: Callable[[str], Run | None]
) -> Json:
    messages: Sequence[Message] | None = state_values.get("messages")
    if messages is None:
        return dict(state_values)
    runs = [run_of(str(message.get("id"))) for message in messages]
    dumps = [_known(message, run, numbered=True) for message, run in zip(messages, runs, strict=True)]
    if new := [message for message, dump in zip(messages, dumps, strict=True) if dump is None]:
        known = numbers(state, index, new)
        for place, (message, run) in enumerate(zip(messages, runs, strict=True)):
            if dumps[place] is None:
                number = known.get(str(message.get("id")))
                dumps[place] = _encoded(message, run, number, numbered=True)
    return {**state_values, "messages": dumps}
