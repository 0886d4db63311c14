"""Untrusted expressions: the same as Python's where both can, and an end to every search."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from core.errors import Invalid
from core.patterns import Pattern

ATOMS = st.sampled_from(
    [
        "a",
        "b",
        "B",
        ".",
        "[ab]",
        "[^a]",
        r"\w",
        r"\d",
        r"\b",
        "^",
        "$",
        r"\.",
        r"\W",
        r"[\w.]",
        r"[^\d]",
        "a{2}",
        "[ab]{1,3}",
    ]
)
EXPRESSIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda options: f"({'|'.join(options)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "*?"])).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
    ),
    max_leaves=10,
)


@given(EXPRESSIONS, st.text("abB.1 _é", max_size=12), st.booleans())
def test_it_finds_what_python_finds(source: str, text: str, any_case: bool) -> None:
    expected = re.search(source, text, re.ASCII | (re.IGNORECASE if any_case else re.NOFLAG))
    assert Pattern(source, any_case=any_case).found_in(text) == bool(expected)


@pytest.mark.parametrize(
    "source",
    ["(a+)+$", "(a|a)*y", "(a|aa)+$", "(.*)(.*)(.*)(.*)(.*)x", "((((a*)*)*)*)*x", "(a?)*(a?)*(a?)*x", "a?" * 200 + "x"],
)
def test_every_search_ends(source: str) -> None:
    text = "a" * 20_000 + "!"
    assert not Pattern(source).found_in(text)
    assert Pattern(source).found_in(text[:-1] + "x") == source.endswith("x")


@pytest.mark.parametrize(
    "source", ["(", ")", "a)", "*a", "a{", "[z-a]", "[a", r"\1", "\\", "(?=a)", "(?<!a)b", "(" * 300 + ")" * 300]
)
def test_what_is_not_supported(source: str) -> None:
    with pytest.raises(Invalid, match=r"\Apattern: \w"):
        Pattern(source)


@pytest.mark.parametrize("source", ["(a{1000}){1000}", r"(.{1,200}){1,200}", "a" * 1001])
def test_what_is_too_large(source: str) -> None:
    with pytest.raises(Invalid, match=r"size limit|more than 1000 characters"):
        Pattern(source)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (r"^[\w.+-]{1,64}@[\w-]{1,255}\.\w{2,24}$", "ada@example.org"),
        (r"^\d{4}-\d{2}-\d{2}$", "2026-11-28"),
        (r"^[A-Z]{2}\d{2}(?: ?[0-9A-Z]{4}){3,7}(?: ?[0-9A-Z]{1,3})?$", "GB82 WEST 1234 5698 7654 32"),
        (r"^#[0-9a-fA-F]{6}$", "#c0FFee"),
        (r"^https?:\/\/[^\s\/]+", "https://example.org/a"),
    ],
)
def test_expressions_of_forms(source: str, text: str) -> None:
    assert Pattern(source).found_in(text)
    assert not Pattern(source).found_in(f" {text}"[::-1])


@example("[[a]")
@given(st.text("ab()[]|*+?^$.\\-{},:é ", max_size=20))
def test_every_text_is_an_expression_or_invalid(source: str) -> None:
    with suppress(Invalid):
        assert Pattern(source).found_in("ab (a) é") in (True, False)
