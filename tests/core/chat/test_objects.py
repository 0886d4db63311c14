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


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, 3 * CHUNK_BYTES + 7])
async def test_a_file_comes_back(bus: Bus, tmp_path: Path, size: int) -> None:
    objects = Objects(bus)
    (tmp_path / "in").write_bytes(os.urandom(size))
    name = await objects.put(HERE, "in", tmp_path / "in")
    await objects.get(name, tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == (tmp_path / "in").read_bytes()


async def test_what_was_removed_is_not_there(bus: Bus, tmp_path: Path) -> None:
    objects = Objects(bus)
    (tmp_path / "in").write_bytes(os.urandom(3 * CHUNK_BYTES))
    name = await objects.put(HERE, "in", tmp_path / "in")
    await objects.remove(name)
    await objects.remove(name)
    assert await message_count(bus, "blobs") == 0
    with pytest.raises(NotFound):
        await objects.get(name, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize("name", ["", "a.b.c", "chat.slack-1.*.x", "chat.slack-1.ab.>"])
async def test_a_name_is_no_pattern(bus: Bus, tmp_path: Path, name: str) -> None:
    with pytest.raises(Invalid):
        await Objects(bus).remove(name)
    with pytest.raises(Invalid):
        await Objects(bus).get(name, tmp_path / "out")


async def test_erasing_a_conversation_erases_its_files(log: EventLog, tmp_path: Path) -> None:
    objects = Objects(log.bus)
    (tmp_path / "in").write_bytes(os.urandom(2 * CHUNK_BYTES))
    mine = await objects.put(HERE, "in", tmp_path / "in")
    other = await objects.put(OTHER, "in", tmp_path / "in")
    await Chats(log).decide(HERE.id, lambda _: [ChatBegun(thread="t", user="u")], actor="test")
    assert await log.erase(HERE)
    with pytest.raises(NotFound):
        await objects.get(mine, tmp_path / "mine")
    await objects.get(other, tmp_path / "other")
