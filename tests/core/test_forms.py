"""Forms of strangers: what is no form, what does not fit, and what a typed answer means."""

from __future__ import annotations

from typing import Any

import pytest

from core import forms
from core.errors import Invalid

FORM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "title": "Your name", "minLength": 2, "maxLength": 9},
        "mail": {"type": "string", "format": "email"},
        "age": {"type": "integer", "minimum": 18},
        "ok": {"type": "boolean", "default": False},
        "pet": {"type": "string", "oneOf": [{"const": "c", "title": "Cat"}, {"const": "d", "title": "Dog"}]},
        "tags": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}, "maxItems": 1},
        "day": {"type": "string", "format": "date"},
        "code": {"type": "string", "pattern": "^[A-Z]{2}[0-9]{1,3}$"},
    },
    "required": ["name"],
}
GOOD = {
    "name": "Ada",
    "mail": "a@b.c",
    "age": 20,
    "ok": True,
    "pet": "d",
    "tags": ["a"],
    "day": "2026-01-02",
    "code": "AB7",
}


def test_content_that_fits() -> None:
    assert forms.valid_content(FORM, GOOD) == GOOD
    assert forms.valid_content(FORM, {"name": "Ada", "age": 20.0}) == {"name": "Ada", "age": 20, "ok": False}


@pytest.mark.parametrize(
    "change",
    [
        {"name": "A"},
        {"name": "A" * 10},
        {"name": 3},
        {"name": None},
        {"mail": "nobody"},
        {"age": 17},
        {"age": True},
        {"age": 20.5},
        {"age": float("nan")},
        {"ok": "yes"},
        {"pet": "Dog"},
        {"tags": ["a", "b"]},
        {"tags": ["x"]},
        {"day": "soon"},
        {"code": "AB"},
        {"code": "ab7"},
        {"other": 1},
    ],
)
def test_content_that_does_not_fit(change: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match=next(iter(change))):
        forms.valid_content(FORM, {**GOOD, **change})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array"},
        {"type": "object", "properties": []},
        {"type": "object", "properties": {"a": {"type": "object"}}},
        {"type": "object", "properties": {"a": 3}},
        {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}}}},
        {"type": "object", "properties": {}, "required": ["a"]},
        {"type": "object", "properties": {"a": {"type": "integer", "default": "x"}}},
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}},
        {"type": "object", "properties": {f"a{n}": {"type": "string"} for n in range(51)}},
        {"type": "object", "properties": {"a": {"type": "string", "enum": [str(n) for n in range(300)]}}},
    ],
)
def test_what_is_no_form(schema: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match=r"form|pattern|a:"):
        forms.fields(schema)


def test_typed_answers() -> None:
    text = "your name: Ada\nage = 20\npet: dog\ntags: 1\nok: yes"
    assert forms.typed(FORM, text) == {"name": "Ada", "age": 20, "pet": "d", "tags": ["a"], "ok": True}
    assert forms.typed(FORM, '{"name": "Ada"}') == {"name": "Ada", "ok": False}
    assert forms.typed(FORM, " Decline ") is None
    one = {"type": "object", "properties": {"link": {"type": "string"}}}
    assert forms.typed(one, "https://x.y/?a=b") == {"link": "https://x.y/?a=b"}
    for wrong in ("Ada", "age: many", "{", ""):
        with pytest.raises(Invalid):
            forms.typed(FORM, wrong)


def test_a_form_says_of_each_field_what_may_be_typed() -> None:
    assert forms.described(FORM).splitlines()[:-1] == [
        "- Your name (text)",
        "- mail (text, optional)",
        "- age (integer, optional)",
        "- ok (yes or no, optional, default False)",
        "- pet (one of, optional): Cat | Dog",
        "- tags (some of, optional): a | b",
        "- day (text, optional)",
        "- code (text, optional)",
    ]
