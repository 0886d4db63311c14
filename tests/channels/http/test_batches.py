"""Batches of prompts over HTTP, through the real actors: their progress in the stream, and their routes."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest

from channels.http.app import Services, serve
from core.config.load import ConfigSource
from tests.channels.http.conftest import Api
from tests.channels.http.test_subagents import OWN, asked
from tests.support.model_server import Script, ToolCall, Turn
from tests.support.workers import site

pytestmark = pytest.mark.anyio

CALL = {"description": "Count", "subagent_type": "general-purpose", "prompts": ["Do step-0.", "Do step-1."]}
LEAD = [Turn(text="I delegate.", tool_calls=(ToolCall("tasks", CALL),)), Turn(text="Done.")]
SUB = Script((Turn(text=""), Turn(text="Did 0."), Turn(text="Did 1.", gate="end")), count="marker")


async def test_progress_and_routes(tmp_path: Path) -> None:
    async with site(tmp_path, {"lead": LEAD, "sub": SUB}, subagents=OWN) as (client, models):
        services = Services.of(client.system, ConfigSource(tmp_path / "config.yaml").current, tmp_path)
        async with serve(services, "127.0.0.1", 0) as port, aiohttp.ClientSession() as session:
            api = Api(session, f"http://127.0.0.1:{port}")
            thread = await api.thread()
            async with api.stream("POST", f"/threads/{thread}/runs/stream", asked()) as stream:
                frames = [*await stream.until("custom"), *await stream.until("custom")]  # the start, the first item
                await models.reached("end")
                [batch] = await api.ask("GET", f"/threads/{thread}/subagents")
                route = f"/threads/{thread}/subagents/{batch['subagent_id']}"
                items = (await api.ask("GET", route))["subagents"]
                models.release("end")
                frames += await stream.rest()
            shown = await api.ask("GET", route)
            item = f"/threads/{thread}/subagents/{items[-1]['subagent_id']}"
            ended = await api.ask("GET", item)
            rows = (await api.ask("GET", f"{item}/messages"))["data"]
            await api.ask("POST", f"{item}/cancel", status=409)
            await api.ask("POST", f"{route}/message", {"message": "more"}, status=409)
            usage = await api.ask("GET", f"/threads/{thread}/token-usage")
        await client.idle()
    custom = [data for event, data, _ in frames if event == "custom"]
    assert [data["type"] for data in custom] == ["task_started", "task_running", "task_running", "task_completed"]
    assert [data["message"]["content"] for data in custom[1:3]] == ["1/2 done", "2/2 done"]
    assert [data["message_index"] for data in custom[1:3]] == [50, 100]
    assert (shown["status"], shown["message_count"], shown["subagents"]) == ("completed", 100, [])
    assert shown["prompt"].startswith("2 prompts; results: /mnt/user-data/outputs/Count-")
    assert (ended["status"], ended["prompt"], ended["result"]) == ("completed", "Do step-1.", "Did 1.")
    assert len(rows) == 2
    assert usage["by_caller"]["subagent"] == custom[-1]["usage"]["total_tokens"] > 0
