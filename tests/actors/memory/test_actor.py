"""Memory from a run to the fact: on a real log, with a real model server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from actors.memory.actor import KEY, MemoryActor
from adapters.models.configured import Configured
from core.bus import embedded
from core.bus.endpoint import Endpoint
from core.config.load import ConfigSource
from core.errors import Invalid
from core.events import Aggregate, Record
from core.memory.facts import (
    KIND,
    Fact,
    FactReinforced,
    FactRemembered,
    FactReplaced,
    Memory,
    MemoryCleared,
    MemoryExtracted,
    MemoryFailed,
    MemoryKept,
    aggregates,
    memory_id,
)
from core.runtime.system import System
from core.user.agents import Definition, Rosters
from tests.support.model_server import Failure, ModelServer, Script, ToolCall, Turn
from tests.support.workers import Client, configure, site, wait_for, worker

pytestmark = pytest.mark.anyio


def actor(running: System, source: ConfigSource) -> MemoryActor:
    return MemoryActor(source, Configured(source), running.log, running.threads)


def fact(content: str, confidence: float = 0.9, **more: Any) -> dict[str, Any]:
    return {"content": content, "confidence": confidence, **more}


def answers(models: ModelServer, *texts: Any, name: str = "mem") -> None:
    """Sets the answers about the next conversations; a text may name the next with `step-<n>`."""
    turns = tuple(Turn(text=text if isinstance(text, str) else json.dumps(text)) for text in texts)
    models.scripts[name] = Script(turns, count="marker")


@asynccontextmanager
async def place(home: Path, **memory: Any) -> AsyncIterator[tuple[Client, ModelServer]]:
    settings = {"debounce_seconds": 1, "model_name": "mem", **memory}
    scripts = {"m": [Turn(text="Noted.")], "mem": [Turn(text="{}")], "other": [Turn(text="{}")]}
    async with site(home, scripts, others=[actor], memory=settings, agents_api={"enabled": True}) as (client, models):
        yield client, models


async def until(client: Client, agent: str | None, condition: Callable[[Record], bool]) -> Memory:
    """The memory after the first event for which the condition holds."""
    identity = memory_id("ada", agent)
    async for record in client.system.log.follow(Aggregate(KIND, identity)):
        if condition(record):
            return await aggregates(client.system.log).load(identity)
    raise AssertionError


def extracted(upto: int = 0) -> Callable[[Record], bool]:
    return lambda record: isinstance(record.event, MemoryExtracted) and record.event.upto > upto


def contents(memory: Memory) -> list[str]:
    return [fact.content for fact in memory.facts.values()]


async def test_from_a_conversation_to_a_fact(tmp_path: Path) -> None:
    async with place(tmp_path) as (client, models):
        summary = {"workContext": {"summary": "Keeps animals", "shouldUpdate": True}}
        answers(models, {"newFacts": [fact("Keeps otters", keywords=["animals"], turn=1)], "user": summary})
        thread = await client.thread()
        await client.said(thread, "I keep otters", "m")
        memory = await until(client, None, extracted())
        [known] = memory.facts.values()
        state = await client.state(thread)
        run = next(iter(state.runs.values()))
        assert (known.content, known.source, known.run, known.keywords) == ("Keeps otters", thread, run.id, ["animals"])
        assert (known.message, known.event) == (f"human-{run.id}", run.started_seq)
        assert memory.summaries["workContext"].text == "Keeps animals"
        assert memory.upto(thread) == run.ended_seq
        [request] = [r for r in models.requests if r.model == "mem"]
        prompt = request.body["messages"][1]["content"]
        assert "[1] User: I keep otters\nAssistant: Noted." in prompt
        # The same timer again reads nothing: there is nothing new.
        await client.system.queue.wake_at(datetime.now(UTC), "memory", Aggregate("thread", thread), key=KEY)
        answers(models, {"newFacts": [fact("Keeps bees")]})
        await client.said(thread, "And bees", "m")
        memory = await until(client, None, extracted(memory.upto(thread)))
        assert contents(memory) == ["Keeps otters", "Keeps bees"]
        assert len([r for r in models.requests if r.model == "mem"]) == 3, (
            "the second has a neighbour to be compared with"
        )


async def test_a_contradiction_replaces_and_a_repetition_reinforces(tmp_path: Path) -> None:
    async with place(tmp_path) as (client, models):
        answers(models, {"newFacts": [fact("Lives in Hamburg", 0.8)]})
        thread = await client.thread()
        await client.said(thread, "I live in Hamburg", "m")
        memory = await until(client, None, extracted())
        [old] = memory.facts
        verdict = [{"n": 1, "verdict": "replaces", "id": old}]
        answers(models, {"newFacts": [fact("Lives in Leipzig step-0")]}, verdict)
        await client.said(thread, "I moved to Leipzig", "m")
        memory = await until(client, None, extracted(memory.upto(thread)))
        [new] = memory.facts.values()
        assert (new.content, new.replaces) == ("Lives in Leipzig step-0", [old])
        answers(models, "-", {"newFacts": [fact("lives in LEIPZIG, step-0")]})
        await client.said(thread, "I love Leipzig", "m")
        memory = await until(client, None, extracted(memory.upto(thread)))
        assert list(memory.facts) == [new.id]
        kinds = [type(r.event) async for r in client.system.log.read(Aggregate(KIND, "ada"))]
        assert kinds.count(FactReplaced) == kinds.count(FactReinforced) == 1


async def test_users_and_agents_have_memories_of_their_own(tmp_path: Path) -> None:
    async with place(tmp_path) as (client, models):
        rosters = Rosters(client.system.log, actor="test")
        await rosters.create("ada", Definition("nurse"))
        answers(models, {"newFacts": [fact("Is tired")]})
        thread, own = await client.thread("t1"), await client.thread("t2")
        await client.said(thread, "I am tired", "m", context={"agent_name": "Nurse"})
        of_nurse = await until(client, "nurse", extracted())
        answers(models, {"newFacts": [fact("Keeps bees")]})
        await client.said(own, "I keep bees", "m")
        of_default = await until(client, None, extracted())
        assert (contents(of_nurse), contents(of_default)) == (["Is tired"], ["Keeps bees"])
        assert await client.system.log.tip(Aggregate(KIND, "bob")) == 0
        await rosters.remove("ada", "nurse")
        assert (await until(client, "nurse", lambda record: isinstance(record.event, MemoryCleared))).empty
        assert contents(await aggregates(client.system.log).load("ada")) == ["Keeps bees"]


async def test_no_usable_answer_is_a_failure_with_another_attempt(tmp_path: Path) -> None:
    async with place(tmp_path) as (client, models):
        answers(models, "Sure, I will remember that!")
        thread = await client.thread()
        await client.said(thread, "I keep otters", "m")
        memory = await until(client, None, lambda record: isinstance(record.event, MemoryFailed))
        failure = memory.failed[thread]
        assert (failure.attempt, failure.reason) == (1, "mem: the answer is no JSON object")
        assert failure.again_at is not None
        assert memory.upto(thread) == 0, "nothing counts as read"
        answers(models, {"newFacts": [fact("Keeps otters")]})
        await client.said(thread, "Otters, I said", "m")
        memory = await until(client, None, extracted())
        assert contents(memory) == ["Keeps otters"]
        assert memory.failed == {}
        prompt = [r for r in models.requests if r.model == "mem"][-1].body["messages"][1]["content"]
        assert "[1] User: I keep otters" in prompt
        assert "[2] User: Otters, I said" in prompt


async def test_another_model_stands_in(tmp_path: Path) -> None:
    scripts = {
        "m": [Turn(text="Noted.")],
        "mem": [Turn(error=Failure(status=400))],
        "other": [Turn(text=json.dumps({"newFacts": [fact("Keeps otters")]}))],
    }
    sections: dict[str, Any] = {"memory": {"debounce_seconds": 1}, "model_roles": {"memory": ["mem", "other"]}}
    async with site(tmp_path, scripts, others=[actor], **sections) as (client, _):
        await client.said(await client.thread(), "I keep otters", "m")
        memory = await until(client, None, extracted())
        assert contents(memory) == ["Keeps otters"]


def calls(**args: Any) -> tuple[Turn, ...]:
    """The lead calls a tool, and then answers."""
    name = "remember" if "content" in args else "recall"
    return (Turn(tool_calls=(ToolCall(name, args),)), Turn(text="Done."))


async def test_tools_of_the_memory(tmp_path: Path) -> None:
    """Scope comes from the run: what the model says of users and agents is no argument."""
    async with place(tmp_path, tools=True, enabled=False) as (client, models):
        await Rosters(client.system.log, actor="test").create("ada", Definition("nurse"))

        async def result(thread: str, agent: str | None = None, **args: Any) -> str:
            models.scripts["m"] = Script(calls(**args))
            context = {"agent_name": agent} if agent else {}
            messages = await client.said(thread, "Please", "m", context=context)
            return str([message for message in messages if message["type"] == "tool"][-1]["content"])

        thread, nurse, bobs = (
            await client.thread("t1"),
            await client.thread("t2"),
            await client.thread("t3", user="bob"),
        )
        answer = await result(thread, content="Keeps otters", keywords=["animals"])
        memory = await aggregates(client.system.log).load("ada")
        [known] = memory.facts.values()
        assert answer == f"Remembered as {known.id}."
        assert (known.content, known.source, known.keywords, known.confidence) == (
            "Keeps otters",
            "t1",
            ["animals"],
            0.95,
        )
        assert await result(thread, content="keeps OTTERS") == answer
        assert await result(thread, query="animal") == f"- {known.id} [context | 0.95] Keeps otters"
        for other in (await result(nurse, "nurse", query="otters animals"), await result(bobs, query="otters animals")):
            assert other == "Nothing is remembered about that."


async def test_without_the_setting_there_are_no_tools(tmp_path: Path) -> None:
    async with place(tmp_path) as (client, models):
        await client.said(await client.thread(), "Hello", "m")
        names = {tool["function"]["name"] for tool in models.requests[0].body["tools"]}
        assert names
        assert not names & {"remember", "recall"}
        with pytest.raises(Invalid, match="turned off"):
            await client.system.call(
                "memory", {"op": "recall", "thread": "t1", "user": "ada", "run": "r", "query": "x"}
            )


async def test_a_timer_that_fires_twice_gives_a_fact_once(tmp_path: Path) -> None:
    async with place(tmp_path) as (client, models):
        text = json.dumps({"newFacts": [fact("Keeps otters")]})
        models.scripts["mem"] = Script((Turn(text=text, gate="open"),))
        thread = await client.thread()
        await client.said(thread, "I keep otters", "m")
        await models.reached("open")
        await client.system.queue.wake_at(datetime.now(UTC), "memory", Aggregate("thread", thread), key=KEY)
        await wait_for(lambda: _asked(models, 2))
        models.release("open")
        memory = await until(client, None, extracted())
        await client.idle()
        assert contents(memory) == ["Keeps otters"]
        kinds = [type(r.event) async for r in client.system.log.read(Aggregate(KIND, "ada"))]
        assert kinds == [FactRemembered, MemoryExtracted]


async def _asked(models: ModelServer, times: int) -> bool:
    return [record.model for record in models.requests].count("mem") >= times


async def test_what_is_due_survives_the_process(tmp_path: Path) -> None:
    """The first process ends with its run, the second one while the model answers."""
    text = json.dumps({"newFacts": [fact("Keeps otters")]})
    scripts = {"m": [Turn(text="Noted.")], "mem": [Turn(text=text, gate="open")]}
    settings = {"debounce_seconds": 2, "model_name": "mem"}
    async with ModelServer(scripts) as models, embedded.start(tmp_path) as server:
        config = configure(tmp_path / "config.yaml", models, memory=settings)
        endpoint = Endpoint(server.url, token=server.token)
        async with worker(endpoint, tmp_path, config, others=[actor]) as running:
            client = Client(running)
            await client.said(await client.thread(), "I keep otters", "m")
        async with worker(endpoint, tmp_path, config, others=[actor]):
            await models.reached("open")
        models.release("open")
        async with worker(endpoint, tmp_path, config, others=[actor]) as running:
            client = Client(running)
            assert contents(await until(client, None, extracted())) == ["Keeps otters"]
            await client.idle()
            kinds = [type(r.event) async for r in running.log.read(Aggregate(KIND, "ada"))]
            assert kinds == [FactRemembered, MemoryExtracted]


async def test_an_erasure_that_was_interrupted_is_finished(tmp_path: Path) -> None:
    async with place(tmp_path) as (client, _):
        log, aggregate = client.system.log, Aggregate(KIND, "ada")
        old = Fact(id="fact_1", content="Keeps otters")
        [first] = await log.append(aggregate, [FactRemembered(fact=old)], expected=0, actor="test")
        await log.append(aggregate, [MemoryKept()], expected=first.seq, actor="test")  # and its process dies

        async def gone() -> bool:
            return [record.type async for record in log.read(aggregate)] == ["memory.kept"]

        await wait_for(gone)


async def test_a_long_log_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.memory.actor.CUT_AFTER", 3)
    async with place(tmp_path) as (client, models):
        answers(models, {"newFacts": [fact("Keeps otters"), fact("Bakes bread")]})
        await client.said(await client.thread(), "I keep otters, and bake", "m")
        memory = await until(client, None, lambda record: isinstance(record.event, MemoryKept))
        assert contents(memory) == ["Keeps otters", "Bakes bread"]
        await client.idle()
        assert [record.type async for record in client.system.log.read(Aggregate(KIND, "ada"))] == ["memory.kept"]
