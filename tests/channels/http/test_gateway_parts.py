"""Models, features, and what is not there yet."""

from __future__ import annotations

from typing import Any

import pytest

from channels.http.deerflow import pending
from channels.http.endpoints.table import all_routes
from core.config.settings import Model
from core.identity.principal import LOCAL
from tests.channels.http.conftest import Api, Worker
from tests.channels.http.gateway import OTHER, PRICED, Changeable


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
        "supports_vision": False,
        "context_window": 1000,
        "price": {"currency": "EUR", "input": 2, "output": 10, "cache_read": 1},
        "thinking": {"modes": ["on"], "efforts": []},
        "last_failure": None,
    }
    assert found["models"][0] == first
    assert [model["name"] for model in found["models"]] == ["m", "family/n"]
    assert found["token_usage"] == {"enabled": True}
    assert await api.ask("GET", "/models/m") == first
    other = await api.ask("GET", "/models/family/n")
    assert (other["description"], other["context_window"], other["price"]) == ("another one", None, None)
    await api.ask("GET", "/models/demo", status=404)
    config.sections["models"] = ()
    assert [model["name"] for model in (await api.ask("GET", "/models"))["models"]] == ["demo"]
    assert (await api.ask("GET", "/models/demo"))["name"] == "demo"


THINKING: list[tuple[dict[str, Any], list[str], list[str]]] = [
    ({}, ["off"], []),
    ({"supports_thinking": True}, ["on"], []),
    ({"supports_thinking": True, "thinking": {"type": "enabled"}}, ["off", "on"], []),
    ({"supports_thinking": True, "when_thinking_enabled": {"x": 1}}, ["off", "on"], []),
    ({"supports_thinking": True, "when_thinking_disabled": {}}, ["off", "on"], []),
    ({"supports_reasoning_effort": True}, ["off"], ["low", "medium", "high"]),
]


@pytest.mark.parametrize(("fields", "modes", "efforts"), THINKING)
async def test_what_can_be_chosen_of_thinking(
    api: Api, config: Changeable, fields: dict[str, Any], modes: list[str], efforts: list[str]
) -> None:
    config.sections["models"] = (Model(name="m", model="m", **fields),)
    assert (await api.ask("GET", "/models/m"))["thinking"] == {"modes": modes, "efforts": efforts}


async def test_features(api: Api) -> None:
    off = {"enabled": False}
    assert await api.ask("GET", "/features") == {"agents_api": off, "browser_control": off, "mcp_tasks": off}


READ: dict[str, Any] = {
    "/threads/t/mcp-tasks": [],
}
"""What DeerFlow's page reads: it fails, or waits for seconds, without."""
NOT_FOUND = ("/threads/t/mcp-tasks/x",)
UNAVAILABLE = (
    ("mcp_tasks", "POST", "/threads/t/mcp-tasks/x/cancel"),
    ("browser", "POST", "/threads/t/browser/navigate"),
    ("browser", "GET", "/threads/t/browser/stream"),
    ("integrations", "POST", "/integrations/lark/auth/start"),
)


@pytest.fixture
async def its_thread(worker: Worker) -> None:
    await worker.system.intake.create_thread("t", user=LOCAL.user)


@pytest.mark.usefixtures("its_thread")
@pytest.mark.parametrize("path", READ)
async def test_reads_of_what_is_not_built_are_empty(api: Api, path: str) -> None:
    assert await api.ask("GET", path) == READ[path]


@pytest.mark.usefixtures("its_thread")
@pytest.mark.parametrize("path", NOT_FOUND)
async def test_there_is_nothing_to_find_in_what_is_not_built(api: Api, path: str) -> None:
    assert (await api.ask("GET", path, status=404))["code"] == "not_found"


@pytest.mark.usefixtures("its_thread")
@pytest.mark.parametrize(("code", "method", "path"), UNAVAILABLE)
async def test_changes_of_what_is_not_built_say_so(api: Api, code: str, method: str, path: str) -> None:
    async with api.session.request(method, f"{api.url}/api{path}", json={}) as response:
        assert (response.status, "Retry-After" in response.headers) == (503, True)
        assert (await response.json())["code"] == f"{code}_unavailable"


async def test_settings_of_what_is_not_built_say_that_it_is_off(api: Api) -> None:
    lark = await api.ask("GET", "/integrations/lark/status")
    assert (lark["installed"], lark["installed_skills"], lark["auth"]["status"]) == (False, [], "unavailable")


async def test_other_peoples_threads_have_nothing_unbuilt_either(api: Api, worker: Worker) -> None:
    await worker.system.intake.create_thread("theirs", user="somebody")
    await api.ask("GET", "/threads/theirs/mcp-tasks", status=404)
    await api.ask("POST", "/threads/theirs/mcp-tasks/x/cancel", {}, status=404)


async def test_in_a_chat_that_has_no_thread_yet_it_is_not_the_thread_that_is_missing(api: Api) -> None:
    assert await api.ask("GET", "/threads/never/mcp-tasks") == []
    refused = await api.ask("POST", "/threads/never/mcp-tasks/x/cancel", {}, status=503)
    assert refused["code"] == "mcp_tasks_unavailable"


def test_what_is_not_built_is_not_in_the_document() -> None:
    built = {route.path for route in all_routes()}
    assert not any(path.startswith(subsystem.path) for path in built for subsystem in pending.SUBSYSTEMS)
