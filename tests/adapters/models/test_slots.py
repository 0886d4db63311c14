"""Places at a provider: as many as there are, in order, and given back whatever happens."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

from adapters.models import factory, slots
from adapters.models.factory import build
from tests.support.model_server import Failure, ModelServer, Turn

pytestmark = pytest.mark.anyio

SLOW = Turn(text="one two three", gate="door", gate_after=2)


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factory, "_built", {})


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    scripts = {
        "slow": [SLOW],
        "slow-2": [SLOW],
        "quick": [Turn(text="done")],
        "broken": [Turn(text="a b c", disconnect_after=1)],
        "busy": [Turn(error=Failure(status=429))],
    }
    async with ModelServer(scripts) as running:
        yield running
    await factory.close()


def model(server: ModelServer, name: str, limit: int | None = 1, **fields: Any) -> BaseChatModel:
    return build({"model": name, "base_url": server.url, "api_key": "k", "max_concurrency": limit, **fields})


async def said(asked: BaseChatModel) -> str:
    return "".join([chunk.text async for chunk in asked.astream("Hi")])


async def until(true: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if true():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came true")


def used() -> int:
    """Places taken of all providers on this loop."""
    return sum(place.borrowed_tokens for place in slots._limiters.get(asyncio.get_running_loop(), {}).values())


# ── the places alone ────────────────────────────────────────────────────────────────────────────────────────────────


class Queue:
    """Names of those who came in, in order; each stays until told to go."""

    def __init__(self) -> None:
        self.inside = list[str]()
        self.going: dict[str, asyncio.Event] = {}

    def come(self, name: str, limit: int) -> asyncio.Task[None]:
        return asyncio.create_task(self._stay(name, limit))

    async def _stay(self, name: str, limit: int) -> None:
        self.going[name] = asyncio.Event()
        async with slots.place("p", limit):
            self.inside.append(name)
            await self.going[name].wait()

    async def settled(self) -> list[str]:
        for _ in range(5):
            await asyncio.sleep(0)
        return self.inside


async def test_who_comes_first_is_served_first() -> None:
    queue = Queue()
    tasks = [queue.come(name, 2) for name in "abcd"]
    assert await queue.settled() == ["a", "b"]
    queue.going["b"].set()
    late = queue.come("e", 2)
    assert await queue.settled() == ["a", "b", "c"]
    for name in "acde":
        queue.going[name].set()
    await asyncio.gather(*tasks, late)
    assert (queue.inside, used()) == (["a", "b", "c", "d", "e"], 0)


async def test_who_stops_waiting_takes_no_place_and_holds_nobody_up() -> None:
    queue = Queue()
    first, second, tired, last = (queue.come(name, 2) for name in "abcd")
    assert await queue.settled() == ["a", "b"]
    tired.cancel()
    queue.going["a"].set()
    assert await queue.settled() == ["a", "b", "d"]
    for name in "bd":
        queue.going[name].set()
    await asyncio.gather(first, second, last)
    assert used() == 0


async def test_the_newest_limit_counts() -> None:
    queue = Queue()
    tasks = [queue.come("a", 1), queue.come("b", 1)]
    assert await queue.settled() == ["a"]
    tasks.append(queue.come("c", 3))
    assert await queue.settled() == ["a", "b", "c"]
    tasks.append(queue.come("d", 2))
    queue.going["a"].set()
    assert await queue.settled() == ["a", "b", "c"]
    queue.going["b"].set()
    assert await queue.settled() == ["a", "b", "c", "d"]
    for name in "cd":
        queue.going[name].set()
    await asyncio.gather(*tasks)
    assert used() == 0


# ── at a provider ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_models_of_one_provider_share_its_places(server: ModelServer) -> None:
    one, two = model(server, "slow"), model(server, "slow-2", temperature=0.1)
    other = model(server, "slow", api_key="another")
    tasks = [asyncio.create_task(said(asked)) for asked in (one, two, other)]
    await until(lambda: sum(record.outcome == "open" for record in server.requests) == 2)
    for _ in range(20):
        await asyncio.sleep(0)
    assert [record.model for record in server.requests] == ["slow", "slow"]
    server.release("door")
    assert await asyncio.gather(*tasks) == ["one two three"] * 3
    assert used() == 0


async def test_without_a_limit_nobody_waits_and_the_class_is_its_own(server: ModelServer) -> None:
    free = model(server, "slow", None)
    tasks = [asyncio.create_task(said(free)) for _ in range(5)]
    await until(lambda: len(server.requests) == 5)
    server.release("door")
    await asyncio.gather(*tasks)
    assert type(free).__mro__.count(BaseChatModel) == 1
    assert type(free)._astream is type(build({"model": "x", "api_key": "k"}))._astream
    assert type(model(server, "slow"))._astream is not type(free)._astream


@pytest.mark.parametrize("name", ["broken", "busy", "absent"])
async def test_a_failure_gives_the_place_back(server: ModelServer, name: str) -> None:
    with pytest.raises(Exception, match=r"."):
        await said(model(server, name))
    with pytest.raises(Exception, match=r"."):
        await model(server, name).ainvoke("Hi")
    assert await said(model(server, "quick")) == "done"
    assert used() == 0


async def test_a_cancelled_stream_gives_the_place_back(server: ModelServer) -> None:
    task = asyncio.create_task(said(model(server, "slow")))
    await server.reached("door")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await said(model(server, "quick")) == "done"


@pytest.mark.parametrize("closed", [True, False])
async def test_an_abandoned_stream_gives_the_place_back(server: ModelServer, closed: bool) -> None:
    stream: Any = model(server, "slow").astream("Hi")
    assert (await anext(stream)).content == ""
    assert used() == 1
    if closed:
        async with aclosing(stream):
            pass
    del stream
    gc.collect()
    assert await said(model(server, "quick")) == "done"
    assert used() == 0


async def test_an_answer_in_one_piece_has_a_place_too(server: ModelServer) -> None:
    asked = model(server, "slow")
    first = asyncio.create_task(said(asked))
    await server.reached("door")
    second = asyncio.create_task(asked.ainvoke("Hi"))
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(server.requests) == 1
    server.release("door")
    assert await first == (await second).text == "one two three"


async def test_a_changed_limit_counts_from_now_on(server: ModelServer) -> None:
    tasks = [asyncio.create_task(said(model(server, "slow", 1))) for _ in range(2)]
    await server.reached("door")
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(server.requests) == 1
    tasks.append(asyncio.create_task(said(model(server, "slow", 3))))
    await until(lambda: len(server.requests) == 3)
    server.release("door")
    assert await asyncio.gather(*tasks) == ["one two three"] * 3


class Nested(BaseChatModel):
    """Generates by streaming from itself, and streams by generating."""

    model: str = ""
    api_key: str = ""

    @property
    def _llm_type(self) -> str:
        return "nested"

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        raise NotImplementedError

    async def _agenerate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        if kwargs.get("last"):
            return ChatResult(generations=[ChatGeneration(message=AIMessage("done"))])
        text = "".join([chunk.text async for chunk in self._astream(messages)])
        return ChatResult(generations=[ChatGeneration(message=AIMessage(text))])

    async def _astream(
        self, messages: list[BaseMessage], *args: Any, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        from langchain_core.messages import AIMessageChunk

        result = await self._agenerate(messages, last=True)
        yield ChatGenerationChunk(message=AIMessageChunk(content=result.generations[0].text))


async def test_a_model_that_asks_itself_has_one_place() -> None:
    nested = build({"model": "x", "use": f"{__name__}:Nested", "api_key": "k", "max_concurrency": 1})
    assert (await nested.ainvoke("Hi")).text == await said(nested) == "done"
    assert used() == 0


def test_places_end_with_their_loop(anyio_backend: str) -> None:
    nested = build({"model": "x", "use": f"{__name__}:Nested", "api_key": "k", "max_concurrency": 1})

    async def abandoned() -> None:
        await slots.place(nested._bound[0], 1).__aenter__()  # type: ignore[attr-defined]

    asyncio.run(abandoned())
    assert asyncio.run(said(nested)) == "done"
    gc.collect()
    assert not slots._limiters
