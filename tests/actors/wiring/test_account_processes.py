"""The processes of chat accounts as children of a server: they come, go and end with it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.actors.accounts.tower import Tower
from tests.support.children import killed_at_the_end
from tests.support.nats import Nats

pytestmark = pytest.mark.long(keep=2)

ROOT = Path(__file__).parents[3]
SERVER = """
import sys
from pathlib import Path

import anyio

from actors.wiring import compose

async def main() -> None:
    home, config, result = map(Path, sys.argv[1:])
    async with compose.serve(compose.Options(home, config, port=0)):
        result.write_text(" ".join(sys.modules))
        await anyio.sleep_forever()

anyio.run(main)
"""
SDKS = {"telegram", "google.protobuf"}


def configure(folder: Path, there: Tower, nats: dict[str, str], **channels: Any) -> None:
    bell = {"use": "tests.actors.accounts.bell", "enabled": True, "bot_token": "good-0123456789", "base_url": there.url}
    sections = {"nats": nats, "runs": {"lease_seconds": 60}, "channels": {"bell": bell, **channels}}
    (folder / "draft").write_text(json.dumps(sections))
    (folder / "draft").rename(folder / "config.yaml")


@asynccontextmanager
async def python(*arguments: str, folder: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process of Python on a data directory and a configuration."""
    places = (str(folder / "home"), str(folder / "config.yaml"))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    command = (*arguments[:2], *places, *arguments[2:])
    with (folder / "output").open("wb") as output:
        child = await asyncio.create_subprocess_exec(sys.executable, *command, env=environment, stdout=output)
    async with killed_at_the_end(child):
        yield child


async def test_children_follow_the_configuration_and_come_back(tmp_path: Path, there: Tower, nats: Nats) -> None:
    place = {"url": nats.url, "prefix": f"t{uuid.uuid4().hex[:10]}"}
    configure(tmp_path, there, place)
    async with python("-m", "tests.actors.accounts.supervisor", folder=tmp_path) as supervising:
        await there.until(lambda: bool(there.open))
        await there.ring("m1")
        await there.until(lambda: there.acked == ["m1"])
        output = (tmp_path / "output").read_text()
        assert re.search(r"\] account is served by this process +account=bell\n", output), "as the child logged it"
        configure(tmp_path, there, place, processes="external")
        await there.until(lambda: not there.open)
        configure(tmp_path, there, place)
        await there.until(lambda: bool(there.open))
        os.kill(await asyncio.to_thread(child_of, supervising.pid), signal.SIGKILL)
        await there.until(lambda: there.connections == 3)
        supervising.kill()
        await there.until(lambda: not there.open)
    assert there.most == 1


async def test_a_server_serves_its_accounts_and_imports_no_sdk(tmp_path: Path, there: Tower) -> None:
    configure(tmp_path, there, {})
    async with python("-c", SERVER, str(tmp_path / "modules"), folder=tmp_path):
        await there.until(lambda: bool(there.open))
        await there.ring("m1")
        await there.until(lambda: there.acked == ["m1"])
        modules = set((tmp_path / "modules").read_text().split())
        assert "actors.agent.actor" in modules
        assert not modules & SDKS


def child_of(parent: int) -> int:
    """Returns the process of the account."""
    for folder in Path("/proc").iterdir():
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if b"--supervised" in words and (folder / "stat").read_text().rpartition(")")[2].split()[1] == str(parent):
                return int(folder.name)
        except OSError:
            continue
    raise AssertionError("the server has no such child")
