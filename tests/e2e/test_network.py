"""A command that may use the network, and what the thread's log says of it."""

from __future__ import annotations

from pathlib import Path

from tests.adapters.sandboxes.egress.test_proxy import site
from tests.e2e.servers import browser, serving
from tests.support.model_server import ModelServer, ToolCall, Turn
from tests.support.workers import configure, wait_for

HOST = "127.0.0.2"


async def test_the_log_says_where_a_command_connected_to(tmp_path: Path) -> None:
    async with site() as port, browser() as client:
        command = f"curl -s http://{HOST}:{port}/hello; curl -s http://example.org/; curl -s http://{HOST}:{port}/again"
        turns = [Turn(tool_calls=(ToolCall("bash", {"description": "d", "command": command}),)), Turn(text="Done.")]
        async with ModelServer({"goes": turns}) as models:
            sandbox = {"network": True, "egress": {"allow": [], "allow_private": [f"{HOST}:{port}"]}}
            config = configure(tmp_path / "config.yaml", models, sandbox=sandbox)
            async with serving(tmp_path / "home", config) as server:
                thread_id = await client.thread(server)
                run_id = await client.run(server, thread_id, "go", "goes")

                async def ended() -> bool:
                    return await client.status(server, thread_id, run_id) == "success"

                await wait_for(ended)
                events = await client.log(server, thread_id)
    [accessed] = [event for event in events if event["type"] == "network.accessed"]
    hosts = {(host["host"], host["port"]): host for host in accessed["hosts"]}
    assert hosts[HOST, port]["connections"] == 2
    assert "not in the sandbox's list" in hosts["example.org", 80]["refused"]
