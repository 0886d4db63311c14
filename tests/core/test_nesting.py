"""The depth of JSON is counted exactly, whatever Python decodes it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.nesting import MOST_LEVELS, too_deep

TEXTS = st.text('[]{}"\\,: a', max_size=6)
VALUES = st.recursive(
    st.none() | st.integers(0, 9) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=12,
)


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"[":', b"}"), (b'{"\\"[\\\\":[', b"]}")])
def test_the_limit_is_exact(opening: bytes, closing: bytes) -> None:
    levels = opening.count(b"{") + opening.endswith(b"[")
    most = MOST_LEVELS // levels
    assert not too_deep(opening * most + b"1" + closing * most)
    assert too_deep(opening * (most + 1) + b"1" + closing * (most + 1))


@given(VALUES, st.integers(0, 4))
def test_brackets_are_counted_by_level_and_not_in_texts(value: Any, levels: int) -> None:
    for raw in (msgspec.json.encode(value), msgspec.json.format(msgspec.json.encode(value))):
        assert too_deep(raw, levels) == (_depth(value) > levels)


def test_a_body_that_is_cut_off_is_judged_by_what_is_there() -> None:
    assert too_deep(b"[" * (MOST_LEVELS + 1))
    assert not too_deep(b"[" * MOST_LEVELS)
    assert not too_deep(b"[]," * 10_000)
    assert not too_deep(b'"' + b"[" * 10_000)


def _depth(value: Any) -> int:
    match value:
        case dict():
            return 1 + max(map(_depth, value.values()), default=0)
        case list():
            return 1 + max(map(_depth, value), default=0)
    return 0
