"""Assistants: the one that is there, and those that people make of it."""

from __future__ import annotations

import uuid
from typing import Any

import httpx

from tests.conformance.python.lab import AGENT, Lab, case, contents, raises

FIELDS = {"assistant_id", "graph_id", "name", "config", "metadata", "version", "created_at", "updated_at"}


async def built_in(lab: Lab) -> Any:
    [found] = [one for one in await lab.client.assistants.search(graph_id=AGENT) if one["name"] == AGENT]
    return found


async def made(lab: Lab, **more: Any) -> Any:
    return await lab.client.assistants.create(AGENT, **{"metadata": {"mark": lab.mark}, "name": lab.mark, **more})


@case
async def search(lab: Lab) -> None:
    found = await built_in(lab)
    assert set(found) >= FIELDS
    uuid.UUID(found["assistant_id"])
    response = await lab.http.post("/assistants/search", json={"graph_id": "nobody"})
    assert (response.status_code, response.json()) in ((200, []), (404, response.json()))


@case
async def get(lab: Lab) -> None:
    found = await built_in(lab)
    assert await lab.client.assistants.get(found["assistant_id"]) == found
    error = await raises(httpx.HTTPStatusError, lab.client.assistants.get(str(uuid.uuid4())))
    assert error.response.status_code == 404


@case
async def schemas(lab: Lab) -> None:
    found: Any = await lab.client.assistants.get_schemas((await built_in(lab))["assistant_id"])
    assert found["graph_id"] == AGENT
    names = ("input_schema", "output_schema", "state_schema", "config_schema", "context_schema")
    assert all(isinstance(found[name], dict) for name in names)
    assert "messages" in found["state_schema"]["properties"]


@case
async def graph(lab: Lab) -> None:
    identity = (await built_in(lab))["assistant_id"]
    for named in (identity, AGENT):
        found: Any = await lab.client.assistants.get_graph(named, xray=True)
        assert {node["id"] for node in found["nodes"]} >= {"__start__", "model", "tools", "__end__"}
        nodes = {node["id"] for node in found["nodes"]}
        assert all({edge["source"], edge["target"]} <= nodes for edge in found["edges"])


@case
async def subgraphs(lab: Lab) -> None:
    identity = (await built_in(lab))["assistant_id"]
    assert await lab.client.assistants.get_subgraphs(identity) == {}
    assert await lab.client.assistants.get_subgraphs(identity, recurse=True) == {}


@case
async def create(lab: Lab) -> None:
    one = await made(lab, config={"configurable": {"model_name": "hello"}}, description="Says hello")
    assert set(one) >= FIELDS
    assert (one["name"], one["graph_id"], one["version"], one["metadata"]["mark"]) == (lab.mark, AGENT, 1, lab.mark)
    assert await lab.client.assistants.get(one["assistant_id"]) == one
    found = await lab.client.assistants.search(metadata={"mark": lab.mark})
    assert [hit["assistant_id"] for hit in found] == [one["assistant_id"]]
    assert await lab.client.assistants.count(metadata={"mark": lab.mark}) == 1
    await lab.client.assistants.delete(one["assistant_id"])
    error = await raises(httpx.HTTPStatusError, lab.client.assistants.get(one["assistant_id"]))
    assert error.response.status_code == 404
    assert await lab.client.assistants.count(metadata={"mark": lab.mark}) == 0


@case
async def create_with_an_id(lab: Lab) -> None:
    identity = str(uuid.uuid4())
    one = await made(lab, assistant_id=identity)
    assert one["assistant_id"] == identity
    assert (await made(lab, assistant_id=identity, if_exists="do_nothing", name="other"))["name"] == lab.mark
    error = await raises(httpx.HTTPStatusError, made(lab, assistant_id=identity, if_exists="raise"))
    assert error.response.status_code == 409
    error = await raises(httpx.HTTPStatusError, lab.client.assistants.create("nobody", name="x"))
    assert error.response.status_code in (404, 422)
    await lab.client.assistants.delete(identity)


@case
async def versions(lab: Lab) -> None:
    one = await made(lab, config={"configurable": {"model_name": "hello"}})
    identity = one["assistant_id"]
    second: Any = await lab.client.assistants.update(identity, config={"configurable": {"model_name": "thinks"}})
    assert second["version"] == 2
    listed: Any = await lab.client.assistants.get_versions(identity)
    assert [version["version"] for version in listed] == [2, 1]
    assert (await lab.client.assistants.get(identity))["config"] == second["config"]
    back: Any = await lab.client.assistants.set_latest(identity, 1)
    assert back["version"] == 1
    assert (await lab.client.assistants.get(identity))["config"] == one["config"]
    named: Any = await lab.client.assistants.update(identity, name="another", metadata={"more": 1})
    assert named["name"] == "another"
    assert named["metadata"].items() >= {"mark": lab.mark, "more": 1}.items()
    await lab.client.assistants.delete(identity)


@case
async def run_by_one(lab: Lab) -> None:
    """Its configuration holds, unless the run says otherwise."""
    one = await made(lab, config={"configurable": {"model_name": "thinks"}})
    thread, said = await lab.thread(), {"messages": [{"role": "user", "content": "Hi"}]}
    values: Any = await lab.client.runs.wait(thread, one["assistant_id"], input=said)
    assert contents(values)[-1] == "It is so."
    [run] = await lab.client.runs.list(thread)
    assert run["assistant_id"] == one["assistant_id"]
    values = await lab.client.runs.wait(thread, one["assistant_id"], input=said, context={"model_name": "hello"})
    assert contents(values)[-1] == "Hello to you, too."
    await lab.client.assistants.delete(one["assistant_id"])


@case
async def search_in_pages(lab: Lab) -> None:
    every = [(await made(lab, name=f"{lab.mark} {number}"))["assistant_id"] for number in range(3)]
    up = await lab.client.assistants.search(metadata={"mark": lab.mark}, sort_by="name", sort_order="asc", limit=2)
    rest = await lab.client.assistants.search(
        metadata={"mark": lab.mark}, sort_by="name", sort_order="asc", limit=2, offset=2
    )
    assert [one["assistant_id"] for one in [*up, *rest]] == every
    for identity in every:
        await lab.client.assistants.delete(identity)
