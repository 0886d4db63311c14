"""Numbers that people type for a place in a list: a text of any length is one of them, or none, and no error."""

from __future__ import annotations

import pytest

from actors.chat.questions import Question
from adapters.sandboxes.egress.rules import Place
from core import forms
from core.chat.facts import Button
from core.errors import Invalid
from core.ids import ordinal

LONG = "9" * 5000
"""More digits than Python reads as a number."""


@pytest.mark.parametrize(
    ("text", "number"),
    [("1", 1), ("3", 3), ("03", 3), ("0", None), ("4", None), ("-1", None), ("1.0", None), ("", None), (LONG, None)],
)
def test_a_place_in_a_list_of_three(text: str, number: int | None) -> None:
    assert ordinal(text, 3) == number


def test_a_long_number_answers_no_question_in_a_chat() -> None:
    assert Question("q", "Which?", (Button("a", "A"),), approval=True).option(LONG) is None


@pytest.mark.parametrize("schema", [{"type": "string", "enum": ["cat", "dog"]}, {"type": "integer", "maximum": 9}])
def test_a_long_number_does_not_fit_into_a_form(schema: dict[str, object]) -> None:
    [field] = forms.fields({"type": "object", "properties": {"pet": schema}})
    with pytest.raises(Invalid, match="pet"):
        forms.value_of(field, LONG)


def test_a_long_number_is_no_port() -> None:
    with pytest.raises(Invalid, match="a port is a number"):
        Place.of(f"example.org:{LONG}")
