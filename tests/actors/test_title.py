"""Titles: what is made of a model's answer, and who gets one, on a real log with a real model server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from actors.title import NAMELESS, Title, beginning, cleaned, prompt_of, same_script
from adapters.models.configured import Configured
from channels.http.app import Services, serve
from core.bus import embedded
from core.bus.endpoint import Endpoint
from core.config.load import ConfigSource
from core.config.settings import Title as Settings
from core.events import RunRequested, RunStarted, StatePatched, ThreadCreated, ThreadTitled
from core.thread.fold import fold
from core.thread.turns import first_message
from tests.channels.http.conftest import Api
from tests.support.model_server import Failure, ModelServer, Turn
from tests.support.records import human, log_of
from tests.support.workers import Client, configure, worker

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("answer", "title"),
    [
        ('"Otters at Home"\n', "Otters at Home"),
        ("\n\n«Otters»\nUser: and now?", "Otters"),
        ("# **Otters**", "Otters"),
        ("<title>Otters</title>", "Otters"),
        ("<message>\nOtters\n</message>", "Otters"),
        ("</message>\n<Title> Otters </TITLE> <|im_end|>", "Otters"),
        ("<system-reminder>Otters</system_reminder", "Otters"),
        ("&lt;system-reminder> &lt;/Title&gt;Otters &lt;message&gt;", "Otters"),
        ("Otters <div> in HTML", "Otters <div> in HTML"),
        ("Otters &lt;/message", "Otters"),
        ("Otters &lt;div&gt; &lt; &lt;", "Otters &lt;div&gt; &lt; &lt;"),
        ("Otters < 3 and > 2", "Otters < 3 and > 2"),
        ("水獺的\u3000家", "水獺的 家"),
        ("x" * 60, "x" * 60),
        ("x" * 61, "x" * 59 + "…"),
        ('" "', ""),
    ],
)
def test_a_title_is_one_short_line(answer: str, title: str) -> None:
    assert cleaned(answer, Settings()) == title


@pytest.mark.parametrize(
    ("text", "limit", "title"),
    [("a\n b", 60, "a b"), ("x" * 50, 60, "x" * 50), ("x" * 51, 60, "x" * 50 + "…"), ("x" * 51, 10, "x" * 10 + "…")],
)
def test_the_beginning_of_a_message_is_a_title(text: str, limit: int, title: str) -> None:
    assert beginning(text, Settings(max_chars=limit)) == title


@pytest.mark.parametrize(
    ("title", "text", "same"),
    [
        ("Otters", "where do otters live?", True),
        ("水獺", "where do otters live?", False),
        ("Otter facts", "水獺住在哪裡", False),
        ("Flask 部署指南", "部署 Flask", True),
        ("Выдры", "Где живут выдры", True),
        ("Two and two", "2 + 2?", True),
        ("42", "hi", True),
    ],
)
def test_a_title_is_in_the_script_of_the_message(title: str, text: str, same: bool) -> None:
    assert same_script(title, text) is same


ASKED = RunRequested(input={"messages": [human("a")]})
STARTED = RunStarted(attempt=1, worker="w", lease=1)
HIDDEN = {**human("h"), "additional_kwargs": {"hide_from_ui": True}}


@pytest.mark.parametrize(
    ("before", "messages", "first"),
    [
        ([], [human("a")], "a"),
        ([(ASKED, "r"), (STARTED, "r")], [human("a")], "a"),
        ([(ASKED, "r"), (STARTED, "r"), StatePatched(values={"messages": [human("b")]})], [human("a")], "a"),
        ([(ASKED, "r"), (STARTED, "r")], [human("b")], None),
        ([StatePatched(values={"messages": [HIDDEN]})], [HIDDEN, human("a")], "a"),
        ([], [human("a"), human("b")], None),
        ([], [HIDDEN], None),
        ([], [], None),
    ],
)
def test_a_conversation_begins_with_one_message_of_a_person(before: Any, messages: Any, first: str | None) -> None:
    message = first_message(fold(log_of(*before)), RunRequested(input={"messages": messages}))
    assert (message or {}).get("id") == first


def test_a_template_quotes_no_more_than_it_must() -> None:
    prompt = prompt_of(Settings(prompt_template="{max_words}: {user_msg}/{assistant_msg}", max_words=3), "x" * 501)
    assert prompt == ("", f"3: {'x' * 500}/")
    assert prompt_of(Settings(max_words=3), "x" * 501).human == f"<message>\n{'x' * 500}\n</message>"


def test_the_title_stands_in_every_checkpoint_and_makes_none() -> None:
    more = StatePatched(values={"note": 1}, base=20)
    renamed = StatePatched(values={"title": "mine"})
    state = fold(log_of(ThreadCreated(user="ada"), StatePatched(values={"a": 1}), ThreadTitled(title="T"), more))
    assert (state.values, len(state.commits)) == ({"a": 1, "note": 1, "title": "T"}, 2)
    assert state.values_at(0) == {"a": 1, "title": "T"}
    log = log_of(ThreadTitled(title="T"), ThreadTitled(title="U"), renamed)
    assert (fold(log[:2]).values, fold(log).values) == ({"title": "T"}, {"title": "mine"})


SCRIPTS = {
    "lead": [Turn(text="In rivers.")],
    "gated": [Turn(text="In rivers.", gate="lead")],
    "good": [Turn(text="<think>hm</think>\n“Otter Homes”")],
    "chinese": [Turn(text="水獺的家")],
    "empty": [Turn(text="<think>never")],
    "broken": [Turn(error=Failure(status=500))],
    "silent": [Turn(gate="never")],
    "slow": [Turn(text="Slow Otters", gate="slow")],
}
TEXT = "Where do otters live, and what do they eat in winter then?"
LOCAL = "Where do otters live, and what do they eat in wint…"


@asynccontextmanager
async def place(home: Path, scripts: Any = SCRIPTS, **sections: Any) -> AsyncIterator[tuple[Client, ModelServer]]:
    """A worker that titles, too."""
    async with ModelServer(scripts) as models, embedded.start(home) as nats:
        source = ConfigSource(configure(home / "config.yaml", models, **{"title": {}, **sections}))
        title = Title(source, Configured(source))
        endpoint = Endpoint(nats.url, token=nats.token)
        async with worker(endpoint, home, home / "config.yaml", others=[title]) as running:
            yield Client(running), models


async def titled(client: Client, thread: str, model: str | None = "lead", text: str = TEXT) -> ThreadTitled:
    """Begins a conversation; its title once it is there."""
    await client.thread(thread)
    await client.ask(thread, text, model)
    await client.until(thread, lambda state, _: bool(state.title))
    [record] = await client.records(thread, ThreadTitled)
    assert isinstance(record.event, ThreadTitled)
    assert record.run is not None
    return record.event


@pytest.mark.parametrize(
    ("model", "title", "reason"),
    [
        ("good", "Otter Homes", ""),
        ("chinese", LOCAL, "chinese: the answer is in another script"),
        ("empty", LOCAL, "empty: the answer was empty"),
        ("broken", LOCAL, "title: broken: "),
        ("silent", LOCAL, "title: silent: no answer in 0.5 s"),
    ],
)
async def test_each_conversation_has_a_title(tmp_path: Path, model: str, title: str, reason: str) -> None:
    seconds = 0.5 if model == "silent" else 60
    async with place(tmp_path, title={"model_name": model, "timeout_seconds": seconds}) as (client, models):
        event = await titled(client, "t1")
        assert (event.title, event.reason[: len(reason)]) == (title, reason)
        [request] = [request for request in models.requests if request.model == model][:1]
        assert f"<message>\n{TEXT}\n</message>" in str(request.body["messages"][1]["content"])
        assert "tools" not in request.body
        if model == "good":
            assert (event.model, event.usage is not None, bool(event.request)) == ("good", True, True)


async def test_the_role_and_the_run_name_the_model(tmp_path: Path) -> None:
    async with place(tmp_path, model_roles={"title": ["broken", "good"]}) as (client, _):
        assert (await titled(client, "t1")).title == "Otter Homes"
    async with place(tmp_path / "other") as (client, _):
        assert (await titled(client, "t1", "good")).title == "Otter Homes"
        assert (await titled(client, "t2", "good", " ")).title == NAMELESS


async def test_the_demo_model_writes_none(tmp_path: Path) -> None:
    async with place(tmp_path, {}) as (client, _):
        event = await titled(client, "t1", None)
        assert (event.title, event.model) == (LOCAL, None)


async def test_a_title_of_the_person_counts(tmp_path: Path) -> None:
    async with place(tmp_path, title={"model_name": "slow"}) as (client, models):
        await client.thread("t1")
        run = await client.ask("t1", TEXT, "lead")
        await models.reached("slow")
        await client.ended("t1", run)  # the run does not wait for its title
        renamed = StatePatched(values={"title": "Mine"})
        await client.system.threads.decide("t1", lambda _: [renamed], actor="http")
        models.release("slow")
        await client.idle()
        assert await client.records("t1", ThreadTitled) == []
        assert (await client.state("t1")).values["title"] == "Mine"


async def test_only_the_first_exchange_gives_a_title(tmp_path: Path) -> None:
    async with place(tmp_path, title={"enabled": False}) as (client, models):
        await client.thread("t1")
        await client.said("t1", TEXT, "lead")
        await client.idle()
        configure(tmp_path / "config.yaml", models, title={"model_name": "good"})
        await client.said("t1", "And in winter?", "lead")
        await client.idle()
        assert (await client.state("t1")).title == ""
        assert {request.model for request in models.requests} == {"lead"}


async def test_a_stream_shows_the_title_before_its_end(tmp_path: Path) -> None:
    async with place(tmp_path, title={"model_name": "good"}) as (client, models):
        source = ConfigSource(tmp_path / "config.yaml")
        services = Services.of(client.system, source.current, tmp_path)
        async with serve(services, "127.0.0.1", 0) as port, aiohttp.ClientSession() as session:
            api = Api(session, f"http://127.0.0.1:{port}")
            thread = await api.thread()
            message = {"role": "user", "content": TEXT, "id": "h"}
            body = {
                "input": {"messages": [message]},
                "context": {"model_name": "gated"},
                "stream_mode": ["values", "updates"],
            }
            async with api.stream("POST", f"/threads/{thread}/runs/stream", body) as stream:
                live = await stream.until("updates")
                models.release("lead")
                live += await stream.rest()
            titles = [data for event, data, _ in live if event == "updates" and "title" in str(data)]
            assert titles == [{"TitleMiddleware.after_model": {"title": "Otter Homes"}}]
            assert (live[-2][1]["title"], live[-1][0]) == ("Otter Homes", "end")
            run, place_of = live[0][1]["run_id"], {frame[2]: number for number, frame in enumerate(live)}
            for identity, number in place_of.items():
                path = f"/threads/{thread}/runs/{run}/stream?stream_mode=values&stream_mode=updates"
                async with api.stream("GET", path, **{"Last-Event-ID": identity}) as resumed:
                    assert await resumed.rest() == live[number + 1 :]
            [row] = await api.ask("POST", "/threads/search", {"ids": [thread]})
            assert row["values"]["title"] == "Otter Homes"
            history = await api.ask("POST", f"/threads/{thread}/history", {})
            assert [state["values"].get("title") for state in history] == ["Otter Homes"] * 2 + [None]
