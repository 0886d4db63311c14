"""The same request with the same key makes one run: in a row, at once, after a restart; another request is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from channels.http.app import serve
from core.runtime.system import System
from tests.channels.http.conftest import Api, Settings, Worker, services_of
from tests.channels.http.people import ADA, BOB, WithAccounts, place
from tests.channels.http.test_gateway_approvals import A, asked, park

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
