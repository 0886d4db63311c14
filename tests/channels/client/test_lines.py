"""Lines that break, and servers that are away for a moment: nothing is lost, nothing is told or done twice."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from channels.client import ClientError, SikaClient, StreamEvent, TooMany, Unauthenticated, Unavailable, Unsupported
from tests.channels.client.stage import LONG, Line, Models, Stage, text_of, told
from tests.support.applications import running
from tests.support.model_server import words
from tests.support.ports import free_port

pytestmark = pytest.mark.long(keep=3)


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("channels.client.wire.PAUSES", (0.02, 0.05, 0.1, 0.2))
    monkeypatch.setattr("channels.client.wire.FIRST_SECONDS", 0.5)


def _told_of(events: list[StreamEvent]) -> dict[str, Any]:
    """Everything but how the text was cut."""
    usage = [event.data["usage_metadata"] for event in events if "usage_metadata" in event.data]
    calls = [event.data for event in events if "tool_calls" in event.data]
    results = [event.data for event in events if event.data.get("type") == "tool"]
    values = [len(event.data["messages"]) for event in events if event.type == "values"]
    return {
        "text": text_of(events),
        "usage": usage,
        "calls": [(call["name"], call["args"]) for data in calls for call in data["tool_calls"]],
        "results": [result["content"] for result in results],
        "values": values,
        "end": events[-1].data,
        "order": told(events),
    }


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("model", ["noting", LONG])
def test_a_stream_survives_a_line_that_keeps_breaking(server: str, stage: Stage, model: str, seed: int) -> None:
    with SikaClient(url=server) as client:
        whole = _told_of(list(client.stream("Note it", model_name=model)))
    dice = random.Random(f"{model} {seed}")
    line = stage.enter(Line(server, [dice.randrange(6000) for _ in range(12)]).open())
    with SikaClient(url=line.url) as client:
        events = list(client.stream("Note it", model_name=model))
    assert _told_of(events) == whole
    assert line.connections > 1
    if model == LONG:
        assert text_of(events) == words(300)


def test_a_request_whose_answer_was_lost_is_not_sent_again(
    server: str, stage: Stage, models: Models, thread_id: str
) -> None:
    line = stage.enter(Line(server, [0, 0]).open())
    asked = len(models.bodies("hello"))
    with SikaClient(url=line.url) as client:
        client.chat("Hi", thread_id=thread_id, model_name="hello")
        assert [m["type"] for m in client.get_thread(thread_id)["checkpoints"][-1]["values"]["messages"]] == [
            "human",
            "ai",
        ]
    assert len(models.bodies("hello")) == asked + 1


def test_a_stream_goes_on_after_a_break_in_the_middle_of_a_message(server: str, stage: Stage, models: Models) -> None:
    line, gate = stage.enter(Line(server).open()), models.gated()
    with SikaClient(url=line.url) as client:
        stream = client.stream("Count", model_name=gate)
        events = [next(stream), next(stream)]
        stage.call(line.cut)
        models.release(gate)
        events += stream
    assert text_of(events) == "One two three four five six."
    assert events[-1].type == "end"
    assert len(models.bodies(gate)) == 1


def test_nobody_is_there() -> None:
    with SikaClient(url=f"http://127.0.0.1:{free_port()}") as client, pytest.raises(Unavailable) as nobody:
        client.list_models()
    assert nobody.value.code == "unreachable"


def test_a_run_gives_up_when_nobody_comes() -> None:
    with SikaClient(url=f"http://127.0.0.1:{free_port()}") as client, pytest.raises(Unavailable):
        client.chat("Hi")


@pytest.mark.parametrize("url", ["nowhere", "ftp://127.0.0.1", "http://127.0.0.1:port"])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(ClientError) as wrong, SikaClient(url=url) as client:
        client.list_models()
    assert isinstance(wrong.value, ValueError)


# ── answers of servers ──────────────────────────────────────────────────────────────────────────────────────────────


class Moody:
    """Answers what it is told to, then 200; counts."""

    def __init__(self) -> None:
        self.url = ""
        self.answers: list[tuple[int, Any, dict[str, str]]] = []
        self.asked: list[str] = []

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Moody]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        async with running(app) as self.url:
            yield self

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.method)
        status, body, headers = self.answers.pop(0) if self.answers else (200, {"fine": True}, {})
        return web.json_response(body, status=status, headers=headers)


@pytest.fixture
def moody(stage: Stage) -> Moody:
    return stage.enter(Moody().open())


@pytest.fixture
def client(moody: Moody) -> Iterator[SikaClient]:
    with SikaClient(url=moody.url, api_key="sk-x") as client:
        yield client


NOW = (503, {"detail": "busy", "code": "unavailable"}, {"Retry-After": "0"})
SOON = (503, {"detail": "busy", "code": "unavailable"}, {"Retry-After": "1"})
NOT_HERE = (503, {"detail": "none", "code": "memory_unavailable"}, {"Retry-After": "2"})


@pytest.mark.parametrize("answer", [NOW, SOON, (502, {}, {}), (504, {}, {})])
def test_what_only_reads_waits_for_the_server(client: SikaClient, moody: Moody, answer: Any) -> None:
    moody.answers = [answer]
    assert client.list_models() == {"fine": True}
    assert moody.asked == ["GET", "GET"]


def test_a_server_that_was_there_is_given_up_in_the_end(
    client: SikaClient, moody: Moody, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client.list_models() == {"fine": True}
    monkeypatch.setattr("channels.client.wire.AWAY_SECONDS", 0.1)
    moody.answers = [NOW] * 1000
    with pytest.raises(Unavailable, match="busy"):
        client.list_models()
    assert len(moody.asked) > 2


def test_what_changes_something_does_not(client: SikaClient, moody: Moody) -> None:
    moody.answers = [SOON]
    with pytest.raises(Unavailable, match="busy"):
        client.upload_files("t", [__file__])
    assert moody.asked == ["POST"]


def test_a_server_that_is_broken_is_not_asked_for_the_run_again(client: SikaClient, moody: Moody) -> None:
    moody.answers = [(500, {"detail": "oh", "code": "internal"}, {}), (200, [], {})]
    with pytest.raises(Unavailable, match="oh"):
        client.chat("Hi")
    assert moody.asked == ["POST", "GET"]  # whether there is a run to be cancelled


def test_what_a_server_does_not_have_is_asked_for_once(client: SikaClient, moody: Moody) -> None:
    moody.answers = [NOT_HERE]
    with pytest.raises(Unsupported):
        client.list_models()
    assert moody.asked == ["GET"]


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.list_threads(),
        lambda client: client.get_thread("t"),
        lambda client: client.chat("Hi"),
    ],
)
def test_a_server_of_another_kind(client: SikaClient, ask: Callable[[SikaClient], Any]) -> None:
    with pytest.raises(ClientError, match="no answer of Sika"):
        ask(client)


@pytest.mark.parametrize(
    ("answer", "kind", "code"),
    [
        ((401, {"detail": {"code": "token_expired", "message": "over"}}, {}), Unauthenticated, "token_expired"),
        ((429, {"detail": "slow", "code": "too_many_runs"}, {"Retry-After": "7"}), TooMany, "too_many_runs"),
        ((500, {"detail": "oh", "code": "internal"}, {}), Unavailable, "internal"),
        ((599, {}, {}), Unavailable, "http_599"),
        ((418, {"detail": "tea"}, {}), ClientError, "http_418"),
        ((302, {}, {"Location": "http://127.0.0.1:1/"}), ClientError, "redirected"),
    ],
)
def test_errors_by_status(client: SikaClient, moody: Moody, answer: Any, kind: type[ClientError], code: str) -> None:
    moody.answers = [answer]
    with pytest.raises(kind) as raised:
        client.list_models()
    assert (raised.value.code, raised.value.status) == (code, answer[0])
    if isinstance(raised.value, TooMany):
        assert raised.value.retry_after == 7
