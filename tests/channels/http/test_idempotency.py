"""The same request with the same key makes one run: in a row, at once, after a restart; another request is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import anyio.abc
import msgspec
import pytest

from channels.http.app import serve
from channels.http.endpoints.table import all_routes
from core.runtime.system import System
from tests.channels.http.conftest import Api, Settings, Worker, services_of
from tests.channels.http.people import ADA, BOB, WithAccounts, place
from tests.channels.http.test_gateway_approvals import A, asked, park
from tests.channels.http.test_mcp_server import client, error, tool
from tests.channels.http.test_scheduled_tasks import make
from tests.support.nats import eventually

pytestmark = pytest.mark.anyio

ASK: dict[str, Any] = {"input": {"messages": [{"role": "user", "content": "hi"}]}}
OTHER: dict[str, Any] = {"input": {"messages": [{"role": "user", "content": "ho"}]}}
KEY = {"Idempotency-Key": "3f0c: one"}
START: dict[str, Any] = {"id": 1, "method": "run.start", "params": {"assistant_id": "lead_agent", **ASK}}


async def runs_of(api: Api, thread: str) -> list[str]:
    return [run["run_id"] for run in await api.ask("GET", f"/threads/{thread}/runs")]


async def test_one_run_on_a_thread(api: Api, worker: Worker) -> None:
    thread = await api.thread()
    first = await api.ask("POST", f"/threads/{thread}/runs", ASK, headers=KEY)
    again = await api.ask("POST", f"/threads/{thread}/runs", ASK, headers=KEY)
    assert again["run_id"] == first["run_id"], "although another would be refused while it is open"
    await worker.perform(thread, first["run_id"])
    late = await api.ask("POST", f"/threads/{thread}/runs", ASK, headers=KEY)
    assert (late["run_id"], late["status"]) == (first["run_id"], "success")
    refused = await api.ask("POST", f"/threads/{thread}/runs", OTHER, headers=KEY, status=422)
    assert "Idempotency-Key" in refused["detail"]
    assert await runs_of(api, thread) == [first["run_id"]]
    new = await api.ask("POST", f"/threads/{thread}/runs", ASK, headers={"Idempotency-Key": "two"})
    assert new["run_id"] != first["run_id"]


async def test_keys_are_of_a_thread(api: Api) -> None:
    one, two = await api.thread(), await api.thread()
    runs = {(await api.ask("POST", f"/threads/{thread}/runs", ASK, headers=KEY))["run_id"] for thread in (one, two)}
    assert len(runs) == 2


async def test_many_at_once_make_one(api: Api) -> None:
    thread = await api.thread()
    asking = [api.ask("POST", f"/threads/{thread}/runs", ASK, headers=KEY) for _ in range(12)]
    assert len({answer["run_id"] for answer in await asyncio.gather(*asking)}) == 1
    assert len(await runs_of(api, thread)) == 1


async def test_after_a_restart(api: Api, system: System, worker: Worker, tmp_path: Path) -> None:
    thread = await api.thread()
    first = (await api.ask("POST", f"/threads/{thread}/runs", ASK, headers=KEY))["run_id"]
    await worker.perform(thread, first)
    async with (
        serve(services_of(system, Settings(), tmp_path), "127.0.0.1", 0) as port,
        aiohttp.ClientSession() as session,
    ):
        other = Api(session, f"http://127.0.0.1:{port}")
        assert (await other.ask("POST", f"/threads/{thread}/runs", ASK, headers=KEY))["run_id"] == first
        await other.ask("POST", f"/threads/{thread}/runs", OTHER, headers=KEY, status=422)


async def test_a_repeated_stream_tells_everything_again(api: Api, worker: Worker) -> None:
    thread = await api.thread()
    body = {**ASK, "stream_mode": ["values"]}
    async with api.stream("POST", f"/threads/{thread}/runs/stream", body, **KEY) as stream:
        run = (await stream.until("metadata"))[0][1]["run_id"]
    await worker.start(thread, run)
    async with api.stream("POST", f"/threads/{thread}/runs/stream", body, **KEY) as stream:
        first = await stream.until("values")
        assert first[0][1]["run_id"] == run
        await worker.finish(thread, run)
        assert [event for event, _, _ in await stream.rest()][-1] == "end"
    async with api.stream("POST", f"/threads/{thread}/runs/stream", body, **KEY) as stream:
        everything = await stream.rest()
    assert everything[0][1]["run_id"] == run
    assert [event for event, _, _ in everything] == ["metadata", "values", "values", "end"]
    assert len(await runs_of(api, thread)) == 1


async def test_a_repeated_wait_gives_the_same_values(api: Api, worker: Worker) -> None:
    thread = await api.thread()
    run = (await api.ask("POST", f"/threads/{thread}/runs", ASK, headers=KEY))["run_id"]
    waiting = asyncio.create_task(api.ask("POST", f"/threads/{thread}/runs/wait", ASK, headers=KEY))
    await worker.perform(thread, run)
    values = await waiting
    assert values["messages"][-1]["content"] == "Hello"
    assert await api.ask("POST", f"/threads/{thread}/runs/wait", ASK, headers=KEY) == values
    assert await runs_of(api, thread) == [run]


async def test_without_a_thread(api: Api) -> None:
    first = await api.ask("POST", "/runs", ASK, headers=KEY)
    again = await api.ask("POST", "/runs", ASK, headers=KEY)
    assert (again["run_id"], again["thread_id"]) == (first["run_id"], first["thread_id"])
    await api.ask("POST", "/runs", OTHER, headers=KEY, status=422)
    batch = await api.ask("POST", "/runs/batch", [ASK, OTHER], headers={"Idempotency-Key": "batch"})
    same = await api.ask("POST", "/runs/batch", [ASK, OTHER], headers={"Idempotency-Key": "batch"})
    assert [run["run_id"] for run in same] == [run["run_id"] for run in batch]
    assert len({run["run_id"] for run in batch}) == 2


async def test_commands(api: Api) -> None:
    thread = await api.thread()
    first = await api.ask("POST", f"/threads/{thread}/commands", START, headers=KEY)
    again = await api.ask("POST", f"/threads/{thread}/commands", START, headers=KEY)
    assert again["result"]["run_id"] == first["result"]["run_id"]
    assert len(await runs_of(api, thread)) == 1


async def test_an_answer_given_again_once(api: Api, worker: Worker) -> None:
    thread = await api.thread()
    run = await api.run(thread)
    await worker.perform(thread, run)
    body = {"regenerate": {"message_id": f"m-{run}"}}
    first = (await api.ask("POST", f"/threads/{thread}/runs", body, headers=KEY))["run_id"]
    assert (await api.ask("POST", f"/threads/{thread}/runs", body, headers=KEY))["run_id"] == first
    await worker.perform(thread, first)
    assert (await api.ask("POST", f"/threads/{thread}/runs", body, headers=KEY))["run_id"] == first
    assert len(await runs_of(api, thread)) == 2


async def test_decisions(api: Api, worker: Worker) -> None:
    _, _, path = await park(api, worker, asked())
    first = (await api.ask("POST", f"{path}/{A}", {"decision": "approve"}, headers=KEY, status=202))["run_id"]
    again = await api.ask("POST", f"{path}/{A}", {"decision": "approve"}, headers=KEY)
    assert again["run_id"] == first
    await api.ask("POST", f"{path}/{A}", {"decision": "reject"}, headers=KEY, status=422)


@pytest.mark.parametrize("key", ["", "x" * 256, "ü"])
async def test_keys_that_are_none(api: Api, key: str) -> None:
    thread = await api.thread()
    headers = {"Idempotency-Key": key}
    answer = await api.ask("POST", f"/threads/{thread}/runs", ASK, headers=headers, status=422)
    assert "Idempotency-Key" in answer["detail"]
    assert await runs_of(api, thread) == []


async def test_keys_are_of_a_user(system: System, tmp_path: Path) -> None:
    async with place(system, WithAccounts(), tmp_path / "home") as here:
        ada, bob = await here.person(ADA), await here.person(BOB)
        runs = [(await person.ask("POST", "/api/runs", ASK, headers=KEY)).body for person in (ada, bob)]
        assert runs[0]["run_id"] != runs[1]["run_id"]
        thread, run = runs[0]["thread_id"], runs[0]["run_id"]
        assert (await bob.ask("POST", f"/api/threads/{thread}/runs", ASK, headers=KEY)).status == 404
        assert (await ada.ask("GET", f"/api/threads/{thread}/runs/{run}")).status == 200


# ── every request that makes a run ──────────────────────────────────────────────────────────────────────────────────

RUN_OF_NONE = {
    "POST /threads/{thread_id}/log/whatif": "an experiment, of which the log knows nothing",
    "PUT /threads/{thread_id}/goal": "the next message begins with it",
    "DELETE /threads/{thread_id}/goal": "",
    "POST /scheduled-tasks": "its runs come when they are due",
    "PATCH /scheduled-tasks/{task_id}": "",
    "POST /scheduled-tasks/{task_id}/resume": "",
    "POST /runs/crons": "its runs come when they are due",
    "POST /threads/{thread_id}/runs/crons": "",
    "PATCH /runs/crons/{cron_id}": "",
    "POST /threads/{thread_id}/subagents/{subagent_id}/message": "the run that goes on; a message id counts once",
    "POST /threads/{thread_id}/runs/{run_id}/steer": "the run that goes on; a message id counts once",
    "POST /threads/{thread_id}/suggestions": "a question to a model beside the conversation",
    "POST /input-polish": "a question to a model beside the conversation",
    "POST /threads/{thread_id}/runs/regenerate/prepare": "a body for the request that makes one",
    "POST /threads/{thread_id}/runs/edit-regenerate/prepare": "a body for the request that makes one",
}
MAKES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "POST /threads/{thread_id}/runs": (ASK, OTHER),
    "POST /threads/{thread_id}/runs/stream": (ASK, OTHER),
    "POST /threads/{thread_id}/runs/wait": (ASK, OTHER),
    "POST /threads/{thread_id}/commands": (START, {**START, "params": {"assistant_id": "lead_agent", **OTHER}}),
    "POST /runs": (ASK, OTHER),
    "POST /runs/stream": (ASK, OTHER),
    "POST /runs/wait": (ASK, OTHER),
}
APART = {  # tried on their own below and above
    "POST /runs/batch",
    "POST /threads/{thread_id}/approvals/{approval_id}",
    "POST /scheduled-tasks/{task_id}/trigger",
    "POST /agui",
}


def test_no_request_that_makes_a_run_is_forgotten() -> None:
    asking = {f"{route.method} {route.path}" for route in all_routes() if "runs:create" in route.scope}
    assert asking == {*MAKES, *APART, *RUN_OF_NONE}


@pytest.mark.parametrize("route", MAKES)
async def test_at_once_and_in_other_words(api: Api, worker: Worker, made: Requests, route: str) -> None:
    """Eight at once are one run; the same key for another body is refused, whatever answers."""
    thread, (body, other) = await api.thread(), MAKES[route]
    path = route.removeprefix("POST ").replace("{thread_id}", thread)

    async def send(body: dict[str, Any]) -> tuple[int, bytes]:
        async with api.session.post(f"{api.url}/api{path}", json=body, headers=KEY) as response:
            return response.status, await response.read()

    sending = [asyncio.create_task(send(body)) for _ in range(8)]
    await worker.perform(*await one(made))
    assert [status for status, _ in await asyncio.gather(*sending)] == [200] * 8
    status, answer = await send(other)
    assert b"Idempotency-Key" in answer
    assert status == (200 if route.endswith("/commands") else 422), "commands answer in a form of their own"
    assert len(made) == 1


async def test_a_task_is_triggered_once(api: Api, worker: Worker) -> None:
    task = (await make(api))["id"]
    path = f"/scheduled-tasks/{task}/trigger"
    fired = await asyncio.gather(*(api.ask("POST", path, headers=KEY) for _ in range(8)))
    assert len({(one["run_id"], one["thread_id"]) for one in fired}) == 1
    await worker.perform(fired[0]["thread_id"], fired[0]["run_id"])
    assert await api.ask("POST", path, headers=KEY) == fired[0]
    later = await api.ask("POST", path, headers={"Idempotency-Key": "later"})
    assert later["run_id"] != fired[0]["run_id"]
    assert len(await api.ask("GET", f"/scheduled-tasks/{task}/runs")) == 2


async def test_ag_ui_names_its_runs_itself(api: Api, worker: Worker, made: Requests) -> None:
    thread = await api.thread()
    body = {"threadId": thread, "runId": "r-1", "messages": [{"id": "m-1", "role": "user", "content": "hi"}]}

    async def send() -> bytes:
        async with api.session.post(f"{api.url}/api/agui", json=body) as response:
            return await response.read()

    sending = [asyncio.create_task(send()) for _ in range(4)]
    await worker.perform(*await one(made))
    streams = [*await asyncio.gather(*sending), await send()]
    shown = {tuple(event["type"] for event in events_in(stream)) for stream in streams}
    assert [types[0] for types in shown] == ["RUN_STARTED"] * len(shown), shown
    assert [types[-1] for types in shown] == ["RUN_FINISHED"] * len(shown), shown
    texts = ["".join(event.get("delta", "") for event in events_in(stream)) for stream in streams]
    assert texts == ["Hello"] * len(streams)
    assert made == {(thread, "r-1")}


def events_in(stream: bytes) -> list[Any]:
    return [msgspec.json.decode(line[6:]) for line in stream.split(b"\n") if line.startswith(b"data: ")]


async def test_chats_over_mcp(url: str, worker: Worker, made: Requests) -> None:
    """The header comes with each request of a session. JSON-RPC numbers calls: a repeated one has another number."""
    async with client(url, **KEY) as session:
        first = await tool(session, "chat", message="hi", wait_seconds=0)
        assert await one(made) == (first["thread_id"], first["run_id"])
        assert (await tool(session, "chat", message="hi", wait_seconds=0))["run_id"] == first["run_id"]
        assert "Idempotency-Key" in await error(session, "chat", message="ho", wait_seconds=0)
    await worker.perform(*await one(made))
    async with client(url, **KEY) as session:
        again = await tool(session, "chat", message="hi")
    assert (again["run_id"], again["messages"][-1]["text"]) == (first["run_id"], "Hello")
    assert len(made) == 1


Requests = set[tuple[str, str]]
"""Thread and run of every request that has been made."""


@pytest.fixture
async def made(system: System) -> AsyncIterator[Requests]:
    requests: Requests = set()

    async def listen(*, task_status: anyio.abc.TaskStatus[None]) -> None:
        with system.log.listen(None) as listener:
            task_status.started()
            while True:
                records, _ = await listener.take()
                requests.update((one.aggregate.id, str(one.run)) for one in records if one.type == "run.requested")

    async with anyio.create_task_group() as tasks:
        await tasks.start(listen)
        yield requests
        tasks.cancel_scope.cancel()


async def one(made: Requests) -> tuple[str, str]:
    """Waits for the only request."""

    async def there() -> bool:
        return bool(made)

    await eventually(there)
    [request] = made
    return request
