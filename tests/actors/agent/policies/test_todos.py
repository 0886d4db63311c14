"""Plan mode: the tool and its prompt, the reminder, and not ending too early."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from actors.agent.messages.convert import dump
from actors.agent.policies.interaction.todos import Todos, is_final, todos_of
from actors.agent.run.attempt import Attempt
from core.events import ContextCompacted, Json, Message, MessageAdded, ModelCompleted, ToolCompleted
from tests.actors.agent.turns import Asked, model_call, tool_call, turn

pytestmark = pytest.mark.anyio

HUMAN: Message = {"type": "human", "id": "h", "content": "do it"}
WRITTEN: Message = {
    "type": "ai",
    "id": "w",
    "content": "",
    "tool_calls": [{"name": "write_todos", "args": {}, "id": "c1"}],
}
RESULT: Message = {"type": "tool", "id": "t", "content": "ok", "tool_call_id": "c1"}
TODOS = [{"content": "read", "status": "completed"}, {"content": "write", "status": "in_progress"}]
DONE = [{"content": "read", "status": "completed"}]


def test_it_costs_no_step() -> None:
    model = FakeListChatModel(responses=["ok"])
    plain, planned = create_agent(model, middleware=[]), create_agent(model, middleware=[Todos()])
    assert set(planned.get_graph().nodes) - set(plain.get_graph().nodes) == {"tools"}
    assert [tool.name for tool in Todos().tools] == ["write_todos"]


async def test_the_prompt_stays_as_it_is() -> None:
    """So that providers cache it, with and without a list."""
    for values in ({}, {"todos": TODOS}):
        handler = Asked()
        await model_call(Todos(), turn([HUMAN], values=values), handler, prompt="Be good.")
        assert handler.requests[-1].system_message is not None
        assert handler.requests[-1].system_message.content == "Be good."


def test_what_the_tool_costs() -> None:
    """LangChain's description has 3 900 characters, with a section of 1 400 in the prompt."""
    [tool] = Todos().tools
    assert len(tool.description) < 700


# ── the reminder ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("messages", "todos", "reminded"),
    [
        ([HUMAN], TODOS, True),
        ([HUMAN], DONE, True),
        ([HUMAN], [], False),
        ([HUMAN], None, False),
        ([HUMAN, WRITTEN, RESULT], TODOS, False),
        ([HUMAN | {"name": "todo_reminder"}], TODOS, False),
    ],
    ids=["scrolled out", "all done", "empty", "none", "visible", "reminded"],
)
async def test_the_reminder(messages: list[Message], todos: Any, reminded: bool) -> None:
    handler = Asked(AIMessage("", tool_calls=[{"name": "ls", "args": {}, "id": "x"}]))
    on = turn(messages, values={"todos": todos})
    await model_call(Todos(), on, handler)
    more = handler.messages[len(messages) :]
    assert [message.name for message in more] == (["todo_reminder"] if reminded else [])
    for message in more:
        assert isinstance(message, HumanMessage)
        assert message.additional_kwargs == {"hide_from_ui": True}
        assert all(f"- [{todo['status']}] {todo['content']}" in message.text for todo in todos)
    assert on.state.messages == messages


# ── not ending too early ────────────────────────────────────────────────────────────────────────────────────────────


async def test_it_goes_on_until_the_list_is_done() -> None:
    on = turn([HUMAN, WRITTEN, RESULT], values={"todos": TODOS})
    await model_call(Todos(), on, Asked(AIMessage("Finished!", id="a")))
    [decision] = on.decided()
    assert (decision.policy, decision.action, decision.again) == ("todos", "continued", True)
    assert decision.note is not None
    assert "- [in_progress] write" in decision.note["content"]
    assert "read" not in decision.note["content"]


@pytest.mark.parametrize("todos", [None, [], DONE, [{"content": "x"}], "write", [{"content": 1, "status": "pending"}]])
async def test_it_ends_when_nothing_is_left(todos: Any) -> None:
    on = turn([HUMAN, WRITTEN, RESULT], values={"todos": todos})
    await model_call(Todos(), on, Asked(AIMessage("Finished!", id="a")))
    assert on.decided() == []


CALL: Json = {"name": "ls", "args": {}, "id": "x"}
INVALID: Json = {"name": "ls", "args": "{", "id": "x", "error": None, "type": "invalid_tool_call"}
INTENTS: dict[str, Json] = {
    "structured": {"tool_calls": [CALL]},
    "invalid": {"invalid_tool_calls": [INVALID]},
    "raw": {"additional_kwargs": {"tool_calls": [{"id": "x", "function": {}}]}},
    "legacy": {"additional_kwargs": {"function_call": {"name": "ls"}}},
    "finish reason": {"response_metadata": {"finish_reason": "tool_calls"}},
    "legacy reason": {"response_metadata": {"finish_reason": "function_call"}},
    "stop reason": {"response_metadata": {"stop_reason": "tool_use"}},
}


@pytest.mark.parametrize("kind", INTENTS)
async def test_an_intent_to_use_tools_is_no_end(kind: str) -> None:
    on = turn([HUMAN, WRITTEN, RESULT], values={"todos": TODOS})
    await model_call(Todos(), on, Asked(AIMessage(content="", id="a", **INTENTS[kind])))
    assert on.decided() == []


@pytest.mark.parametrize("reason", ["stop", "length", "end_turn", None])
def test_other_reasons_are_an_end(reason: str | None) -> None:
    assert is_final({"type": "ai", "content": "x", "response_metadata": {"finish_reason": reason}})


async def answer(on: Attempt, number: int) -> bool:
    """One final answer, recorded: whether the run goes on after it."""
    message = await model_call(Todos(), on, Asked(AIMessage("Finished!", id=f"a{number}")))
    decisions = on.decided()
    await on.journal.model_completed(ModelCompleted(message=dump(message), decisions=decisions))
    return any(decision.again for decision in decisions)


async def work(on: Attempt, number: int) -> None:
    call = {"name": "ls", "args": {}, "id": f"c{number}"}
    await on.journal.model_completed(
        ModelCompleted(message={"type": "ai", "id": f"w{number}", "content": "", "tool_calls": [call]})
    )
    done = {"type": "tool", "id": f"t{number}", "content": "ok", "tool_call_id": call["id"]}
    await on.journal.tool_completed(ToolCompleted(call_id=f"c{number}", message=done))


async def test_twice_and_no_more() -> None:
    on = turn([HUMAN, WRITTEN, RESULT], values={"todos": TODOS})
    went_on = []
    for number in range(4):
        await work(on, 2 * number)
        went_on.append(await answer(on, 2 * number + 1))
    assert went_on == [True, True, False, False]


async def test_a_compaction_does_not_make_it_forget() -> None:
    on = turn([HUMAN, WRITTEN, RESULT], values={"todos": TODOS})
    assert [await answer(on, 1), await answer(on, 2)] == [True, True]

    async def compacted() -> ContextCompacted:
        return ContextCompacted(summary=HUMAN | {"id": "s", "name": "summary"}, kept=[])

    await on.journal.fact(ContextCompacted, "", compacted)
    await work(on, 3)
    assert not await answer(on, 4)


async def test_a_person_who_speaks_begins_anew() -> None:
    on = turn([HUMAN, WRITTEN, RESULT], values={"todos": TODOS})
    assert [await answer(on, number) for number in range(3)] == [True, True, False]

    async def steered() -> MessageAdded:
        return MessageAdded(messages=[HUMAN | {"id": "h2"}])

    await on.journal.fact(MessageAdded, "", steered)
    assert await answer(on, 3)


# ── the tool ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("names", "denied"),
    [(["write_todos"], False), (["write_todos", "ls"], False), (["write_todos", "write_todos"], True)],
    ids=["one", "one of two", "two"],
)
async def test_one_list_at_a_time(names: list[str], denied: bool) -> None:
    calls = [{"name": name, "args": {}, "id": f"c{number}"} for number, name in enumerate(names)]
    on = turn([HUMAN, {"type": "ai", "id": "w", "content": "", "tool_calls": calls}])
    for number, name in enumerate(names):
        result, executed = await tool_call(Todos(), on, name, call_id=f"c{number}")
        assert isinstance(result, ToolMessage)
        assert (result.status == "error", executed == []) == (denied, denied)
        assert result.text.startswith("Error: ") == denied
        assert [decision.action for decision in on.decided(f"c{number}")] == (["denied"] if denied else [])


def test_what_is_no_todo_is_left_out() -> None:
    odd: list[Any] = [
        None,
        "x",
        {},
        {"content": "a"},
        {"content": "a", "status": "lost"},
        {"content": 1, "status": "pending"},
    ]
    assert todos_of(turn(values={"todos": [*odd, *TODOS]}).state) == TODOS
