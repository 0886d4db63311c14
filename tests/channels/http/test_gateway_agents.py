"""Agents that people define, and their profile."""

from __future__ import annotations

from typing import Any

import pytest

from channels.http.server.live import Services
from core.config.settings import Off, ToolEntry
from core.user import agents
from tests.channels.http.conftest import Api
from tests.channels.http.gateway import OTHER, PRICED, Changeable

pytestmark = pytest.mark.anyio

ROUTES = [
    ("GET", "/agents"),
    ("POST", "/agents"),
    ("GET", "/agents/check?name=a"),
    ("GET", "/agents/a"),
    ("PUT", "/agents/a"),
    ("DELETE", "/agents/a"),
    ("POST", "/agents/import"),
    ("GET", "/agents/a/export"),
    ("GET", "/agents/a/history"),
    ("POST", "/agents/a/rollback"),
    ("GET", "/user-profile"),
    ("PUT", "/user-profile"),
]


@pytest.fixture
def config() -> Changeable:
    return Changeable(sections={"models": (PRICED, OTHER), "agents_api": Off(enabled=True)})


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_turned_off(api: Api, config: Changeable, method: str, path: str) -> None:
    config.sections["agents_api"] = Off()
    body = None if method in ("GET", "DELETE") else {"name": "a", "agent": {"name": "a"}, "version": 1}
    found = await api.ask(method, path, body, status=403)
    assert "agents_api.enabled" in found["detail"]


async def test_from_its_definition_to_its_end(api: Api, services: Services) -> None:
    assert await api.ask("GET", "/agents") == {"agents": []}
    assert await api.ask("GET", "/agents/check?name=Nurse-1") == {"available": True, "name": "nurse-1"}
    given = {
        "name": "Nurse-1",
        "description": "d",
        "model": "m",
        "tool_groups": ["web"],
        "skills": [],
        "soul": "# Hi",
        "mcp_servers": ["git"],
        "thinking_enabled": True,
        "reasoning_effort": "low",
        "is_plan_mode": False,
        "subagent_enabled": True,
    }
    made = await api.ask("POST", "/agents", given, status=201)
    assert made == {**given, "name": "nurse-1"}
    assert await api.ask("GET", "/agents/check?name=NURSE-1") == {"available": False, "name": "nurse-1"}
    await api.ask("POST", "/agents", {"name": "nurse-1"}, status=409)
    plain = await api.ask("POST", "/agents", {"name": "Chef"}, status=201)
    assert plain == {
        "name": "chef",
        "description": "",
        "model": None,
        "tool_groups": None,
        "skills": None,
        "soul": None,
        "mcp_servers": None,
        **UNSAID,
    }
    assert await api.ask("GET", "/agents") == {"agents": [plain, made]}
    rosters = agents.aggregates(services.log)
    kept = (await rosters.load("default")).agents
    assert [(name, one.description) for name, one in kept.items()] == [("chef", ""), ("nurse-1", "d")]
    assert (await rosters.load("somebody")).agents == {}
    assert await api.ask("GET", "/agents/Nurse-1") == made
    await api.ask("DELETE", "/agents/NURSE-1", status=204)
    await api.ask("DELETE", "/agents/nurse-1", status=404)
    await api.ask("GET", "/agents/nurse-1", status=404)
    await api.ask("PUT", "/agents/nurse-1", {"soul": "x"}, status=404)
    assert await api.ask("GET", "/agents") == {"agents": [plain]}
    assert await api.ask("POST", "/agents", given, status=201) == made


UNSAID = dict.fromkeys(("thinking_enabled", "reasoning_effort", "is_plan_mode", "subagent_enabled"))
FULL = {
    **UNSAID,
    "name": "a",
    "description": "d",
    "model": "m",
    "tool_groups": ["web"],
    "skills": [],
    "soul": "x",
    "mcp_servers": None,
}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {}),
        ({"skills": None}, {"skills": None}),
        ({"description": None, "model": None}, {"description": "", "model": None}),
        ({"tool_groups": None, "soul": None}, {"tool_groups": None, "soul": None}),
        ({"soul": "y", "name": "b"}, {"soul": "y"}),
        ({"model": "family/n"}, {"model": "family/n"}),
        (
            {"subagent_enabled": False, "reasoning_effort": "high"},
            {"subagent_enabled": False, "reasoning_effort": "high"},
        ),
    ],
)
async def test_what_is_left_out_stays(api: Api, changes: Any, expected: Any) -> None:
    await api.ask("POST", "/agents", FULL, status=201)
    changed = await api.ask("PUT", "/agents/a", changes)
    assert changed == {**FULL, **expected}
    assert await api.ask("GET", "/agents/a") == changed


@pytest.mark.parametrize("name", ["", "a b", "a_b", "ä", "a/b", "x" * 65, "a\n", None, 5])
async def test_odd_names_are_refused(api: Api, name: Any) -> None:
    await api.ask("POST", "/agents", {"name": name}, status=422)
    if isinstance(name, str):
        await api.ask("GET", "/agents/check", status=422, params={"name": name})


@pytest.mark.parametrize(
    "odd",
    [
        {"model": "unknown"},
        {"description": "x" * 2001},
        {"soul": 5},
        {"reasoning_effort": "huge"},
        {"subagent_enabled": "yes"},
        {"tool_groups": "web"},
        {"skills": [""]},
        {"skills": ["s"] * 201},
        {"tool_groups": ["web", "nope"]},
        {"skills": ["nope"]},
    ],
)
async def test_odd_definitions_are_refused(api: Api, odd: Any) -> None:
    await api.ask("POST", "/agents", {"name": "a", **odd}, status=422)
    await api.ask("POST", "/agents", {"name": "a"}, status=201)
    await api.ask("PUT", "/agents/a", odd, status=422)


async def test_what_an_agent_cannot_have_is_named(api: Api, config: Changeable) -> None:
    body = {"name": "a", "tool_groups": ["web", "mine"]}
    refused = await api.ask("POST", "/agents", body, status=422)
    assert refused["detail"] == "tool_groups[1]: no group 'mine'; there are: bash, file:read, file:write, web"
    assert (
        "skills[0]: no skill 'nope'"
        in (await api.ask("POST", "/agents", {"name": "a", "skills": ["nope"]}, status=422))["detail"]
    )
    config.sections["tools"] = (ToolEntry(name="x", use="my.tools:x", group="mine"),)
    await api.ask("POST", "/agents", body, status=201)
    config.sections["tools"] = (ToolEntry(name="x", use="my.tools:x"),)  # its module may say a group
    await api.ask("PUT", "/agents/a", {"tool_groups": ["theirs"]})


async def test_agents_are_bounded(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "MOST", 1)
    await api.ask("POST", "/agents", {"name": "a"}, status=201)
    await api.ask("POST", "/agents", {"name": "b"}, status=409)


async def test_the_profile(api: Api) -> None:
    assert await api.ask("GET", "/user-profile") == {"content": None}
    assert await api.ask("PUT", "/user-profile", {"content": "I like tea"}) == {"content": "I like tea"}
    assert await api.ask("GET", "/user-profile") == {"content": "I like tea"}
    assert await api.ask("PUT", "/user-profile", {}) == {"content": None}
    assert await api.ask("GET", "/user-profile") == {"content": None}
    await api.ask("PUT", "/user-profile", {"content": "x" * 100_001}, status=413)
    await api.ask("PUT", "/user-profile", {"content": []}, status=422)


async def test_agents_of_the_shared_folder(api: Api, services: Services) -> None:
    """They are read and not written to; an agent of one's own with the same name counts more."""
    folder = services.home / "agents/legacy"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("description: An old one\n")
    (folder / "SOUL.md").write_text("# Old")
    broken = services.home / "agents/broken"
    broken.mkdir()
    (broken / "config.yaml").write_text("tool_groups: 7\n")
    shown = await api.ask("GET", "/agents/legacy")
    assert (shown["name"], shown["description"], shown["soul"]) == ("legacy", "An old one", "# Old")
    assert [agent["name"] for agent in (await api.ask("GET", "/agents"))["agents"]] == ["legacy"]
    assert (await api.ask("GET", "/agents/legacy/export"))["soul"] == "# Old"
    for method, body in (("PUT", {"soul": "x"}), ("DELETE", None)):
        refused = await api.ask(method, "/agents/legacy", body, status=409)
        assert f"sika agent import {folder}" in refused["detail"]
        await api.ask(method, "/agents/unknown", body, status=404)
    await api.ask("POST", "/agents", {"name": "legacy"}, status=201)
    await api.ask("PUT", "/agents/legacy", {"soul": "x"})
    [own] = (await api.ask("GET", "/agents"))["agents"]
    assert (own["description"], own["soul"]) == ("", "x")


async def test_versions_and_files(api: Api) -> None:
    made = await api.ask("POST", "/agents", {"name": "cook", "model": "m", "soul": "# One"}, status=201)
    await api.ask("PUT", "/agents/cook", {"soul": "# Two"})
    newest, first = (await api.ask("GET", "/agents/cook/history"))["versions"]
    assert (first["agent"], newest["changed"]) == (made, ["soul"])
    assert await api.ask("POST", "/agents/cook/rollback", {"version": first["version"]}) == made
    await api.ask("POST", "/agents/cook/rollback", {"version": 10**9}, status=404)
    file = await api.ask("GET", "/agents/cook/export")
    await api.ask("POST", "/agents/import", {"agent": file}, status=409)
    twin = await api.ask("POST", "/agents/import", {"agent": file, "name": "Twin"}, status=201)
    assert twin == made | {"name": "twin"}
    strange = file | {"model": "nobody-has-it"}
    refused = await api.ask("POST", "/agents/import", {"agent": strange, "replace": True}, status=422)
    assert "nobody-has-it" in refused["detail"]
    plain = await api.ask("POST", "/agents/import", {"agent": strange, "replace": True, "model": None}, status=201)
    assert plain["model"] is None
    hostile: list[Any] = [{"name": "../x"}, file | {"hooks": 1}, file | {"version": 9}, [], "x"]
    for agent in hostile:
        await api.ask("POST", "/agents/import", {"agent": agent}, status=422)
