"""A mark is planted in every kind of content of a thread; after its deletion no file of the data directory has it."""

from __future__ import annotations

import asyncio
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


async def wait_for_erasure(home: Path) -> None:
    """Waits until no mark is in a file: what a table has no more leaves its write-ahead log in the background."""

    async def erased() -> bool:
        return not left(home)

    try:
        await wait_for(erased)
    except TimeoutError:
        raise AssertionError(f"left: {left(home)}") from None


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
            await wait_for_erasure(server.home)


@pytest.mark.parametrize("kills", [0, 1, pytest.param(2, marks=pytest.mark.long)])
async def test_a_deleted_thread_is_created_again(tmp_path: Path, kills: int) -> None:
    """With nothing of the old one; also if the server is killed after the deletion, or in the midst of the creation."""
    sandbox = {"allow_host_bash": True, "bash_output_max_chars": 200_000}
    async with ModelServer(SCRIPTS) as models, browser() as client, aiohttp.ClientSession() as session:
        config = configure(tmp_path / "config.yaml", models, sandbox=sandbox, delivery_check={"enabled": False})
        async with serving(tmp_path / "home", config) as server:
            thread = await fill(client, server)
            at = f"/threads/{thread}"

            async def create() -> tuple[int, str]:
                async with session.post(f"{server.url}/api/threads", json={"thread_id": thread}) as response:
                    return response.status, await response.text()

            async with session.delete(f"{server.url}/api{at}") as response:
                assert response.status < 300, await response.text()
            for number in range(kills):
                creating = asyncio.create_task(create())
                await asyncio.sleep(0.05 + 0.3 * number)
                await server.kill()
                await asyncio.wait([creating])
                creating.exception()  # the connection is lost, or it was faster
                await server.start()

            async def created() -> bool:
                status, text = await create()
                assert status in (200, 503), text
                return status == 200

            await wait_for(created)
            assert [event["type"] for event in await client.log(server, thread)] == ["thread.erased", "thread.created"]
            shown = await client.get(server, at)
            assert (shown["status"], shown["values"], shown["metadata"].get("note")) == ("idle", {}, None)
            for path in ("/history", "/runs"):
                assert await client.get(server, at + path) == []
            for query in ({"query": MARKS["answer"]}, {"metadata": {"note": MARKS["metadata"]}}):
                assert await client.post(server, "/threads/search", query) == []
            assert (await client.get(server, f"{at}/uploads/list"))["files"] == []
            await wait_for_erasure(server.home)
            run = await client.run(server, thread, "Again?", "works")

            async def ended() -> bool:
                return await client.status(server, thread, run) == "success"

            await wait_for(ended)
            [asked, *_] = models.requests[-2:]
            assert MARKS["question"] not in str(asked)
