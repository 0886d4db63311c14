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


@pytest.mark.parametrize(("missing", "row"), ROWS, ids=[f"{row.method} {row.path}" for _, row in ROWS])
async def test_what_is_not_there_says_so(api: Api, missing: pending.Missing, row: pending.Row) -> None:
    path = row.path.replace("{thread_id}", await api.thread())
    path = path.replace("{", "").replace("}", "")
    body = None if row.body is None else BODIES.get(row.body, {})
    found = await api.ask(row.method, path, body, status=503)
    assert found["code"] == f"{missing.code}_unavailable"
    if body:
        await api.ask(row.method, path, b"[]", status=422)


async def test_what_is_not_there_is_not_there_for_other_peoples_threads(api: Api, worker: Worker) -> None:
    await worker.system.intake.create_thread("theirs", user="somebody")
    for thread in ("theirs", "never"):
        await api.ask("GET", f"/threads/{thread}/goal", status=404)
