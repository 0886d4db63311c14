"""The routes of a memory: what the document says, what is refused, and whose it is."""

from __future__ import annotations

import itertools
from datetime import datetime
from typing import Any

import pytest

from core.events import Aggregate
from core.identity.principal import LOCAL
from core.memory.facts import (
    KIND,
    Fact,
    FactRemembered,
    FactReplaced,
    Memories,
    MemoryGroupsSet,
    SummaryWritten,
    memory_id,
)
from core.runtime.system import System
from tests.channels.http.conftest import Api, Settings, Worker
from tests.channels.http.people import ADA, BOB, Browser, Place, WithAccounts
from tests.channels.http.people import fixture_here as fixture_here

pytestmark = pytest.mark.anyio

SUMMARY = {"summary": "", "updatedAt": ""}
EMPTY = {
    "version": "1.0",
    "lastUpdated": "",
    "user": dict.fromkeys(("workContext", "personalContext", "topOfMind"), SUMMARY),
    "history": dict.fromkeys(("recentMonths", "earlierContext", "longTermBackground"), SUMMARY),
    "facts": [],
}
THEIRS: dict[str, Any] = {
    "version": "1.0",
    "lastUpdated": "2026-05-01T10:00:00Z",
    "user": {"workContext": {"summary": "Runs a bakery", "updatedAt": "2026-05-01T10:00:00Z"}, "personalContext": None},
    "history": {},
    "facts": [
        {
            "id": "fact_0a1b2c3d",
            "content": "Bakes with rye",
            "category": "preference",
            "confidence": 0.9,
            "createdAt": "2026-05-01T10:00:00Z",
            "source": "t1",
        },
        {"id": "fact_0a1b2c3d", "content": "Opens at six", "confidence": None, "sourceError": "seven"},
        {"id": "fact_00000000", "content": "  BAKES with rye. "},
        {"id": "fact_00000001", "content": "   "},
    ],
}
"""A `memory.json` as DeerFlow writes it, with the damage that such files have."""


async def contents(api: Api, query: str = "") -> list[str]:
    return [fact["content"] for fact in (await api.ask("GET", f"/memory{query}"))["facts"]]


async def test_a_memory_begins_empty(api: Api) -> None:
    for method, path in (("GET", ""), ("POST", "/reload"), ("GET", "/export"), ("DELETE", "")):
        answer = await api.ask(method, f"/memory{path}")
        assert {**answer, "lastUpdated": ""} == EMPTY
        assert datetime.fromisoformat(answer["lastUpdated"]), "clients format it"


async def test_facts_of_a_person(api: Api) -> None:
    [fact] = (await api.ask("POST", "/memory/facts", {"content": "  Likes\n tea "}))["facts"]
    assert (fact["content"], fact["category"], fact["confidence"], fact["source"]) == (
        "Likes tea",
        "context",
        0.5,
        "manual",
    )
    path = f"/memory/facts/{fact['id']}"
    assert fact["id"].startswith("fact_")
    assert len(fact["id"]) == 13
    assert len((await api.ask("POST", "/memory/facts", {"content": "likes TEA!"}))["facts"]) == 1
    [changed] = (await api.ask("PATCH", path, {"category": "preference", "confidence": 1}))["facts"]
    assert changed == {**fact, "category": "preference", "confidence": 1}
    assert (await api.ask("PATCH", path, {}))["facts"] == [changed]
    assert (await api.ask("GET", f"{path}/source")) == {
        "fact_id": fact["id"],
        "source": "manual",
        "run_id": None,
        "event": None,
        "link": None,
        "message": None,
    }
    assert (await api.ask("DELETE", path))["facts"] == []
    for method in ("PATCH", "DELETE"):
        await api.ask(method, path, {}, status=404)


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"content": " \n"}, 400, "content: must not be blank"),
        ({"content": "x" * 2001}, 400, "content: at most 2000 characters, got 2001"),
        ({"content": "x", "confidence": 1.5}, 400, "confidence: from 0 to 1, got 1.5"),
        ({"content": "x", "confidence": -1}, 400, "confidence: from 0 to 1, got -1.0"),
        ({"content": None}, 422, "$.content"),
        ({}, 422, "content"),
    ],
)
async def test_what_is_no_fact(api: Api, body: Any, status: int, text: str) -> None:
    assert text in (await api.ask("POST", "/memory/facts", body, status=status))["detail"]
    assert await contents(api) == []


async def test_a_document_of_deerflow_is_taken_as_it_lies(api: Api) -> None:
    taken = await api.ask("POST", "/memory/import", THEIRS)
    assert taken["user"]["workContext"] == THEIRS["user"]["workContext"]
    first, second = taken["facts"]
    assert first == THEIRS["facts"][0]
    assert (second["content"], second["confidence"], second["sourceError"]) == ("Opens at six", 0.5, "seven")
    assert second["id"] not in ("", first["id"])
    exported = await api.ask("GET", "/memory/export")
    await api.ask("DELETE", "/memory")
    assert await contents(api) == []
    again = await api.ask("POST", "/memory/import", exported)
    assert {**again, "lastUpdated": ""} == {**exported, "lastUpdated": ""}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"facts": 5}, "facts: a list is expected, got a number"),
        ({"facts": [5]}, "facts[0]: an object is expected, got a number"),
        ({"user": 5}, "user: an object is expected, got a number"),
        (
            {"history": {"recentMonths": {"summary": 5}}},
            "history.recentMonths.summary: a text is expected, got a number",
        ),
    ],
)
async def test_what_is_no_document(api: Api, body: Any, text: str) -> None:
    await api.ask("POST", "/memory/facts", {"content": "stays"})
    assert text in (await api.ask("POST", "/memory/import", body, status=422))["detail"]
    assert await contents(api) == ["stays"]


async def test_settings_and_status(api: Api) -> None:
    settings = await api.ask("GET", "/memory/config")
    assert settings == {
        "enabled": False,  # there is no model
        "injection_enabled": True,
        "debounce_seconds": 30,
        "max_facts": 100,
        "fact_confidence_threshold": 0.7,
        "max_injection_tokens": 2000,
        "mode": "middleware",
        "order": "relevance",
        "storage_path": "",
        "manager_class": "deermem",
        "backend_config": {},
    }
    answer = await api.ask("GET", "/memory/status")
    answer["data"]["lastUpdated"] = ""
    assert answer == {"config": settings, "data": EMPTY, "former": {}, "failed": {}}


async def test_whether_it_goes_into_groups(api: Api, system: System) -> None:
    assert await api.ask("GET", "/memory/settings") == {"in_groups": False}
    for on in (True, True, False, True):
        assert await api.ask("PUT", "/memory/settings", {"in_groups": on}) == {"in_groups": on}
    await api.ask("DELETE", "/memory")
    assert await api.ask("GET", "/memory/settings") == {"in_groups": True}, "what is forgotten is no setting"
    memory = system.log.read(Aggregate(KIND, "default"))
    events = [record.event async for record in memory if isinstance(record.event, MemoryGroupsSet)]
    assert all(event.by == "default" for event in events)
    await api.ask("PUT", "/memory/settings", {"in_groups": "yes"}, status=422)


async def test_why_something_is_thought(api: Api, system: System, worker: Worker) -> None:
    thread = await api.thread()
    message = {"role": "user", "content": "I keep otters", "id": "h1"}
    run = await api.run(thread, input={"messages": [message]})
    await worker.perform(thread, run)
    fact = Fact(id="fact_1", content="Keeps otters", source=thread, run=run, message="h1", event=worker.newest[run])
    gone = Fact(id="fact_2", content="x", source="nowhere", run="r", message="m")
    memories = Memories(system.log, actor="test")
    await memories.decide(memory_id(LOCAL.user, None), lambda _: [FactRemembered(fact=f) for f in (fact, gone)])
    why = await api.ask("GET", "/memory/facts/fact_1/source")
    assert (why["message"], why["event"]) == ("I keep otters", worker.newest[run])
    assert (await api.ask("GET", why["link"].removeprefix("/api")))["data"]
    assert (await api.ask("GET", "/memory/facts/fact_2/source"))["message"] is None


async def test_a_fact_is_forgotten_with_what_it_replaced_and_what_quotes_it(api: Api, system: System) -> None:
    memories, identity = Memories(system.log, actor="test"), memory_id(LOCAL.user, None)
    old = Fact(id="fact_1", content="Lives in Hamburg")
    new = Fact(id="fact_2", content="Lives in Leipzig", replaces=["fact_1"])
    await memories.decide(
        identity,
        lambda _: [
            FactRemembered(fact=old),
            SummaryWritten(section="workContext", text="A baker. Lives in hamburg, too."),
            SummaryWritten(section="topOfMind", text="Rye"),
            FactReplaced(replaced="fact_1", fact=new),
        ],
    )
    assert (await api.ask("GET", "/memory/status"))["former"] == {"fact_1.0": "[context | 0.50] Lives in Hamburg"}
    left = await api.ask("DELETE", "/memory/facts/fact_2")
    assert (left["facts"], left["user"]["workContext"]["summary"], left["user"]["topOfMind"]["summary"]) == (
        [],
        "",
        "Rye",
    )
    records = [record async for record in system.log.read(Aggregate(KIND, identity))]
    assert [record.type for record in records] == ["memory.kept", "fact.forgotten", "fact.forgotten"]
    assert b"Hamburg" not in b"".join(record.raw for record in records)
    assert (await api.ask("GET", "/memory/status"))["former"] == {}


# ── whose it is ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(name="config")
def fixture_config(request: pytest.FixtureRequest) -> Any:
    if "here" in request.fixturenames:
        return WithAccounts()
    return Settings()


ROUTES: list[tuple[str, str, Any]] = [
    ("GET", "", None),
    ("POST", "/reload", None),
    ("GET", "/export", None),
    ("GET", "/status", None),
    ("POST", "/facts", {"content": "another"}),
    ("PATCH", "/facts/{id}", {"content": "changed"}),
    ("GET", "/facts/{id}/source", None),
    ("DELETE", "/facts/{id}", None),
    ("POST", "/import", {"facts": [{"content": "imported"}]}),
    ("DELETE", "", None),
]


async def test_memories_of_two_users_and_two_agents_do_not_meet(here: Place) -> None:
    """Every route, with every memory as the one that is used: the three others neither show nor change."""
    people = {"ada": await here.person(ADA), "bob": await here.person(BOB)}
    places = list(itertools.product(people, ("", "?agent=nurse")))

    async def ask(place: tuple[str, str], method: str, path: str, body: Any = None) -> Any:
        browser: Browser = people[place[0]]
        return await browser.ask(method, f"/api/memory{path}{place[1]}", body)

    ids = {}
    for place in places:
        [fact] = (await ask(place, "POST", "/facts", {"content": f"secret of {place}"})).body["facts"]
        ids[place] = fact["id"]
    for user, (method, path, body) in itertools.product(places, ROUTES):
        others = [place for place in places if place != user]
        before = [(await ask(place, "GET", "/export")).raw for place in others]
        for other in others:
            answer = await ask(user, method, path.format(id=ids[other]), body)
            assert answer.status == (404 if "{id}" in path else 200), (method, path)
            assert not any(f"secret of {place}".encode() in answer.raw for place in others)
        assert [(await ask(place, "GET", "/export")).raw for place in others] == before
