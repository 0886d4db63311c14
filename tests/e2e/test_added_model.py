"""A model that was added beside the configuration file is one like all others: for the debugger and the doctor, too."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest

from tests.e2e.servers import SIKA, Browser, serving
from tests.support import warm
from tests.support.model_server import ModelServer, Turn
from tests.support.workers import configure, reaching

pytestmark = [pytest.mark.anyio, pytest.mark.long]


async def test_replays_whatifs_and_commands_know_it(tmp_path: Path) -> None:
    home, config = tmp_path / "home", tmp_path / "config.yaml"
    async with ModelServer({"m": [], "large": [Turn(text="Yes.")]}) as models, aiohttp.ClientSession() as session:
        configure(config, models)
        client = Browser(session)
        async with serving(home, config) as server:
            model = {"model": "large", "provider": "custom", "base_url": models.url, "api_key": "k-of-a-test"}
            async with session.put(f"{server.url}/api/model-settings/models/added", json=model) as response:
                assert response.status == 200, await response.text()
            thread = await client.thread(server)
            run = await client.run(server, thread, "Well?", "added", context={"model_name": "added"})
            await reaching(lambda: client.status(server, thread, run), lambda status: status == "success")

            replayed = await client.get(server, f"/threads/{thread}/log/replay?run={run}")
            asked = {"at": "2", "model": "added", "samples": 1}
            async with session.post(f"{server.url}/api/threads/{thread}/log/whatif", json=asked) as response:
                whatif = await response.text()

            async def said(*words: str) -> str:
                options = ("--home", str(home), "--config", str(config))
                done = await asyncio.to_thread(warm.run, SIKA, *words, *options, timeout=60)
                return done.stdout + done.stderr

            commands = [await said("log", "replay", thread), await said("doctor")]
            commands.append(await said("log", "whatif", thread, "--at", "2", "--model", "added", "--yes"))
    assert replayed["changed"] == []
    assert "event: result" in whatif, whatif[-500:]
    assert "not configured" not in commands[0]
    assert "added (large): " in commands[1]
    assert "there are: " not in commands[2]
    assert len([record for record in models.requests if record.model == "large"]) == 3
