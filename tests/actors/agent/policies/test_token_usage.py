"""What the tokens of an answer were spent on."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, ToolCall

from actors.agent.policies.interaction.token_usage import TokenUsage, attribution
from core.events import Json
from tests.actors.agent.turns import Asked, model_call, turn

pytestmark = pytest.mark.anyio

BEFORE = [
    {"content": "read", "status": "in_progress"},
    {"content": "write", "status": "pending"},
    {"content": "send", "status": "pending"},
]


def call(name: str, identity: str = "c1", **args: Any) -> ToolCall:
    return {"name": name, "args": args, "id": identity, "type": "tool_call"}


def todos(*pairs: tuple[str, str]) -> ToolCall:
    return call("write_todos", todos=[{"content": content, "status": status} for content, status in pairs])


def of(*calls: ToolCall, content: Any = "") -> Json:
    return attribution(AIMessage(content=content, tool_calls=list(calls)), BEFORE)


@pytest.mark.parametrize(
    ("content", "calls", "kind"),
    [
        ("Done.", [], "final_answer"),
        ([{"type": "text", "text": "Done."}], [], "final_answer"),
        ("", [], "thinking"),
        (" \n", [], "thinking"),
        ([{"type": "reasoning", "reasoning": "hm"}], [], "thinking"),
        ("First I look.", [call("ls")], "tool_batch"),
        ("", [call("ls"), call("write_todos", "c2")], "tool_batch"),
        ("", [todos(("read", "completed"))], "todo_update"),
        ("", [todos(*((one["content"], one["status"]) for one in BEFORE))], "todo_update"),
        ("", [call("task")], "subagent_dispatch"),
        ("", [call("task"), call("task", "c2")], "subagent_dispatch"),
        ("", [call("task"), call("ls", "c2")], "tool_batch"),
    ],
)
def test_kind(content: Any, calls: list[ToolCall], kind: str) -> None:
    purpose = of(*calls, content=content)
    assert (purpose["version"], purpose["kind"]) == (1, kind)
    assert purpose["tool_call_ids"] == [one["id"] for one in calls]


@pytest.mark.parametrize(
    ("made", "action"),
    [
        (call("bash", description="look", command="ls"), {"kind": "tool", "tool_name": "bash", "description": "look"}),
        (call("bash", description=7), {"kind": "tool", "tool_name": "bash"}),
        (call("web_search", query="q"), {"kind": "search", "tool_name": "web_search", "query": "q"}),
        (call("image_search", query="q"), {"kind": "search", "tool_name": "image_search", "query": "q"}),
        (
            call("task", description="dig", prompt="p", subagent_type="bash"),
            {"kind": "subagent", "description": "dig", "subagent_type": "bash"},
        ),
        (call("present_files", filepaths=["/a"]), {"kind": "present_files"}),
        (call("ask_clarification", question="?"), {"kind": "clarification"}),
    ],
    ids=lambda value: value.get("name", ""),
)
def test_actions(made: ToolCall, action: Json) -> None:
    purpose = of(made)
    assert purpose["actions"] == [{**action, "tool_call_id": "c1"}]
    assert purpose["shared_attribution"] is False


@pytest.mark.parametrize(
    ("after", "actions"),
    [
        ([("read", "completed"), ("write", "in_progress"), ("send", "pending")], "complete read, start write"),
        ([("read", "pending"), ("write", "pending"), ("send", "pending")], "update read"),
        ([("read", "in_progress"), ("send", "pending")], "remove write"),
        ([("send", "pending"), ("write", "pending"), ("read", "in_progress")], ""),
        ([("read", "in_progress"), ("write", "pending"), ("send", "pending"), ("sing", "pending")], "update sing"),
        (
            [("read", "in_progress"), ("read", "in_progress"), ("write", "pending"), ("send", "pending")],
            "start read",
        ),
        ([], "remove read, remove write, remove send"),
    ],
    ids=["finish", "back", "remove", "reorder", "add", "twice", "clear"],
)
def test_todo_actions(after: list[tuple[str, str]], actions: str) -> None:
    purpose = of(todos(*after))
    changes = [f"{action['kind'].removeprefix('todo_')} {action['content']}" for action in purpose["actions"]]
    assert ", ".join(changes) == actions
    assert {action["tool_call_id"] for action in purpose["actions"]} <= {"c1"}
    assert purpose["shared_attribution"] == (len(changes) > 1)


@pytest.mark.parametrize("given", [None, "read", [1, {}, {"content": 3}]], ids=["none", "text", "odd"])
def test_todos_that_are_none(given: Any) -> None:
    purpose = attribution(AIMessage("", tool_calls=[call("write_todos", todos=given)]), [])
    assert (purpose["kind"], purpose["actions"]) == ("todo_update", [])


async def test_it_is_written_on_the_answer() -> None:
    message = AIMessage(
        "", id="a", tool_calls=[todos(("read", "completed"))], additional_kwargs={"reasoning_content": "hm"}
    )
    before = message.model_copy(deep=True)
    answer = await model_call(TokenUsage(), turn(values={"todos": BEFORE[:1]}), Asked(message))
    assert message == before
    assert (answer.id, answer.tool_calls) == ("a", message.tool_calls)
    assert answer.additional_kwargs == {
        "reasoning_content": "hm",
        "token_usage_attribution": {
            "version": 1,
            "kind": "todo_update",
            "shared_attribution": False,
            "tool_call_ids": ["c1"],
            "actions": [{"kind": "todo_complete", "content": "read", "tool_call_id": "c1"}],
        },
    }
