"""The past of a thread: its commits and runs, however many, at the size of the newest.

Theory of operation
-------------------
A thread may have hundreds of thousands of commits and runs, of which mostly the newest are needed. So only the newest
are objects. The others lie in *pages*: `PAGE` of them encoded and compressed, immutable, and shared by all states that
have them. A copy of a state costs its newest commits and runs and one reference for each page. A page is decoded when
something in it is asked for (about 0.3 ms), and the pages used last stay decoded (`core.thread.pages`).

* When a page is made depends on the number of what was added only, never on how the log was read. So all processes
  make the same pages of the same log, and a snapshot (`core.log.snapshots`) has to write only the new ones.
* Runs are paged in the order in which they were requested, as soon as they have ended. What changes of them later
  (a webhook, a removal) is kept beside the page.
* The values at some commits are kept as *frames*, the more seldom the bigger they are: about as many bytes as the
  commits in between. So the values at any commit cost the way from the frame before it.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence, ValuesView
from itertools import chain
from typing import overload

from core.events import Json
from core.thread.entries import Commit, Run
from core.thread.pages import (
    COMPRESSED_BYTES,
    CommitPage,
    Frame,
    RunPage,
    decode_values,
    decoded_commits,
    decoded_runs,
    encode,
    packed,
    unpacked,
)

PAGE = 64
"""Commits, or runs, of one page. As many to twice as many of the newest are in no page."""
FRAME_BYTES = 64 * 1024
"""The bytes of the events that lie between two frames, at least."""
FRAME_MESSAGES = 1000
"""Values with more messages make no frame."""


# ── commits ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Commits(Sequence[Commit]):
    """A thread's commits, oldest first. Equal to any other sequence of the same commits."""

    __slots__ = ("_frame_bytes", "_frames", "_pages", "_since_frame", "_tail")

    def __init__(self, tail: Iterable[Commit] = (), pages: Iterable[CommitPage] = (), frames: Iterable[Frame] = ()):
        self._pages = list(pages)
        self._tail = list(tail)
        self._frames = {frame.index: frame for frame in frames}
        self._since_frame = 0
        self._frame_bytes = FRAME_BYTES

    @property
    def pages(self) -> Sequence[CommitPage]:
        return self._pages

    @property
    def frames(self) -> Sequence[Frame]:
        return list(self._frames.values())

    @property
    def tail(self) -> Sequence[Commit]:
        """Returns those that are in no page."""
        return self._tail

    @property
    def pace(self) -> tuple[int, int]:
        """Bytes of events since the last frame, and after how many there is another one."""
        return self._since_frame, self._frame_bytes

    @pace.setter
    def pace(self, pace: tuple[int, int]) -> None:
        self._since_frame, self._frame_bytes = pace

    def copy(self) -> Commits:
        copy = Commits(self._tail, self._pages)
        copy._frames, copy.pace = dict(self._frames), self.pace
        return copy

    def upto(self, seq: int) -> int:
        """Returns how many were made up to a sequence."""
        if self._tail and seq >= self._tail[0].seq:
            inside: Sequence[Commit] = self._tail
            before = self._paged
        else:
            page = bisect_right(self._pages, seq, key=lambda page: page.first) - 1
            if page < 0:
                return 0
            inside, before = decoded_commits.get(self._pages[page]), page * PAGE
        return before + bisect_right(inside, seq, key=lambda commit: commit.seq)

    def until(self, count: int) -> Commits:
        """Returns the first ones."""
        pages = min(count // PAGE, len(self._pages))
        tail = self[pages * PAGE : count]
        return Commits(tail, self._pages[:pages], (frame for frame in self._frames.values() if frame.index < count))

    def append(self, commit: Commit, size: int, values: Json) -> None:
        """Adds a commit that was made by an event of `size` bytes; `values` are the state's there."""
        self._tail.append(commit)
        if len(self._tail) >= 2 * PAGE:
            page, self._tail = self._tail[:PAGE], self._tail[PAGE:]
            self._pages.append(CommitPage(page[0].seq, packed(page)))
        self._since_frame += size
        if self._since_frame >= self._frame_bytes and len(values.get("messages", ())) <= FRAME_MESSAGES:
            data = encode(values)
            self._since_frame, self._frame_bytes = 0, max(FRAME_BYTES, len(data))
            if len(data) <= COMPRESSED_BYTES:
                self._frames[len(self) - 1] = Frame(len(self) - 1, zlib.compress(data, 1))

    def has_values(self, index: int) -> bool:
        """Returns whether the values at a commit are kept."""
        return index in self._frames

    def values(self, index: int) -> Json | None:
        """Returns the values at a commit, if they are kept."""
        frame = self._frames.get(index)
        return None if frame is None else decode_values(unpacked(frame.data))

    @property
    def _paged(self) -> int:
        return PAGE * len(self._pages)

    def __len__(self) -> int:
        return self._paged + len(self._tail)

    @overload
    def __getitem__(self, index: int) -> Commit: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Commit]: ...

    def __getitem__(self, index: int | slice) -> Commit | Sequence[Commit]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(f"commit {index} of {len(self)}")
        if place >= self._paged:
            return self._tail[place - self._paged]
        return decoded_commits.get(self._pages[place // PAGE])[place % PAGE]

    def __iter__(self) -> Iterator[Commit]:
        for page in list(self._pages):
            yield from decoded_commits.get(page)
        yield from self._tail

    def __reversed__(self) -> Iterator[Commit]:
        yield from reversed(self._tail)
        for page in reversed(self._pages):
            yield from reversed(decoded_commits.get(page))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(_equal, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Commits({list(self)!r})"


def _equal(first: object, other: object) -> bool:
    return first == other


# ── runs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Runs(MutableMapping[str, Run]):
    """A thread's runs by id, in the order in which they were requested. None is ever taken out."""

    __slots__ = ("_answers", "_changed", "_mine", "_pages", "_places", "_tail")

    def __init__(
        self, tail: Mapping[str, Run] | None = None, pages: Iterable[RunPage] = (), changed: Mapping[str, Run] = {}
    ):
        self._pages = list(pages)
        self._tail = dict(tail or {})
        self._changed = dict(changed)
        """Returns those in pages that have changed since."""
        self._mine = True
        """True if the two indexes are nobody else's. One that is shared may have runs of pages that are not here, and
        is copied before it is changed.
        """
        self._places: dict[str, int] = {}
        self._answers: dict[str, int] = {}
        for number, page in enumerate(self._pages):
            self._index(number, page)

    @property
    def pages(self) -> Sequence[RunPage]:
        return self._pages

    @property
    def tail(self) -> Mapping[str, Run]:
        """Returns those that are in no page: all open ones, and the newest of the others."""
        return self._tail

    @property
    def changed(self) -> Mapping[str, Run]:
        return self._changed

    def copy(self) -> Runs:
        return self._sharing(list(self._pages), dict(self._tail), dict(self._changed))

    def recent(self) -> Iterator[Run]:
        """The newest that were changed, among them all open ones; those requested last come last."""
        return chain(self._changed.values(), self._tail.values())

    def open(self) -> Iterator[Run]:
        """Returns those that have not ended, oldest first."""
        return (run for run in self.recent() if run.open)

    def undone(self) -> frozenset[str]:
        """Ids of the runs that were rolled back."""
        recent = (run.id for run in self.recent() if run.status == "rolled_back")
        return frozenset(chain(recent, *(page.undone for page in self._pages if page.undone)))

    def ended_with(self, message_id: str) -> Run | None:
        """Returns the run whose last message has this id, if it is in a page; the others are few: see `recent`."""
        place = self._answers.get(message_id)
        return None if place is None or place >= self._paged else self._at(place)

    def between(self, after: int, before: int) -> Iterator[Run]:
        """All that were requested before a sequence and had not ended at another one, and some others."""
        for page in self._pages:
            if page.first < before and page.last > after:
                yield from decoded_runs.get(page)
        yield from self.recent()

    def at(self, seq: int, then: Callable[[Run, int], Run]) -> Runs:
        """Returns those that had been requested at a sequence. `then` tells of one what it was like."""
        over = next((n for n, page in enumerate(self._pages) if page.last > seq), len(self._pages))
        partly = (page.ids for page in self._pages[over:] if page.first <= seq)
        later = chain((self[identity] for ids in partly for identity in ids), self._tail.values())
        tail = {run.id: then(run, seq) for run in later if run.requested_seq <= seq}
        changed = {identity: run for identity, run in self._changed.items() if self._places[identity] < over * PAGE}
        return self._sharing(self._pages[:over], tail, changed)

    def _sharing(self, pages: list[RunPage], tail: dict[str, Run], changed: dict[str, Run]) -> Runs:
        """Returns runs of the first pages, with the same indexes: making them anew would cost as much as all runs."""
        runs = Runs.__new__(Runs)
        runs._pages, runs._tail, runs._changed = pages, tail, changed
        runs._places, runs._answers = self._places, self._answers
        runs._mine = self._mine = False
        return runs

    @property
    def _paged(self) -> int:
        return PAGE * len(self._pages)

    def _place(self, identity: object) -> int | None:
        """Returns the number of a run that is in a page."""
        place = self._places.get(identity)  # type: ignore[call-overload]
        return place if place is not None and place < self._paged else None

    def _own(self) -> None:
        """Copies indexes that are shared, without the runs of pages that are not here."""
        if self._mine:
            return
        end = self._paged
        if len(self._places) == end:
            self._places, self._answers = dict(self._places), dict(self._answers)
        else:
            self._places = {identity: place for identity, place in self._places.items() if place < end}
            self._answers = {answer: place for answer, place in self._answers.items() if place < end}
        self._mine = True

    def _index(self, number: int, page: RunPage) -> None:
        first = number * PAGE
        self._places.update(zip(page.ids, range(first, first + PAGE), strict=True))
        self._answers.update((answer, first + place) for place, answer in enumerate(page.answers) if answer)

    def _at(self, place: int) -> Run:
        page = self._pages[place // PAGE]
        identity = page.ids[place % PAGE]
        return self._changed.get(identity) or decoded_runs.get(page)[place % PAGE]

    def _turn_page(self) -> None:
        runs = list(self._tail.values())[:PAGE]
        if any(run.open for run in runs):
            return
        ids, answers = tuple(run.id for run in runs), tuple(run.answer for run in runs)
        undone = tuple(run.id for run in runs if run.status == "rolled_back")
        last = max(run.ended_seq or run.requested_seq for run in runs)
        page = RunPage(ids, answers, undone, runs[0].requested_seq, last, packed(runs))
        self._own()
        self._index(len(self._pages), page)
        self._pages.append(page)
        for identity in ids:
            del self._tail[identity]

    def __getitem__(self, identity: str) -> Run:
        if (run := self._tail.get(identity)) is not None:
            return run
        if (place := self._place(identity)) is None:
            raise KeyError(identity)
        return self._at(place)

    def __setitem__(self, identity: str, run: Run) -> None:
        if self._place(identity) is not None:
            self._changed[identity] = run
            return
        new = identity not in self._tail
        self._tail[identity] = run
        if new and len(self._tail) > 2 * PAGE:
            self._turn_page()

    def __delitem__(self, identity: str) -> None:
        raise TypeError("runs stay")

    def __contains__(self, identity: object) -> bool:
        return identity in self._tail or self._place(identity) is not None

    def __iter__(self) -> Iterator[str]:
        for page in list(self._pages):
            yield from page.ids
        yield from self._tail

    def __len__(self) -> int:
        return self._paged + len(self._tail)

    def values(self) -> RunsView:
        return RunsView(self)

    def oldest_first(self) -> Iterator[Run]:
        for page in list(self._pages):
            for run in decoded_runs.get(page):
                yield self._changed.get(run.id, run)
        yield from self._tail.values()

    def newest_first(self, upto: int | None = None) -> Iterator[Run]:
        """Yields all runs, but for most of those that were requested after a sequence."""
        yield from reversed(self._tail.values())
        for page in reversed(self._pages):
            for run in reversed(decoded_runs.get(page)) if upto is None or page.first <= upto else ():
                yield self._changed.get(run.id, run)

    def __repr__(self) -> str:
        return f"Runs({dict(self)!r})"


class RunsView(ValuesView[Run]):
    """The runs; each page is decoded when it is come to."""

    def __init__(self, runs: Runs) -> None:
        super().__init__(runs)
        self._runs = runs

    def __iter__(self) -> Iterator[Run]:
        return self._runs.oldest_first()

    def __reversed__(self) -> Iterator[Run]:
        return self._runs.newest_first()
