"""A set of texts that are searched for at once, and that changes: each change costs the same, however many and however
long the others are.

An automaton (Aho-Corasick) cannot be changed, and its construction holds up the event loop, by its bytes. So of a long
text it has the head only: where that is, the rest is compared. And the texts are in segments with an automaton each: a
change constructs those of its own small segment, and when there are too many of these, they become a big one. A search
asks all of them. 4 kB take 2 to 7 µs for each segment, and 10 secrets fill none.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator

from ahocorasick_rs import BytesAhoCorasick, MatchKind

HEAD = 128
"""Most bytes of a text that an automaton has."""
SEGMENT = 256
"""Most texts of a small segment: its construction takes a millisecond, or two."""
MERGED = 16
"""Small segments that become a big one, which takes 15 ms."""


class _Segment:
    def __init__(self, texts: Iterable[bytes] = ()) -> None:
        self.texts: set[bytes] = {*texts}
        self.automaton: BytesAhoCorasick | None = None
        self._constructed = 0
        """The number of texts in the automaton: of a big segment also some that were removed."""

    def construct(self, kind: MatchKind) -> None:
        texts = list(self.texts)
        self.automaton = BytesAhoCorasick(texts, matchkind=kind) if texts else None
        self._constructed = len(texts)

    @property
    def is_small(self) -> bool:
        return self._constructed <= SEGMENT

    @property
    def is_due(self) -> bool:
        """Tells whether the automaton is to be constructed without the texts that were removed."""
        return self.is_small or len(self.texts) < self._constructed // 2


class _Segments:
    """Texts of at most `HEAD` bytes. Those of one length (`MatchKind.Standard`) are found where they overlap, too."""

    def __init__(self, kind: MatchKind) -> None:
        self._kind = kind
        self._segments: list[_Segment] = []
        self._of: dict[bytes, _Segment] = {}

    def __len__(self) -> int:
        return len(self._segments)

    def add(self, texts: Iterable[bytes]) -> None:
        changed: set[_Segment] = set()
        for text in texts:
            if text not in self._of:
                segment = self._of[text] = self._with_room()
                segment.texts.add(text)
                changed.add(segment)
        self._merge()
        for segment in changed.intersection(self._segments):
            segment.construct(self._kind)

    def _with_room(self) -> _Segment:
        if not self._segments or len(self._segments[-1].texts) >= SEGMENT:
            self._segments.append(_Segment())
        return self._segments[-1]

    def _merge(self) -> None:
        """Makes big segments of small ones, if these are many."""
        small = [segment for segment in self._segments if segment.is_small]
        while len(small) > MERGED:
            merged, small = small[:MERGED], small[MERGED:]
            big = _Segment(text for segment in merged for text in segment.texts)
            big.construct(self._kind)
            self._of.update(dict.fromkeys(big.texts, big))
            self._segments = [big, *(segment for segment in self._segments if segment not in merged)]

    def remove(self, texts: Iterable[bytes]) -> None:
        changed: set[_Segment] = set()
        for text in texts:
            if (segment := self._of.pop(text, None)) is not None:
                segment.texts.discard(text)
                changed.add(segment)
        for segment in changed:
            if segment.is_due:
                segment.construct(self._kind)
        self._segments = [segment for segment in self._segments if segment.texts]

    def places(self, raw: bytes) -> list[tuple[int, int]]:
        """Returns start and end of each match, in order for each segment."""
        overlapping = self._kind == MatchKind.Standard
        automata = [segment.automaton for segment in self._segments if segment.automaton is not None]
        return [place[1:] for each in automata for place in each.find_matches_as_indexes(raw, overlapping)]


class Texts:
    """Texts in bytes, and the search for them. One thread at a time may change them, while others search."""

    def __init__(self) -> None:
        self._short = _Segments(MatchKind.LeftmostLongest)
        self._heads = _Segments(MatchKind.Standard)
        self._long: dict[bytes, frozenset[bytes]] = {}
        """The texts that are longer than their head, by head."""
        self._sorted: list[bytes] = []
        self._first: Counter[int] = Counter()
        """The numbers of texts that begin with a byte: it decides at most places in a text."""
        self._longest = 0

    def __bool__(self) -> bool:
        return bool(self._sorted)

    def add(self, texts: Iterable[bytes]) -> None:
        added = [text for text in texts if self._entered(text)]
        long = [text for text in added if len(text) > HEAD]
        for text in long:
            self._long[text[:HEAD]] = self._long.get(text[:HEAD], frozenset()) | {text}
        self._heads.add(text[:HEAD] for text in long)
        self._short.add(text for text in added if len(text) <= HEAD)

    def _entered(self, text: bytes) -> bool:
        """Puts a text among those that may begin at an end; returns whether it was not there."""
        place = bisect_left(self._sorted, text)
        if self._sorted[place : place + 1] == [text]:
            return False
        self._sorted.insert(place, text)
        self._first[text[0]] += 1
        self._longest = max(self._longest, len(text))
        return True

    def remove(self, texts: Iterable[bytes]) -> None:
        removed = [text for text in texts if self._struck(text)]
        long = [text for text in removed if len(text) > HEAD]
        for text in long:
            self._long[text[:HEAD]] -= {text}
        alone = {text[:HEAD] for text in long if not self._long[text[:HEAD]]}
        for head in alone:
            del self._long[head]
        self._heads.remove(alone)
        self._short.remove(text for text in removed if len(text) <= HEAD)

    def _struck(self, text: bytes) -> bool:
        """Takes a text from those that may begin at an end; returns whether it was there."""
        place = bisect_left(self._sorted, text)
        if self._sorted[place : place + 1] != [text]:
            return False
        del self._sorted[place]
        self._first[text[0]] -= 1
        if not self._first[text[0]]:
            del self._first[text[0]]
        return True

    def matches(self, raw: bytes) -> list[tuple[int, int]]:
        """Returns where the texts are: start and end of each place, in order. Places that overlap are one."""
        places = self._short.places(raw)
        if len(self._short) < 2 and not self._long:
            return places
        places += self._wholes(raw)
        places.sort()
        joined: list[tuple[int, int]] = []
        for start, end in places:
            if joined and start < joined[-1][1]:
                joined[-1] = joined[-1][0], max(end, joined[-1][1])
            else:
                joined.append((start, end))
        return joined

    def _wholes(self, raw: bytes) -> Iterator[tuple[int, int]]:
        """Yields the places of long texts."""
        for start, end in self._heads.places(raw):
            for text in self._long.get(raw[start:end], ()):
                if raw.startswith(text, start):
                    yield start, start + len(text)

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
