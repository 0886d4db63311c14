"""Subagents over HTTP, through the real actors: their frames, states, routes and usage."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from channels.http.app import Services, serve
from core.config.load import ConfigSource
from tests.channels.http.conftest import Api
from tests.support.model_server import ModelServer, ToolCall, Turn
from tests.support.workers import site

pytestmark = pytest.mark.anyio

OWN = {"agents": {"general-purpose": {"model": "sub"}}}
LOOK = ToolCall("ls", {"description": "look", "path": "/mnt/user-data/workspace"})
SUB = [Turn(text="I look first.", tool_calls=(LOOK,)), Turn(text="There is nothing.", gate="end")]
CUSTOM = ["task_started", "task_running", "task_running", "task_completed"]


def task(prompt: str = "Look around!") -> ToolCall:
    return ToolCall("task", {"description": "look", "prompt": prompt, "subagent_type": "general-purpose"})


LEAD = [Turn(text="I delegate.", tool_calls=(task(),)), Turn(text="Nothing is there.")]


@asynccontextmanager
async def delegating(home: Path, sub: Sequence[Turn] = SUB) -> AsyncIterator[tuple[Api, ModelServer]]:
    async with site(home, {"lead": LEAD, "sub": sub}, subagents=OWN) as (client, models):
        services = Services.of(client.system, ConfigSource(home / "config.yaml").current, home)
        async with serve(services, "127.0.0.1", 0) as port, aiohttp.ClientSession(read_bufsize=1 << 22) as session:
            yield Api(session, f"http://127.0.0.1:{port}"), models


def asked(**more: Any) -> dict[str, Any]:
    body = {
        "assistant_id": "lead_agent",
        "input": {"messages": [{"role": "user", "content": "Look."}]},
        "context": {"model_name": "lead", "subagent_enabled": True},
        "stream_mode": ["values", "updates", "messages-tuple", "custom"],
    }
    return {**body, **more}


async def test_streams_states_routes_and_usage(tmp_path: Path) -> None:
    async with delegating(tmp_path) as (api, models):
        thread = await api.thread()
        async with api.stream("POST", f"/threads/{thread}/runs/stream", asked(stream_subgraphs=True)) as stream:
            frames = [await stream.next()]
            await models.reached("end")
            [open_] = await api.ask("GET", f"/threads/{thread}/subagents")
            state = await api.ask("GET", f"/threads/{thread}/state?subgraphs=true")
            run = (await api.ask("GET", f"/threads/{thread}/runs"))[0]["run_id"]
            async with api.stream("GET", f"/threads/{thread}/runs/{run}/stream") as late:
                models.release("end")
                late_frames = await late.rest()
            frames += await stream.rest()
        namespace = f"tools:{open_['tool_call_id']}"
        history = await api.ask(
            "POST", f"/threads/{thread}/history", {"checkpoint": {"checkpoint_ns": namespace}, "limit": 1}
        )
        place = {"checkpoint": {"checkpoint_ns": namespace, "thread_id": thread}}
        inside = await api.ask("POST", f"/threads/{thread}/state/checkpoint", place)
        pasts = await api.ask("POST", f"/threads/{thread}/history", {})
        one = f"/threads/{thread}/subagents/{open_['subagent_id']}"
        shown = await api.ask("GET", one)
        rows = (await api.ask("GET", f"{one}/messages"))["data"]
        events = await api.ask("GET", f"/threads/{thread}/runs/{run}/events?event_types=subagent.progressed")
        usage = await api.ask("GET", f"/threads/{thread}/token-usage")
        other = await api.thread()
        await api.ask("GET", f"/threads/{other}/subagents/{open_['subagent_id']}", status=404)
        await api.ask("POST", f"/threads/{thread}/history", {"checkpoint": {"checkpoint_ns": "tools:none"}}, status=404)
        await api.ask("POST", f"{one}/message", {"message": "more"}, status=409)
        await api.ask("POST", f"{one}/cancel", status=409)
    told = [frame for frame in frames if frame]
    assert [data["type"] for event, data, _ in told if event == "custom"] == CUSTOM
    texts: dict[str, str] = {}
    for _, (chunk, _), _ in [frame for frame in told if frame[0] == f"messages|{namespace}"]:
        if chunk["type"] == "AIMessageChunk":
            texts[chunk["id"]] = texts.get(chunk["id"], "") + chunk["content"]
    assert list(texts.values()) == ["I look first.", "There is nothing."]
    assert {event for event, _, _ in told if "|" in event} == {
        f"{mode}|{namespace}" for mode in ("values", "messages", "updates")
    }
    last = [data for event, data, _ in told if event == f"values|{namespace}"][-1]["messages"]
    assert [message["type"] for message in last] == ["human", "ai", "tool", "ai"]
    assert [message["id"] for message in last] == [m["id"] for m in history[0]["values"]["messages"]]
    # a client that came in the middle is shown the whole of what comes then
    assert late_frames[-1][0] == "end"
    assert [data for event, data, _ in late_frames if event == f"values|{namespace}"] == [{"messages": last}]
    [pending] = state["tasks"]
    assert (pending["path"], pending["checkpoint"]["checkpoint_ns"]) == (["__pregel_push", 0], namespace)
    assert [m["type"] for m in pending["state"]["values"]["messages"]] == ["human", "ai", "tool"]
    assert inside["checkpoint"]["checkpoint_ns"] == namespace
    assert inside["values"] == history[0]["values"]
    assert [task["checkpoint"]["checkpoint_ns"] for past in pasts for task in past["tasks"] if task["checkpoint"]] == [
        namespace
    ]
    assert (open_["status"], open_["name"], open_["description"], open_["message_count"]) == (
        *("running", "general-purpose", "look", 1),
    )
    assert (shown["status"], shown["result"], shown["prompt"]) == ("completed", "There is nothing.", "Look around!")
    assert [row["content"]["type"] for row in rows] == ["human", "ai", "tool", "ai"]
    assert [(row["content"]["content"], row["metadata"]["caller"]) for row in events] == [
        ("I look first.", "subagent:general-purpose"),
        ("There is nothing.", "subagent:general-purpose"),
    ]
    spent = shown["usage"]["total_tokens"]
    assert usage["by_caller"]["subagent"] == usage["by_caller"]["subagents"]["subagent:general-purpose"] == spent > 0
    assert usage["total_tokens"] == usage["by_caller"]["lead_agent"] + spent


async def test_without_the_flag_only_custom_events(tmp_path: Path) -> None:
    async with delegating(tmp_path, [Turn(text="Nothing.")]) as (api, _):
        thread = await api.thread()
        async with api.stream("POST", f"/threads/{thread}/runs/stream", asked()) as stream:
            frames = await stream.rest()
    assert [data["type"] for event, data, _ in frames if event == "custom"] == [
        *("task_started", "task_running", "task_completed"),
    ]
    assert not [event for event, _, _ in frames if "|" in event]


async def test_a_message_and_a_cancel_reach_it(tmp_path: Path) -> None:
    gated = [Turn(text="I look first.", tool_calls=(LOOK,), gate="first"), Turn(text="On and on.", gate="end")]
    async with delegating(tmp_path, gated) as (api, models):
        thread = await api.thread()
        async with api.stream("POST", f"/threads/{thread}/runs/stream", asked()) as stream:
            await models.reached("first")
            [one] = await api.ask("GET", f"/threads/{thread}/subagents")
            path = f"/threads/{thread}/subagents/{one['subagent_id']}"
            sent = await api.ask("POST", f"{path}/message", {"message": "Look below, too!"}, status=202)
            models.release("first")
            await models.reached("end")
            rows = (await api.ask("GET", f"{path}/messages"))["data"]
            await api.ask("POST", f"{path}/cancel", status=202)
            frames = await stream.rest()
        shown = await api.ask("GET", path)
    assert [row["content"]["content"] for row in rows if row["content"]["id"] == sent["message_id"]] == [
        "Look below, too!"
    ]
    assert [data["type"] for event, data, _ in frames if event == "custom"][-1] == "task_cancelled"
    assert shown["status"] == "cancelled"
    assert frames[-1][0] == "end"
