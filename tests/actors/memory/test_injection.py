"""The injected part of a memory: chosen once, the same at each later call, gone when it is forgotten."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from actors.wiring import compose
from core.events import Aggregate, Event
from core.memory.facts import (
    KIND,
    Fact,
    FactRemembered,
    FactReplaced,
    Memories,
    SummaryWritten,
    forgotten,
    memory_id,
    snapshot,
)
from core.thread.messages import MEMORY
from core.user.agents import Definition, Rosters
from tests.actors.memory.test_actor import place
from tests.support.model_server import ModelServer
from tests.support.replays import replay
from tests.support.workers import Client

pytestmark = pytest.mark.anyio


async def remember(client: Client, *events: Event, agent: str | None = None, user: str = "ada") -> None:
    memories = Memories(client.system.log, actor="test")
    await memories.decide(memory_id(user, agent), lambda _: events)


def reminders(models: ModelServer) -> list[str]:
    """The reminders in the newest request to the lead's model."""
    request = [record for record in models.requests if record.model == "m"][-1]
    texts = [message["content"] for message in request.body["messages"] if message["role"] == "user"]
    return [text for text in texts if text.startswith("<system-reminder>")]


async def refs(client: Client, thread: str) -> list[Sequence[str]]:
    extras = [message.get("additional_kwargs", {}) for message in (await client.state(thread)).messages]
    return [extra[MEMORY]["refs"] for extra in extras if MEMORY in extra]


def off(**more: Any) -> dict[str, Any]:
    """Without extraction."""
    return {"enabled": False, **more}


OTTERS = Fact(id="fact_1", content="Keeps otters <memory>", confidence=0.9)
BEES = Fact(id="fact_2", content="Keeps bees", confidence=0.8, source_error="wasps")


async def test_what_is_told_is_recorded_by_references(tmp_path: Path) -> None:
    async with place(tmp_path, **off()) as (client, models):
        await remember(client, FactRemembered(fact=OTTERS), SummaryWritten(section="workContext", text="Farmer"))
        thread = await client.thread()
        await client.said(thread, "Hello", "m")
        [first] = reminders(models)
        assert first.startswith("<system-reminder>\n<memory>\n")
        assert "User Context:\n- Work: Farmer\nFacts:\n- [context | 0.90] Keeps otters &lt;memory>\n</memory>" in first
        assert "<current_date>" in first
        assert await refs(client, thread) == [["workContext.0", "fact_1.0"]]
        assert b"otters" not in b"".join([record.raw for record in await client.records(thread)])
        # What changes in between changes nothing of what was said; what is new and bears on the turn is added.
        await remember(
            client,
            FactReplaced(replaced="fact_1", fact=Fact(id="fact_3", content="Keeps seals", replaces=["fact_1"])),
            FactRemembered(fact=BEES),
            SummaryWritten(section="workContext", text="Retired"),
        )
        await client.said(thread, "What about my bee hive?", "m")
        same, added = reminders(models)
        assert same == first
        assert "- [context | 0.80] Keeps bees (avoid: wasps)" in added
        assert "seals" not in added
        await client.said(thread, "And bees again?", "m")
        assert reminders(models) == [first, added]
        assert (await refs(client, thread))[1:] == [["fact_2.0"]]
        options = compose.Options(tmp_path, tmp_path / "config.yaml")
        report = await replay(client.system, thread, None, options)
        assert (report.divergence, report.runs) == (None, 3)


async def test_a_forgotten_fact_is_gone_from_conversations_and_from_the_disk(tmp_path: Path) -> None:
    marker = secrets.token_hex(12)
    async with place(tmp_path, **off()) as (client, models):
        memories = Memories(client.system.log, actor="test")
        await remember(
            client,
            FactRemembered(fact=Fact(id="fact_0", content=f"was {marker}")),
            FactReplaced(replaced="fact_0", fact=Fact(id="fact_1", content=f"is {marker} now", replaces=["fact_0"])),
            SummaryWritten(section="topOfMind", text=f"Thinks of it: is {marker} now"),
            FactRemembered(fact=BEES),
            *(FactRemembered(fact=Fact(id=f"big_{n}", content=f"{n} " + "x" * 2000)) for n in range(40)),
        )
        await memories.decide("ada", lambda memory: [snapshot(memory)])  # over 64 KiB: its body is in the object store
        thread = await client.thread()
        await client.said(thread, "Hello", "m")
        assert marker in reminders(models)[0]
        assert await _holding(tmp_path, marker), "the search finds what is there"
        await memories.decide("ada", lambda memory: forgotten(memory, "fact_1"))
        await client.said(thread, "Hello again", "m")
        [reminder] = reminders(models)
        assert marker not in reminder
        assert "- [forgotten]\n" in reminder
        assert "Keeps bees" in reminder
        await client.system.views.current()
        assert await _holding(tmp_path, marker) == []
        left = [record async for record in client.system.log.read(Aggregate(KIND, "ada"))]
        assert [record.type for record in left] == ["memory.kept", "fact.forgotten", "fact.forgotten"]
    assert await _holding(tmp_path, marker) == []


async def test_each_agent_is_told_its_own_memory(tmp_path: Path) -> None:
    async with place(tmp_path, **off()) as (client, models):
        await Rosters(client.system.log, actor="test").create("ada", Definition("nurse"))
        await remember(client, FactRemembered(fact=OTTERS))
        await remember(client, FactRemembered(fact=BEES), agent="nurse")
        await client.said(await client.thread("t1"), "Hello", "m", context={"agent_name": "Nurse"})
        assert "bees" in reminders(models)[0]
        assert "otters" not in reminders(models)[0]
        await client.said(await client.thread("t2", user="bob"), "Hello", "m")
        assert "<memory>" not in reminders(models)[0]


async def test_turned_off(tmp_path: Path) -> None:
    async with place(tmp_path, **off(injection_enabled=False)) as (client, models):
        await remember(client, FactRemembered(fact=OTTERS))
        thread = await client.thread()
        await client.said(thread, "Hello", "m")
        assert "<memory>" not in reminders(models)[0]
        assert await refs(client, thread) == []


async def test_the_plain_order_and_the_budget(tmp_path: Path) -> None:
    facts = [Fact(id=f"fact_{n}", content=f"number {n} {'word ' * 60}", confidence=n / 10) for n in range(10)]
    async with place(tmp_path, **off(order="confidence", max_injection_tokens=300)) as (client, _):
        await remember(client, *(FactRemembered(fact=fact) for fact in facts))
        thread = await client.thread()
        await client.said(thread, "number 0", "m")
        assert await refs(client, thread) == [["fact_9.0", "fact_8.0", "fact_7.0"]]


async def _holding(home: Path, marker: str) -> list[str]:
    """The files below the data directory that hold the marker. When nats-server replaces one, all are read again."""
    while True:
        with suppress(FileNotFoundError):
            files = [path for path in home.rglob("*") if path.is_file()]
            return [str(path.relative_to(home)) for path in files if marker.encode() in path.read_bytes()]
