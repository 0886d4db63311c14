"""Policies of the port: what each hook sees, and what it can do to the run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.types import Command

from actors.agent.loop.ported import PolicyFailed, Ported
from actors.agent.run.attempt import Attempt
from core.events import Event, Message, ThreadAnnotated, ToolRequested
from core.policy import End, Policy, Refuse, ToolCall, View
from tests.actors.agent.turns import Asked, Kept, model_call, tool_call, turn
from tests.support.records import human

NOTED = ThreadAnnotated(metadata={"seen": True})


class Sees(Policy):
    """Keeps what it is shown, and returns what it is told to."""

    def __init__(self, **returned: Any) -> None:
        self.returned = returned
        self.shown: list[Any] = []

    async def before_model(self, view: View) -> Any:
        return await self._at("before_model", view)

    async def after_model(self, view: View, answer: Message) -> Any:
        return await self._at("after_model", view, answer["content"])

    async def before_tool(self, view: View, call: ToolCall) -> Any:
        return await self._at("before_tool", view, call)

    async def after_tool(self, view: View, call: ToolCall, result: Message) -> Any:
        return await self._at("after_tool", view, call.id, result["content"])

    async def _at(self, hook: str, view: View, *shown: Any) -> Any:
        self.shown.append((hook, view.thread, view.user, view.run, *shown))
        value = self.returned.get(hook)
        if isinstance(value, Event):
            await view.record(value)
            return None
        if isinstance(value, Exception):
            raise value
        if callable(value):
            return value(view)
        return value


def decided(on: Attempt, call_id: str = "") -> list[tuple[str, str, str]]:
    return [(one.policy, one.action, one.text) for one in on.decided(call_id)]


async def test_what_hooks_see() -> None:
    policy, on = Sees(), turn([human("hi")])
    await model_call(Ported(policy), on, Asked(AIMessage("hello", id="a")))
    await tool_call(Ported(policy), on, "ls", {"path": "/"})
    about = ("t", "u", "r")
    assert policy.shown == [
        ("before_model", *about),
        ("after_model", *about, "hello"),
        ("before_tool", *about, ToolCall("c1", "ls", {"path": "/"})),
        ("after_tool", *about, "c1", "done"),
    ]
    assert (decided(on), decided(on, "c1")) == ([], [])


async def test_the_run_ends_without_the_model() -> None:
    on, asked = turn([human("hi")]), Asked()
    answer = await model_call(Ported(Sees(before_model=End("No."))), on, asked)
    assert (answer.text, answer.tool_calls, asked.requests) == ("No.", [], [])
    assert decided(on) == [("sees", "ended", "No.")]


async def test_the_run_ends_with_the_answer() -> None:
    on = turn([human("hi")])
    calling = AIMessage("Let me.", id="a", tool_calls=[{"name": "ls", "args": {}, "id": "c1"}])
    answer = await model_call(Ported(Sees(after_model=End("No."))), on, Asked(calling))
    assert (answer.text, answer.tool_calls) == ("Let me.\n\nNo.", [])
    assert decided(on) == [("sees", "ended", "No.")]


async def test_a_call_is_refused() -> None:
    on = turn([human("hi")])
    result, calls = await tool_call(Ported(Sees(before_tool=Refuse("Error: no", "a rule"))), on, "ls")
    assert isinstance(result, ToolMessage)
    assert (result.content, result.status, result.tool_call_id, calls) == ("Error: no", "error", "c1", [])
    assert decided(on, "c1") == [("sees", "refused", "a rule")]


async def test_a_call_that_was_begun_is_not_asked_about() -> None:
    """It may have happened."""
    policy, on = Sees(before_tool=Refuse("Error: no")), turn([human("hi")])
    assert isinstance(on.journal, Kept)
    on.journal._take(ToolRequested(call_id="c1", name="ls", effect="pure"))
    _, calls = await tool_call(Ported(policy), on, "ls")
    assert (len(calls), [shown[0] for shown in policy.shown]) == (1, ["after_tool"])


async def test_a_result_is_shown_otherwise() -> None:
    on, policy = turn([human("hi")]), Ported(Sees(after_tool="shorter"))
    result, _ = await tool_call(policy, on, "ls")
    assert isinstance(result, ToolMessage)
    assert result.content == "shorter"
    command: Command[Any] = Command(update={"messages": [ToolMessage("x", tool_call_id="c1")], "artifacts": ["a"]})
    result, _ = await tool_call(policy, on, "ls", result=command)
    assert isinstance(result, Command)
    assert isinstance(result.update, dict)
    assert (result.update["messages"][0].content, result.update["artifacts"]) == ("shorter", ["a"])


async def test_the_model_is_told_once() -> None:
    """Before the model is asked: at this call. Later: at the next, so it is recorded with the answer or the outcome."""

    def tell(view: View) -> None:
        view.note("Be brief.")

    on, asked = turn([human("hi")]), Asked()
    await model_call(Ported(Sees(before_model=tell)), on, asked)
    assert [message.content for message in asked.messages] == ["?", "Be brief."]
    [decision] = on.decided()
    assert (decision.action, decision.note) == ("noted", None)
    await tool_call(Ported(Sees(before_tool=tell)), on, "ls")
    [decision] = on.decided("c1")
    assert decision.note is not None
    assert decision.note["content"] == "Be brief."


async def test_a_fact_is_recorded() -> None:
    on = turn([human("hi")])
    await tool_call(Ported(Sees(before_tool=NOTED)), on, "ls")
    assert isinstance(on.journal, Kept)
    assert on.journal.events == [NOTED]
    assert on.state.metadata == {"seen": True}


@pytest.mark.parametrize("hook", ["before_model", "after_model"])
async def test_a_policy_that_fails_fails_the_run(hook: str) -> None:
    with pytest.raises(PolicyFailed, match=rf"^policy sees: {hook}: oh$"):
        await model_call(Ported(Sees(**{hook: ZeroDivisionError("oh")})), turn([human("hi")]), Asked())


async def test_a_policy_that_takes_too_long_fails_the_run() -> None:
    class Slow(Policy):
        deadline_seconds = 0.01

        async def before_tool(self, view: View, call: ToolCall) -> Refuse | None:
            await asyncio.sleep(60)
            return None

    with pytest.raises(PolicyFailed, match=r"^policy slow: before_tool: not done within 0\.01 s$"):
        await tool_call(Ported(Slow()), turn([human("hi")]), "ls")
