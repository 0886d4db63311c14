"""Messages and events of runs, from the log: what rows there are, and that pages cut exactly between them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from core.events import (
    Event,
    Message,
    MessageAdded,
    ModelCompleted,
    ModelFailed,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunRequested,
    RunRolledBack,
    StatePatched,
    ThreadForked,
    ToolCompleted,
    ToolRequested,
)
from core.ids import stamp
from core.runs.intake import Intake
from core.thread.messages import timed
from tests.channels.http.conftest import Api, Worker
from tests.channels.http.story import ai, answer, call, human, started

pytestmark = pytest.mark.anyio

USAGE = {"input_tokens": 7, "output_tokens": 2, "total_tokens": 9}
MODES = ("human", "llm.human.input"), ("ai", "llm.ai.response"), ("tool", "llm.tool.result")


def text(rows: list[Any]) -> list[str]:
    return [row["content"]["content"] for row in rows]


def said(identity: str, words: str, *calls: Any, took: int = 0) -> ModelCompleted:
    return ModelCompleted(message=ai(identity, words, *calls, usage_metadata=USAGE), duration_ms=took)


async def asked(api: Api, thread: str, *words: str) -> str:
    """A run that is asked several things at once."""
    messages = [{"type": "human", "id": f"{word}-id", "content": word} for word in words]
    return await api.run(thread, input={"messages": messages})


async def with_tools(api: Api, worker: Worker) -> tuple[str, str]:
    thread = await api.thread()
    run = await asked(api, thread, "one", "two")
    events: list[Event] = [
        started(),
        ModelFailed(error="Busy", text="try later", attempt=1, max_attempts=3, wait_ms=5),
        said("m1", "", call("c1", "ls"), took=12),
        ToolRequested(call_id="c1", name="ls", effect="pure"),
        ToolCompleted(call_id="c1", message=answer("c1", "ls", "a b"), duration_ms=3),
        MessageAdded(messages=[human("s1", "hurry"), human("s2", "please")]),
        started(attempt=2),
        said("m2", "done"),
        RunCompleted(),
    ]
    await worker.write(thread, run, *events)
    return thread, run


async def test_rows_of_a_run(api: Api, worker: Worker) -> None:
    thread, run = await with_tools(api, worker)
    found = await api.ask("GET", f"/threads/{thread}/runs/{run}/messages")
    rows = found["data"]
    assert found["has_more"] is False
    assert text(rows) == ["one", "two", "", "a b", "hurry", "please", "done"]
    kinds = ["human", "human", "ai", "tool", "human", "human", "ai"]
    assert [(row["content"]["type"], row["event_type"]) for row in rows] == [(k, dict(MODES)[k]) for k in kinds]
    assert {(row["thread_id"], row["run_id"], row["category"]) for row in rows} == {(thread, run, "message")}
    calls = [row["metadata"] for row in rows if row["content"]["type"] == "ai"]
    first = {"caller": "lead_agent", "usage": USAGE, "latency_ms": 12, "llm_call_index": 1, "model": "m"}
    assert calls == [first, {**first, "latency_ms": 0, "llm_call_index": 2}]
    assert rows[2]["content"]["tool_calls"] == [{"type": "tool_call", "id": "c1", "name": "ls", "args": {}}]
    seqs = [row["seq"] for row in rows]
    assert seqs == sorted(set(seqs))
    assert await api.ask("GET", f"/runs/{run}/messages") == found


@pytest.mark.parametrize("limit", [1, 2, 3, 6, 7, 200])
async def test_pages_cut_exactly_between_rows(api: Api, worker: Worker, limit: int) -> None:
    thread, run = await with_tools(api, worker)
    path = f"/threads/{thread}/runs/{run}/messages?limit={limit}"
    whole = (await api.ask("GET", f"/threads/{thread}/runs/{run}/messages"))["data"]
    forward: list[Any] = []
    more = True
    while more:
        found = await api.ask("GET", f"{path}&after_seq={forward[-1]['seq'] if forward else 0}")
        forward, more = [*forward, *found["data"]], found["has_more"]
        assert len(found["data"]) <= limit
    assert forward == whole
    backward: list[Any] = []
    more = True
    while more:
        found = await api.ask("GET", f"{path}&before_seq={backward[0]['seq']}" if backward else path)
        backward, more = [*found["data"], *backward], found["has_more"]
        assert len(found["data"]) <= limit
    assert backward == whole
    low, high = whole[1]["seq"], whole[5]["seq"]
    between = await api.ask("GET", f"{path}&after_seq={low}&before_seq={high}")
    assert between["data"] == whole[2:5][:limit]
    assert between["has_more"] is (limit < 3)


@pytest.mark.parametrize("limit", [1, 2, 4, 5, 200])
async def test_no_page_ends_too_soon(api: Api, worker: Worker, limit: int) -> None:
    """Messages that were replaced by what the server prepared count once, and what failed runs say counts."""
    thread = await api.thread()
    for n in range(4):
        run = await asked(api, thread, f"ask {n}")
        prepared = {"messages": [human(f"ask {n}-id", f"ask {n}")]}
        begun = msgspec.structs.replace(started(), prepared=prepared)
        await worker.write(thread, run, begun, RunFailed(error="E", text="broke", message=ai(f"e{n}", f"sorry {n}")))
    found: list[Any] = []
    more, before = True, ""
    while more:
        page = await api.ask("GET", f"/threads/{thread}/messages/page?limit={limit}{before}")
        found, more, before = [*page["data"], *found], page["has_more"], f"&before_seq={page['next_before_seq']}"
    assert text(found) == [words for n in range(4) for words in (f"ask {n}", f"sorry {n}")]


async def test_events_of_a_run(api: Api, worker: Worker) -> None:
    thread, run = await with_tools(api, worker)
    path = f"/threads/{thread}/runs/{run}/events"
    rows = await api.ask("GET", path)
    assert [row["event_type"] for row in rows] == [
        "run.start",
        *["llm.human.input"] * 2,
        "llm.error",
        "llm.ai.response",
        "tool.requested",
        "llm.tool.result",
        *["llm.human.input"] * 2,
        "run.start",
        "llm.ai.response",
        "run.end",
    ]
    assert (rows[0]["category"], rows[0]["content"], rows[0]["metadata"]) == (
        "trace",
        "lead_agent",
        {"attempt": 1, "model": "m"},
    )
    assert (rows[3]["content"], rows[3]["metadata"]["wait_ms"]) == ("try later", 5)
    assert rows[5]["content"] == {"call_id": "c1", "name": "ls", "effect": "pure"}
    assert (rows[-1]["category"], rows[-1]["content"]) == ("outputs", {"status": "success"})
    assert [row["seq"] for row in rows] == sorted({row["seq"] for row in rows})
    messages = [row for row in rows if row["category"] == "message"]
    assert messages == (await api.ask("GET", f"/threads/{thread}/runs/{run}/messages"))["data"]
    assert await api.ask("GET", f"{path}?limit=3") == rows[:3]
    assert await api.ask("GET", f"{path}?event_types=run.start,run.end") == [rows[0], rows[-3], rows[-1]]
    assert await api.ask("GET", f"{path}?event_types=run.start&event_types=run.end&limit=2") == [rows[0], rows[-3]]


@pytest.mark.parametrize(
    ("end", "row"),
    [
        (RunFailed(error="E", text="broke"), ("run.error", "error", "broke")),
        (RunCancelled(), ("run.end", "outputs", {"status": "interrupted"})),
    ],
)
async def test_how_a_run_ended(api: Api, worker: Worker, end: Event, row: Any) -> None:
    thread = await api.thread()
    run = await api.run(thread)
    await worker.write(thread, run, started(), end)
    found = (await api.ask("GET", f"/threads/{thread}/runs/{run}/events"))[-1]
    assert (found["event_type"], found["category"], found["content"]) == row


async def test_input_counts_from_the_moment_the_run_starts(api: Api, worker: Worker) -> None:
    thread = await api.thread()
    run = await api.run(thread)
    path = f"/threads/{thread}/runs/{run}"
    empty: dict[str, Any] = {"data": [], "has_more": False}
    assert await api.ask("GET", f"/runs/{run}/messages") == empty  # the views may not know the run yet
    assert await api.ask("GET", f"{path}/messages") == empty
    assert await api.ask("GET", f"{path}/messages?after_seq=0&limit=1") == empty
    assert await api.ask("GET", f"{path}/events") == []
    await worker.start(thread, run)
    assert text((await api.ask("GET", f"{path}/messages"))["data"]) == ["hi"]


async def test_messages_that_were_summarised_are_still_there(api: Api, worker: Worker) -> None:
    thread = await api.thread()
    await worker.perform(thread, await asked(api, thread, "q1"), "a1")
    summary: list[Message] = [
        {"type": "remove", "id": "__remove_all__"},
        {**human("summary-s", "what was said"), "name": "summary"},
    ]
    await worker.write(thread, "none", StatePatched(values={"messages": summary}))
    await worker.perform(thread, await asked(api, thread, "q2"), "a2")
    state = await api.ask("GET", f"/threads/{thread}/state")
    assert [m["content"] for m in state["values"]["messages"]] == ["what was said", "q2", "a2"]
    rows = (await api.ask("GET", f"/threads/{thread}/messages/page"))["data"]
    assert text(rows) == ["q1", "a1", "q2", "a2"]
    assert await api.ask("GET", f"/threads/{thread}/messages") == rows


async def test_a_page_follows_the_branch_and_the_thread_has_them_all(api: Api, worker: Worker) -> None:
    thread = await api.thread()
    await worker.perform(thread, await asked(api, thread, "q1"), "a1")
    [before, *_] = await api.ask("GET", f"/threads/{thread}/history")
    await worker.perform(thread, await asked(api, thread, "q2"), "a2")
    again = await api.run(
        thread,
        checkpoint_id=before["checkpoint_id"],
        input={"messages": [{"role": "user", "content": "q3", "id": "3"}]},
    )
    await worker.perform(thread, again, "a3")
    assert text(await api.ask("GET", f"/threads/{thread}/messages")) == ["q1", "a1", "q2", "a2", "q3", "a3"]
    path = f"/threads/{thread}/messages/page?limit=3"
    newest = await api.ask("GET", path)
    assert (text(newest["data"]), newest["has_more"]) == (["a1", "q3", "a3"], True)
    assert newest["next_before_seq"] == newest["data"][0]["seq"]
    rest = await api.ask("GET", f"{path}&before_seq={newest['next_before_seq']}")
    assert (text(rest["data"]), rest["has_more"], rest["next_before_seq"]) == (["q1"], False, None)


async def test_what_was_rolled_back_is_not_shown(api: Api, worker: Worker) -> None:
    thread = await api.thread()
    await worker.perform(thread, await asked(api, thread, "q1"), "a1")
    run = await asked(api, thread, "q2")
    await worker.write(thread, run, started(), said("m", "a2"))
    assert text(await api.ask("GET", f"/threads/{thread}/messages")) == ["q1", "a1", "q2", "a2"]
    await api.ask("POST", f"/threads/{thread}/runs/{run}/cancel?action=rollback", status=202)
    await worker.write(thread, run, RunRolledBack())
    assert text(await api.ask("GET", f"/threads/{thread}/messages")) == ["q1", "a1"]
    assert text((await api.ask("GET", f"/threads/{thread}/messages/page"))["data"]) == ["q1", "a1"]
    for path in (
        f"/threads/{thread}/runs/{run}/messages",
        f"/threads/{thread}/runs/{run}/events",
        f"/runs/{run}/messages",
    ):
        await api.ask("GET", path, status=404)


async def test_messages_that_no_run_wrote(api: Api, worker: Worker) -> None:
    thread = await api.thread()
    patches: list[Any] = [
        {"messages": [human("1", "a"), ai("2", "b")]},
        {"title": "t"},
        {"messages": [human("3", "c")]},
    ]
    await worker.write(thread, "none", ThreadForked(source="t0", source_seq=3, patches=patches))
    await api.ask("POST", f"/threads/{thread}/state", {"values": {"messages": [{"role": "system", "content": "d"}]}})
    rows = await api.ask("GET", f"/threads/{thread}/messages")
    assert [(row["event_type"], row["content"]["content"]) for row in rows] == [
        ("llm.human.input", "a"),
        ("llm.ai.response", "b"),
        ("llm.human.input", "c"),
        ("llm.system.input", "d"),
    ]
    assert rows[-1]["run_id"] is None
    for limit in (1, 2, 3):
        newest = await api.ask("GET", f"/threads/{thread}/messages?limit={limit}&before_seq={rows[-1]['seq']}")
        assert newest == rows[:-1][-limit:]
        oldest = await api.ask("GET", f"/threads/{thread}/messages?limit={limit}&after_seq={rows[0]['seq']}")
        assert oldest == rows[1:][:limit]


async def test_feedback_stands_at_the_answer_it_is_about(api: Api, worker: Worker) -> None:
    thread, run = await with_tools(api, worker)
    await worker.perform(thread, await asked(api, thread, "more"), "no opinion")
    path = f"/threads/{thread}/runs/{run}/feedback"
    whole = await api.ask("PUT", path, {"rating": 1, "comment": "good"})
    part = await api.ask("POST", path, {"rating": -1, "message_id": "m1"})
    rows = await api.ask("GET", f"/threads/{thread}/messages")
    shown = {row["content"]["id"]: row["feedback"] for row in rows if row["feedback"]}
    assert shown == {
        "m1": {"feedback_id": part["feedback_id"], "rating": -1, "comment": None},
        "m2": {"feedback_id": whole["feedback_id"], "rating": 1, "comment": "good"},
    }
    assert (await api.ask("GET", f"/threads/{thread}/messages/page"))["data"] == rows


async def test_other_peoples_and_unknown_ones_are_not_found(api: Api, worker: Worker) -> None:
    intake: Intake = worker.system.intake
    await intake.create_thread("theirs", user="somebody")
    mine = await api.thread()
    run = await api.run(mine)
    await intake.request_run("theirs", "their-run", RunRequested(input={"messages": []}))
    for path in (
        "/threads/theirs/messages",
        "/threads/theirs/messages/page",
        "/threads/theirs/runs/their-run/messages",
        "/threads/theirs/runs/their-run/events",
        f"/threads/theirs/runs/{run}/messages",
        f"/threads/{mine}/runs/their-run/messages",
        "/runs/their-run/messages",
        "/runs/never/messages",
        "/threads/never/messages",
    ):
        found = await api.ask("GET", path, status=404)
        assert found["code"] == "not_found"


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=201", "limit=x", "before_seq=-1", "after_seq=9.5", f"after_seq={2**53}"]
)
async def test_odd_pages_are_refused(api: Api, query: str) -> None:
    thread = await api.thread()
    run = await api.run(thread)
    for path in (f"/threads/{thread}/messages", f"/threads/{thread}/runs/{run}/messages", f"/runs/{run}/messages"):
        await api.ask("GET", f"{path}?{query}", status=422)


async def test_the_life_of_a_run_is_with_its_last_answer_wherever_it_is_shown(api: Api, worker: Worker) -> None:
    """Page, messages of the run, history, state: not while it runs, and in no frame of its stream."""
    thread = await api.thread()
    run = await api.run(thread)
    await worker.write(thread, run, started(), ModelCompleted(message=ai("m1", "Looking.", call("c", "ls"))))
    assert await _lives(api, thread, run) == [{"m1": None}] * 4
    done = ToolCompleted(call_id="c", message=answer("c", "ls", "a"))
    await worker.write(thread, run, done, ModelCompleted(message=ai("m2", "There is a.")), RunCompleted())
    assert await _lives(api, thread, run) == [{"m1": None, "m2": 0}] * 4
    state = await worker.system.threads.load(thread)
    then = datetime.fromisoformat(state.runs[run].updated_at) - timedelta(seconds=12, milliseconds=900)
    earlier = msgspec.structs.replace(state.runs[run], created_at=stamp(then))
    assert timed(ai("m2", "There is a."), earlier)["additional_kwargs"] == {"turn_duration": 12}


async def _lives(api: Api, thread: str, run: str) -> list[dict[str, Any]]:
    paths = (f"/threads/{thread}/messages/page", f"/threads/{thread}/runs/{run}/messages")
    shown = [[row["content"] for row in (await api.ask("GET", path))["data"]] for path in paths]
    shown.append((await api.ask("GET", f"/threads/{thread}/history"))[0]["values"]["messages"])
    shown.append((await api.ask("GET", f"/threads/{thread}/state"))["values"]["messages"])
    return [{m["id"]: m["additional_kwargs"].get("turn_duration") for m in one if m["type"] == "ai"} for one in shown]
