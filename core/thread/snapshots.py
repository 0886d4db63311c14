"""The form of a thread's state in a snapshot: its pages as they are, and one head with all the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import cached_property
from typing import Any, get_type_hints

import msgspec

from core.events import Json, Message, patching
from core.log.snapshots import version_of
from core.thread.entries import Commit, Run
from core.thread.pages import CommitPage, Frame, Page, RunPage
from core.thread.past import Commits, Runs
from core.thread.state import ThreadState
from core.thread.values import places_of

MESSAGES = 256
"""Messages of one block: encoded and decoded in a piece, while everything else waits."""
_CODE = (
    "core.events",
    "core.lifecycle",
    "core.log.snapshots",
    "core.thread.batches",
    "core.thread.entries",
    "core.thread.fold",
    "core.thread.fold_runs",
    "core.thread.goals",
    "core.thread.pages",
    "core.thread.past",
    "core.thread.state",
    "core.thread.steps",
    "core.thread.tokens",
    "core.thread.values",
    __name__,
)
"""Modules that a snapshot depends on, besides those of extensions. A change of any of them makes another version."""
_OURS = frozenset({"core", "actors", "adapters", "channels", "tests"})
_APART = ("commits", "runs", "places")
"""Fields of the state that are written otherwise, or follow from the others."""


class _Past(msgspec.Struct):
    """The commits and runs that are in no page."""

    commits: list[Commit]
    pace: tuple[int, int]
    runs: list[Run]
    changed: list[Run]


_FIELDS = [field.name for field in fields(ThreadState) if field.name not in _APART]
_State = msgspec.defstruct("_State", [(name, get_type_hints(ThreadState)[name]) for name in _FIELDS])
_state = msgspec.json.Decoder(_State)
_past = msgspec.json.Decoder(_Past)
_messages = msgspec.json.Decoder(list[Message])
_page: msgspec.msgpack.Decoder[Page] = msgspec.msgpack.Decoder(Page)


class ThreadForm:
    """See `core.log.snapshots.Form`."""

    @cached_property
    def version(self) -> str:
        """A hash of the code that makes and reads states, that of extensions included: with the helpers of theirs."""
        modules = {event.__module__ for event in patching()}
        packages = {name.partition(".")[0] for name in modules} - _OURS
        return version_of((*_CODE, *sorted(modules)), sorted(packages))

    def counts(self, state: ThreadState) -> list[int]:
        return [len(pages) for pages in _pages(state)]

    def pages(self, state: ThreadState, after: Sequence[int]) -> list[list[bytes]]:
        columns = zip(_pages(state), after, strict=True)
        return [[*map(msgspec.msgpack.encode, pages[count:])] for pages, count in columns]

    def head(self, state: ThreadState) -> list[bytes]:
        return [*_head(state)]

    def state(self, head: Sequence[bytes], pages: Sequence[Sequence[bytes]]) -> ThreadState:
        [raw, about, *slices] = head
        commits, frames, runs = ([_page.decode(page) for page in column] for column in pages)
        past = _past.decode(about)
        state = ThreadState(**msgspec.structs.asdict(_state.decode(raw)))
        if "messages" in state.values:
            state.values["messages"] = [message for part in slices for message in _messages.decode(part)]
        state.commits = Commits(past.commits, _of(CommitPage, commits), _of(Frame, frames))
        state.commits.pace = past.pace
        tail, changed = ({run.id: run for run in some} for some in (past.runs, past.changed))
        state.runs = Runs(tail, _of(RunPage, runs), changed)
        state.places = places_of(state.values)
        return state


def _pages(state: ThreadState) -> list[Sequence[Any]]:
    return [state.commits.pages, state.commits.frames, state.runs.pages]


def _of(kind: type[Any], pages: Sequence[Page]) -> Iterator[Any]:
    for page in pages:
        if not isinstance(page, kind):
            raise TypeError(f"{type(page).__name__}, expected {kind.__name__}")
        yield page


def _head(state: ThreadState) -> Iterator[bytes]:
    messages, commits, runs = state.messages, state.commits, state.runs
    values: Json = {**state.values, "messages": []} if messages else state.values
    yield msgspec.json.encode({name: getattr(state, name) for name in _FIELDS} | {"values": values})
    past = _Past([*commits.tail], commits.pace, [*runs.tail.values()], [*runs.changed.values()])
    yield msgspec.json.encode(past)
    for place in range(0, len(messages), MESSAGES):
        yield msgspec.json.encode(messages[place : place + MESSAGES])
