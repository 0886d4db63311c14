"""Sessions with the small server by hand."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest
import structlog.testing

from adapters.mcp.sessions import LOGGED_BYTES, Sessions
from core.config.mcp import McpServer
from core.errors import Unavailable
from core.files.folder import Folder
from core.files.paths import WORKSPACE
from core.ports.mcp import Place
from core.ports.mcp_frames import Command, Reply
from tests.support.mcp import server, sessions_of
from tests.support.nats import eventually

pytestmark = pytest.mark.anyio


def settings(*words: str) -> McpServer:
    return McpServer(**server(*words))


async def ignored(_: str) -> None:
    pass


async def called(sessions: Sessions, tool: str) -> Reply:
    return await sessions.send(Place("s"), settings(), Command(id=0, op="call", name=tool, seconds=20), ignored)


async def listed(sessions: Sessions, thread: str, *words: str) -> Reply:
    command = Command(id=0, op="list", seconds=20)
    return await sessions.send(Place("s", "u", thread), settings(*words), command, ignored)


async def test_lists_that_come_in_pages(tmp_path: Path) -> None:
    async with sessions_of(tmp_path) as sessions:
        reply = await listed(sessions, "t", "offers=10")
    assert reply.listing is not None
    assert {offer.uri for offer in reply.listing.resources} == {"test://notes", *(f"test://{n}" for n in range(10))}
    assert {offer.name for offer in reply.listing.prompts} == {"greet", *(f"p{n}" for n in range(10))}


async def test_what_the_sdk_says_of_odd_messages_is_logged_up_to_a_limit(tmp_path: Path) -> None:
    with structlog.testing.capture_logs() as logs:
        async with sessions_of(tmp_path) as sessions:
            assert (await called(sessions, "odd")).kind == "outcome"
    lines = [line["line"] for line in logs if line["event"] == "MCP server"]
    assert 0 < sum(map(len, lines)) <= LOGGED_BYTES


async def test_a_server_whose_lists_change_with_each_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapters.mcp.sessions.CHANGE_PAUSES", (0.01, 0.01, 3600.0))
    changes = list[Place]()

    async def list_again(place: Place) -> None:
        changes.append(place)
        await listed(sessions, "t", "restless")

    async def twice() -> bool:
        return len(changes) == 2

    async with sessions_of(tmp_path) as sessions:
        sessions.watch(list_again)
        await listed(sessions, "t", "restless")
        await eventually(twice)
        for _ in range(10):
            await listed(sessions, "t", "restless")
        assert len(changes) == 2, "the third waits for an hour"


async def test_a_list_that_is_refused_costs_nothing_else(tmp_path: Path) -> None:
    async with sessions_of(tmp_path) as sessions:
        reply = await listed(sessions, "t", "tools-only")
    assert reply.listing is not None
    assert reply.listing.tools
    assert (reply.listing.resources, reply.listing.prompts) == ([], [])


async def test_a_session_that_starts_has_a_place(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("mcp: {max_sessions: 1}")
    gate, replies = tmp_path / "gate", list[Reply]()

    async def wait() -> None:
        replies.append(await listed(sessions, "first", f"gate={gate}"))

    async with sessions_of(tmp_path) as sessions, anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await eventually(anyio.Path(gate).exists)
        with pytest.raises(Unavailable, match="max_sessions"):
            await listed(sessions, "second")
        gate.rmdir()
    assert [reply.kind for reply in replies] == ["listing"]


async def test_sessions_that_start_at_once_are_no_more_than_allowed(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("mcp: {max_sessions: 2}")
    gates, refused = [tmp_path / f"gate{number}" for number in range(5)], list[Unavailable]()

    async def start(gate: Path) -> None:
        try:
            await listed(sessions, gate.name, f"gate={gate}")
        except Unavailable as error:
            refused.append(error)

    async def settled() -> bool:
        return sum([gate.exists() for gate in gates]) + len(refused) == len(gates)

    async with sessions_of(tmp_path) as sessions, anyio.create_task_group() as tasks:
        for gate in gates:
            tasks.start_soon(start, gate)
        await eventually(settled)
        for gate in gates:
            if gate.exists():
                gate.rmdir()
    assert len(refused) == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's files are given to another user")
async def test_a_kept_result_belongs_to_the_user_of_the_container(tmp_path: Path) -> None:
    folder = Folder(tmp_path, "u", "t")
    folder.make()
    workspace = folder.root / "user-data" / "workspace"
    os.chown(workspace, 1000, 1000)
    async with sessions_of(tmp_path) as sessions:
        path = await sessions.save("u", "t", b"data", "image/png")
    info = (workspace / path.removeprefix(f"{WORKSPACE}/")).stat()
    assert (info.st_uid, info.st_gid) == (1000, 1000)
