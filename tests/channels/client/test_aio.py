"""The client of programs with an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from pathlib import Path

import pytest

from channels.client import AsyncSikaClient, ClientError, Unavailable
from tests.channels.client.stage import Models, processes, text_of, told
from tests.support.workers import DEADLINE, wait_for

pytestmark = pytest.mark.long(keep=3)

HELLO = "Hello there, nice to meet you."


@pytest.fixture(params=["in this process", "elsewhere"])
async def client(request: pytest.FixtureRequest, config: Path, tmp_path: Path) -> AsyncIterator[AsyncSikaClient]:
    if request.param == "elsewhere":
        made = AsyncSikaClient(url=request.getfixturevalue("server"))
    else:
        made = AsyncSikaClient(config, home=tmp_path / "home")
    async with made as client:
        yield client


async def test_streams_and_chats(client: AsyncSikaClient, thread_id: str) -> None:
    events = [event async for event in client.stream("Hi", thread_id=thread_id, model_name="hello")]
    assert (told(events), text_of(events)) == (["values", "text", "usage", "values", "end"], HELLO)
    answers = await asyncio.gather(*(client.chat("Hi", model_name="hello") for _ in range(8)))
    assert answers == [HELLO] * 8
    assert len((await client.list_threads(limit=20))["thread_list"]) >= 9


@pytest.mark.parametrize("how", ["closed", "cancelled"])
async def test_a_stream_that_is_left_cancels_its_run(
    client: AsyncSikaClient, models: Models, thread_id: str, how: str
) -> None:
    gate = models.gated()
    stream = client.stream("Hi", thread_id=thread_id, model_name=gate)
    if how == "closed":
        async with aclosing(stream) as events:
            async for event in events:
                if event.type == "messages-tuple":
                    break
    else:
        task = asyncio.create_task(read_out(stream))
        await asyncio.to_thread(models.reached, gate)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def interrupted() -> bool:
        (run,) = await client._json("GET", f"/api/threads/{thread_id}/runs")
        return bool(run["status"] == "interrupted")

    await wait_for(interrupted)


async def read_out(stream: AsyncIterator[object]) -> None:
    async for _ in stream:
        pass


async def test_a_closed_client_says_so(client: AsyncSikaClient, models: Models) -> None:
    stream = client.stream("Hi", model_name="hello")
    await anext(stream)
    waiting = asyncio.create_task(read_out(client.stream("Hi", model_name=(gate := models.gated()))))
    await asyncio.to_thread(models.reached, gate)
    async with asyncio.timeout(DEADLINE):
        await client.close()
        with suppress(ClientError):  # it has seen the end of its run, or that the client is closed
            await waiting
        with pytest.raises(ClientError):
            await client.list_models()
        await read_out(stream)


async def test_a_server_nobody_waits_for_any_more_is_found_and_ended(config: Path, tmp_path: Path) -> None:
    async def starting() -> bool:
        return bool(list(processes(tmp_path)))

    client = AsyncSikaClient(config, home=tmp_path / "home")
    task = asyncio.create_task(client.list_models())
    await wait_for(starting)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await client.close()
    assert not await starting()


async def test_requests_have_a_deadline() -> None:
    async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(writer)

    held: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with AsyncSikaClient(url=url, timeout=0.05) as client:
        with pytest.raises(Unavailable) as late:
            await client.list_models()
    assert late.value.code == "timeout"
    for writer in held:
        writer.close()
    server.close()
