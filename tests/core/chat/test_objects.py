"""Files of conversations: whole or not there, and gone with their conversation."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from core.bus.connection import Bus
from core.bus.streams import message_count
from core.chat.facts import ChatBegun, conversation
from core.chat.objects import Objects
from core.chat.state import Chats
from core.errors import Invalid, NotFound
from core.log.blobs import CHUNK_BYTES
from core.log.store import EventLog

HERE = conversation("slack", "C1")
OTHER = conversation("slack", "C2")


async def content(objects: Objects, name: str) -> bytes:
    return b"".join([chunk async for chunk in objects.chunks(name)])


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, 3 * CHUNK_BYTES + 7])
async def test_a_file_comes_back(bus: Bus, tmp_path: Path, size: int) -> None:
    objects = Objects(bus)
    (tmp_path / "in").write_bytes(os.urandom(size))
    name = await objects.put(HERE, "in", tmp_path / "in")
    assert await content(objects, name) == (tmp_path / "in").read_bytes()


async def test_what_was_removed_is_not_there(bus: Bus, tmp_path: Path) -> None:
    objects = Objects(bus)
    (tmp_path / "in").write_bytes(os.urandom(3 * CHUNK_BYTES))
    name = await objects.put(HERE, "in", tmp_path / "in")
    await objects.remove(name)
    await objects.remove(name)
    assert await message_count(bus, "blobs") == 0
    with pytest.raises(NotFound):
        await content(objects, name)


@pytest.mark.parametrize("name", ["", "a.b.c", "chat.slack-1.*.x", "chat.slack-1.ab.>"])
async def test_a_name_is_no_pattern(bus: Bus, name: str) -> None:
    with pytest.raises(Invalid):
        await Objects(bus).remove(name)
    with pytest.raises(Invalid):
        await content(Objects(bus), name)


async def test_erasing_a_conversation_erases_its_files(log: EventLog, tmp_path: Path) -> None:
    objects = Objects(log.bus)
    (tmp_path / "in").write_bytes(os.urandom(2 * CHUNK_BYTES))
    mine = await objects.put(HERE, "in", tmp_path / "in")
    other = await objects.put(OTHER, "in", tmp_path / "in")
    await Chats(log).decide(HERE.id, lambda _: [ChatBegun(thread="t", user="u")], actor="test")
    assert await log.erase(HERE)
    with pytest.raises(NotFound):
        await content(objects, mine)
    assert await content(objects, other) == (tmp_path / "in").read_bytes()
