"""The newest entries stay, and no more than the limit."""

from __future__ import annotations

from core.chat.recent import Recent


def test_the_oldest_entries_go_and_what_is_set_again_is_new() -> None:
    recent: Recent[str, int] = Recent(2)
    recent["a"], recent["b"] = 1, 2
    recent["a"] = 3
    recent["c"] = 4
    assert list(recent.items()) == [("a", 3), ("c", 4)]
