"""Threads and their states: made, found, read at any time, written, forked, deleted."""

from __future__ import annotations

from typing import Any

import pytest

from core.events import ModelCompleted, RunFailed, RunRolledBack
from tests.channels.http.conftest import Api, Worker
from tests.channels.http.story import ai, call, started

pytestmark = pytest.mark.anyio


async def test_create_get_patch_delete(api: Api) -> None:
    made = await api.ask("POST", "/threads", {"thread_id": "t-1", "metadata": {"a": 1, "user_id": "evil"}})
    assert (made["thread_id"], made["status"], made["metadata"], made["values"]) == ("t-1", "idle", {"a": 1}, {})
    assert made["created_at"].endswith("+00:00")
    assert await api.ask("POST", "/threads", {"thread_id": "t-1"}) == made
    assert await api.ask("POST", "/threads", {"thread_id": "t-1", "if_exists": "do_nothing"}) == made
    await api.ask("POST", "/threads", {"thread_id": "t-1", "if_exists": "raise"}, status=409)
    patched = await api.ask("PATCH", "/threads/t-1", {"metadata": {"b": [1, None]}})
    assert patched["metadata"] == {"a": 1, "b": [1, None]}
    assert patched["updated_at"] > made["updated_at"]
    await api.ask("PATCH", "/threads/t-1", {"metadata": {}}, status=204, headers={"Prefer": "return=minimal"})
    assert await api.ask("GET", "/threads/t-1") == patched
    for _ in range(2):
        await api.ask("DELETE", "/threads/t-1", status=204)
    await api.ask("GET", "/threads/t-1", status=404)
    await api.ask("POST", "/threads", {"thread_id": "t-1"}, status=409)


async def test_create_with_supersteps(api: Api) -> None:
    steps = [{"updates": [{"values": {"messages": ["hi"]}, "as_node": "__start__"}]}]
    steps += [{"updates": [{"values": {"messages": [["ai", "hello"]]}, "as_node": "model"}]}]
    made = await api.ask("POST", "/threads", {"supersteps": steps})
    assert [(m["type"], m["content"]) for m in made["values"]["messages"]] == [("human", "hi"), ("ai", "hello")]


async def test_search_and_count(api: Api, worker: Worker) -> None:
    for number in range(5):
        await api.ask(
            "POST", "/threads", {"thread_id": f"t-{number}", "metadata": {"odd": number % 2 == 1, "n": number}}
        )
    assert [t["thread_id"] for t in await api.ask("POST", "/threads/search", {"metadata": {"odd": True}})] == [
        "t-3",
        "t-1",
    ]
    ask = {"limit": 2, "offset": 1, "sort_by": "thread_id", "sort_order": "asc", "select": ["thread_id", "metadata"]}
    async with api.session.post(f"{api.url}/api/threads/search", json=ask) as response:
        assert response.headers["X-Pagination-Total"] == "5"
        assert response.headers["X-Pagination-Next"] == "3"
        assert await response.json() == [
            {"thread_id": "t-1", "metadata": {"odd": True, "n": 1}},
            {"thread_id": "t-2", "metadata": {"odd": False, "n": 2}},
        ]
    assert await api.ask("POST", "/threads/count", {}) == 5
    assert await api.ask("POST", "/threads/count", {"metadata": {"odd": False}}) == 3
    assert await api.ask("POST", "/threads/search", {"ids": ["t-4", "nope"], "status": "idle"}) != []
    await api.ask("POST", "/threads/t-2/state", {"values": {"title": "Named"}})
    [named] = await api.ask("POST", "/threads/search", {"ids": ["t-2"]})
    assert named["values"] == {"title": "Named"}
    await api.ask("DELETE", "/threads/t-2", status=204)
    assert await api.ask("POST", "/threads/count") == 4


@pytest.mark.parametrize(
    "ask",
    [
        {"limit": 0},
        {"limit": 1001},
        {"offset": -1},
        {"sort_by": "colour"},
        {"status": "odd"},
        {"metadata": {"a.b": 1}},
        {"metadata": {"a": {"b": 1}}},
        {"values": {"x": 1}},
    ],
)
async def test_search_refuses(api: Api, ask: Any) -> None:
    await api.ask("POST", "/threads/search", ask, status=422)


async def test_the_search_rows_can_be_rebuilt(api: Api) -> None:
    await api.thread()
    assert await api.ask("POST", "/threads/count") == 1
    assert await api.ask("POST", "/projections/rebuild", status=202)


async def test_runs_move_the_thread(api: Api, worker: Worker) -> None:
    made = await api.ask("POST", "/threads", {})
    thread = made["thread_id"]
    run = await api.run(thread)
    assert (await api.ask("GET", f"/threads/{thread}"))["status"] == "busy"
    await worker.write(thread, run, started(), RunFailed(error="E", text="broke"))
    failed = await api.ask("GET", f"/threads/{thread}")
    assert failed["status"] == "error"
    assert failed["error"] == {"error": "E", "message": "broke"}
    assert failed["updated_at"] > made["updated_at"]
    state = await api.ask("GET", f"/threads/{thread}/state")
    assert (state["next"], state["tasks"][-1]["error"]) == (["model"], "E: broke")


async def test_state_of_an_empty_thread(api: Api) -> None:
    thread = await api.thread()
    state = await api.ask("GET", f"/threads/{thread}/state?subgraphs=true")
    assert (state["values"], state["next"], state["tasks"], state["checkpoint"]) == ({}, [], [], None)
    assert await api.ask("POST", f"/threads/{thread}/history", {}) == []


async def test_state_and_history(api: Api, worker: Worker) -> None:
    thread = await api.thread()
    run = await api.run(thread, metadata={"m": 1})
    await worker.perform(thread, run)
    state = await api.ask("GET", f"/threads/{thread}/state")
    assert [m["type"] for m in state["values"]["messages"]] == ["human", "ai"]
    assert (state["next"], state["tasks"], state["interrupts"]) == ([], [], [])
    assert state["metadata"] == {"source": "loop", "step": 0, "parents": {}, "run_id": run, "thread_id": thread, "m": 1}
    history = await api.ask("GET", f"/threads/{thread}/history")
    assert history[0] == state
    assert [len(one["values"]["messages"]) for one in history] == [2, 1]
    assert history[0]["parent_checkpoint"] == history[1]["checkpoint"]
    assert history[1]["parent_checkpoint"] is None
    assert history[1]["next"] == ["model"]
    newest, oldest = (one["checkpoint_id"] for one in history)
    assert await api.ask("GET", f"/threads/{thread}/state/{oldest}") == history[1]
    body = {"checkpoint": history[1]["checkpoint"], "subgraphs": True}
    assert await api.ask("POST", f"/threads/{thread}/state/checkpoint", body) == history[1]
    for before in (newest, {"checkpoint_id": newest}, {"configurable": {"checkpoint_id": newest}}):
        assert await api.ask("POST", f"/threads/{thread}/history", {"before": before}) == history[1:]
    assert await api.ask("GET", f"/threads/{thread}/history?before={newest}&limit=5") == history[1:]
    assert await api.ask("POST", f"/threads/{thread}/history", {"limit": 1}) == history[:1]
    assert await api.ask("POST", f"/threads/{thread}/history", {"metadata": {"source": "input"}}) == history[1:]
    ask = {"checkpoint": {"checkpoint_id": oldest}}
    assert await api.ask("POST", f"/threads/{thread}/history", ask) == history[1:]
    await api.ask("POST", f"/threads/{thread}/history", {"limit": 0}, status=422)
    await api.ask("POST", f"/threads/{thread}/history", {"before": "x"}, status=422)
    for unknown in ("1", "abc", "99999999999999999999"):
        await api.ask("GET", f"/threads/{thread}/state/{unknown}", status=404)


async def test_writing_state_runs_the_reducers(api: Api) -> None:
    thread = await api.thread()
    path = f"/threads/{thread}/state"
    await api.ask("POST", path, {"values": {"messages": [{"role": "user", "content": "a", "id": "1"}], "title": "T"}})
    await api.ask(
        "POST", path, {"values": {"messages": [{"type": "ai", "content": "b", "id": "2"}]}, "as_node": "model"}
    )
    await api.ask("POST", path, {"values": {"messages": [{"type": "human", "content": "A", "id": "1"}]}})
    made = await api.ask("POST", path, {"values": {"messages": [{"type": "remove", "id": "2"}]}})
    state = await api.ask("GET", path)
    assert [(m["id"], m["content"]) for m in state["values"]["messages"]] == [("1", "A")]
    assert state["values"]["title"] == "T"
    assert made["checkpoint"] == state["checkpoint"] == made["configurable"]
    assert state["metadata"]["source"] == "update"
    error = await api.ask("POST", path, {"values": {"messages": ["ok", {"role": "king", "content": ""}]}}, status=400)
    assert "values.messages[1]" in error["detail"]


async def test_forking_by_state_and_by_run(api: Api, worker: Worker) -> None:
    thread = await api.thread()
    await worker.perform(thread, await api.run(thread), "one")
    first = await api.ask("GET", f"/threads/{thread}/state")
    await worker.perform(thread, await api.run(thread), "two")
    second = await api.ask("GET", f"/threads/{thread}/state")
    body = {"values": {"title": "fork"}, "checkpoint_id": first["checkpoint_id"]}
    forked = await api.ask("POST", f"/threads/{thread}/state", body)
    state = await api.ask("GET", f"/threads/{thread}/state")
    assert state["checkpoint"] == forked["checkpoint"]
    assert state["parent_checkpoint"] == first["checkpoint"]
    assert [m["content"] for m in state["values"]["messages"]] == ["hi", "one"]
    history = await api.ask("POST", f"/threads/{thread}/history", {})
    assert [one["checkpoint_id"] for one in history][:2] == [state["checkpoint_id"], second["checkpoint_id"]]
    run = await api.run(thread, checkpoint={"checkpoint_id": second["checkpoint_id"], "checkpoint_ns": ""}, input=None)
    await worker.start(thread, run)
    head = await api.ask("GET", f"/threads/{thread}/history?limit=1")
    assert head[0]["checkpoint_id"] == second["checkpoint_id"]
    await worker.finish(thread, run, "three")
    state = await api.ask("GET", f"/threads/{thread}/state")
    assert [m["content"] for m in state["values"]["messages"]] == ["hi", "one", "hi", "two", "three"]
    await api.ask("POST", f"/threads/{thread}/state", {"values": {}, "checkpoint_id": "7777777"}, status=422)


async def test_messages_cannot_be_changed_under_a_run(api: Api, worker: Worker) -> None:
    thread = await api.thread()
    run = await api.run(thread)
    await worker.start(thread, run)
    await api.ask("POST", f"/threads/{thread}/state", {"values": {"messages": ["x"]}}, status=409)
    await api.ask("POST", f"/threads/{thread}/state", {"values": {"title": "x"}})


async def test_open_tool_calls_are_what_comes_next(api: Api, worker: Worker) -> None:
    thread = await api.thread()
    run = await api.run(thread)
    await worker.write(thread, run, started(), ModelCompleted(message=ai("m", "", call("c1", "t"), call("c2", "t"))))
    state = await api.ask("GET", f"/threads/{thread}/state")
    assert [(task["id"], task["name"]) for task in state["tasks"]] == [("c1", "tools"), ("c2", "tools")]


async def test_what_was_rolled_back_is_not_in_the_history(api: Api, worker: Worker) -> None:
    thread = await api.thread()
    await worker.perform(thread, await api.run(thread), "one")
    before = await api.ask("GET", f"/threads/{thread}/history")
    run = await api.run(thread)
    await worker.start(thread, run)
    await api.ask("POST", f"/threads/{thread}/runs/{run}/cancel?action=rollback", status=202)
    await worker.write(thread, run, RunRolledBack())
    assert await api.ask("GET", f"/threads/{thread}/history") == before
