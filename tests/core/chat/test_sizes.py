"""Sizes of files in people's numbers."""

from __future__ import annotations

import pytest

from core.chat.sizes import over


@pytest.mark.parametrize(
    ("size", "limit", "words"),
    [
        (30_000_000, 20_000_000, "it has 30 MB, and at most 20 MB can be taken here"),
        ((20 << 20) + 1, 20 << 20, "it has a little more than 20 MB, the most that can be taken here"),
        (21 << 20, 20 << 20, "it has 21 MB, and at most 20 MB can be taken here"),
        (0, 999, "it has more than 999 bytes, the most that can be taken here"),
        (5 << 30, 1 << 30, "it has 5 GB, and at most 1 GB can be taken here"),
    ],
)
def test_a_file_that_is_too_large(size: int, limit: int, words: str) -> None:
    assert over(size, limit) == words
