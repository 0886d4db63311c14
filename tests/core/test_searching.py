"""Texts that are searched for at once: which are where, and what a change of them costs."""

from __future__ import annotations

import random

import pytest
from ahocorasick_rs import BytesAhoCorasick, MatchKind

from core.config import searching
from core.config.redaction import Redactor
from core.config.searching import HEAD, MERGED, SEGMENT, Texts


@pytest.fixture
def constructed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each automaton that is constructed, which is what its construction takes time for."""
    sizes: list[int] = []

    def counting(texts: list[bytes], matchkind: MatchKind) -> BytesAhoCorasick:
        sizes.append(sum(map(len, texts)))
        return BytesAhoCorasick(texts, matchkind=matchkind)

    monkeypatch.setattr(searching, "BytesAhoCorasick", counting)
    return sizes


@pytest.mark.parametrize("characters", [40, 4000, 100_000])
@pytest.mark.parametrize("alphabet", ["abcdef0123456789", 'é/+<>&"'])
def test_a_change_costs_the_same_however_long_the_other_texts_are(
    characters: int, alphabet: str, constructed: list[int]
) -> None:
    draw, redactor = random.Random(1), Redactor()
    for _ in range(3):
        redactor.add("".join(draw.choices(alphabet, k=characters)))
    constructed.clear()
    redactor.add("sk-one-more-0123456789")
    assert sum(constructed) <= SEGMENT * HEAD


def test_a_change_costs_the_same_however_many_the_others_are_and_a_search_hardly_more(constructed: list[int]) -> None:
    redactor, costs = Redactor(), []
    for number in range(3000):
        constructed.clear()
        redactor.add(f"sk-{random.Random(number).randbytes(18).hex()}")
        costs.append(sum(constructed))
    costs.sort()
    assert costs[-len(costs) // 100] <= SEGMENT * HEAD, "but for the few that make big segments"
    assert costs[-1] <= SEGMENT * (MERGED + 2) * HEAD
    assert len(redactor._texts._short) <= 3000 * 4 / (SEGMENT * MERGED) + MERGED + 1
    secret = f"sk-{random.Random(7).randbytes(18).hex()}"
    assert redactor.known(f"it is {secret}.") == "it is ***."


@pytest.mark.parametrize("seed", range(20))
def test_texts_are_found_after_any_changes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads, segments and merges are small here, so that a few texts have many of them."""
    for name, size in (("HEAD", 4), ("SEGMENT", 3), ("MERGED", 2)):
        monkeypatch.setattr(searching, name, size)
    draw, texts, there = random.Random(seed), Texts(), set[bytes]()
    for _ in range(60):
        some = {bytes(draw.choices(b"abc", k=draw.randint(2, 9))) for _ in range(draw.randint(1, 4))}
        if draw.random() < 0.6:
            texts.add(some)
            there |= some
        else:
            gone = {text for text in there if draw.random() < 0.3} | some
            texts.remove(gone)
            there -= gone
        for text in there:
            [(start, end)] = texts.matches(b"-" + text + b"-")
            assert (start, end) == (1, len(text) + 1)
    texts.remove(there)
    assert (bool(texts), texts.matches(b"abcabcabc"), len(texts._short), len(texts._heads)) == (False, [], 0, 0)


def test_a_long_text_is_found_whole_and_nothing_that_begins_like_it() -> None:
    long = bytes(random.Random(1).choices(b"abcdefgh", k=3 * HEAD))
    texts = Texts()
    texts.add([long, long[: 2 * HEAD], long[100:150]])
    assert texts.matches(b"<" + long + b">") == [(1, 1 + len(long))]
    assert texts.matches(b"<" + long[: 2 * HEAD] + b">") == [(1, 1 + 2 * HEAD)]
    assert texts.matches(b"<" + long[: HEAD + 50] + b">") == [(101, 151)], "the head hides none that begins in it"
    texts.remove([long])
    assert texts.matches(long) == [(0, 2 * HEAD)]
    texts.remove([long[: 2 * HEAD]])
    assert texts.matches(long) == [(100, 150)]
