"""Threads and their states: made, found, read at any time, written, forked, deleted."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from channels.http.protocols.langgraph import snapshots
from core.config.settings import Http
from core.events import (
    Interrupt,
    ModelCompleted,
    RunCancelled,
    RunFailed,
    RunPaused,
    RunRolledBack,
    StatePatched,
    thread,
)
from core.ids import uuid7
from core.runtime.system import System
from core.thread.fold import fold
from core.thread.state import ThreadState
from core.thread.values import reduce
from tests.channels.http.conftest import Api, Settings, Worker, unnumbered
from tests.channels.http.story import Story, ai, call, human, started
from tests.support.nats import read

pytestmark = pytest.mark.anyio


@pytest.fixture
def roomy(config: Settings) -> Settings:
    """Bigger bodies. Ask for it before the server."""
    config.http = Http(heartbeat_seconds=0.2, max_body_bytes=10_000_000)
    return config


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


async def test_an_event_that_cannot_be_read_is_a_problem_of_its_thread_only(api: Api, system: System) -> None:
    """As an extension's of an earlier version may be: lists, states, runs and the deletion go on."""
    poisoned, other = await api.thread(), await api.thread()
    tip = await system.log.tip(thread(poisoned))
    head = {"id": uuid7(), "kind": "thread", "aggregate": poisoned, "actor": "x", "at": "2026-11-22T00:00:00+00:00"}
    mistyped = msgspec.json.encode({**head, "type": "thread.annotated", "metadata": 17})
    expected = {"Nats-Expected-Last-Subject-Sequence": str(tip), "Sika-Type": "thread.annotated"}
    await system.bus.ask(system.bus.names.log(thread(poisoned)), mistyped, expected)
    [problem] = (await api.ask("GET", f"/threads/{poisoned}"))["problems"]
    assert problem["seq"] == await system.log.tip(thread(poisoned))
    assert "Expected `object`, got `int`" in problem["text"]
    assert "problems" not in await api.ask("GET", f"/threads/{other}")
    found = {row["thread_id"] for row in await api.ask("POST", "/threads/search", {"limit": 100})}
    assert {poisoned, other} <= found
    await api.ask("GET", f"/threads/{poisoned}/state")
    await api.ask("POST", f"/threads/{poisoned}/history", {})
    await api.run(poisoned)
    await api.ask("DELETE", f"/threads/{poisoned}", status=204)
    await api.ask("GET", f"/threads/{poisoned}", status=404)


async def test_create_with_supersteps(api: Api) -> None:
    """Each update is a checkpoint, upon the one before it."""
    steps: list[Any] = [{"updates": [{"values": {"messages": ["hi"]}, "as_node": "__start__"}]}]
    steps += [
        {"updates": [{"values": {"messages": [["ai", "hello"]]}, "as_node": "model"}, {"values": {"title": "T"}}]}
    ]
    steps += [{"updates": [{"values": None, "command": {"update": {"artifacts": ["/a"]}}, "as_node": "tools"}]}]
    made = await api.ask("POST", "/threads", {"supersteps": steps, "metadata": {"a": 1}, "ttl": 5})
    assert [(m["type"], m["content"]) for m in made["values"]["messages"]] == [("human", "hi"), ("ai", "hello")]
    assert (made["values"]["title"], made["values"]["artifacts"], made["metadata"]) == ("T", ["/a"], {"a": 1})
    history = await api.ask("GET", f"/threads/{made['thread_id']}/history")
    assert [one["metadata"]["step"] for one in history] == [3, 2, 1, 0]
    assert [one["parent_checkpoint_id"] for one in history] == [one["checkpoint_id"] for one in history[1:]] + [None]
    again = {"thread_id": made["thread_id"], "supersteps": steps}
    assert await api.ask("POST", "/threads", again) == made
    bad = [{"updates": [{"values": {"messages": [{"role": "king", "content": ""}]}}]}]
    error = await api.ask("POST", "/threads", {"thread_id": "t-bad", "supersteps": bad}, status=400)
    assert "supersteps.values.messages[0]" in error["detail"]
    await api.ask("GET", "/threads/t-bad", status=404)


async def test_many_supersteps(roomy: Settings, api: Api) -> None:
    """More than fit in one batch; among them some that are too big for the log."""
    texts = [str(number) + "x" * (66_000 * (number == 250)) for number in range(450)]
    steps = [{"updates": [{"values": {"messages": [human(f"m{n}", text)]}}]} for n, text in enumerate(texts)]
    made = await api.ask("POST", "/threads", {"supersteps": steps})
    assert [m["content"] for m in made["values"]["messages"]] == texts
    assert len(await api.ask("POST", f"/threads/{made['thread_id']}/history", {"limit": 1000})) == len(texts)


@pytest.mark.parametrize(
    "body",
    [
        {"metadata": {"a": "x" * 70_000}},
        {"ttl": 0},
        {"ttl": -1},
        {"ttl": 1e12},
        {"ttl": {"ttl": 5, "strategy": "explode"}},
        {"ttl": {"strategy": "delete"}},
        {"thread_id": "a/b"},
        {"thread_id": ""},
        {"supersteps": [{"updates": [{"values": {}, "as_node": ""}]}]},
    ],
)
async def test_create_refuses(api: Api, body: Any) -> None:
    await api.ask("POST", "/threads", body, status=422)


async def test_time_to_live(api: Api) -> None:
    made = await api.ask("POST", "/threads", {"ttl": {"ttl": 60, "strategy": "keep_latest"}})
    path = f"/threads/{made['thread_id']}"
    assert "ttl" not in await api.ask("GET", path)
    shown = await api.ask("GET", f"{path}?include=ttl")
    assert (shown["ttl"]["strategy"], shown["ttl"]["ttl_minutes"]) == ("keep_latest", 60.0)
    assert shown["updated_at"][:11] <= shown["ttl"]["expires_at"]
    await api.ask("PATCH", path, {"ttl": 1.5})
    shown = await api.ask("GET", f"{path}?include=other,ttl")
    assert (shown["ttl"]["strategy"], shown["ttl"]["ttl_minutes"]) == ("delete", 1.5)
    await api.ask("PATCH", path, {"metadata": {"a": 1}})
    assert (await api.ask("GET", f"{path}?include=ttl"))["ttl"]["ttl_minutes"] == 1.5
    await api.ask("PATCH", path, {"metadata": {}, "ttl": None})
    assert (await api.ask("GET", f"{path}?include=ttl"))["ttl"] is None
    await api.ask("PATCH", "/threads/nope", {"ttl": 5}, status=404)
    await api.ask("PATCH", path, {"ttl": "soon"}, status=422)


async def test_pruning(api: Api, worker: Worker, system: System) -> None:
    idle, busy, paused = [await api.thread() for _ in range(3)]
    for _ in range(2):
        await worker.perform(idle, await api.run(idle, metadata={"m": 1}), "x" * 70_000)
    await api.ask("PATCH", f"/threads/{idle}", {"metadata": {"a": 1}, "ttl": 7})
    await api.run(busy)
    run = await api.run(paused)
    await worker.write(paused, run, started(), RunPaused(next=["model"]))
    before = await api.ask("GET", f"/threads/{idle}")
    body = {"thread_ids": [idle, busy, paused, "nope", idle], "strategy": "keep_latest"}
    assert await api.ask("POST", "/threads/prune", body) == {"pruned_count": 1}
    assert await api.ask("POST", "/threads/prune", {**body, "thread_ids": [idle]}) == {"pruned_count": 1}
    after = await api.ask("GET", f"/threads/{idle}?include=ttl")
    assert unnumbered(after["values"]) == unnumbered(before["values"])
    for field in ("metadata", "created_at", "status"):
        assert after[field] == before[field]
    assert after["ttl"]["ttl_minutes"] == 7
    assert len(await api.ask("GET", f"/threads/{idle}/history")) == 1
    assert await api.ask("GET", f"/threads/{idle}/runs") == []
    records = await read(system.log, thread(idle))
    assert [record.type for record in records][-2:] == ["thread.pruned", "thread.expiry_set"]
    assert [len(m["content"]) for m in fold(records).messages] == [2, 70_000] * 2
    run = await api.run(idle)
    await worker.perform(idle, run)
    assert len((await api.ask("GET", f"/threads/{idle}"))["values"]["messages"]) == 6
    body = {"thread_ids": [idle, busy, paused, "nope"]}
    assert await api.ask("POST", "/threads/prune", body) == {"pruned_count": 2}
    for name, status in ((idle, 404), (busy, 200), (paused, 404)):
        await api.ask("GET", f"/threads/{name}", status=status)


@pytest.mark.parametrize(
    "body", [{}, {"thread_ids": ["a b"]}, {"thread_ids": [], "strategy": "x"}, {"thread_ids": ["t"] * 1001}]
)
async def test_pruning_refuses(api: Api, body: Any) -> None:
    await api.ask("POST", "/threads/prune", body, status=422)


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
    assert (state["next"], state["tasks"][-1]["error"]) == (["model"], "broke")


async def test_to_the_page_a_thread_that_is_not_there_is_empty(api: Api, worker: Worker) -> None:
    """DeerFlow's page reads it before it finds out; LangGraph's clients, at the other mount, are told."""
    await worker.system.intake.create_thread("theirs", user="somebody")
    gone = await api.thread()
    await api.ask("DELETE", f"/threads/{gone}", status=204)
    for name in ("never", gone):
        assert await api.ask("POST", f"/langgraph/threads/{name}/history", {"limit": 1}) == []
        # a proxy took the prefix away, so that only the page's address tells
        page_of = {"Referer": f"{api.url}/workspace/chats/{name}"}
        assert await api.ask("POST", f"/threads/{name}/history", {"limit": 1}, headers=page_of) == []
        assert await api.ask("GET", f"/threads/{name}/runs?limit=10", headers=page_of) == []
        await api.ask("GET", f"/threads/{name}/runs", status=404)
        page = await api.ask("GET", f"/threads/{name}/messages/page")
        nothing = dict.fromkeys(("next_before_seq", "checkpoint_id", "title", "goal"))
        assert page == {"data": [], "has_more": False, "runs": {}, **nothing}
        assert (await api.ask("GET", f"/threads/{name}/token-usage"))["total_runs"] == 0
        await api.ask("POST", f"/threads/{name}/history", {"limit": 1}, status=404)
        await api.ask("GET", f"/langgraph/threads/{name}", status=404)
    for method, path in (("POST", "history"), ("GET", "messages/page"), ("GET", "token-usage")):
        mount = "/langgraph" if path == "history" else ""
        await api.ask(method, f"{mount}/threads/theirs/{path}", {} if method == "POST" else None, status=404)


BAD = {"type": "ai", "id": "bad", "content": "x", "tool_calls": ["no call"]}
"""What an extension may write, and no client understands."""


async def test_a_message_that_no_client_understands_is_shown_without_what_is_wrong(api: Api, worker: Worker) -> None:
    thread = await api.thread()
    await worker.perform(thread, await api.run(thread))
    before = await api.ask("POST", f"/threads/{thread}/history", {})
    bad = {"messages": [BAD]}
    await worker.system.threads.decide(thread, lambda _: [StatePatched(values=bad)], actor="plugin")
    newest, *others = await api.ask("POST", f"/threads/{thread}/history", {})
    assert others == before
    assert (newest["values"]["messages"][-1]["id"], newest["values"]["messages"][-1]["tool_calls"]) == ("bad", [])
    assert newest["next"] == []
    assert newest["parent_checkpoint_id"] == before[0]["checkpoint_id"]


async def test_what_cannot_be_made_out_can_be_deleted(
    api: Api, system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    await system.intake.create_thread("theirs", user="somebody")
    thread = await api.thread()

    async def broken(*_: Any, **__: Any) -> ThreadState:
        raise TypeError("a fold with a defect")

    with monkeypatch.context() as patched:
        patched.setattr(system.threads, "load", broken)
        await api.ask("GET", f"/threads/{thread}", status=500)
        await api.ask("DELETE", "/threads/theirs", status=404)
        await api.ask("DELETE", f"/threads/{thread}", status=204)
    await api.ask("GET", f"/threads/{thread}", status=404)


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
    assert [len(one["values"]["messages"]) for one in history] == [2, 1, 0]
    assert [one["parent_checkpoint"] for one in history] == [*(one["checkpoint"] for one in history[1:]), None]
    assert [one["next"] for one in history] == [[], ["model"], ["__start__"]]
    assert [one["metadata"]["step"] for one in history] == [0, -1, -2]
    newest, oldest, root = (one["checkpoint_id"] for one in history)
    assert await api.ask("GET", f"/threads/{thread}/state/{oldest}") == history[1]
    body = {"checkpoint": history[1]["checkpoint"], "subgraphs": True}
    assert await api.ask("POST", f"/threads/{thread}/state/checkpoint", body) == history[1]
    for before in (newest, {"checkpoint_id": newest}, {"configurable": {"checkpoint_id": newest}}):
        assert await api.ask("POST", f"/threads/{thread}/history", {"before": before}) == history[1:]
    assert await api.ask("GET", f"/threads/{thread}/history?before={newest}&limit=5") == history[1:]
    assert await api.ask("POST", f"/threads/{thread}/history", {"limit": 1}) == history[:1]
    assert await api.ask("POST", f"/threads/{thread}/history", {"metadata": {"source": "input"}}) == history[1:]
    assert await api.ask("GET", f"/threads/{thread}/state/{root}") == history[2]
    assert await api.ask("POST", f"/threads/{thread}/history", {"before": oldest}) == history[2:]
    assert await api.ask("POST", f"/threads/{thread}/history", {"before": root}) == []
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


async def test_interrupts_are_everywhere(api: Api, worker: Worker) -> None:
    """In the thread, in the state and its tasks, in the history's newest entry; and gone when a run goes on."""
    thread = await api.thread()
    run = await api.run(thread)
    asked = Interrupt("i1", {"question": "proceed?"}, "c1")
    calls = (call("c1", "ask"), call("c2", "ask"))
    await worker.write(thread, run, started(), ModelCompleted(message=ai("m", "", *calls)))
    await worker.write(thread, run, RunPaused(next=["tools"], interrupts=[asked]))
    shown = [{"id": "i1", "value": {"question": "proceed?"}}]
    found = await api.ask("GET", f"/threads/{thread}")
    assert (found["status"], found["interrupts"]) == ("interrupted", {"c1": shown})
    state = await api.ask("GET", f"/threads/{thread}/state")
    assert (state["next"], state["interrupts"]) == (["tools", "tools"], shown)
    assert [(task["id"], task["interrupts"]) for task in state["tasks"]] == [("c1", shown), ("c2", [])]
    history = await api.ask("GET", f"/threads/{thread}/history")
    assert history[0] == state
    assert [one["interrupts"] for one in history[1:]] == [[], []]
    run = await api.run(thread, input=None, command={"resume": True})
    await worker.write(thread, run, started())
    assert (await api.ask("GET", f"/threads/{thread}"))["interrupts"] == {}
    assert (await api.ask("GET", f"/threads/{thread}/state"))["interrupts"] == []


async def test_a_breakpoint_says_what_comes_next(api: Api, worker: Worker) -> None:
    thread = await api.thread()
    run = await api.run(thread, interrupt_before=["model"])
    await worker.write(thread, run, started(), RunPaused(next=["model"]))
    state = await api.ask("GET", f"/threads/{thread}/state")
    assert (state["next"], state["interrupts"]) == (["model"], [])
    assert (await api.ask("GET", f"/threads/{thread}"))["status"] == "interrupted"
    await api.ask("POST", f"/threads/{thread}/state", {"values": None, "as_node": "__end__"})
    assert (await api.ask("GET", f"/threads/{thread}/state"))["next"] == []


async def test_several_writes_are_all_or_none(api: Api, worker: Worker) -> None:
    thread = await api.thread()
    writes = [{"messages": [human("1", "a")]}, {"title": "T"}, {"messages": [{"type": "remove", "id": "1"}]}]
    made = await api.ask("POST", f"/threads/{thread}/state", {"values": writes, "as_node": "anything"})
    history = await api.ask("GET", f"/threads/{thread}/history")
    assert [len(one["values"]["messages"]) for one in history] == [0, 1, 1]
    assert made["checkpoint_id"] == history[0]["checkpoint_id"]
    bad = {"values": [{"title": "U"}, {"messages": [{"role": "king"}]}]}
    await api.ask("POST", f"/threads/{thread}/state", bad, status=400)
    await worker.start(thread, await api.run(thread))
    await api.ask("POST", f"/threads/{thread}/state", {"values": [{"title": "U"}, {"messages": ["x"]}]}, status=409)
    assert (await api.ask("GET", f"/threads/{thread}/state"))["values"]["title"] == "T"
    await api.ask("POST", f"/threads/{thread}/state", {"values": [{}] * 1000}, status=422)
    await api.ask("POST", "/threads/nope/state", {"values": {}}, status=404)


async def test_select_of_states(api: Api, worker: Worker) -> None:
    thread = await api.thread()
    await worker.perform(thread, await api.run(thread))
    await api.ask("POST", f"/threads/{thread}/state", {"values": {"title": "T"}})
    whole = await api.ask("GET", f"/threads/{thread}/state")
    titled = {"values": {"title": "T"}, "checkpoint": whole["checkpoint"]}
    for query in ("select=values.title&select=checkpoint&select=values.none", 'select=["values.title","checkpoint"]'):
        assert await api.ask("GET", f"/threads/{thread}/state?{query}") == titled
    at = f"/threads/{thread}/state/{whole['checkpoint_id']}?select=next&select=metadata"
    assert await api.ask("GET", at) == {"next": [], "metadata": whole["metadata"]}
    body = {"checkpoint": whole["checkpoint"], "select": ["values.title", "checkpoint"]}
    assert await api.ask("POST", f"/threads/{thread}/state/checkpoint", body) == titled
    assert await api.ask("POST", f"/threads/{thread}/state/checkpoint", {}) == whole
    history = await api.ask("POST", f"/threads/{thread}/history", {"select": ["checkpoint_id", "metadata"]})
    assert [sorted(one) for one in history] == [["checkpoint_id", "metadata"]] * 4
    history = await api.ask("POST", f"/threads/{thread}/history", {"select": ["values.messages", "next"]})
    assert [len(one["values"]["messages"]) for one in history] == [2, 2, 1, 0]
    assert [one["next"] for one in history] == [[], [], ["model"], ["__start__"]]


async def test_the_first_message_is_edited_from_the_root(api: Api, worker: Worker) -> None:
    """As `useStream` does it: from the parent of the state that first shows the message. Also in a copy."""
    thread = await api.thread()
    first = await api.run(thread)
    await worker.perform(thread, first, "one")
    copied = (await api.ask("POST", f"/threads/{thread}/copy"))["thread_id"]
    for where in (thread, copied):
        history = await api.ask("POST", f"/threads/{where}/history", {"limit": 100})
        parent = [one for one in history if one["values"].get("messages")][-1]["parent_checkpoint"]
        ask = {"input": {"messages": [human("edited", "?")]}, "checkpoint": parent, "stream_mode": ["checkpoints"]}
        run = await api.run(where, **ask)
        await worker.perform(where, run, "two")
        state = await api.ask("GET", f"/threads/{where}/state")
        assert [message["content"] for message in state["values"]["messages"]] == ["?", "two"]
        every = await api.ask("POST", f"/threads/{where}/history", {"limit": 100})
        assert len([one for one in every if one["parent_checkpoint"] == parent]) == 2
        assert every[-1]["checkpoint"] == parent
        await api.ask("POST", f"/threads/{where}/state", {"values": {"title": "T"}, "checkpoint": parent})
        assert (await api.ask("GET", f"/threads/{where}/state"))["values"] == {"title": "T"}


async def test_there_is_no_root_without_an_input(api: Api, worker: Worker) -> None:
    """Nor is there one that only what was rolled back came from."""
    thread = await api.thread()
    ask: Any = {"input": {"messages": [human("h", "?")]}, "checkpoint_id": "0000000000000000"}
    await api.ask("POST", f"/threads/{thread}/runs", {**ask, "assistant_id": "lead_agent"}, status=422)
    run = await api.run(thread)
    await worker.write(thread, run, started(), RunRolledBack())
    assert await api.ask("GET", f"/threads/{thread}/history") == []
    await api.ask("POST", f"/threads/{thread}/state", {"values": {"title": "T"}})
    [only] = await api.ask("GET", f"/threads/{thread}/history")
    assert only["parent_checkpoint"] is None


async def test_history_of_many_branches(api: Api, worker: Worker) -> None:
    """What is shown at each checkpoint is what the state was there, whatever the order it is made in."""
    thread = await api.thread()
    await worker.perform(thread, await api.run(thread), "one")
    trunk = await api.ask("GET", f"/threads/{thread}/state")
    for number in range(5):
        body = {"values": {"messages": [human(f"b{number}", "b")]}, "checkpoint_id": trunk["checkpoint_id"]}
        made = await api.ask("POST", f"/threads/{thread}/state", body)
        body = {"values": {"messages": [human(f"b{number}", "B")], "title": f"{number}"}}
        await api.ask("POST", f"/threads/{thread}/state", {**body, "checkpoint": made["checkpoint"]})
    history = await api.ask("POST", f"/threads/{thread}/history", {"limit": 100})
    assert len(history) == 13
    for one in history:
        assert one == await api.ask("GET", f"/threads/{thread}/state/{one['checkpoint_id']}")
    assert await api.ask("POST", f"/threads/{thread}/history", {"limit": 3}) == history[:3]
    ask = {"before": history[2]["checkpoint_id"], "limit": 2}
    assert await api.ask("POST", f"/threads/{thread}/history", ask) == history[3:5]


def test_each_commit_is_applied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many states of a long history are shown; and what they share is shared."""
    story = Story()
    story.add(*(StatePatched(values={"messages": [human(f"m{number}", "x")]}) for number in range(300)), run=None)
    bases = [record.seq for record in story.records[100:300:20]]
    story.add(*(StatePatched(values={"title": str(base)}, base=base) for base in bases), run=None)
    state = fold(story.records)
    applied: list[Any] = []
    apply = reduce

    def counted(*arguments: Any) -> None:
        applied.append(arguments)
        apply(*arguments)

    monkeypatch.setattr(snapshots, "apply", counted)
    shown = dict(snapshots.timeline(state, range(150, len(state.commits))))
    assert len(applied) <= len(state.commits)
    assert all(values == state.values_at(index) for index, values in shown.items())
    assert shown[200]["messages"][7] is shown[299]["messages"][7]


async def test_a_long_history_is_sent_in_pieces(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("channels.http.protocols.langgraph.states.PIECE_BYTES", 100)
    steps = [{"updates": [{"values": {"title": str(number)}}]} for number in range(20)]
    made = await api.ask("POST", "/threads", {"supersteps": steps})
    history = await api.ask("POST", f"/threads/{made['thread_id']}/history", {"limit": 15})
    assert [one["values"]["title"] for one in history] == [str(number) for number in range(19, 4, -1)]


async def test_a_cancelled_thread_has_nothing_to_resume(api: Api, worker: Worker) -> None:
    thread = await api.thread()
    run = await api.run(thread)
    await worker.write(thread, run, started(), RunCancelled())
    found = await api.ask("GET", f"/threads/{thread}")
    assert (found["status"], found["interrupts"]) == ("interrupted", {})


@pytest.mark.parametrize(
    ("values", "status", "where"),
    [
        ({"promoted": 5}, 422, "values.promoted: "),
        ({"promoted": {"names": 5}}, 422, "values.promoted.names: "),
        ({"promoted": {"names": ["a", 5]}}, 422, "values.promoted.names[1]: "),
        ({"promoted": {"catalog_hash": []}}, 422, "values.promoted.catalog_hash: "),
        ({"artifacts": "a"}, 422, "values.artifacts: "),
        ({"viewed_images": ["a"]}, 422, "values.viewed_images: "),
        ({"messages": [{"type": "ai", "tool_calls": [7]}]}, 400, "values.messages[0].tool_calls[0]: "),
        ({"messages": [{"type": "ai", "tool_calls": 7}]}, 400, "values.messages[0].tool_calls: "),
        ({"messages": [{"type": "ai", "invalid_tool_calls": [7]}]}, 400, "values.messages[0].invalid_tool_calls: "),
        ({"messages": [{"type": "ai", "usage_metadata": 7}]}, 400, "values.messages[0].usage_metadata: "),
    ],
)
async def test_what_no_reducer_takes_is_refused(api: Api, values: Any, status: int, where: str) -> None:
    thread = await api.thread()
    await api.ask("POST", f"/threads/{thread}/state", {"values": {"promoted": {"catalog_hash": "h", "names": ["a"]}}})
    error = await api.ask("POST", f"/threads/{thread}/state", {"values": values}, status=status)
    assert error["detail"].startswith(where)
    state = await api.ask("GET", f"/threads/{thread}/state")
    assert state["values"] == {"promoted": {"catalog_hash": "h", "names": ["a"]}}


async def test_null_removes_a_key_and_pinned_threads_come_first(api: Api) -> None:
    first, second, third = [(await api.ask("POST", "/threads", {"metadata": {"n": n}}))["thread_id"] for n in range(3)]
    await api.ask("PATCH", f"/threads/{first}", {"metadata": {"pinned": True, "label": "a"}})
    await api.ask("PATCH", f"/threads/{second}", {"metadata": {"label": "b"}})

    async def order(**more: Any) -> list[str]:
        found = await api.ask("POST", "/threads/search", {"sort_by": "pinned", "select": ["thread_id"], **more})
        return [row["thread_id"] for row in found]

    assert await order() == [first, second, third]
    assert await order(sort_order="asc") == [third, second, first]
    patched = await api.ask("PATCH", f"/threads/{first}", {"metadata": {"pinned": None, "none": None}})
    assert patched["metadata"] == {"n": 0, "label": "a"}
    assert await order() == [first, second, third], "as it changed last"
    await api.ask("PATCH", f"/threads/{second}", {"metadata": {"pinned": "yes"}})
    assert await order() == [second, first, third], "only true counts"
    [row] = await api.ask("POST", "/threads/search", {"metadata": {"label": "a"}})
    assert row["metadata"] == {"n": 0, "label": "a"}, "the index has forgotten it, too"
    assert await api.ask("POST", "/threads/search", {"metadata": {"pinned": True}}) == []
    await api.ask("PATCH", f"/threads/{first}", {"metadata": {"label": None}})
    assert await api.ask("POST", "/threads/search", {"metadata": {"label": "a"}}) == []
    assert await api.ask("POST", "/threads/count", {"metadata": {"n": 0}}) == 1
