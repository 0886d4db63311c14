"""Questions to actors: answers, refusals, progress, silence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
import pytest
from nats.aio.msg import Msg

from core.bus import rpc as calls
from core.bus.connection import Bus
from core.bus.errors import BusUnavailable, api_error
from core.errors import (
    Conflict,
    Divergence,
    Internal,
    Invalid,
    NotFound,
    OwnershipLost,
    Refused,
    SikaError,
    Unavailable,
)
from core.identity.errors import WrongPassword
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


class NoOmen(Unavailable):
    """An error of the answerer's own, which the asker need not know."""

    code = "no_omen"


class Blind(Refused):
    """The same, with the code of its family."""


@pytest.mark.parametrize(
    ("error", "cls", "code"),
    [
        (Invalid("x: must be y"), Invalid, "invalid"),
        (NotFound("no such thing"), NotFound, "not_found"),
        (Refused("not now"), Refused, "conflict"),
        (Unavailable("later"), calls.Declined, "unavailable"),
        (BusUnavailable("no leader"), calls.Disrupted, "unavailable"),
        (api_error({"code": 503, "err_code": 10008, "description": "x"}), calls.Disrupted, "unavailable"),
        (Internal("broken"), Internal, "internal"),
        (NoOmen("clouds"), calls.Declined, "no_omen"),
        (Blind("dark"), Refused, "conflict"),
        (WrongPassword("no"), Invalid, "invalid_credentials"),
        (Conflict("thread/t", 5), Internal, "internal"),
        (OwnershipLost("gone"), Internal, "internal"),
        (Divergence("other"), Internal, "internal"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
async def test_errors_keep_their_class_and_code(bus: Bus, error: SikaError, cls: type[SikaError], code: str) -> None:
    async def refuse(request: Mapping[str, Any], progress: Callable[[str], Awaitable[None]]) -> Any:
        raise error

    async with answering(bus, refuse):
        with pytest.raises(SikaError) as raised:
            await calls.call(bus, "oracle", {})
    assert (type(raised.value), raised.value.code, str(raised.value)) == (cls, code, str(error))


async def test_an_error_of_any_length_is_answered(bus: Bus) -> None:
    async def refuse(request: Mapping[str, Any], progress: Callable[[str], Awaitable[None]]) -> Any:
        raise Invalid("\0" * 2_000_000)

    async with answering(bus, refuse):
        with pytest.raises(Invalid, match=r"^\0{32768} \.\.\. \[1967232 characters not shown\]$"):
            await calls.call(bus, "oracle", {})


class Panic(BaseException):
    """What libraries in Rust raise."""


def fail(how: str) -> Any:
    match how:
        case "bug":
            raise KeyError("secret detail")
        case "exit":
            raise SystemExit(3)
        case "panic":
            raise Panic("called `unwrap` on a `None` value")
        case "too big":
            return "x" * calls.ANSWER_BYTES
        case "not json":
            return object()


@pytest.mark.parametrize(
    ("how", "cls", "text"),
    [
        ("bug", Internal, "^oracle: internal error; see the server's log$"),
        ("exit", Internal, "tried to end the process"),
        ("panic", Internal, "failed: called"),
        ("too big", Invalid, "more than 900000"),
        ("not json", Internal, "internal error"),
    ],
)
async def test_a_defect_is_not_the_fault_of_the_asker(bus: Bus, how: str, cls: type[SikaError], text: str) -> None:
    async def answer(request: Mapping[str, Any], progress: Callable[[str], Awaitable[None]]) -> Any:
        return fail(how)

    async with answering(bus, answer):
        with pytest.raises(cls, match=text):
            await calls.call(bus, "oracle", {})


@pytest.mark.parametrize(
    ("code", "cls"), [("unavailable", calls.Declined), ("not_found", NotFound), ("no_omen", Invalid)]
)
async def test_an_older_answerer_names_no_family(bus: Bus, code: str, cls: type[SikaError]) -> None:
    async def answer(msg: Msg) -> None:
        await bus.publish(msg.reply, msgspec.json.encode({"error": [code, "no"]}))

    subscription = await bus.subscribe(bus.names.call("oracle"), answer)
    with pytest.raises(SikaError, match=r"^no$") as raised:
        await calls.call(bus, "oracle", {})
    assert (type(raised.value), raised.value.code) == (cls, code)
    await subscription.unsubscribe()


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
    monkeypatch.setattr(calls, "SILENCE_SECONDS", 5.0)

    async def slow(request: Mapping[str, Any], progress: Callable[[str], Awaitable[None]]) -> Any:
        await asyncio.sleep(5.5)  # the thing under test: a slow answer
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


# ── one question and the others ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("noise", ["\0" * 300_000, "\udcff" * 50_000, "ü" * 5_000_000], ids=["nul", "no text", "flood"])
async def test_a_loud_question_hurts_no_other(bus: Bus, noise: str) -> None:
    """What does not fit a message as progress neither ends the answer nor those of others."""
    shown: list[str] = []
    loud = anyio.Event()

    async def answer(request: Mapping[str, Any], progress: Callable[[str], Awaitable[None]]) -> Any:
        if request["loud"]:
            await progress(noise)
            await progress("the end")
            await asyncio.sleep(calls.PROGRESS_SECONDS * 2)  # it is sent before the answer
            loud.set()
        await loud.wait()
        return "done"

    async def show(text: str) -> None:
        shown.append(text)

    async with answering(bus, answer):
        quiet = asyncio.ensure_future(calls.call(bus, "oracle", {"loud": False}))
        assert await calls.call(bus, "oracle", {"loud": True}, show) == "done"
        assert await quiet == "done"
    text = "".join(shown)
    assert text.endswith("the end")
    assert "characters not shown" in text
    assert len(text) <= calls.PROGRESS_CHARACTERS + 100


async def test_junk_questions_are_refused_and_the_loop_goes_on(bus: Bus) -> None:
    async with answering(bus, echo):
        for junk in (b"", b"[]", b"\xff", b"null", b"7"):
            await bus.publish(bus.names.call("oracle"), junk)  # without an address for the answer
            assert b"not a JSON object" in (await bus.ask(bus.names.call("oracle"), junk)).data
        assert await calls.call(bus, "oracle", {"say": 1}) == 1


async def test_a_question_too_many_is_declined(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MAX_REQUESTS", 1)
    busy, go = anyio.Event(), anyio.Event()

    async def slow(request: Mapping[str, Any], progress: Callable[[str], Awaitable[None]]) -> Any:
        busy.set()
        await go.wait()
        return "at last"

    async with answering(bus, slow):
        first = asyncio.ensure_future(calls.call(bus, "oracle", {}))
        await busy.wait()
        with pytest.raises(calls.Declined, match="1 questions are being answered"):
            await calls.call(bus, "oracle", {})
        go.set()
        assert await first == "at last"
        assert await calls.call(bus, "oracle", {}) == "at last"


async def test_an_answer_that_never_comes_has_a_deadline(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "ANSWER_SECONDS", 0.1)

    async def stuck(request: Mapping[str, Any], progress: Callable[[str], Awaitable[None]]) -> Any:
        await anyio.sleep_forever()

    async with answering(bus, stuck):
        with pytest.raises(Internal, match="internal error"):
            await calls.call(bus, "oracle", {})


async def test_an_actor_that_only_gives_signs_of_life_is_not_heard_for_ever(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One in another language, say, that has hung: each sign comes in time, and no answer ever does."""
    monkeypatch.setattr(calls, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(calls, "SILENCE_SECONDS", 3.0)

    async def alive(msg: Msg) -> None:
        while not bus.nc.is_closed:
            await bus.publish(msg.reply, b"{}")
            await asyncio.sleep(0.01)

    subscription = await bus.subscribe(bus.names.call("hung"), alive)
    with pytest.raises(calls.Silent, match=r"no answer within 0\.2 s"):
        await calls.call(bus, "hung", {})
    await subscription.unsubscribe()


async def test_an_idle_request_costs_no_turns_of_the_loop(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its heartbeat sleeps until there is progress."""
    sleeps: list[float] = []
    sleep = asyncio.sleep

    async def counted(seconds: float, *more: Any) -> Any:
        sleeps.append(seconds)
        return await sleep(seconds, *more)

    begun, done = asyncio.Event(), asyncio.Event()

    async def slow(request: Mapping[str, Any], progress: Callable[[str], Awaitable[None]]) -> Any:
        begun.set()
        await done.wait()
        await progress("a")
        return 1

    async with answering(bus, slow), asyncio.TaskGroup() as tasks:
        call = tasks.create_task(calls.call(bus, "oracle", {}))
        await begun.wait()
        monkeypatch.setattr(asyncio, "sleep", counted)
        for _ in range(20):
            await bus.echo()
        assert calls.PROGRESS_SECONDS not in sleeps
        done.set()
        assert await call == 1
