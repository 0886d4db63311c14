"""A mark is planted in every kind of content of a thread; after its deletion no file of the data directory has it."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import aiohttp
import pytest

from tests.e2e.servers import Browser, Server, browser, serving
from tests.support.model_server import ModelServer, Script, ToolCall, Turn
from tests.support.workers import configure, wait_for

pytestmark = pytest.mark.anyio

KINDS = (
    "question",
    "answer",
    "reasoning",
    "argument",
    "output",
    "big",
    "title",
    "metadata",
    "comment",
    "upload",
    "file",
)
MARKS = {kind: secrets.token_hex(12) for kind in KINDS}
OUTPUTS = "/mnt/user-data/outputs"
CHATTER = "\\n".join(f"line {number}" for number in range(12_000))
SCRIPTS: dict[str, Script | list[Turn]] = {
    "works": [
        Turn(
            text="Looking.",
            reasoning=MARKS["reasoning"],
            tool_calls=(
                ToolCall(
                    "bash",
                    {
                        "description": MARKS["argument"],
                        "command": f"seq 1 20000; echo {MARKS['output']} | tee {OUTPUTS}/{MARKS['file']}.txt",
                    },
                ),
            ),
        ),
        Turn(text=f"It is {MARKS['answer']}."),
    ],
}


def left(home: Path) -> dict[str, list[str]]:
    """The marks that are in files, or in their names."""
    places: dict[str, list[str]] = {}
    files = (Path(folder) / name for folder, _, names in os.walk(home) for name in names)
    for path in files:
        try:
            content = (path.read_bytes() if path.is_file() else b"") + str(path).encode()
        except FileNotFoundError:
            continue
        for kind, mark in MARKS.items():
            if mark[6:].encode() in content:  # an index of words leaves out beginnings that words share
                places.setdefault(kind, []).append(str(path.relative_to(home)))
    return places


async def fill(client: Browser, server: Server) -> str:
    """Returns a thread with content of every kind."""
    thread = await client.thread(server)
    at = f"/threads/{thread}"
    async with aiohttp.ClientSession() as session:
        form = aiohttp.FormData()
        form.add_field("files", MARKS["upload"], filename=f"{MARKS['upload']}.txt")
        async with session.post(f"{server.url}/api{at}/uploads", data=form) as response:
            assert response.status == 200, await response.text()
    run = await client.run(server, thread, f"{MARKS['question']} {CHATTER} {MARKS['big']}", "works")

    async def ended() -> bool:
        status = await client.status(server, thread, run)
        assert status in ("pending", "running", "success")
        return status == "success"

    await wait_for(ended)
    await client.post(server, f"{at}/state", {"values": {"title": MARKS["title"]}})
    async with aiohttp.ClientSession() as session:
        metadata = {"metadata": {"note": MARKS["metadata"]}}
        async with session.patch(f"{server.url}/api{at}", json=metadata) as response:
            assert response.status == 200, await response.text()
    await client.post(server, f"{at}/runs/{run}/feedback", {"rating": 1, "comment": MARKS["comment"]})
    [hit] = await client.post(server, "/threads/search", {"query": MARKS["answer"]})
    assert hit["thread_id"] == thread
    return thread


@pytest.mark.parametrize("killed", [False, True])
async def test_a_deleted_thread_is_not_on_the_disk(tmp_path: Path, killed: bool) -> None:
    """Also if the server is killed before the erasure."""
    sandbox = {"allow_host_bash": True, "bash_output_max_chars": 200_000}
    async with ModelServer(SCRIPTS) as models, browser() as client:
        config = configure(tmp_path / "config.yaml", models, sandbox=sandbox, delivery_check={"enabled": False})
        async with serving(tmp_path / "home", config) as server:
            thread = await fill(client, server)
            assert left(server.home).keys() == MARKS.keys(), "each mark is found where it lies"
            async with aiohttp.ClientSession() as session:
                async with session.delete(f"{server.url}/api/threads/{thread}") as response:
                    assert response.status < 300, await response.text()
                if killed:
                    await server.kill()
                    await server.start()
                async with session.get(f"{server.url}/api/threads/{thread}") as response:
                    assert response.status == 404

            async def erased() -> bool:
                return not left(server.home)

            try:
                await wait_for(erased)
            except TimeoutError:
                raise AssertionError(f"left: {left(server.home)}") from None
