"""A tool of the application over AG-UI: the model calls it, the application acts, and the answer has its result."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.e2e.servers import serving
from tests.support.model_server import ModelServer, ToolCall, Turn
from tests.support.workers import configure

pytestmark = pytest.mark.anyio

PICK = {
    "name": "pick_colour",
    "description": "Lets the person pick a colour.",
    "parameters": {"type": "object", "properties": {"shade": {"type": "string"}}, "required": ["shade"]},
}
SCRIPT = [
    Turn(text="Pick one.", tool_calls=(ToolCall("pick_colour", {"shade": "dark"}, "c1"),)),
    Turn(text="Blue it is."),
]


async def run(url: str, thread: str, messages: list[Any], **more: Any) -> list[dict[str, Any]]:
    """The events of a run, as the application sees them."""
    body = {"threadId": thread, "runId": str(uuid.uuid4()), "messages": messages, "tools": [PICK], **more}
    async with aiohttp.ClientSession() as session, session.post(f"{url}/api/agui", json=body) as response:
        assert response.status == 200, await response.text()
        lines = (await response.read()).split(b"\n")
    return [json.loads(line[6:]) for line in lines if line.startswith(b"data: ")]


async def test_a_tool_of_the_application(tmp_path: Path) -> None:
    async with ModelServer({"m": SCRIPT}) as models:
        config = configure(tmp_path / "config.yaml", models)
        async with serving(tmp_path / "home", config) as server:
            thread = str(uuid.uuid4())
            question = {"id": "m1", "role": "user", "content": "Which colour?"}
            events = await run(server.url, thread, [question])
            types = [event["type"] for event in events]
            begun = next(event for event in events if event["type"] == "TOOL_CALL_START")
            assert (begun["toolCallName"], begun["toolCallId"]) == ("pick_colour", "c1")
            assert "TOOL_CALL_RESULT" not in types, "the application makes it"
            assert events[-1]["outcome"] == {"type": "success"}
            shown = [event for event in events if event["type"] == "MESSAGES_SNAPSHOT"][-1]["messages"]
            answer = {"id": "t1", "role": "tool", "toolCallId": "c1", "content": "blue"}
            events = await run(server.url, thread, [*shown, answer])
            text = "".join(event.get("delta", "") for event in events if event["type"] == "TEXT_MESSAGE_CONTENT")
            assert text == "Blue it is."
            assert events[-1]["outcome"] == {"type": "success"}
            body = {"threadId": thread, "runId": "r", "messages": [], "tools": [{**PICK, "name": "bash"}]}
            async with aiohttp.ClientSession() as session, session.post(f"{server.url}/api/agui", json=body) as refused:
                assert refused.status == 422
                assert "tools[0].name" in (await refused.json())["detail"]
        first, second = (request.body for request in models.requests)
        offered = {tool["function"]["name"]: tool["function"] for tool in first["tools"]}
        assert offered["pick_colour"]["parameters"]["required"] == ["shade"]
        assert (second["messages"][-1]["role"], second["messages"][-1]["content"]) == ("tool", "blue")
