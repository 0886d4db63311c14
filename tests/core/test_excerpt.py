"""Cuts of long texts: they are marked, and what they say adds up."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.excerpt import cut, errors


@given(
    text=st.text(st.sampled_from("ab \n"), max_size=400).map(lambda part: part * 40),
    limit=st.integers(0, 9000),
    note=st.sampled_from(["", "; it is in /a"]),
)
def test_a_cut_says_what_is_left_out(text: str, limit: int, note: str) -> None:
    result = cut(text, limit, note)
    if not limit or len(text) <= limit:
        assert result == text
        return
    assert len(result) <= limit
    if not (
        gap := re.search(r"\n\.\.\. \[(\d+) characters in (\d+) lines left out(.*?)\.\] \.\.\.\n", result, re.DOTALL)
    ):
        assert limit < 120
        return
    head, tail = result[: gap.start()], result[gap.end() :]
    middle = text[len(head) : len(text) - len(tail)]
    assert text == head + middle + tail
    assert (len(middle), gap[3]) == (int(gap[1]), note)
    assert int(gap[2]) == middle.count("\n") + (not middle.endswith("\n"))


def test_the_end_has_more_room_than_the_beginning() -> None:
    head, _, tail = cut("x" * 50 + "\n" * 100_000 + "y" * 50, 30_000).partition("... [")
    assert 1.5 * len(head) < len(tail)


@pytest.mark.parametrize(
    "line",
    ["ValueError: x", "FAILED tests/a.py", "2 failures", "Traceback (most recent call last):", "fatal: no", "panicked"],
)
def test_lines_that_speak_of_errors_are_kept(line: str) -> None:
    text = "\n".join([*["fine"] * 9000, line, *["fine"] * 9000])
    assert f"Lines in it that speak of errors:\n9001: {line}] ...\n" in cut(text, 10_000)


def test_few_lines_are_named() -> None:
    text = errors("error\n" * 100, 7)
    assert text.splitlines()[2] == "95: error"
    assert text.endswith("(and 88 before them)")
    assert errors("all is well\nterrors and failsafe") == ""
