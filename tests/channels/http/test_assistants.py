"""Assistants: the server's, custom agents, and a user's own with their versions."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest
from langgraph_sdk import get_client
from langgraph_sdk.errors import ConflictError, NotFoundError, UnprocessableEntityError

from channels.http.app import serve
from core.config.load import Config
from core.config.settings import Off
from core.events import RunRequested
from core.identity.principal import LOCAL
from core.ids import assistant_id
from core.runtime.system import System
from core.user import agents
from core.user.agents import AgentDefined
from core.user.assistants import Assistant, Version, applied, built_in
from core.user.assistants import Settings as Said
from tests.channels.http.conftest import Api, Settings, Worker, services_of

pytestmark = pytest.mark.anyio

LEAD = assistant_id("lead_agent")
_DEEP: Any = []
for _ in range(70):
    _DEEP = [_DEEP]


@pytest.mark.parametrize("name", ["lead_agent", LEAD])
async def test_the_agent_itself(api: Api, name: str) -> None:
    one = await api.ask("GET", f"/assistants/{name}")
    assert (one["assistant_id"], one["graph_id"], one["name"], one["version"]) == (LEAD, "lead_agent", "lead_agent", 1)
    assert one["metadata"] == {"created_by": "system"}
    assert await api.ask("GET", f"/assistants/{name}/graph?xray=2") == await api.ask("GET", f"/assistants/{name}/graph")
    kinds = await api.ask("GET", f"/assistants/{name}/schemas")
    assert kinds["input_schema"]["properties"]["messages"]
    assert await api.ask("GET", f"/assistants/{name}/subgraphs?recurse=true") == {}
    assert await api.ask("GET", f"/assistants/{name}/subgraphs/tools") == {}
    versions = await api.ask("POST", f"/assistants/{name}/versions", {})
    assert [version["version"] for version in versions] == [1]
    for method, path, body in (("PATCH", "", {}), ("DELETE", "", None), ("POST", "/latest", {"version": 1})):
        await api.ask(method, f"/assistants/{name}{path}", body, status=409)


@pytest.mark.parametrize("mount", ["/api", "/api/langgraph"])
async def test_with_the_sdk(url: str, mount: str) -> None:
    async with get_client(url=url + mount) as client:
        one = await client.assistants.create(
            "lead_agent",
            {"recursion_limit": 5},
            context={"model_name": "demo"},
            metadata={"team": "a"},
            name="Research",
            description="Finds out",
        )
        assert (one["version"], one["name"], one["description"]) == (1, "Research", "Finds out")
        assert one["metadata"] == {"created_by": "user", "team": "a"}
        name = one["assistant_id"]
        assert await client.assistants.get(name) == one
        second = await client.assistants.update(
            name, context={"model_name": "demo", "mode": "pro"}, metadata={"more": 1}
        )
        assert (second["version"], second["name"], second["context"]) == (
            2,
            "Research",
            {"model_name": "demo", "mode": "pro"},
        )
        assert second["config"] == {"recursion_limit": 5}
        assert second["metadata"] == {"created_by": "user", "team": "a", "more": 1}
        assert second["created_at"] == one["created_at"] < second["updated_at"]
        assert [v["version"] for v in await client.assistants.get_versions(name)] == [2, 1]
        assert [v["version"] for v in await client.assistants.get_versions(name, metadata={"more": 1})] == [2]
        assert [v["version"] for v in await client.assistants.get_versions(name, limit=1, offset=1)] == [1]
        back = await client.assistants.set_latest(name, 1)
        assert (back["version"], back["context"]) == (1, {"model_name": "demo"})
        assert (await client.assistants.update(name, name="Third"))["version"] == 3
        with pytest.raises(NotFoundError):
            await client.assistants.set_latest(name, 9)
        found = await client.assistants.search(metadata={"team": "a"}, response_format="object")
        assert ([one["name"] for one in found["assistants"]], found["next"]) == (["Third"], None)
        assert await client.assistants.count(name="thi") == 1
        assert (await client.assistants.get_graph(name, xray=True))["nodes"]
        assert (await client.assistants.get_schemas(name))["graph_id"] == "lead_agent"
        assert await client.assistants.get_subgraphs(name) == {}
        with pytest.raises(ConflictError):
            await client.assistants.create("lead_agent", assistant_id=name)
        again = await client.assistants.create("lead_agent", assistant_id=name, if_exists="do_nothing", name="Other")
        assert again["name"] == "Third"
        await client.assistants.delete(name)
        with pytest.raises(NotFoundError):
            await client.assistants.get(name)
        with pytest.raises(UnprocessableEntityError):
            await client.assistants.create("unknown")


async def test_search(api: Api) -> None:
    for name in ("Beta", "alpha", "Gamma"):
        await api.ask("POST", "/assistants", {"graph_id": "lead_agent", "name": name})

    async def names(**body: Any) -> list[str]:
        return [one["name"] for one in await api.ask("POST", "/assistants/search", body)]

    assert await names() == ["lead_agent", "Beta", "alpha", "Gamma"]
    assert await names(name="A") == ["lead_agent", "Beta", "alpha", "Gamma"]
    assert await names(name="ALPHA") == ["alpha"]
    assert await names(metadata={"created_by": "user"}) == ["Beta", "alpha", "Gamma"]
    assert await names(metadata={"missing": None}) == []
    assert await names(graph_id="unknown") == []
    assert await names(sort_by="name", sort_order="asc") == ["Beta", "Gamma", "alpha", "lead_agent"]
    assert await names(sort_by="created_at") == ["Gamma", "alpha", "Beta", "lead_agent"]
    async with api.session.post(f"{api.url}/api/assistants/search", json={"limit": 2, "offset": 1}) as response:
        assert response.headers["X-Pagination-Total"] == "4"
        assert response.headers["X-Pagination-Next"] == "3"
    async with api.session.post(f"{api.url}/api/assistants/search", json={"limit": 2, "offset": 2}) as response:
        assert "X-Pagination-Next" not in response.headers
    assert await api.ask("POST", "/assistants/search", {"select": ["name", "what"], "limit": 1}) == [
        {"name": "lead_agent"}
    ]
    assert await api.ask("POST", "/assistants/count", {}) == 4
    await api.ask("POST", "/assistants/search", {"sort_by": "what"}, status=422)
    await api.ask("POST", "/assistants/search", {"limit": 0}, status=422)


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"assistant_id": "x"}, "assistant_id"),
        ({"graph_id": "x"}, "graph_id"),
        ({"name": ""}, "name"),
        ({"name": "x" * 300}, "name"),
        ({"config": []}, "$.config"),
        ({"context": {"deep": _DEEP}}, "context: nested"),
    ],
)
async def test_what_cannot_be_made(api: Api, body: Any, place: str) -> None:
    error = await api.ask("POST", "/assistants", {"graph_id": "lead_agent", **body}, status=422)
    assert place in error["detail"]


@pytest.mark.parametrize("name", ["unknown", "d6032cec-13e0-484c-8500-1ad39c395e18", "..", "%00", "a b"])
async def test_unknown_ones_are_not_found(api: Api, name: str) -> None:
    for method, path in (("GET", ""), ("GET", "/graph"), ("PATCH", ""), ("DELETE", ""), ("POST", "/versions")):
        await api.ask(method, f"/assistants/{name}{path}", {} if method in ("PATCH", "POST") else None, status=404)


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"context": {"model_name": "zzz"}}, 400, "there are: demo"),
        ({"context": {"available_skills": ["zzz"]}}, 422, "context.available_skills[0]: no skill 'zzz'"),
        ({"config": {"configurable": {"model_name": "zzz"}}}, 400, "config.configurable.model_name"),
        ({"context": {"is_plan_mode": "yes"}}, 422, "context.is_plan_mode"),
        ({"metadata": {"deliver": []}}, 422, "metadata.deliver: expected object | null, got array"),
    ],
)
async def test_options_of_assistants_are_checked(api: Api, body: Any, status: int, said: str) -> None:
    name = (await api.ask("POST", "/assistants", {"name": "mine"}))["assistant_id"]
    for method, path in (("POST", "/assistants"), ("PATCH", f"/assistants/{name}")):
        assert said in (await api.ask(method, path, body, status=status))["detail"]


class WithAgents(Settings):
    def __call__(self) -> Config:
        return Config(http=self.http, agents_api=Off(enabled=True))


@pytest.mark.parametrize(("settings", "shown"), [(Settings(), []), (WithAgents(), ["my-writer"])], ids=["off", "on"])
async def test_custom_agents_are_assistants(system: System, settings: Settings, shown: list[str]) -> None:
    made = AgentDefined(name="my-writer", description="Writes")
    await agents.aggregates(system.log).decide(LOCAL.user, lambda _: [made], actor="http")
    async with serve(services_of(system, settings), "127.0.0.1", 0) as port, aiohttp.ClientSession() as session:
        api = Api(session, f"http://127.0.0.1:{port}")
        await api.ask("POST", "/assistants", {"graph_id": "lead_agent", "name": "own"})
        found = await api.ask("POST", "/assistants/search", {})
        assert [one["name"] for one in found] == ["lead_agent", *shown, "own"]
        if shown:
            thread = await api.thread()
            run = await api.ask("POST", f"/threads/{thread}/runs", {"assistant_id": " My_Writer "})
            assert run["kwargs"]["context"]["agent_name"] == "my-writer"
        for name in (*shown, *(assistant_id(name) for name in shown)):
            one = await api.ask("GET", f"/assistants/{name}")
            assert (one["graph_id"], one["context"]) == ("lead_agent", {"agent_name": "my-writer"})
            await api.ask("DELETE", f"/assistants/{name}", status=409)


async def test_threads_go_with_an_assistant_if_asked(api: Api, worker: Worker) -> None:
    one = await api.ask("POST", "/assistants", {"graph_id": "lead_agent"})
    name = one["assistant_id"]
    gone = await api.ask("POST", "/threads", {"metadata": {"assistant_id": name}})
    stays = await api.ask("POST", "/threads", {"metadata": {"assistant_id": LEAD}})
    await api.ask("DELETE", f"/assistants/{name}?delete_threads=true", status=204)
    await api.ask("GET", f"/threads/{gone['thread_id']}", status=404)
    await api.ask("GET", f"/threads/{stays['thread_id']}")


def test_a_run_says_more_than_its_assistant() -> None:
    said = Said(
        config={"recursion_limit": 5, "tags": ["a"], "configurable": {"tone": "dry", "thread_id": "t"}},
        context={"model_name": "m", "user_id": "eve", "is_internal": True},
        metadata={"created_by": "user", "team": "a"},
    )
    one = Assistant(id="i", versions=(Version(said, "at"),), updated_at="at")
    request = RunRequested(config={"tags": ["b"]}, context={"user_id": "ada", "model_name": "n"}, metadata={"m": 1})
    got = applied(one, request)
    assert got.assistant == "i"
    assert got.config == {"recursion_limit": 5, "tags": ["b"], "configurable": {"tone": "dry", "thread_id": "t"}}
    assert got.context == {"tone": "dry", "model_name": "n", "user_id": "ada"}
    assert got.metadata == {"team": "a", "m": 1}


def test_the_agent_itself_changes_nothing() -> None:
    request = RunRequested(config={"tags": ["b"]}, context={"user_id": "ada"}, metadata={"m": 1})
    assert applied(built_in(Said(name="lead_agent", metadata={"created_by": "system"})), request) == request
