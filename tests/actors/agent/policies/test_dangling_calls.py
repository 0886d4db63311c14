"""What the model is sent of a conversation whose tool calls and results do not fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from actors.agent.policies.repair.dangling_calls import INTERRUPTED, INVALID, DanglingCalls, repaired
from core.events import Decision
from tests.actors.agent.turns import Asked, model_call, turn
from tests.support.records import ai, call, human

pytestmark = pytest.mark.anyio

HI = HumanMessage("hi", id="h")
SYSTEM = SystemMessage("s", id="s")


def says(*ids: str, text: str = "", name: str = "bash", **more: Any) -> AIMessage:
    calls = [{"name": name, "args": {"n": n}, "id": identity} for n, identity in enumerate(ids)]
    return AIMessage(text, tool_calls=calls, **more)


def invalid(identity: str | None, args: str | None = "{", name: str | None = "bash") -> dict[str, Any]:
    return {"type": "invalid_tool_call", "id": identity, "name": name, "args": args, "error": "no JSON"}


def raw(*calls: Any) -> AIMessage:
    """An answer whose calls are only there as the provider made them."""
    return AIMessage("").model_copy(update={"additional_kwargs": {"tool_calls": list(calls)}})


def function(identity: str, name: str = "bash", arguments: Any = "{}", kind: str = "function") -> dict[str, Any]:
    return {"id": identity, "type": kind, "function": {"name": name, "arguments": arguments}}


def result(identity: str, text: str = "") -> ToolMessage:
    return ToolMessage(text or f"of {identity}", tool_call_id=identity, id=f"m-{identity}-{text}")


def shape(messages: Sequence[BaseMessage]) -> list[str]:
    """One line a message: `ai a b` makes two calls, `tool a: text` is a result."""
    lines = []
    for message in messages:
        if isinstance(message, AIMessage):
            calls = [*message.tool_calls, *message.invalid_tool_calls, *message.additional_kwargs.get("tool_calls", ())]
            lines.append(" ".join(["ai", *(str(call["id"]) for call in calls)]))
        elif isinstance(message, ToolMessage):
            lines.append(f"tool {message.tool_call_id}: {message.text}")
        else:
            lines.append(message.type)
    return lines


VALID: dict[str, list[BaseMessage]] = {
    "nothing": [],
    "only a person": [HI],
    "no calls": [HI, AIMessage("hello"), HI],
    "a call": [HI, says("a"), result("a"), AIMessage("done")],
    "results in another order": [HI, says("a", "b"), result("b"), result("a")],
    "the same id in every answer": [HI, says("a"), result("a", "1"), says("a"), result("a", "2")],
    "an invalid call that was answered": [HI, AIMessage("", invalid_tool_calls=[invalid("a")]), result("a")],
    "raw calls": [HI, raw(function("a"), function("b")), result("a"), result("b")],
    "raw calls beside structured ones": [says("a", additional_kwargs={"tool_calls": [function("z")]}), result("a")],
    "system messages in the middle": [HI, SYSTEM, SYSTEM, says("a"), result("a"), SYSTEM, SYSTEM],
}


@pytest.mark.parametrize("name", VALID)
def test_a_valid_conversation_is_the_same_object(name: str) -> None:
    assert repaired(VALID[name]) is VALID[name]


BROKEN: dict[str, tuple[list[BaseMessage], list[str]]] = {
    "no result": ([HI, says("a"), HI], ["human", "ai a", f"tool a: {INTERRUPTED}", "human"]),
    "no result at the end": ([says("a", "b"), result("a")], ["ai a b", "tool a: of a", f"tool b: {INTERRUPTED}"]),
    "a result further on": ([says("a"), HI, SYSTEM, result("a")], ["ai a", "tool a: of a", "human", "system"]),
    "the result of another answer between": (
        [says("a"), says("b"), result("a"), result("b")],
        ["ai a", "tool a: of a", "ai b", "tool b: of b"],
    ),
    "a result before its call": ([result("a"), HI, says("a")], ["human", "ai a", "tool a: of a"]),
    "a result of no call": ([HI, result("x"), AIMessage("done")], ["human", "human", "ai"]),
    "a result of no call among results": (
        [says("a", "b"), result("a"), result("x"), result("b")],
        ["ai a b", "tool a: of a", "tool b: of b", "human"],
    ),
    "two results of one call": ([says("a"), result("a", "1"), result("a", "2")], ["ai a", "tool a: 1", "human"]),
    "the nearest answer with that id": (
        [says("a"), HI, result("a", "1"), says("a"), HI, result("a", "2")],
        ["ai a", "tool a: 1", "human", "ai a", "tool a: 2", "human"],
    ),
    "an old answer with that id has none": (
        [says("a"), says("a"), result("a", "2")],
        ["ai a", f"tool a: {INTERRUPTED}", "ai a", "tool a: 2"],
    ),
    "two calls with one id": (
        [says("a", "a"), result("a", "1"), result("a", "2")],
        ["ai a call_0_1", "tool a: 1", "tool call_0_1: 2"],
    ),
    "an id that is taken": (
        [says("call_0_1", "")],
        ["ai call_0_1 call_0_1_", f"tool call_0_1: {INTERRUPTED}", f"tool call_0_1_: {INTERRUPTED}"],
    ),
    "an empty id": ([says(""), result("", "1")], ["ai call_0_0", "tool call_0_0: 1"]),
    "an invalid call": (
        [AIMessage("", invalid_tool_calls=[invalid("a")]), HI],
        ["ai a", f"tool a: {INVALID}no JSON", "human"],
    ),
    "invalid beside structured": (
        [says("a", invalid_tool_calls=[invalid("b")]), result("a")],
        ["ai a b", "tool a: of a", f"tool b: {INVALID}no JSON"],
    ),
    "an invalid call of nothing": (
        [AIMessage("", invalid_tool_calls=[invalid(None, None, None)])],
        ["ai call_0_0", f"tool call_0_0: {INVALID}no JSON"],
    ),
    "a raw call": ([raw(function("a")), HI], ["ai a", f"tool a: {INTERRUPTED}", "human"]),
    "a raw call beside an invalid one": (
        [raw(function("a")).model_copy(update={"invalid_tool_calls": [invalid("b")]})],
        ["ai b a", f"tool b: {INVALID}no JSON", f"tool a: {INTERRUPTED}"],
    ),
    "a raw call beside an invalid one, both answered": (
        [raw(function("a")).model_copy(update={"invalid_tool_calls": [invalid("b")]}), result("a"), result("b")],
        ["ai b a", "tool b: of b", "tool a: of a"],
    ),
    "a raw call beside a structured one": (
        [says("a", additional_kwargs={"tool_calls": [function("z")]})],
        ["ai a z", f"tool a: {INTERRUPTED}"],
    ),
    "no raw calls in the list of an answer": ([raw().model_copy(update={"content": "hello"})], ["ai"]),
    "a raw call that is also an invalid one": (
        [raw(function("a", arguments="{")).model_copy(update={"invalid_tool_calls": [invalid("a", "{")]})],
        ["ai a a", f"tool a: {INVALID}no JSON"],
    ),
    "raw calls that are none": ([raw("x", function("a", kind="")), result("a")], ["ai call_0_0 a", "", "tool a: of a"]),
    "no raw calls in the list": ([HI, raw(), HI], ["human", "human"]),
    "an answer that says nothing": ([HI, AIMessage(""), HI], ["human", "human"]),
    "an answer of thoughts": ([AIMessage([{"type": "thinking", "thinking": "hm"}])], []),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_conversation_is_put_in_order(name: str) -> None:
    messages, expected = BROKEN[name]
    assert repaired(messages) is not messages
    lines = shape(repaired(messages))
    assert len(lines) == len(expected)
    assert [line for line, checked in zip(lines, expected, strict=True) if checked] == list(filter(None, expected))


@pytest.mark.parametrize("name", BROKEN)
def test_what_was_put_in_order_is_valid(name: str) -> None:
    once = repaired(BROKEN[name][0])
    assert repaired(once) is once


def test_what_a_result_of_no_call_said_is_told_as_hidden_text() -> None:
    [message] = repaired([ToolMessage("rows: 3", tool_call_id="x", id="m", name="query")])
    assert isinstance(message, HumanMessage)
    assert message.additional_kwargs == {"hide_from_ui": True}
    assert message.id == "m"
    assert "query" in message.text
    assert message.text.endswith("\nrows: 3")


@pytest.mark.parametrize(
    ("name", "sent"), [("", "unknown"), ("run command", "run_command"), ("x" * 70, "x" * 64), ("a.b", "a_b")]
)
def test_a_name_that_no_provider_takes_is_changed(name: str, sent: str) -> None:
    answer = repaired([says("a", name=name), result("a")])[0]
    assert isinstance(answer, AIMessage)
    assert answer.tool_calls[0]["name"] == sent


@pytest.mark.parametrize(("args", "text"), [("rm -rf", "rm -rf"), (None, ""), (["x"], '["x"]')])
def test_arguments_that_are_no_object_are_sent_as_text(args: Any, text: str) -> None:
    odd = says("a").model_copy(update={"tool_calls": [{"name": "bash", "args": args, "id": "a", "type": "tool_call"}]})
    answer = repaired([odd, result("a")])[0]
    assert isinstance(answer, AIMessage)
    assert not answer.tool_calls
    assert answer.invalid_tool_calls[0]["args"] == text


def test_messages_are_not_changed_in_place() -> None:
    messages = [says("a", "a"), result("a", "1"), result("a", "2")]
    before = [message.model_copy(deep=True) for message in messages]
    repaired(messages)
    assert messages == before


async def test_the_model_gets_the_repaired_conversation_and_the_answer_says_so() -> None:
    on = turn([human("h"), ai("a1", "", [call("c1"), call("c2")]), human("h2"), ai("a2", "")])
    handler = Asked()
    await model_call(DanglingCalls(), on, handler)
    assert shape(handler.messages) == [
        "human",
        "ai c1 c2",
        f"tool c1: {INTERRUPTED}",
        f"tool c2: {INTERRUPTED}",
        "human",
    ]
    assert on.decided() == [Decision(policy="dangling_calls", action="repaired", text="2 missing, 1 empty")]
    assert len(on.state.messages) == 4


async def test_a_valid_conversation_passes_untouched() -> None:
    on, handler = turn([human("h"), ai("a1", "hello"), human("h2")]), Asked()
    await model_call(DanglingCalls(), on, handler)
    assert handler.messages == on.conversation()
    assert on.decided() == []
