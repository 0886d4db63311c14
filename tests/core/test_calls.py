"""Questions to actors: answers, refusals, progress, silence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from core import calls
from core.bus import Bus
from core.errors import Invalid, NotFound, SikaError, Unavailable
from tests.support.nats import eventually, running_tasks

Answer = Callable[[Mapping[str, Any], Callable[[str], Awaitable[None]]], Awaitable[Any]]


@asynccontextmanager
async def answering(bus: Bus, answer: Answer) -> AsyncIterator[None]:
    async with running_tasks(lambda: calls.serve(bus, "oracle", answer)):

        async def there() -> bool:
            return bool(bus.nc._subs and any(s.subject == bus.names.call("oracle") for s in bus.nc._subs.values()))

        await eventually(there)
        await bus.nc.flush()
        yield


async def echo(request: Mapping[str, Any], progress: Callable[[str], Awaitable[None]]) -> Any:
    return request.get("say")


@pytest.mark.parametrize("value", ["hi", 0, False, None, "", [], {}, {"a": [1, None]}, "x" * 500_000])
async def test_every_value_can_be_an_answer(bus: Bus, value: Any) -> None:
    async with answering(bus, echo):
        assert await calls.call(bus, "oracle", {"say": value}) == value


async def refuse(request: Mapping[str, Any], progress: Callable[[str], Awaitable[None]]) -> Any:
    match request["how"]:
        case "invalid":
            raise Invalid("x: must be y")
        case "unavailable":
            raise Unavailable("later")
        case "not found":
            raise NotFound("no such thing")
        case "bug":
            raise KeyError("secret detail")
        case "too big":
            return "x" * calls.ANSWER_BYTES
        case "not json":
            return object()


@pytest.mark.parametrize(
    ("how", "error", "text"),
    [
        ("invalid", Invalid, "^x: must be y$"),
        ("unavailable", Unavailable, "^later$"),
        ("not found", SikaError, "^no such thing$"),
        ("bug", Invalid, "^oracle: internal error"),
        ("too big", Invalid, "more than 900000"),
        ("not json", Invalid, "internal error"),
    ],
)
async def test_refusals(bus: Bus, how: str, error: type[Exception], text: str) -> None:
    async with answering(bus, refuse):
        with pytest.raises(error, match=text):
            await calls.call(bus, "oracle", {"how": how})


async def test_progress_comes_before_the_answer_and_nothing_is_lost(bus: Bus) -> None:
    shown: list[str] = []
    heard = anyio.Event()

    async def chatty(request: Mapping[str, Any], progress: Callable[[str], Awaitable[None]]) -> Any:
        for n in range(50):
            await progress(f"{n},")
        await heard.wait()  # until the asker has seen some
        await progress("last")
        return "done"

    async def show(text: str) -> None:
        shown.append(text)
        heard.set()

    async with answering(bus, chatty):
        assert await calls.call(bus, "oracle", {}, show) == "done"
    assert "".join(shown) == "".join(f"{n}," for n in range(50)) + "last"


async def test_nobody_there(bus: Bus) -> None:
    with pytest.raises(Unavailable, match="no oracle actor is running"):
        await calls.call(bus, "oracle", {})


async def test_a_slow_answerer_gives_signs_of_life(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer takes longer than the silence that is borne."""
    monkeypatch.setattr(calls, "HEARTBEAT_SECONDS", 0.1)
    monkeypatch.setattr(calls, "SILENCE_SECONDS", 0.5)

    async def slow(request: Mapping[str, Any], progress: Callable[[str], Awaitable[None]]) -> Any:
        await asyncio.sleep(1.0)  # the thing under test: a slow answer
        return "at last"

    async with answering(bus, slow):
        assert await calls.call(bus, "oracle", {}) == "at last"


async def test_an_answerer_that_died_is_given_up(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "SILENCE_SECONDS", 0.3)
    started = anyio.Event()

    async def stuck(request: Mapping[str, Any], progress: Callable[[str], Awaitable[None]]) -> Any:
        started.set()
        await anyio.sleep_forever()

    async with answering(bus, stuck):
        asking = asyncio.ensure_future(calls.call(bus, "oracle", {}))
        await started.wait()
    with pytest.raises(Unavailable, match="no sign of life"):
        await asking


async def test_answerers_share_the_questions(bus: Bus) -> None:
    async def slowly(request: Mapping[str, Any], progress: Callable[[str], Awaitable[None]]) -> Any:
        return request["n"]

    async with answering(bus, slowly), answering(bus, slowly):
        answers = await asyncio.gather(*(calls.call(bus, "oracle", {"n": n}) for n in range(40)))
    assert answers == list(range(40))


async def test_what_is_not_json_is_refused(bus: Bus) -> None:
    async with answering(bus, echo):
        reply = await bus.ask(bus.names.call("oracle"), b"{")
    assert b"not a JSON object" in reply.data
