"""A conversation summarised on demand: the whole way from HTTP to a model server, the log, and back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from actors.agent.summary.write import LEAD_IN
from actors.compaction import Compaction
from adapters.models.configured import Configured
from channels.http.app import Services, serve
from core.bus import embedded
from core.bus import rpc as calls
from core.bus.endpoint import Endpoint
from core.config.load import ConfigSource
from core.errors import Invalid, NotFound
from core.events import ContextCompacted, Message, RunRequested, StatePatched, thread
from core.runtime.system import System
from tests.channels.http.conftest import Api
from tests.support.model_server import Failure, ModelServer, Turn
from tests.support.records import ai, call, human
from tests.support.workers import configure, worker

pytestmark = pytest.mark.anyio

TALK = [human("h1", "Find otters"), ai("a1", "Where?"), human("h2", "In Wales"), ai("a2", "Three.")]
SCRIPTS = {
    "good": [Turn(text="The person looks for otters.")],
    "broken": [Turn(error=Failure(status=400))],
    "slow": [Turn(text="Slowly.", gate="slow")],
}


class Site:
    """The actor in a process with a web server; `thread` has the conversation `TALK`."""

    def __init__(self, api: Api, models: ModelServer, running: System, actor: Compaction, name: str) -> None:
        self.api, self.models, self.running, self.actor, self.thread = api, models, running, actor, name

    async def compact(self, body: Any = None, *, status: int = 200) -> Any:
        return await self.api.ask("POST", f"/threads/{self.thread}/compact", body or {}, status=status)

    async def say(self, *messages: Message) -> None:
        patch = StatePatched(values={"messages": list(messages)})
        await self.running.threads.decide(self.thread, lambda _: [patch], actor="test")

    async def messages(self) -> list[Message]:
        return (await self.running.threads.load(self.thread)).messages

    async def facts(self) -> list[ContextCompacted]:
        records = [record async for record in self.running.log.read(thread(self.thread))]
        return [record.event for record in records if isinstance(record.event, ContextCompacted)]


@asynccontextmanager
async def site(home: Path, *messages: Message, **sections: Any) -> AsyncIterator[Site]:
    sections = {"summarization": {"keep": {"type": "messages", "value": 2}}, **sections}
    async with ModelServer(SCRIPTS) as models, embedded.start(home) as nats:
        source = ConfigSource(configure(home / "config.yaml", models, **sections))
        endpoint = Endpoint(nats.url, token=nats.token)
        async with worker(endpoint, home, home / "config.yaml") as running:
            actor = Compaction(source, Configured(source), running.threads, running.log)
            answering = asyncio.create_task(calls.serve(running.bus, actor.name, actor.answer))
            services = Services.of(running, source.current, home)
            async with serve(services, "127.0.0.1", 0) as port, aiohttp.ClientSession() as session:
                api = Api(session, f"http://127.0.0.1:{port}")
                place = Site(api, models, running, actor, await api.thread())
                await place.say(*(messages or TALK))
                yield place
            answering.cancel()


async def test_on_demand(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        outcome = await here.compact()
        [event] = await here.facts()
        head = await here.api.ask("GET", f"/threads/{here.thread}/state")
        assert outcome == {
            "thread_id": here.thread,
            "compacted": True,
            "reason": None,
            "removed_message_count": 2,
            "preserved_message_count": 2,
            "summary_updated": True,
            "checkpoint_id": head["checkpoint_id"],
            "total_tokens": event.tokens_after,
        }
        assert event.model == "good"
        assert event.summary["usage_metadata"]["input_tokens"] > 0
        summary, *rest = head["values"]["messages"]
        assert summary["name"] == "summary"
        assert summary["content"].startswith(f"{LEAD_IN}The person looks for otters.\n\nWhat the person wrote")
        assert [message["id"] for message in rest] == ["h2", "a2"]
        history = await here.api.ask("GET", f"/threads/{here.thread}/messages")
        assert [row["content"]["id"] for row in history] == ["h1", "a1", "h2", "a2"]
        again = await here.compact()
        assert (again["compacted"], again["reason"]) == (False, "nothing_to_summarize")
        assert len(here.models.requests) == 1


@pytest.mark.parametrize(
    ("body", "summarization", "kept"),
    [
        ({"keep": 1}, {}, 1),
        ({"keep": {"type": "messages", "value": 3}}, {}, 3),
        ({"force": False}, {}, None),
        ({"force": False}, {"trigger": [{"type": "messages", "value": 5}]}, None),
        ({"force": False}, {"trigger": [{"type": "messages", "value": 4}]}, 2),
    ],
    ids=range(5),
)
async def test_what_is_kept(tmp_path: Path, body: Any, summarization: Any, kept: int | None) -> None:
    config = {"keep": {"type": "messages", "value": 2}, **summarization}
    async with site(tmp_path, summarization=config) as here:
        outcome = await here.compact(body)
        assert outcome["compacted"] is (kept is not None)
        assert outcome["preserved_message_count"] == (4 if kept is None else kept)
        assert outcome["reason"] == ("below_trigger" if kept is None else None)
        assert outcome["summary_updated"] is (kept is not None)


async def test_the_next_model_is_asked_if_one_fails(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        assert (await here.compact({"model_name": "broken"}))["compacted"]
        assert [request.model for request in here.models.requests] == ["broken", "good"]


async def test_the_model_of_an_agent(tmp_path: Path) -> None:
    async with site(tmp_path, agents_api={"enabled": True}) as here:
        await here.api.ask("POST", "/agents", {"name": "slowly", "model": "slow"}, status=201)
        here.models.release("slow")
        assert (await here.compact({"agent_name": "Slowly"}))["compacted"]
        assert [event.model for event in await here.facts()] == ["slow"]


@pytest.mark.parametrize("names", [[], ["broken"]])
async def test_no_model_no_summary(tmp_path: Path, names: list[str]) -> None:
    async with site(tmp_path) as here:
        entries = [{"name": name, "model": name, "base_url": here.models.url, "api_key": "none"} for name in names]
        (tmp_path / "config.yaml").write_text(json.dumps({"models": entries}))
        outcome = await here.compact({"keep": 1}, status=503)
        assert outcome["code"] == "no_summary"
        assert [request.model for request in here.models.requests] == names
        assert [message["id"] for message in await here.messages()] == ["h1", "a1", "h2", "a2"]


async def test_not_while_a_run_is_active(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        task = asyncio.create_task(here.compact({"model_name": "slow"}, status=409))
        await here.models.reached("slow")
        request = RunRequested(input={"messages": [human("h3")]}, not_before="2999-01-01T00:00:00+00:00")
        await here.running.intake.request_run(here.thread, "run-1", request)
        assert (await here.compact(status=409))["code"] == "conflict"
        here.models.release("slow")
        assert (await task)["code"] == "conflict"
        assert await here.facts() == []


async def test_what_is_said_meanwhile_is_kept(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        task = asyncio.create_task(here.compact({"model_name": "slow"}))
        await here.models.reached("slow")
        await here.say(human("h3"))
        here.models.release("slow")
        assert (await task)["preserved_message_count"] == 3
        assert [message["id"] for message in await here.messages()][1:] == ["h2", "a2", "h3"]


async def test_another_conversation_is_summarised_again(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        task = asyncio.create_task(here.compact({"model_name": "slow"}))
        await here.models.reached("slow")
        await here.say({"type": "remove", "id": "h1"}, ai("a3", "", [call("c1")]))
        here.models.release("slow")
        assert (await task)["removed_message_count"] == 2
        assert [message["id"] for message in await here.messages()][1:] == ["a2", "a3"]
        assert [each.model for each in here.models.requests] == ["slow", "slow"]


async def test_only_ones_own_threads(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        await here.running.intake.create_thread("theirs", user="somebody")
        for name in ("theirs", "never"):
            await here.api.ask("POST", f"/threads/{name}/compact", {}, status=404)
            with pytest.raises(NotFound, match=name):
                await here.running.call("compaction", {"op": "compact", "thread": name, "user": "default"})


async def test_odd_requests_are_refused(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        bodies: list[Any] = [{"keep": 0}, {"keep": "x"}, {"keep": {"type": "x", "value": 1}}, {"force": 1}, []]
        for odd in bodies:
            await here.api.ask("POST", f"/threads/{here.thread}/compact", odd, status=422)
        with pytest.raises(Invalid, match="compaction"):
            await here.actor.answer({"op": "compact", "thread": 5}, _nobody)
        assert await here.facts() == []


async def test_a_defect_of_the_actor_is_the_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: Compaction, compact: object) -> None:
        raise KeyError("secret detail")

    monkeypatch.setattr(Compaction, "_compact", broken)
    async with site(tmp_path) as here:
        assert await here.compact(status=500) == {"detail": "Internal server error", "code": "internal"}


async def _nobody(text: str) -> None:
    """Nobody looks at the progress."""


async def test_a_short_conversation_is_summarised_if_a_person_asks_for_it(tmp_path: Path) -> None:
    async with site(tmp_path, summarization={}) as here:
        outcome = await here.compact()
        assert (outcome["compacted"], outcome["preserved_message_count"]) == (True, 1)
        assert "Find otters" in str((await here.messages())[0]["content"])
