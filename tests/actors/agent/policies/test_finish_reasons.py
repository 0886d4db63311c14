"""What becomes of answers that were cut off or refused."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage

from actors.agent.policies.repair.finish_reasons import CUT_OFF, CUT_SHORT, LengthFinish, SafetyFinish, finish_reason
from core.events import Decision
from tests.actors.agent.turns import Asked, model_call, turn

pytestmark = pytest.mark.anyio

CALL = {"name": "bash", "args": {"command": "ls"}, "id": "c1"}
INVALID = {"type": "invalid_tool_call", "name": "bash", "args": '{"comm', "id": "c2", "error": None}
FORMS: dict[str, dict[str, Any]] = {
    "structured": {"tool_calls": [CALL]},
    "invalid": {"invalid_tool_calls": [INVALID]},
    "raw": {"additional_kwargs": {"tool_calls": [{"id": "c1"}]}},
    "legacy": {"additional_kwargs": {"function_call": {"name": "bash", "arguments": "{}"}}},
    "all": {
        "tool_calls": [CALL],
        "invalid_tool_calls": [INVALID],
        "additional_kwargs": {"tool_calls": [{"id": "c1"}], "function_call": {"name": "bash"}},
    },
}

LENGTHS: list[dict[str, Any]] = [
    {"finish_reason": "length"},
    {"finish_reason": "max_tokens"},
    {"finish_reason": "MAX_TOKENS"},
    {"finish_reason": "FinishReason.MAX_TOKENS"},
    {"finish_reason": "model_length"},
    {"stop_reason": "max_tokens"},
    {"stop_reason": "model_context_window_exceeded"},
    {"stopReason": "max_tokens"},
    {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}},
]
REFUSALS: list[dict[str, Any]] = [
    {"finish_reason": "content_filter"},
    {"finish_reason": "safety"},
    {"finish_reason": "SAFETY"},
    {"finish_reason": "RECITATION"},
    {"finish_reason": "BLOCKLIST"},
    {"finish_reason": "PROHIBITED_CONTENT"},
    {"finish_reason": "SPII"},
    {"finish_reason": "sensitive"},
    {"stop_reason": "refusal"},
    {"stopReason": "guardrail_intervened"},
    {"incomplete_details": {"reason": "content_filter"}},
]
OTHERS: list[dict[str, Any]] = [
    {},
    {"finish_reason": "stop"},
    {"finish_reason": "tool_calls"},
    {"finish_reason": "cancelled"},
    {"finish_reason": None, "stop_reason": "end_turn"},
    {"finish_reason": 7},
    {"incomplete_details": None},
]


def named(about: dict[str, Any]) -> str:
    return str(about)


def said(about: dict[str, Any], content: Any = "Let me", **more: Any) -> AIMessage:
    return AIMessage("", id="a", response_metadata=about).model_copy(update={"content": content, **more})


def calls_nothing(message: AIMessage) -> bool:
    extra = message.additional_kwargs
    return not (message.tool_calls or message.invalid_tool_calls or "tool_calls" in extra or "function_call" in extra)


@pytest.mark.parametrize("about", LENGTHS, ids=named)
async def test_a_truncated_answer_calls_nothing_and_says_why(about: dict[str, Any]) -> None:
    on = turn()
    answer = await model_call(LengthFinish(), on, Asked(said(about, **FORMS["all"])))
    assert calls_nothing(answer)
    assert answer.content == f"Let me\n\n{CUT_OFF}"
    assert answer.response_metadata == about
    [decision] = on.decided()
    assert (decision.policy, decision.action) == ("length_finish", "cut_off")


@pytest.mark.parametrize("about", LENGTHS, ids=named)
async def test_a_truncated_answer_without_calls_says_so(about: dict[str, Any]) -> None:
    on, message, empty = turn(), said(about), said(about, "")
    assert (await model_call(LengthFinish(), turn(), Asked(empty))) is empty
    assert (await model_call(LengthFinish(), on, Asked(message))).content == f"Let me\n\n{CUT_SHORT}"
    reason = finish_reason(message)
    text = f"the answer ended at its length limit ({reason})"
    assert on.decided() == [Decision(policy="length_finish", action="cut_off", text=text)]


@pytest.mark.parametrize("about", REFUSALS, ids=named)
async def test_a_refused_answer_calls_nothing_and_says_why(about: dict[str, Any]) -> None:
    on = turn()
    answer = await model_call(SafetyFinish(), on, Asked(said(about, **FORMS["all"])))
    assert calls_nothing(answer)
    assert answer.id == "a"
    assert answer.text.startswith("Let me\n\n")
    assert finish_reason(answer) in answer.text
    [decision] = on.decided()
    assert (decision.policy, decision.action) == ("safety_finish", "refused")


@pytest.mark.parametrize("content", ["", [], None, [{"type": "text", "text": "I"}]], ids=repr)
async def test_a_refused_answer_without_calls_is_explained_too(content: Any) -> None:
    answer = await model_call(SafetyFinish(), turn(), Asked(said({"finish_reason": "content_filter"}, content)))
    assert "content_filter" in answer.text


@pytest.mark.parametrize(
    ("content", "extra"),
    [("", {"refusal": "I'm sorry."}), ([{"type": "refusal", "refusal": "I'm sorry."}], {"refusal": None})],
    ids=["chat completions", "responses"],
)
async def test_the_words_of_a_refusal_are_the_answer(content: Any, extra: dict[str, Any]) -> None:
    """A refusal of OpenAI ends with `stop`, and its words are not in the text of its content."""
    message = AIMessage(content, id="a", additional_kwargs=extra, response_metadata={"finish_reason": "stop"})
    on = turn()
    assert (await model_call(SafetyFinish(), on, Asked(message))).text == "I'm sorry."
    assert [decision.action for decision in on.decided()] == ["refused"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("policy", [LengthFinish(), SafetyFinish()], ids=lambda policy: policy.name)
async def test_calls_of_every_form_are_removed(policy: LengthFinish | SafetyFinish, form: str) -> None:
    about = {"finish_reason": "length" if isinstance(policy, LengthFinish) else "safety"}
    answer = await model_call(policy, turn(), Asked(said(about, **FORMS[form])))
    assert calls_nothing(answer)
    assert answer.text != "Let me"


@pytest.mark.parametrize("about", [*OTHERS, *REFUSALS], ids=named)
async def test_other_answers_are_not_cut_off(about: dict[str, Any]) -> None:
    on, message = turn(), said(about, **FORMS["all"])
    assert await model_call(LengthFinish(), on, Asked(message)) is message
    assert on.decided() == []


@pytest.mark.parametrize("about", [*OTHERS, *LENGTHS], ids=named)
async def test_other_answers_are_not_refused(about: dict[str, Any]) -> None:
    on, message = turn(), said(about, **FORMS["all"])
    assert await model_call(SafetyFinish(), on, Asked(message)) is message
    assert on.decided() == []
