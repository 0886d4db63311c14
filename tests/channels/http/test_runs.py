"""Runs without streams: asked for, listed, waited for, joined, cancelled; several at once; without a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from channels.http.app import Services
from core.config.server import Runs
from core.events import RunCancelled, RunFailed, RunRolledBack
from core.runtime.system import System
from core.thread import past
from core.thread.entries import Run
from tests.channels.http.conftest import Api, Settings, Worker
from tests.channels.http.story import started

pytestmark = pytest.mark.anyio


async def test_a_page_of_runs_looks_at_no_others(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    thread, seen = await api.thread(), list[str]()
    body = {"multitask_strategy": "enqueue"}
    ids = [(await api.ask("POST", f"/threads/{thread}/runs", body))["run_id"] for _ in range(3)]
    newest_first = past.Runs.newest_first

    def counted(runs: past.Runs) -> Iterator[Run]:
        for run in newest_first(runs):
            seen.append(run.id)
            yield run

    monkeypatch.setattr(past.Runs, "newest_first", counted)
    assert len(await api.ask("GET", f"/threads/{thread}/runs?limit=1&offset=1")) == 1
    assert seen == [ids[2], ids[1]]


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"context": {"model_name": "zzz"}}, 400, "context.model_name: no model 'zzz'; there are: demo"),
        ({"config": {"configurable": {"model": "zzz"}}}, 400, "config.configurable.model: no model 'zzz'"),
        ({"context": {"is_plan_mode": "true"}}, 422, "context.is_plan_mode: expected bool | null, got str"),
        ({"config": {"context": {"thinking_enabled": 1}}}, 422, "config.context.thinking_enabled: expected bool"),
        ({"context": {"max_concurrent_subagents": "3"}}, 422, "context.max_concurrent_subagents: expected int"),
        ({"context": {"mode": "zzz"}}, 422, "context.mode: invalid enum value 'zzz'"),
        ({"config": {"configurable": {"reasoning_effort": "huge"}}}, 422, "configurable.reasoning_effort: invalid"),
        ({"context": {"available_skills": "pdf"}}, 422, "context.available_skills: expected array | null, got str"),
        ({"context": {"available_skills": ["zz"]}}, 422, "context.available_skills[0]: no skill 'zz'; there are: "),
        ({"config": {"context": {"available_skills": ["zz"]}}}, 422, "config.context.available_skills[0]: no skill"),
        ({"context": {"secrets": {"KEY": "s3cret"}}}, 422, "context.secrets: would stand in the log; set them as"),
        ({"config": {"configurable": {"secrets": {"KEY": "s3cret"}}}}, 422, "config.configurable.secrets: would stand"),
        ({"durability": "zz"}, 422, "Invalid enum value 'zz' - at $.durability"),
        ({"checkpoint_during": "yes"}, 422, "Expected bool | null, got str - at $.checkpoint_during"),
        ({"stream_resumable": "yes"}, 422, "Expected bool | null, got str - at $.stream_resumable"),
        ({"langsmith_tracer": "p"}, 422, "Expected object | null, got str - at $.langsmith_tracer"),
        ({"config": {"recursion_limit": "9"}}, 422, "config.recursion_limit: expected float | null, got str"),
        ({"config": {"tags": "t"}}, 422, "config.tags: expected array"),
        ({"metadata": {"deliver": "C1"}}, 422, "metadata.deliver: expected object | null, got str"),
        ({"metadata": {"deliver": {"chat": "C1"}}}, 422, "metadata.deliver: object missing required field channel"),
        ({"metadata": {"deliver": {"channel": "slack", "chat": ""}}}, 422, "metadata.deliver.chat: expected str"),
        ({"metadata": {"deliver": {"channel": "../x", "chat": 1}}}, 422, "metadata.deliver.channel: expected str"),
    ],
)
async def test_options_are_checked(api: Api, body: Any, status: int, said: str) -> None:
    thread = await api.thread()
    refused = await api.ask("POST", f"/threads/{thread}/runs", body, status=status)
    assert said in refused["detail"]
    assert await api.ask("GET", f"/threads/{thread}/runs") == []


@pytest.mark.parametrize("deliver", [None, {"channel": "slack-work", "chat": 7, "topic": "t", "kind": "private"}])
async def test_a_chat_to_deliver_to_is_taken(api: Api, deliver: Any) -> None:
    made = await api.ask("POST", f"/threads/{await api.thread()}/runs", {"metadata": {"deliver": deliver}})
    assert made["metadata"]["deliver"] == deliver


async def test_a_failed_run_has_its_error(api: Api, worker: Worker) -> None:
    thread = await api.thread()
    run = await api.run(thread)
    await worker.write(thread, run, started(), RunFailed(error="E", text="broke"))
    for one in (
        await api.ask("GET", f"/threads/{thread}/runs/{run}"),
        *await api.ask("GET", f"/threads/{thread}/runs"),
    ):
        assert one["error"] == {"error": "E", "message": "broke"}
    run = await api.run(thread)
    assert "error" not in await api.ask("GET", f"/threads/{thread}/runs/{run}")


async def test_an_unknown_status_is_refused(api: Api) -> None:
    thread = await api.thread()
    assert "timeout" in (await api.ask("GET", f"/threads/{thread}/runs?status=zz", status=422))["detail"]
    assert await api.ask("GET", f"/threads/{thread}/runs?status=timeout") == []


async def test_create_get_list(api: Api, worker: Worker) -> None:
    thread = await api.thread()
    ask = {"assistant_id": "lead_agent", "input": {"messages": ["hi"]}, "metadata": {"a": 1}, "future": True}
    ask |= {
        "config": {"recursion_limit": 9, "configurable": {"model_name": "demo", "thread_id": "y"}},
        "context": {"mode": "pro"},
    }
    async with api.session.post(f"{api.url}/api/threads/{thread}/runs", json=ask) as response:
        run = await response.json()
        assert response.headers["Content-Location"] == f"/threads/{thread}/runs/{run['run_id']}"
    assert (run["thread_id"], run["status"], run["metadata"], run["multitask_strategy"]) == (
        thread,
        "pending",
        {"a": 1},
        "reject",
    )
    assert run["kwargs"]["context"] == {"model_name": "demo", "mode": "pro", "user_id": "default"}
    assert run["kwargs"]["config"]["recursion_limit"] == 9
    [message] = run["kwargs"]["input"]["messages"]
    assert (message["type"], message["content"], len(message["id"])) == ("human", "hi", 36)
    path = f"/threads/{thread}/runs/{run['run_id']}"
    assert await api.ask("GET", path) == run
    await worker.perform(thread, run["run_id"])
    assert (await api.ask("GET", path))["status"] == "success"
    second = await api.run(thread)
    listed = await api.ask("GET", f"/threads/{thread}/runs")
    assert [one["run_id"] for one in listed] == [second, run["run_id"]]
    assert len(await api.ask("GET", f"/threads/{thread}/runs?limit=1&offset=1")) == 1
    for select in ("select=run_id&select=status", 'select=["run_id","status"]'):
        found = await api.ask("GET", f"/threads/{thread}/runs?status=success&{select}")
        assert found == [{"run_id": run["run_id"], "status": "success"}]


PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([("traceparent", PARENT)], PARENT),
        ([("Traceparent", f"01{PARENT[2:]}-later")], PARENT),
        ([("traceparent", "x")], None),
        ([("traceparent", PARENT), ("traceparent", PARENT)], None),
        ([], None),
    ],
    ids=["one", "later version", "odd", "two", "none"],
)
@pytest.mark.parametrize("own", [True, False], ids=["on a thread", "alone"])
async def test_the_trace_of_a_client(
    api: Api, system: System, headers: list[tuple[str, str]], expected: str | None, own: bool
) -> None:
    """It is not shown: what a client calls metadata stays its own."""
    path = f"/threads/{await api.thread()}/runs" if own else "/runs"
    ask = {"input": {"messages": ["hi"]}, "metadata": {"a": 1}}
    run = await api.ask("POST", path, ask, headers=headers)
    assert run["metadata"] == {"a": 1}
    assert "traceparent" not in str(run)
    state = await system.threads.load(run["thread_id"])
    assert state.runs[run["run_id"]].request.traceparent == expected


async def test_assistants(api: Api) -> None:
    [found] = await api.ask("POST", "/assistants/search", {"graph_id": "lead_agent"})
    assert await api.ask("POST", "/assistants/search") == [found]
    assert await api.ask("POST", "/assistants/search", {"graph_id": "other"}) == []
    for name in ("lead_agent", found["assistant_id"]):
        assert await api.ask("GET", f"/assistants/{name}") == found
        assert (await api.ask("GET", f"/assistants/{name}/graph"))["nodes"]
        assert (await api.ask("GET", f"/assistants/{name}/schemas"))["graph_id"] == "lead_agent"
        thread = await api.thread()
        await api.run(thread, assistant_id=name)
    await api.ask("GET", "/assistants/nobody", status=404)


async def test_the_default_is_configured(api: Api, config: Settings, worker: Worker) -> None:
    config.runs = Runs(multitask_strategy="enqueue")
    thread = await api.thread()
    first, second = await api.run(thread), await api.run(thread)
    await worker.perform(thread, first)
    assert (await api.ask("GET", f"/threads/{thread}/runs/{second}"))["multitask_strategy"] == "enqueue"
    body = {"input": None, "multitask_strategy": "reject"}
    await api.ask("POST", f"/threads/{thread}/runs", body, status=409)


async def test_reject_is_the_default_and_leaves_nothing(api: Api, worker: Worker) -> None:
    thread = await api.thread()
    first = await api.run(thread)
    for kind in ("runs", "runs/stream", "runs/wait"):
        error = await api.ask("POST", f"/threads/{thread}/{kind}", {"input": {"messages": ["x"]}}, status=409)
        assert error["detail"] == f"Thread {thread} already has an active run"
    assert [run["run_id"] for run in await api.ask("GET", f"/threads/{thread}/runs")] == [first]


async def test_interrupt_and_rollback(api: Api, worker: Worker) -> None:
    thread = await api.thread()
    first = await api.run(thread)
    second = await api.run(thread, multitask_strategy="interrupt")
    state = await worker.system.threads.load(thread)
    assert state.runs[first].cancel == "interrupt"
    await api.run(thread, multitask_strategy="rollback")
    state = await worker.system.threads.load(thread)
    assert state.runs[second].cancel == "rollback"
    await worker.write(thread, first, RunCancelled())
    await worker.write(thread, second, RunRolledBack())
    assert (await api.ask("GET", f"/threads/{thread}/runs/{first}"))["status"] == "interrupted"
    await api.ask("GET", f"/threads/{thread}/runs/{second}", status=404)
    await api.ask("GET", f"/threads/{thread}/runs/{second}/stream", status=404)
    assert len(await api.ask("GET", f"/threads/{thread}/runs")) == 2


async def test_wait_and_join(api: Api, worker: Worker) -> None:
    thread = await api.thread()
    async with api.session.post(
        f"{api.url}/api/threads/{thread}/runs/wait", json={"input": {"messages": ["hi"]}}
    ) as response:
        run = (await worker.requested(thread)).id
        assert response.status == 200
        assert response.headers["Location"] == f"/threads/{thread}/runs/{run}/join"
        assert response.headers["Content-Location"] == f"/threads/{thread}/runs/{run}"
        assert await response.content.readexactly(2) == b"\n\n"  # signs that it waits
        await worker.perform(thread, run)
        values = await response.json()
    assert [m["content"] for m in values["messages"]] == ["hi", "Hello"]
    for _ in range(2):
        assert await api.ask("GET", f"/threads/{thread}/runs/{run}/join") == values
    await api.ask("GET", f"/threads/{thread}/runs/unknown/join", status=404)
    async with api.stream("GET", f"/threads/{thread}/runs/{run}/join", Accept="text/event-stream") as stream:
        assert [event for event, _, _ in await stream.rest()] == ["end"]


async def test_wait_tells_failure(api: Api, worker: Worker) -> None:
    thread = await api.thread()
    waiting = asyncio.ensure_future(api.ask("POST", f"/threads/{thread}/runs/wait", {"input": {"messages": ["hi"]}}))
    run = (await worker.requested(thread)).id
    await worker.write(thread, run, started(), RunFailed(error="E", text="broke"))
    assert await waiting == {"__error__": {"error": "E", "message": "broke"}}
    assert await api.ask("GET", f"/threads/{thread}/runs/{run}/join") == await waiting


async def test_cancel(api: Api, worker: Worker) -> None:
    thread = await api.thread()
    run = await api.run(thread)
    path = f"/threads/{thread}/runs/{run}/cancel"
    await worker.start(thread, run)
    await api.ask("POST", f"{path}?action=explode", status=422)
    await api.ask("POST", f"{path}?wait=0", status=202)
    waiting = asyncio.ensure_future(api.ask("POST", f"{path}?wait=1&action=interrupt", status=204))
    await anyio.sleep(0.05)
    assert not waiting.done()
    await worker.write(thread, run, RunCancelled())
    await waiting
    assert (await api.ask("GET", f"/threads/{thread}/runs/{run}"))["status"] == "interrupted"
    await api.ask("POST", path, status=202)
    done = await api.run(thread)
    await worker.perform(thread, done)
    error = await api.ask("POST", f"/threads/{thread}/runs/{done}/cancel", status=409)
    assert "is not cancellable" in error["detail"]
    await api.ask("POST", f"/threads/{thread}/runs/unknown/cancel", status=404)


async def test_later(api: Api, worker: Worker) -> None:
    thread = await api.thread()
    await api.run(thread, after_seconds=60)
    request = (await worker.requested(thread)).request
    assert request.not_before is not None
    assert request.not_before > (await worker.requested(thread)).created_at


async def test_without_a_thread(api: Api, worker: Worker, system: System) -> None:
    async with api.stream("POST", "/runs/stream", {"input": {"messages": ["hi"]}}) as stream:
        [(_, data, _)] = await stream.until("metadata")
        thread = data["thread_id"]
        await worker.perform(thread, data["run_id"])
        assert (await stream.rest())[-1][0] == "end"
    run = await api.ask("POST", "/runs", {"input": {"messages": ["hi"]}})
    kept = await api.ask("POST", "/runs", {"input": {"messages": ["hi"]}, "on_completion": "keep"})
    named = {"input": {"messages": ["hi"]}, "config": {"configurable": {"thread_id": "mine"}}}
    mine = await api.ask("POST", "/runs", named)
    assert mine["thread_id"] == "mine"
    goes = {}
    for found in (data, run, kept, mine):
        state = await system.threads.load(found["thread_id"])
        goes[found["thread_id"]] = state.runs[found["run_id"]].request.on_completion
    assert list(goes.values()) == ["delete", "delete", "keep", "keep"]


async def test_batch(api: Api) -> None:
    ask = {"assistant_id": "lead_agent", "input": {"messages": ["hi"]}}
    runs = await api.ask("POST", "/runs/batch", [ask, {**ask, "metadata": {"n": 2}}])
    assert len({run["thread_id"] for run in runs}) == 2
    assert [run["metadata"] for run in runs] == [{}, {"n": 2}]
    answer = await api.ask("POST", "/runs/batch", [ask, {**ask, "stream_mode": "nonsense"}], status=422)
    assert answer["detail"].startswith("[1]: stream_mode")
    await api.ask("POST", "/runs/batch", [], status=422)


async def test_cancel_many(api: Api, worker: Worker) -> None:
    threads = [await api.thread() for _ in range(3)]
    runs = [await api.run(thread) for thread in threads]
    await worker.start(threads[0], runs[0])
    body = {"thread_id": threads[0], "run_ids": [runs[0]]}
    await api.ask("POST", "/runs/cancel?action=rollback", body, status=204)
    assert await worker.cancelled(threads[0]) == "rollback"
    await api.ask("POST", "/runs/cancel", {"status": "pending"}, status=204)
    for thread, run in zip(threads[1:], runs[1:], strict=True):
        assert (await api.ask("GET", f"/threads/{thread}/runs/{run}"))["status"] == "interrupted"
    await api.ask("POST", "/runs/cancel", {"thread_id": threads[0], "status": "all"}, status=422)
    await api.ask("POST", "/runs/cancel", {"thread_id": threads[0], "run_ids": ["none"]}, status=404)
    await api.ask("POST", "/runs/cancel", {}, status=422)


async def test_delete_a_run(api: Api, worker: Worker) -> None:
    thread = await api.thread()
    run = await api.run(thread)
    await api.ask("DELETE", f"/threads/{thread}/runs/{run}", status=409)
    await worker.perform(thread, run)
    await api.ask("DELETE", f"/threads/{thread}/runs/{run}", status=204)
    await api.ask("GET", f"/threads/{thread}/runs/{run}", status=404)
    assert await api.ask("GET", f"/threads/{thread}/runs") == []
    assert len((await api.ask("GET", f"/threads/{thread}/state"))["values"]["messages"]) == 2


async def test_steer(api: Api, worker: Worker, system: System) -> None:
    thread = await api.thread()
    run = await api.run(thread)
    await worker.start(thread, run)
    path = f"/threads/{thread}/runs/{run}/steer"
    message = {"role": "user", "content": "be brief", "id": "m1"}
    for _ in range(2):
        assert await api.ask("POST", path, {"message": message}, status=202) == {"run_id": run, "message_id": "m1"}
    await api.ask("POST", path, {"message": "and quick"}, status=202)
    [open_run] = (await system.threads.load(thread)).runs.values()
    assert [steer["content"] for steer in open_run.steers] == ["be brief", "and quick"]
    await api.ask("POST", path, {"message": {"role": "assistant", "content": "x"}}, status=422)
    await worker.write(thread, run, RunCancelled())
    await api.ask("POST", path, {"message": "too late"}, status=409)
    await api.ask("POST", f"/threads/{thread}/runs/none/steer", {"message": "x"}, status=404)


@pytest.mark.parametrize(
    ("ask", "status", "named"),
    [
        ({"command": {"resume": 1}}, 409, "nothing to resume"),
        ({"command": {"goto": "model"}}, 422, "command.goto"),
        ({"command": {"resume": 1}, "input": {"messages": ["hi"]}}, 422, "command.resume"),
        ({"interrupt_before": ["agent"]}, 422, "interrupt_before"),
        ({"webhook": "http://example.com/x"}, 422, "webhook"),
        ({"webhook": "https://127.0.0.1/x"}, 422, "127.0.0.1"),
        ({"webhook": "https://[::ffff:10.0.0.1]/"}, 422, "not a public address"),
        ({"webhook": "https://2130706433/"}, 422, "not a public address"),
        ({"webhook": "https://user:pass@example.com/"}, 422, "credentials"),
        ({"webhook": "https://localhost/"}, 422, "not a public address"),
    ],
)
async def test_what_a_run_cannot_be_asked(api: Api, ask: dict[str, Any], status: int, named: str) -> None:
    thread = await api.thread()
    answer = await api.ask("POST", f"/threads/{thread}/runs", ask, status=status)
    assert named in answer["detail"]
    assert await api.ask("GET", f"/threads/{thread}/runs") == []


async def test_wait_without_a_thread(api: Api, worker: Worker, services: Services) -> None:
    async with api.session.post(f"{api.url}/api/runs/wait", json={"input": {"messages": ["hi"]}}) as response:
        _, _, thread, _, run, _ = response.headers["Location"].split("/")
        await worker.perform(thread, run)
        values: Any = await response.json()
    assert [m["content"] for m in values["messages"]] == ["hi", "Hello"]


async def test_three_hundred_requests_at_once_are_all_queued(api: Api, worker: Worker) -> None:
    thread = await api.thread()
    runs = await asyncio.gather(*(api.run(thread, multitask_strategy="enqueue") for _ in range(300)))
    assert len(set(runs)) == 300
    assert len((await worker.system.threads.load(thread)).queued) == 300
