"""Sessions with the small server by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.config.mcp import McpServer
from core.mcp.frames import Command, Reply
from core.ports.mcp import Place
from tests.support.mcp import server, sessions_of

pytestmark = pytest.mark.anyio


def settings(*words: str) -> McpServer:
    return McpServer(**server(*words))


async def ignored(_: str) -> None:
    pass


async def test_lists_that_come_in_pages(tmp_path: Path) -> None:
    async with sessions_of(tmp_path) as sessions:
        command = Command(id=0, op="list", seconds=20)
        reply: Reply = await sessions.send(Place("s"), settings("offers=10"), command, ignored)
    assert reply.listing is not None
    assert {offer.uri for offer in reply.listing.resources} == {"test://notes", *(f"test://{n}" for n in range(10))}
    assert {offer.name for offer in reply.listing.prompts} == {"greet", *(f"p{n}" for n in range(10))}
