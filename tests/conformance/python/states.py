"""The state of a thread: now, then, and written from outside."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

import httpx

from tests.conformance.python.lab import AGENT, Lab, case, contents, raises, table

MESSAGE = {"type", "id", "content", "additional_kwargs", "response_metadata", "name"}


def human(text: str, identity: str | None = None) -> dict[str, Any]:
    return {"type": "human", "content": text, **({"id": identity} if identity else {})}


async def state(lab: Lab, thread: str, **more: Any) -> Any:
    return await lab.client.threads.get_state(thread, **more)


async def history(lab: Lab, thread: str, **more: Any) -> Any:
    return await lab.client.threads.get_history(thread, **more)


async def two_turns(lab: Lab) -> tuple[str, Any]:
    """A thread, and its history."""
    thread, _ = await lab.said(text="One")
    await lab.said(thread=thread, text="Two")
    return thread, await history(lab, thread, limit=100)


@case
async def of_an_empty_thread(lab: Lab) -> None:
    thread = await lab.thread()
    found = await state(lab, thread)
    assert (found["values"], found["next"], found["tasks"], found["checkpoint"]) == ({}, [], [], None)
    assert await history(lab, thread) == []


@case
async def of_an_unknown_thread(lab: Lab) -> None:
    unknown = str(uuid.uuid4())
    for work in (
        state(lab, unknown),
        state(lab, unknown, checkpoint_id="1"),
        history(lab, unknown),
        lab.client.threads.update_state(unknown, {"title": "T"}),
    ):
        error = await raises(httpx.HTTPStatusError, work)
        assert error.response.status_code == 404


@case
async def after_a_run(lab: Lab) -> None:
    thread, values = await lab.said("works")
    found = await state(lab, thread)
    assert found["values"] == values
    assert (found["next"], found["tasks"], found["interrupts"]) == ([], [], [])
    assert found["checkpoint"]["thread_id"] == thread
    assert found["checkpoint"]["checkpoint_ns"] == ""
    assert found["checkpoint"]["checkpoint_id"] == found["checkpoint_id"]
    assert found["parent_checkpoint"]["checkpoint_id"] == found["parent_checkpoint_id"]
    [run] = await lab.client.runs.list(thread)
    metadata = found["metadata"]
    assert (metadata["source"], metadata["run_id"], metadata["thread_id"]) == ("loop", run["run_id"], thread)
    assert isinstance(metadata["step"], int)
    assert metadata["parents"] == {}
    assert datetime.fromisoformat(found["created_at"]).tzinfo is not None


@case
async def messages_are_dumps(lab: Lab) -> None:
    _, values = await lab.said("works")
    asked, calling, first, second, last = values["messages"]
    assert all(set(message) >= MESSAGE and message["id"] for message in values["messages"])
    assert [message["type"] for message in values["messages"]] == ["human", "ai", "tool", "tool", "ai"]
    assert asked["content"].startswith("Hi")
    for message in (calling, last):
        assert message["invalid_tool_calls"] == []
        assert message["usage_metadata"]["total_tokens"] > 0
    assert [(call["name"], call["args"]) for call in calling["tool_calls"]] == [
        ("note", {"text": "a"}),
        ("note", {"text": "b"}),
    ]
    assert {first["tool_call_id"], second["tool_call_id"]} == {call["id"] for call in calling["tool_calls"]}
    assert {first["content"], second["content"]} == {"noted a", "noted b"}
    assert (first["status"], "artifact" in first) == ("success", True)
    assert last["tool_calls"] == []


@case
async def at_a_checkpoint(lab: Lab) -> None:
    thread, past = await two_turns(lab)
    for one in past:
        identity = one["checkpoint"]["checkpoint_id"]
        assert await state(lab, thread, checkpoint_id=identity) == one
        assert await state(lab, thread, checkpoint=one["checkpoint"]) == one
        assert await lab.ask("GET", f"/threads/{thread}/state/{identity}") == one
    subgraphs = await lab.ask("GET", f"/threads/{thread}/state", params={"subgraphs": "true"})
    assert subgraphs == past[0]
    await lab.ask("GET", f"/threads/{thread}/state/{uuid.uuid4()}", status=404)


@case
async def through_time(lab: Lab) -> None:
    """Newest first, one per checkpoint, chained through their parents."""
    thread, past = await two_turns(lab)
    assert [len(contents(one["values"])) for one in past] == [4, 3, 2, 1, 0]
    assert [one["parent_checkpoint"] for one in past[:-1]] == [one["checkpoint"] for one in past[1:]]
    assert past[-1]["parent_checkpoint"] is None
    assert len({one["checkpoint"]["checkpoint_id"] for one in past}) == len(past)
    assert [one["created_at"] for one in past] == sorted((one["created_at"] for one in past), reverse=True)
    assert past[0] == await state(lab, thread)
    # What would be done next at each.
    assert [bool(one["next"]) for one in past] == [False, True, False, True, True]
    assert [one["metadata"]["source"] for one in past] == ["loop", "input", "loop", "input", "input"]


@case
async def through_time_in_parts(lab: Lab) -> None:
    thread, past = await two_turns(lab)
    assert await history(lab, thread, limit=1) == past[:1]
    shapes: tuple[Any, ...] = (
        past[1]["checkpoint"]["checkpoint_id"],
        past[1]["checkpoint"],
        {"configurable": {"checkpoint_id": past[1]["checkpoint"]["checkpoint_id"]}},
    )
    for before in shapes:
        assert await history(lab, thread, before=before) == past[2:], before
        body = {"before": before, "limit": 1}
        assert await lab.ask("POST", f"/threads/{thread}/history", body) == past[2:3], before
    got = await lab.ask("GET", f"/threads/{thread}/history", params={"limit": 2, "before": shapes[0]})
    assert got == past[2:4]


@case
async def through_time_of_one_kind(lab: Lab) -> None:
    thread, past = await two_turns(lab)
    inputs = [one for one in past if one["metadata"]["source"] == "input"]
    assert await history(lab, thread, metadata={"source": "input"}) == inputs
    run = past[0]["metadata"]["run_id"]
    mine = [one for one in past if one["metadata"]["run_id"] == run]
    assert await history(lab, thread, metadata={"run_id": run}) == mine
    assert await history(lab, thread, metadata={"source": "nowhere"}) == []
    assert await history(lab, thread, checkpoint=past[2]["checkpoint"]) == past[2:]


@table(("limit", 0), ("limit", -3), ("before", "no-such"), ("before", {"configurable": {"checkpoint_id": "no"}}))
async def through_time_refuses(lab: Lab, name: str, value: Any) -> None:
    thread = await lab.thread()
    response = await lab.http.post(f"/threads/{thread}/history", json={name: value})
    assert response.status_code in ((422,) if name == "limit" else (200, 404, 422))


@case
async def write_messages(lab: Lab) -> None:
    """The reducer appends; a known id replaces; `remove` takes away."""
    thread, values = await lab.said()
    before = await state(lab, thread)
    answer: Any = await lab.client.threads.update_state(thread, {"messages": [human("more", "h2")]})
    after = await state(lab, thread)
    assert answer["checkpoint"] == after["checkpoint"]
    assert after["parent_checkpoint"] == before["checkpoint"]
    assert after["metadata"]["source"] == "update"
    assert after["values"]["messages"][:-1] == values["messages"]
    assert (after["values"]["messages"][-1]["id"], after["values"]["messages"][-1]["content"]) == ("h2", "more")
    await lab.client.threads.update_state(thread, {"messages": [human("other", "h2")]})
    assert contents((await state(lab, thread))["values"])[2:] == ["other"]
    gone = {"type": "remove", "id": values["messages"][0]["id"], "content": ""}
    await lab.client.threads.update_state(thread, {"messages": [gone]})
    assert contents((await state(lab, thread))["values"]) == ["Hello to you, too.", "other"]


@case
async def write_a_title(lab: Lab) -> None:
    """DeerFlow's rename."""
    thread, values = await lab.said()
    await lab.client.threads.update_state(thread, values={"title": "A better one"})
    found = await state(lab, thread)
    assert found["values"]["title"] == "A better one"
    assert found["values"]["messages"] == values["messages"]
    assert (await lab.client.threads.get(thread))["values"]["title"] == "A better one"


@case
async def write_on_an_empty_thread(lab: Lab) -> None:
    thread = await lab.thread()
    await lab.client.threads.update_state(thread, {"messages": [human("first")]}, as_node="__start__")
    found = await state(lab, thread)
    assert contents(found["values"]) == ["first"]
    assert found["values"]["messages"][0]["id"]
    assert found["next"] == ["model"]
    values: Any = await lab.client.runs.wait(thread, AGENT, input=None, context=lab.asked()["context"])
    assert contents(values) == ["first", "Hello to you, too."]


@case
async def write_as_a_node(lab: Lab) -> None:
    thread = await lab.thread()
    said = {"messages": [human("q"), {"type": "ai", "content": "a"}]}
    await lab.client.threads.update_state(thread, said, as_node="model")
    assert (await state(lab, thread))["next"] == []


@table(("checkpoint_id",), ("checkpoint",))
async def write_on_an_old_one(lab: Lab, how: str) -> None:
    """A fork: its parent is the old checkpoint, and it is the head."""
    thread, past = await two_turns(lab)
    base = past[2]
    where = {how: base["checkpoint"]["checkpoint_id"] if how == "checkpoint_id" else base["checkpoint"]}
    await lab.client.threads.update_state(thread, {"messages": [human("elsewhere")]}, **where)
    head = await state(lab, thread)
    assert head["parent_checkpoint"] == base["checkpoint"]
    assert contents(head["values"], lab.mark) == ["One", "Hello to you, too.", "elsewhere"]
    every = await history(lab, thread, limit=100)
    assert every[0] == head
    assert {one["checkpoint"]["checkpoint_id"] for one in every} > {one["checkpoint"]["checkpoint_id"] for one in past}


@case
async def run_from_an_old_one(lab: Lab) -> None:
    """Edit and run again: the new branch is the head, the old one stays in the history."""
    thread, past = await two_turns(lab)
    base = past[2]["checkpoint"]
    for where in (
        {"checkpoint_id": base["checkpoint_id"]},
        {"checkpoint": {"checkpoint_id": base["checkpoint_id"], "checkpoint_ns": ""}},
        {"config": {"configurable": {"checkpoint_id": base["checkpoint_id"]}}},
    ):
        asked = {**lab.asked(text="Other"), **where}
        if "config" in where:
            asked["config"]["configurable"] |= asked.pop("context")
        values: Any = await lab.client.runs.wait(thread, AGENT, **asked)
        assert contents(values, lab.mark) == ["One", "Hello to you, too.", "Other", "Hello to you, too."]
        head = await state(lab, thread)
        assert head["values"]["messages"] == values["messages"]
        assert head["parent_checkpoint"]["checkpoint_id"] != base["checkpoint_id"]
        branch = await state(lab, thread, checkpoint_id=head["parent_checkpoint"]["checkpoint_id"])
        assert branch["parent_checkpoint"] == base
    every = await history(lab, thread, limit=100)
    assert sum(one["parent_checkpoint"] == base for one in every) == 4


@case
async def edit_the_first_message(lab: Lab) -> None:
    """From the parent of the state that first shows it."""
    thread, past = await two_turns(lab)
    [first] = [one for one in past if len(contents(one["values"])) == 1]
    values: Any = await lab.client.runs.wait(
        thread, AGENT, checkpoint=first["parent_checkpoint"], **lab.asked(text="Other")
    )
    assert contents(values, lab.mark) == ["Other", "Hello to you, too."]
    assert (await state(lab, thread))["values"]["messages"] == values["messages"]


@case
async def replay_from_an_old_one(lab: Lab) -> None:
    """Regenerate: no input, from the checkpoint before the answer."""
    thread, past = await two_turns(lab)
    question = past[1]
    assert question["next"] == ["model"]
    values: Any = await lab.client.runs.wait(
        thread, AGENT, input=None, checkpoint=question["checkpoint"], context={"model_name": "thinks"}
    )
    assert contents(values, lab.mark) == ["One", "Hello to you, too.", "Two", "It is so."]
    head = await state(lab, thread)
    assert head["parent_checkpoint"] == question["checkpoint"]
    siblings = [
        one for one in await history(lab, thread, limit=100) if one["parent_checkpoint"] == question["checkpoint"]
    ]
    assert len(siblings) == 2


@case
async def a_turn_on_the_head_is_a_turn(lab: Lab) -> None:
    """`useStream` names the head it knows with every submit; what was written since is left on the other branch."""
    thread, past = await two_turns(lab)
    asked = lab.asked(text="Three")
    await lab.client.runs.wait(thread, AGENT, checkpoint=past[0]["checkpoint"], **asked)
    every = await history(lab, thread, limit=100)
    assert len(await lab.texts(thread)) == 6
    assert every[1]["parent_checkpoint"] == past[0]["checkpoint"]
    await lab.client.threads.update_state(thread, {"title": "Renamed"})
    await lab.client.runs.wait(thread, AGENT, checkpoint=every[0]["checkpoint"], **asked)
    found = await state(lab, thread)
    assert len(contents(found["values"])) == 8
    assert not found["values"].get("title")


@case
async def keep_the_ids_of_the_client(lab: Lab) -> None:
    thread = await lab.thread()
    mine, blocks = str(uuid.uuid4()), [{"type": "text", "text": "in blocks"}]
    inputs = (
        {"role": "user", "content": "by role", "id": mine},
        {"type": "human", "content": blocks, "id": mine + "b", "additional_kwargs": {"files": [{"name": "a.txt"}]}},
    )
    values: Any = await lab.client.runs.wait(
        thread, AGENT, input={"messages": list(inputs)}, context={"model_name": "hello"}
    )
    first, second, _ = values["messages"]
    assert (first["type"], first["id"], first["content"]) == ("human", mine, "by role")
    assert (second["id"], second["content"]) == (mine + "b", blocks)
    assert second["additional_kwargs"]["files"] == [{"name": "a.txt"}]


@case
async def a_lone_string_is_a_message(lab: Lab) -> None:
    """Inputs that LangChain's own conversion takes."""
    values = await lab.ask(
        "POST",
        "/runs/wait",
        {"assistant_id": AGENT, "input": {"messages": "just text"}, "context": {"model_name": "hello"}},
    )
    assert contents(values) == ["just text", "Hello to you, too."]
