"""The unmodified Python SDK as a client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import httpx
import pytest
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import ConflictError, NotFoundError, UnprocessableEntityError

from core.events import RunCancelled, RunFailed
from tests.channels.http.conftest import Worker
from tests.channels.http.story import started

pytestmark = pytest.mark.anyio

Sdk = Callable[[str], LangGraphClient]
INPUT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
async def sdk() -> AsyncIterator[Sdk]:
    """Makes clients, and closes them."""
    made: list[LangGraphClient] = []

    def make(url: str) -> LangGraphClient:
        made.append(get_client(url=url))
        return made[-1]

    yield make
    for client in made:
        await client.aclose()


@pytest.mark.parametrize("mount", ["/api", "/api/langgraph"])
async def test_everything(sdk: Sdk, url: str, worker: Worker, mount: str) -> None:
    client = sdk(url + mount)
    thread = (await client.threads.create(metadata={"a": 1}, graph_id="lead_agent"))["thread_id"]
    assert (await client.threads.get(thread)).get("metadata") == {"a": 1, "graph_id": "lead_agent"}
    assert len(await client.assistants.search()) == 1

    async def work(count: int) -> None:
        run = await worker.requested(thread, count)
        await worker.perform(thread, run.id, f"answer {count}")

    task = asyncio.ensure_future(work(1))
    parts: list[Any] = []
    created: list[Any] = []
    stream = client.runs.stream(
        thread, "lead_agent", input=INPUT, stream_mode=["values", "messages-tuple"], on_run_created=created.append
    )
    async for part in stream:
        parts.append(part)
    await task
    assert [part.event for part in parts] == ["metadata", "values", "messages", "messages", "values", "end"]
    run_id = created[0]["run_id"]
    assert parts[0].data["run_id"] == run_id
    assert parts[-2].data["messages"][-1]["content"] == "answer 1"

    task = asyncio.ensure_future(work(2))
    values: Any = await client.runs.wait(thread, "lead_agent", input=INPUT)
    assert values["messages"][-1]["content"] == "answer 2"
    await task
    run = await client.runs.create(thread, "lead_agent", input=INPUT)
    with pytest.raises(ConflictError):
        await client.runs.create(thread, "lead_agent", input=INPUT, multitask_strategy="reject")
    await worker.perform(thread, run["run_id"], "answer 3")
    assert (await client.runs.get(thread, run["run_id"]))["status"] == "success"
    assert (await client.runs.join(thread, run["run_id"]))["messages"]
    assert len(await client.runs.list(thread)) == 3

    joined = [part async for part in client.runs.join_stream(thread, run["run_id"], last_event_id="-1")]
    assert joined[0].event == "metadata"
    assert joined[-1].event == "end"
    state = await client.threads.get_state(thread)
    history = await client.threads.get_history(thread, limit=3)
    assert history[0]["checkpoint"] == state["checkpoint"]
    await client.threads.update_state(thread, {"title": "T"})
    assert (await client.threads.get_state(thread))["values"]["title"] == "T"  # type: ignore[call-overload]
    before = await client.threads.get_history(thread, before=history[0]["checkpoint"])
    assert before[0]["checkpoint"] == history[1]["checkpoint"]
    assert [found["thread_id"] for found in await client.threads.search(metadata={"a": 1})] == [thread]
    assert await client.threads.count(metadata={"a": 1}) == 1
    await client.threads.update(thread, metadata={"b": 2})
    await client.threads.delete(thread)
    with pytest.raises(NotFoundError):
        await client.threads.get(thread)


async def test_errors(sdk: Sdk, url: str, worker: Worker) -> None:
    client = sdk(f"{url}/api")
    with pytest.raises(NotFoundError):
        await client.runs.create("unknown", "lead_agent", input=INPUT)
    thread = (await client.threads.create())["thread_id"]
    with pytest.raises(UnprocessableEntityError):
        await client.runs.create(thread, "lead_agent", input=INPUT, webhook="https://10.0.0.1/x")
    task = asyncio.ensure_future(client.runs.wait(thread, "lead_agent", input=INPUT))
    run = await worker.requested(thread)
    await worker.write(thread, run.id, started(), RunFailed(error="E", text="broke"))
    with pytest.raises(Exception, match="broke"):
        await task


async def test_cancel(sdk: Sdk, url: str, worker: Worker) -> None:
    client = sdk(f"{url}/api")
    thread = (await client.threads.create())["thread_id"]
    run = await client.runs.create(thread, "lead_agent", input=INPUT)
    await client.runs.cancel(thread, run["run_id"])
    task = asyncio.ensure_future(client.runs.cancel(thread, run["run_id"], wait=True))
    await anyio.sleep(0.05)
    await worker.write(thread, run["run_id"], RunCancelled())
    await task
    await worker.perform(thread, (await client.runs.create(thread, "lead_agent", input=INPUT))["run_id"])
    done = (await client.runs.list(thread))[0]["run_id"]
    with pytest.raises(httpx.HTTPStatusError):
        await client.runs.cancel(thread, done)


async def test_a_broken_connection_is_mended_by_the_client(sdk: Sdk, url: str, worker: Worker) -> None:
    """The SDK reconnects by itself, with the last id it saw; nothing is doubled or lost."""
    client = sdk(f"{url}/api")
    asked: list[str] = []

    async def note(request: httpx.Request) -> None:
        asked.append(f"{request.method} {request.url.path} {request.headers.get('Last-Event-ID', '')}")

    client.http.client.event_hooks["request"].append(note)
    thread = (await client.threads.create())["thread_id"]
    seen: list[Any] = []
    async for part in client.runs.stream(thread, "lead_agent", input=INPUT, stream_mode=["values", "updates"]):
        seen.append(part.event)
        run = await worker.requested(thread)
        if part.event == "metadata":
            await worker.start(thread, run.id)
        if seen.count("values") == 1 and part.event == "values":
            assert client.http.client._transport is not None
            for connection in list(getattr(client.http.client._transport, "_pool", None).connections):  # type: ignore[union-attr]
                stream = connection._connection._network_stream.get_extra_info("socket")
                stream.shutdown(2)
            await worker.finish(thread, run.id)
    assert seen == ["metadata", "values", "updates", "values", "end"]
    [again] = [one for one in asked if one.startswith("GET") and "/stream " in one]
    assert again.split("-")[-2:] == ["0", "8"]  # the place of the `values` it saw last
