"""The part of a file that the model reads."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.sandbox import words
from actors.sandbox.words import excerpt

PIECES = (b"a", b"\n", b"\r", b"\r\n", b"\x0c", b"\xff", "é".encode(), "\u2028".encode(), "😀".encode(), b"\xe2\x82")


@given(
    st.lists(st.sampled_from(PIECES), max_size=20).map(b"".join),
    st.integers(-1, 12),
    st.integers(-1, 12),
    st.integers(1, 30),
)
def test_the_lines_are_those_of_the_whole_text(content: bytes, first: int, last: int, block: int) -> None:
    text = content.decode("utf-8", "replace")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(words, "BLOCK", block)
        assert excerpt(content, first, last) == "\n".join(text.splitlines()[max(first, 1) - 1 : max(last, 0)])
        assert excerpt(content, None, last) == excerpt(content, first, None) == text


def test_a_few_lines_of_a_large_file_take_little_memory() -> None:
    content = b"ab\n" * (8 << 20)
    tracemalloc.start()
    try:
        assert excerpt(content, 2, 3) == "ab\nab"
        assert tracemalloc.get_traced_memory()[1] < 4 * len(content)
    finally:
        tracemalloc.stop()
