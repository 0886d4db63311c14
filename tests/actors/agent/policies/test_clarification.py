"""How the agent asks the person: the words, the card, the id, and what becomes of broken arguments."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest
from langchain_core.messages import ToolMessage

from actors.agent.loop.arguments import Arguments
from actors.agent.messages.convert import dump
from actors.agent.policies.interaction.clarification import Clarification
from actors.agent.policies.interaction.question_form import card, form_of, is_option, options_of
from adapters.tools.ask_clarification import ask_clarification
from core.events import Json
from core.thread.values import asks_person
from tests.actors.agent.turns import tool_call, turn
from tests.support.records import ai, human

pytestmark = pytest.mark.anyio


async def asked(args: Json, *, call_id: str = "c1", messages: list[Json] | None = None) -> ToolMessage:
    on = turn(messages or [human("h")])
    result, calls = await tool_call(Clarification(), on, "ask_clarification", args, call_id=call_id)
    assert calls == []
    assert isinstance(result, ToolMessage)
    return result


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ({"question": "Which?", "clarification_type": "missing_info"}, "❓ Which?"),
        ({"question": "Which?", "clarification_type": "ambiguous_requirement"}, "🤔 Which?"),
        (
            {"question": "Which?", "clarification_type": "approach_choice", "options": ["a", "b"]},
            "🔀 Which?\n\n  1. a\n  2. b",
        ),
        (
            {"question": "Sure?", "clarification_type": "risk_confirmation", "context": "It is gone then."},
            "⚠️ It is gone then.\n\nSure?",
        ),
        ({"question": " Shall I? ", "clarification_type": "suggestion", "context": " "}, "💡 Shall I?"),
        ({"question": "Which?", "clarification_type": "else"}, "❓ Which?"),
        ({"question": "Which?", "context": 4, "options": '["a"]'}, "❓ Which?\n\n  1. a"),
    ],
    ids=lambda value: None if isinstance(value, str) else str(sorted(value.items()))[:60],
)
async def test_the_words(args: Json, text: str) -> None:
    result = await asked(args)
    assert (result.content, result.name, result.tool_call_id, result.status) == (
        text,
        "ask_clarification",
        "c1",
        "success",
    )


async def test_it_ends_the_run_and_says_so() -> None:
    on = turn([human("h")])
    result, _ = await tool_call(Clarification(), on, "ask_clarification", {"question": "Which?"})
    assert isinstance(result, ToolMessage)
    assert asks_person([human("h"), ai("a"), dump(result)])
    [decision] = on.decided("c1")
    assert (decision.policy, decision.action, decision.text) == ("clarification", "asked", "Which?")


@pytest.mark.parametrize("args", [{}, {"question": " "}, {"question": 5}], ids=repr)
async def test_no_question_is_an_error_and_no_end(args: Json) -> None:
    result = await asked(args)
    assert (result.status, str(result.content)[:6]) == ("error", "Error:")
    assert not asks_person([dump(result)])


async def test_other_tools_are_called() -> None:
    result, calls = await tool_call(Clarification(), turn(), "bash", {"command": "ls"})
    assert (calls, isinstance(result, ToolMessage) and result.content) == ([{"command": "ls"}], "done")


# ── ids ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_id_is_stable() -> None:
    first, second = await asked({"question": "Which?"}), await asked({"question": "Which?"})
    assert first.id == second.id == "clarification:c1"
    nameless = await asked({"question": "Which?"}, call_id="")
    assert nameless.id == "clarification:" + hashlib.sha256("❓ Which?".encode()).hexdigest()[:16]


async def test_a_call_id_that_was_used_before_replaces_no_older_question() -> None:
    old: Json = {"type": "tool", "id": "clarification:c1", "tool_call_id": "c1", "content": "❓ Old?"}
    result = await asked({"question": "Which?"}, messages=[human("h"), ai("a"), old, human("i")])
    assert str(result.id).startswith("clarification:c1:")
    assert result.artifact["human_input"]["request_id"] == result.id


# ── options ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("given", "options"),
    [
        (["a", " b ", ""], ["a", "b"]),
        (["a", 2, True, None, 1.5], ["a", "2", "true", "1.5"]),
        ([{"label": "A", "value": "a"}, {"value": "b"}, {"x": 1}], ["A", "b", '{"x":1}']),
        ('["a", "b"]', ["a", "b"]),
        ('"a"', ["a"]),
        ("42", ["42"]),
        ("true", ["true"]),
        ("null", []),
        ("plain words", ["plain words"]),
        ("[broken", ["[broken"]),
        ('{"a": 1}', ['{"a": 1}']),
        (7, ["7"]),
        (None, []),
        ("", []),
        ([], []),
    ],
    ids=repr,
)
def test_options(given: Any, options: list[str]) -> None:
    assert options_of(given) == options


# ── cards ───────────────────────────────────────────────────────────────────────────────────────────────────────────

FIELD = {"name": "city", "label": "City", "type": "text", "required": True, "placeholder": "Bern"}
SELECT = {"name": "size", "label": "Size", "type": "select", "options": ["S", "L"]}


async def test_the_card_of_a_free_question() -> None:
    result = await asked({"question": "Which?", "clarification_type": "missing_info", "context": "C"})
    assert result.artifact == {
        "human_input": {
            "version": 1,
            "kind": "human_input_request",
            "source": "ask_clarification",
            "request_id": "clarification:c1",
            "clarification_type": "missing_info",
            "question": "Which?",
            "input_mode": "free_text",
            "tool_call_id": "c1",
            "context": "C",
        }
    }


def shown(**more: Any) -> Json:
    return card("r", "missing_info", "Q", **more)


def test_the_card_of_a_choice() -> None:
    form = shown(options=["a", "b"])
    assert (form["version"], form["input_mode"]) == (1, "choice_with_other")
    assert form["options"] == [
        {"id": "option-1", "label": "a", "value": "a"},
        {"id": "option-2", "label": "b", "value": "b"},
    ]
    assert "fields" not in form


@pytest.mark.parametrize("options", [["a" * 201], ["a"] * 25], ids=["long", "many"])
def test_options_beyond_the_limits_are_asked_for_in_words(options: list[str]) -> None:
    assert shown(options=options)["input_mode"] == "free_text"


@pytest.mark.parametrize(
    "fields", [[FIELD, SELECT], msgspec.json.encode([FIELD, SELECT]).decode()], ids=["list", "json"]
)
def test_the_card_of_a_form(fields: Any) -> None:
    form = shown(fields=fields, options=["a"])
    assert (form["version"], form["input_mode"], "options" in form) == (2, "form", False)
    assert form["fields"] == [
        FIELD,
        {
            "name": "size",
            "label": "Size",
            "type": "select",
            "required": False,
            "options": [
                {"id": "option-1", "label": "S", "value": "S"},
                {"id": "option-2", "label": "L", "value": "L"},
            ],
        },
    ]


@pytest.mark.parametrize("kind", ["text", "textarea", "number", "checkbox", "date"])
def test_kinds_of_fields(kind: str) -> None:
    assert form_of([{"name": "n", "label": "L", "type": kind}])[0]["type"] == kind


@pytest.mark.parametrize(
    "broken",
    [
        "words",
        {**FIELD, "name": ""},
        {**FIELD, "name": 3},
        {**FIELD, "name": "size"},
        {**FIELD, "label": None},
        {**FIELD, "label": "l" * 201},
        {**FIELD, "type": "file"},
        {**FIELD, "type": ["text"]},
        {**FIELD, "required": "yes"},
        {**FIELD, "placeholder": "p" * 201},
        {**FIELD, "placeholder": 4},
        {**FIELD, "options": ["a"]},
        {**FIELD, "type": "select"},
        {**FIELD, "type": "select", "options": []},
        {**FIELD, "type": "multi_select", "options": "a"},
        {**FIELD, "type": "multi_select", "options": ["a", "a"]},
        {**FIELD, "type": "select", "options": ["a", 2]},
        {**FIELD, "type": "select", "options": ["o" * 201]},
        {**FIELD, "type": "select", "options": [str(n) for n in range(25)]},
    ],
    ids=lambda value: str(value)[-50:],
)
def test_one_broken_field_drops_the_form(broken: Any) -> None:
    assert form_of([SELECT])
    assert form_of([SELECT, broken]) == []
    assert shown(fields=[SELECT, broken], options=["a"])["input_mode"] == "choice_with_other"


def test_limits_of_a_form() -> None:
    def some(count: int, **more: Any) -> list[Json]:
        return [{"name": f"n{n}", "label": "L", "type": "text", **more} for n in range(count)]

    assert len(form_of(some(16))) == 16
    assert form_of(some(17)) == []
    large = {"type": "select", "options": [f"{n}" + "o" * 190 for n in range(24)]}
    assert form_of(some(1, **large))
    assert form_of(some(4, **large)) == []
    assert form_of(None) == form_of("") == form_of({}) == form_of([]) == form_of("[[") == []


# ── answers ─────────────────────────────────────────────────────────────────────────────────────────────────────────

RESPONSE = {
    "version": 1,
    "kind": "human_input_response",
    "source": "ask_clarification",
    "request_id": "r",
    "response_kind": "option",
    "option_id": "option-2",
    "value": "b",
}


def test_an_option_is_chosen() -> None:
    assert is_option(shown(options=["a", "b"]), RESPONSE, "b")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({}, "b and more"),
        ({"version": 2}, "b"),
        ({"kind": "human_input_request"}, "b"),
        ({"source": "else"}, "b"),
        ({"request_id": "s"}, "b"),
        ({"response_kind": "text"}, "b"),
        ({"option_id": "option-1"}, "b"),
        ({"option_id": "option-3"}, "b"),
        ({"value": "x"}, "x"),
    ],
    ids=repr,
)
def test_anything_else_is_not(change: Json, text: str) -> None:
    assert not is_option(shown(options=["a", "b"]), {**RESPONSE, **change}, text)


@pytest.mark.parametrize("broken", [None, "x", {}, {"options": ["b"]}], ids=repr)
def test_a_broken_card_has_no_answers(broken: Any) -> None:
    assert not is_option(broken, RESPONSE, "b")
    assert not is_option(shown(options=["a", "b"]), broken, "b")


# ── the tool ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_the_model_sees() -> None:
    assert (ask_clarification.name, ask_clarification.effect, ask_clarification.group) == (
        "ask_clarification",
        "pure",
        None,
    )
    schema = Arguments.of(ask_clarification).schema()
    assert schema["required"] == ["question", "clarification_type"]
    assert list(schema["properties"]) == ["question", "clarification_type", "context", "options", "fields"]
