"""`sika acp`, which starts a server, driven by the public TypeScript SDK."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from tests.channels.acp.conftest import Models, compiled
from tests.conformance.javascript import Scripts

pytestmark = [pytest.mark.anyio, pytest.mark.long]

EDITOR = Scripts(Path(__file__).parent / "js", 100)


async def test_a_session(models: Models, config: Path, tmp_path: Path) -> None:
    folder = await asyncio.to_thread(EDITOR.installed)
    command = [sys.executable, "-m", "channels.cli", "acp", "--home", str(tmp_path / "home"), "--config", str(config)]
    process = await asyncio.create_subprocess_exec(
        "node", str(folder / "editor.mjs"), *command, stdout=asyncio.subprocess.PIPE, env=compiled()
    )
    async with asyncio.timeout(120):
        output, _ = await process.communicate()
    told = json.loads(output)
    assert (told["version"], told["done"]["stopReason"]) == (1, "end_turn")
    folder_first = ["allow_always", "allow_always", "reject_once"]
    assert told["asked"] == [folder_first, ["allow_once", "reject_once"]]
    first, *kinds = [update["sessionUpdate"] for update in told["live"]]
    assert (first, kinds[0]) == ("agent_thought_chunk", "tool_call"), told["live"][0]
    assert "I do not work in your directory" in told["live"][0]["content"]["text"]
    assert {*kinds} == {"tool_call", "tool_call_update", "agent_message_chunk"}
    assert (
        "".join(update["content"]["text"] for update in told["live"] if update["sessionUpdate"] == kinds[-1]) == "Ok."
    )
    assert told["loaded"] == ["user_message_chunk", "tool_call", "tool_call_update", "agent_message_chunk"]
    assert told["listed"] == [True]
