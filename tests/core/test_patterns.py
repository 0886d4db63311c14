"""Expressions of strangers: the same as Python's where both can, and an end to every search."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from core.errors import Invalid
from core.patterns import Pattern

ATOMS = st.sampled_from(["a", "b", "B", ".", "[ab]", "[^a]", r"\w", r"\d", r"\b", "^", "$", r"\."])
EXPRESSIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda options: f"({'|'.join(options)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "*?"])).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
    ),
    max_leaves=10,
)


@given(EXPRESSIONS, st.text("abB.1 _", max_size=12))
def test_it_finds_what_python_finds(source: str, text: str) -> None:
    assert Pattern(source).found_in(text) == bool(re.search(source, text, re.IGNORECASE | re.DOTALL))


@pytest.mark.parametrize(
    "source",
    ["(a+)+$", "(a|a)*y", "(a|aa)+$", "(.*)(.*)(.*)(.*)(.*)x", "((((a*)*)*)*)*x", "(a?)*(a?)*(a?)*x", "a?" * 200 + "x"],
)
def test_every_search_ends(source: str) -> None:
    text = "a" * 2000 + "!"
    assert not Pattern(source).found_in(text)
    assert Pattern(source).found_in(text[:-1] + "x") == source.endswith("x")


@pytest.mark.parametrize(
    "source", ["(", ")", "a)", "*a", "a**b", "a{2}", "[z-a]", "[a", r"\1", "\\", "(?=a)", "(?i)a", "(" * 21 + ")" * 21]
)
def test_what_is_not_supported(source: str) -> None:
    with pytest.raises(Invalid, match=r"\Apattern: "):
        Pattern(source)


@example("[[a]")
@given(st.text("ab()[]|*+?^$.\\-{},:é ", max_size=20))
def test_every_text_is_an_expression_or_invalid(source: str) -> None:
    with suppress(Invalid):
        assert Pattern(source).found_in("ab (a) é") in (True, False)
