"""Models, features, and what is not there yet."""

from __future__ import annotations

from typing import Any

import pytest

from channels.http.gateway import models, pending
from tests.channels.http.conftest import Api, Worker
from tests.channels.http.gateway import OTHER, PRICED, Changeable

pytestmark = pytest.mark.anyio


@pytest.fixture
def config() -> Changeable:
    return Changeable(sections={"models": (PRICED, OTHER)})


async def test_models(api: Api, config: Changeable) -> None:
    found = await api.ask("GET", "/models")
    first = {
        "name": "m",
        "model": "provider/m",
        "display_name": "M",
        "description": None,
        "supports_thinking": True,
        "supports_reasoning_effort": False,
    }
    assert found["models"][0] == first
    assert [model["name"] for model in found["models"]] == ["m", "family/n"]
    assert found["token_usage"] == {"enabled": True}
    assert await api.ask("GET", "/models/m") == first
    assert (await api.ask("GET", "/models/family/n"))["description"] == "another one"
    await api.ask("GET", "/models/demo", status=404)
    config.sections["models"] = ()
    assert [model["name"] for model in (await api.ask("GET", "/models"))["models"]] == ["demo"]
    assert (await api.ask("GET", "/models/demo"))["name"] == "demo"


async def test_features(api: Api) -> None:
    off = {"enabled": False}
    assert await api.ask("GET", "/features") == {"agents_api": off, "browser_control": off, "mcp_tasks": off}


async def test_no_channels_run(api: Api) -> None:
    assert await api.ask("GET", "/channels/") == {"service_running": False, "channels": {}}


BODIES: dict[Any, Any] = {
    pending.Install: {"thread_id": "t", "path": "x.skill"},
    pending.Content: {"content": "x"},
    models.Enabled: {"enabled": True},
    pending.Fact: {"content": "x"},
    pending.Goal: {"objective": "x"},
    pending.McpServers: {"mcp_servers": {}},
    pending.Page: {"url": "https://example.org"},
}
ROWS = [(missing, row) for missing, rows in pending.TABLE.items() for row in rows]


EMPTY = {"summary": "", "updatedAt": ""}
MEMORY = {
    "version": "1.0",
    "lastUpdated": "",
    "user": dict.fromkeys(("workContext", "personalContext", "topOfMind"), EMPTY),
    "history": dict.fromkeys(("recentMonths", "earlierContext", "longTermBackground"), EMPTY),
    "facts": [],
}
READ: dict[str, Any] = {
    "/mcp/config": {"mcp_servers": {}},
    "/threads/{thread_id}/mcp-tasks": [],
    "/skills": {"skills": []},
    "/skills/custom": {"skills": []},
    "/memory": MEMORY,
    "/memory/export": MEMORY,
    "/threads/{thread_id}/goal": {"goal": None},
    "/channels/providers": {"enabled": False, "providers": []},
    "/channels/connections": {"connections": []},
}
"""What DeerFlow's page reads: it fails, or waits for seconds, without."""


async def test_what_is_not_there_is_empty_or_says_so(api: Api) -> None:
    thread_id, statuses = await api.thread(), {}
    for missing, row in ROWS:
        path = row.path.replace("{thread_id}", thread_id).replace("{", "").replace("}", "")
        body = None if row.body is None else BODIES.get(row.body, {})
        async with api.session.request(row.method, f"{api.url}/api{path}", json=body) as response:
            found = await response.json()
        statuses[f"{row.method} {row.path}"] = response.status
        if response.status == 503:
            assert found["code"] == f"{missing.code}_unavailable"
        if body:
            await api.ask(row.method, path, b"[]", status=422)
        if row.method == "GET" and row.path in READ:
            assert found == READ[row.path], row.path
    reads = {name: status for name, status in statuses.items() if name.startswith("GET ")}
    assert {status for name, status in statuses.items() if name not in reads} == {503}
    assert {name for name, status in reads.items() if status == 404} == {
        f"GET {path}"
        for path in (
            "/threads/{thread_id}/mcp-tasks/{task_id}",
            "/skills/{name}",
            "/skills/custom/{name}",
            "/skills/custom/{name}/history",
        )
    }
    assert [name for name, status in reads.items() if status == 503] == ["GET /threads/{thread_id}/browser/stream"]
    assert (await api.ask("GET", "/memory/config"))["enabled"] is False
    assert (await api.ask("GET", "/memory/status"))["data"] == MEMORY
    lark = await api.ask("GET", "/integrations/lark/status")
    assert (lark["installed"], lark["auth"]["status"]) == (False, "unavailable")


async def test_what_is_not_there_is_not_there_for_other_peoples_threads(api: Api, worker: Worker) -> None:
    await worker.system.intake.create_thread("theirs", user="somebody")
    await api.ask("GET", "/threads/theirs/goal", status=404)
    for thread in ("theirs", "never"):
        await api.ask("PUT", f"/threads/{thread}/goal", {"objective": "x"}, status=404)
