"""A set of texts that are searched for at once, and that changes: each change costs the same, however many there are.

An automaton (Aho-Corasick) cannot be changed, and its construction holds up the event loop. So the texts are in
segments of at most `SEGMENT` texts with an automaton each: a change constructs those of its own segment, and a search
asks all of them. 4 kB take 2 µs for each segment, and 10 secrets fill none.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable

from ahocorasick_rs import BytesAhoCorasick, MatchKind

SEGMENT = 256
"""Most texts of a segment: its construction takes about a millisecond."""


class _Segment:
    def __init__(self) -> None:
        self.texts: set[bytes] = set()
        self.automaton: BytesAhoCorasick | None = None

    def construct(self) -> None:
        texts = list(self.texts)
        self.automaton = BytesAhoCorasick(texts, matchkind=MatchKind.LeftmostLongest) if texts else None


class Texts:
    """Texts in bytes, and the search for them. One thread at a time may change them, while others search."""

    def __init__(self) -> None:
        self._segments: list[_Segment] = []
        self._of: dict[bytes, _Segment] = {}
        self._sorted: list[bytes] = []
        self._first: Counter[int] = Counter()
        """The numbers of texts that begin with a byte: it decides at most places in a text."""
        self._longest = 0

    def __bool__(self) -> bool:
        return bool(self._sorted)

    def add(self, texts: Iterable[bytes]) -> None:
        changed: set[_Segment] = set()
        for text in texts:
            if text not in self._of:
                segment = self._of[text] = self._with_room()
                segment.texts.add(text)
                changed.add(segment)
                insort(self._sorted, text)
                self._first[text[0]] += 1
                self._longest = max(self._longest, len(text))
        for segment in changed:
            segment.construct()

    def remove(self, texts: Iterable[bytes]) -> None:
        changed: set[_Segment] = set()
        for text in texts:
            if (segment := self._of.pop(text, None)) is not None:
                segment.texts.discard(text)
                changed.add(segment)
                del self._sorted[bisect_left(self._sorted, text)]
                self._first[text[0]] -= 1
                if not self._first[text[0]]:
                    del self._first[text[0]]
        for segment in changed:
            segment.construct()
        self._segments = [segment for segment in self._segments if segment.texts]

    def _with_room(self) -> _Segment:
        for segment in reversed(self._segments):
            if len(segment.texts) < SEGMENT:
                return segment
        self._segments.append(segment := _Segment())
        return segment

    def matches(self, raw: bytes) -> list[tuple[int, int]]:
        """Returns where the texts are: start and end of each place, in order. Places that overlap are one."""
        if len(self._segments) == 1 and (automaton := self._segments[0].automaton) is not None:
            matches = automaton.find_matches_as_indexes(raw)
            return [(start, end) for _, start, end in matches] if matches else []
        automata = [segment.automaton for segment in self._segments if segment.automaton is not None]
        places = [(start, end) for each in automata for _, start, end in each.find_matches_as_indexes(raw)]
        if not places:
            return places
        places.sort()
        joined: list[tuple[int, int]] = []
        for start, end in places:
            if joined and start < joined[-1][1]:
                joined[-1] = joined[-1][0], max(end, joined[-1][1])
            else:
                joined.append((start, end))
        return joined

    def open(self, raw: bytes, after: int) -> int:
        """Returns where the longest end of `raw` starts that a text may begin with; its length if there is none."""
        for start in range(max(after, len(raw) - self._longest + 1), len(raw)):
            if raw[start] not in self._first:
                continue
            end = raw[start:]
            place = bisect_left(self._sorted, end)
            if place < len(self._sorted) and self._sorted[place] == end:
                place += 1
            if place < len(self._sorted) and self._sorted[place].startswith(end):
                return start
        return len(raw)
