"""Suggestions: what is made of a model's answer, and the whole way from HTTP to a model server and back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest

from actors.suggestions import Suggestions, polished, suggestions
from adapters.models.configured import Configured
from channels.http.app import Services, serve
from core.bus import embedded
from core.bus.endpoint import Endpoint
from core.config.load import ConfigSource
from core.errors import Invalid, Unavailable
from core.events import QuestionsSuggested
from core.runtime.system import System
from core.thread.threads import Threads
from tests.channels.http.conftest import Api
from tests.support.model_server import Failure, ModelServer, Turn
from tests.support.workers import configure, site, worker

pytestmark = pytest.mark.anyio

TALK = [{"role": "user", "content": "What is an otter?"}, {"role": "assistant", "content": "An animal."}]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('["a?", "b?"]', ["a?", "b?"]),
        ('["a?", "b?", "c?", "d?"]', ["a?", "b?", "c?"]),
        ('```json\n["a?"]\n```', ["a?"]),
        ('<think>["no"]</think>\n["a?"]', ["a?"]),
        ('["a?"]<think>never', ["a?"]),
        ('[" a\\n?", "a ?", ""]', ["a ?"]),
        (f'["{"x" * 301}", "b?"]', ["b?"]),
        ('Here: ["a?"]', []),
        ('["a?", 5]', []),
        ('{"suggestions": ["a?"]}', []),
        ("", []),
        ("\ud800", []),
    ],
)
def test_only_a_list_of_texts_counts(text: str, found: list[str]) -> None:
    assert suggestions(text, 3) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("  better \n", "better"),
        ("<think>hm</think> better", "better"),
        ("better <think>never", "better"),
        ("<message>\nbetter\n</message>", "better"),
    ],
)
def test_a_polished_text_is_nothing_but_the_text(text: str, found: str) -> None:
    assert polished(text) == found


SCRIPTS = {
    "good": [Turn(text='["Where do they live?", "What do they eat?", "Are they rare?"]')],
    "chatty": [Turn(text="Sure! You could ask where they live.")],
    "broken": [Turn(error=Failure(status=500))],
    "silent": [Turn(gate="never")],
    "polish": [Turn(text="<think>hm</think>Where do otters live?")],
}


def suggesting(running: System, source: ConfigSource) -> Suggestions:
    return Suggestions(source, Configured(source), running.threads)


@asynccontextmanager
async def server(home: Path, **sections: Any) -> AsyncIterator[tuple[Api, ModelServer, str]]:
    """The actor in a process with a web server, asked over the bus; and a thread."""
    async with ModelServer(SCRIPTS) as models, embedded.start(home) as nats:
        source = ConfigSource(configure(home / "config.yaml", models, **sections))
        endpoint = Endpoint(nats.url, token=nats.token)
        async with worker(endpoint, home, home / "config.yaml", others=[suggesting]) as running:
            services = Services.of(running, source.current, home)
            async with serve(services, "127.0.0.1", 0) as port, aiohttp.ClientSession() as session:
                api = Api(session, f"http://127.0.0.1:{port}")
                yield api, models, await api.thread()


async def test_what_to_ask_next(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"timeout_seconds": 60, "max_suggestions": 2}
    async with server(tmp_path, suggestions=settings) as (api, models, thread):
        path = f"/threads/{thread}/suggestions"
        assert await api.ask("GET", "/suggestions/config") == {"enabled": True, "max_suggestions": 2}
        body = await api.ask("POST", path, {"messages": TALK, "n": 5})
        assert body == {"suggestions": ["Where do they live?", "What do they eat?"]}
        [sent] = models.requests
        assert "exactly 2" in sent.body["messages"][0]["content"]
        assert "user: What is an otter?\n\nassistant: An animal." in sent.body["messages"][1]["content"]
        assert await api.ask("POST", path, {"messages": TALK, "n": 1}) == {"suggestions": ["Where do they live?"]}
        long = [{"role": "user", "content": "x" * 9000}] * 10
        await api.ask("POST", path, {"messages": long, "model_name": "good"})
        assert len(models.requests[-1].body["messages"][1]["content"]) < 41_000
        for model in ("chatty", "broken", "silent"):
            if model == "silent":
                configure(tmp_path / "config.yaml", models, suggestions={**settings, "timeout_seconds": 1})
            assert await api.ask("POST", path, {"messages": TALK, "model_name": model}) == {"suggestions": []}
            assert [request.model for request in models.requests].count(model) == 1
        before = len(models.requests)
        assert await api.ask("POST", path, {"messages": []}) == {"suggestions": []}
        assert len(models.requests) == before


async def test_what_was_suggested_is_on_record(tmp_path: Path) -> None:
    async with site(tmp_path, SCRIPTS, others=[suggesting]) as (client, _):
        command = {"op": "suggest", "thread": await client.thread(), "messages": TALK, "n": 3}
        for model in ("good", "chatty"):
            await client.system.call("suggestions", {**command, "model": model})
        with pytest.raises(Unavailable, match="broken"):
            await client.system.call("suggestions", {**command, "model": "broken"})
        events = [record.event for record in await client.records("t1", QuestionsSuggested)]
    suggested, unusable = [event for event in events if isinstance(event, QuestionsSuggested)]
    assert (suggested.model, len(suggested.suggestions), unusable.model, unusable.suggestions) == (
        "good",
        3,
        "chatty",
        [],
    )
    assert suggested.request == unusable.request
    assert suggested.usage is not None
    assert suggested.usage["total_tokens"] > 0


async def test_another_model_stands_in(tmp_path: Path) -> None:
    roles = {"suggestions": ["broken", "good"]}
    async with server(tmp_path, model_roles=roles, suggestions={"max_suggestions": 1}) as (api, models, thread):
        body = await api.ask("POST", f"/threads/{thread}/suggestions", {"messages": TALK})
    assert body == {"suggestions": ["Where do they live?"]}
    assert list(dict.fromkeys(request.model for request in models.requests)) == ["broken", "good"]


async def test_a_clearer_wording(tmp_path: Path) -> None:
    async with server(tmp_path, suggestions={"timeout_seconds": 60, "model_name": "polish"}) as (api, models, _):
        body = await api.ask("POST", "/input-polish", {"text": "wher otter live", "locale": "en-GB"})
        assert body == {"rewritten_text": "Where do otters live?", "changed": True}
        assert "en-GB" in models.requests[-1].body["messages"][0]["content"]
        assert "wher otter live" in models.requests[-1].body["messages"][1]["content"]
        configure(tmp_path / "config.yaml", models, suggestions={"model_name": "broken"})
        body = await api.ask("POST", "/input-polish", {"text": "wher otter live"})
        assert body == {"rewritten_text": "wher otter live", "changed": False}
        assert models.requests[-1].model == "broken"
        configure(tmp_path / "config.yaml", models)
        body = await api.ask("POST", "/input-polish", {"text": "wher otter live", "model_name": "polish"})
        assert body == {"rewritten_text": "Where do otters live?", "changed": True}


async def test_settings_of_the_wording(tmp_path: Path) -> None:
    polish = {"model_name": "polish", "max_chars": 20}
    async with server(tmp_path, suggestions={"model_name": "broken"}, input_polish=polish) as (api, models, _):
        body = await api.ask("POST", "/input-polish", {"text": "wher otter live"})
        assert body == {"rewritten_text": "Where do otters live?", "changed": True}
        refused = await api.ask("POST", "/input-polish", {"text": "x" * 21}, status=422)
        assert refused["detail"] == "text: at most 20 characters (input_polish.max_chars), got 21"
        configure(tmp_path / "config.yaml", models, input_polish={"enabled": False})
        before = len(models.requests)
        body = await api.ask("POST", "/input-polish", {"text": "wher otter live"})
        assert body == {"rewritten_text": "wher otter live", "changed": False}
        assert len(models.requests) == before


async def test_turned_off_nobody_is_asked(tmp_path: Path) -> None:
    async with server(tmp_path, suggestions={"enabled": False}) as (api, models, thread):
        assert await api.ask("GET", "/suggestions/config") == {"enabled": False, "max_suggestions": 3}
        assert await api.ask("POST", f"/threads/{thread}/suggestions", {"messages": TALK}) == {"suggestions": []}
        assert models.requests == []


def homeless(home: Path) -> Suggestions:
    """The actor without a log: it gets as far as there is nothing to record."""
    source = ConfigSource(configure_nothing(home))
    return Suggestions(source, Configured(source), cast("Threads", None))


async def test_the_demo_model_has_none(tmp_path: Path) -> None:
    actor = homeless(tmp_path)
    with pytest.raises(Unavailable, match="demo"):
        await actor.answer({"op": "polish", "text": "x"}, nobody)


@pytest.mark.parametrize("odd", [{}, {"op": "other"}, {"op": "polish"}, {"op": "suggest", "messages": 5, "n": 3}])
async def test_odd_questions_are_refused(tmp_path: Path, odd: Any) -> None:
    with pytest.raises(Invalid, match="suggestions"):
        await homeless(tmp_path).answer(odd, nobody)


def configure_nothing(home: Path) -> Path:
    path = home / "config.yaml"
    path.write_text("")
    return path


async def nobody(text: str) -> None:
    """Nobody looks at the progress."""
