"""The process of a chat account: one connection over all processes, whatever happens to them."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from actors.wiring import accounts as wiring
from core.bus.connection import Bus
from core.chat.account import Accounts
from core.chat.facts import ChatReceived, conversation
from core.chat.lease import Lease
from core.chat.status import Status, request, statuses
from core.config.load import ConfigSource
from core.identity.seal import Seal
from core.log.store import EventLog
from tests.actors.accounts.tower import Tower
from tests.support.children import killed_at_the_end
from tests.support.nats import DEADLINE, Nats, bus_on, eventually, log_on, read

pytestmark = pytest.mark.long(keep=3)

ROOT = Path(__file__).parents[3]
LEASE_SECONDS = 2


class Site:
    """A data directory and a configuration with the account `bell`, and what processes of it do."""

    def __init__(self, folder: Path, nats: Nats, bus: Bus, log: EventLog, tower: Tower) -> None:
        self.home = folder / "home"
        self.config = folder / "config.yaml"
        self.bus, self.log = bus, log
        self._nats = {"url": nats.url, "prefix": bus.names.prefix}
        self._tower = tower
        self.configure()

    def configure(self, **settings: Any) -> None:
        """Writes the configuration."""
        bell = {"use": "tests.actors.accounts.bell", "enabled": True, "bot_token": "good-0123456789"}
        sections = {
            "nats": self._nats,
            "runs": {"lease_seconds": LEASE_SECONDS},
            "channels": {"bell": {**bell, "base_url": self._tower.url, **settings}},
        }
        self.config.write_text(json.dumps(sections))

    def sika(self, *arguments: str) -> list[str]:
        command = [sys.executable, "-m", "channels.cli", *arguments]
        return [*command, "--home", str(self.home), "--config", str(self.config)]

    @asynccontextmanager
    async def process(self) -> AsyncIterator[asyncio.subprocess.Process]:
        """A process of the account, which may end before the block does."""
        child = await asyncio.create_subprocess_exec(*self.sika("channel", "bell"), cwd=ROOT)
        async with killed_at_the_end(child):
            yield child

    async def status(self) -> Status:
        [status] = await statuses(self.bus, {"bell": True})
        return status

    async def until(self, **fields: Any) -> Status:
        """Waits for a status."""

        async def reached() -> Status | None:
            status = await self.status()
            return status if all(getattr(status, name) == value for name, value in fields.items()) else None

        status = await eventually(reached)
        assert status is not None
        return status

    async def received(self, chat: str = "room") -> list[str]:
        """Returns the messages of a chat that are in the log."""
        records = await read(self.log, conversation("bell", chat))
        return [record.event.message for record in records if isinstance(record.event, ChatReceived)]


@pytest.fixture
async def site(tmp_path: Path, nats: Nats, there: Tower) -> AsyncIterator[Site]:
    async with bus_on(nats, f"t{uuid.uuid4().hex[:10]}") as bus, log_on(bus) as log:
        yield Site(tmp_path, nats, bus, log, there)


async def test_a_message_is_a_fact_before_it_is_acknowledged(site: Site, there: Tower) -> None:
    async with site.process() as child:
        await there.until(lambda: bool(there.open))
        await there.ring("m1")
        await there.until(lambda: there.acked == ["m1"])
        assert await site.received() == ["m1"]
        await there.ring("m1")
        await there.until(lambda: there.acked == ["m1", "m1"])
        assert await site.received() == ["m1"]
        status = await site.status()
        assert (status.state, status.received, bool(status.connected_since)) == ("connected", 2, True)
        child.terminate()
        assert await asyncio.wait_for(child.wait(), DEADLINE) == 0
        await there.until(lambda: not there.open)
    assert (await site.status()).state == "not running"


async def test_a_second_process_takes_over_from_one_that_died(site: Site, there: Tower) -> None:
    async with site.process() as first:
        await there.until(lambda: bool(there.open))
        async with site.process() as second:
            await there.ring("m1")
            await there.until(lambda: there.acked == ["m1"])
            first.kill()
            await there.until(lambda: there.connections == 2)
            await there.ring("m1")
            await there.ring("m2")
            await there.until(lambda: there.acked == ["m1", "m1", "m2"])
            assert second.returncode is None
    assert there.most == 1
    assert await site.received() == ["m1", "m2"]


async def test_after_a_kill_nothing_is_waited_for_and_no_sdk_is_imported_while_the_lease_is_held(
    site: Site, there: Tower, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site.process() as killed:
        await there.until(lambda: bool(there.open))
        killed.kill()
        await killed.wait()
    sdk = "tests.actors.accounts.bell.platform"
    monkeypatch.delitem(sys.modules, sdk, raising=False)
    waits: list[float] = []
    take, sleep = Lease.take, anyio.sleep

    async def taking(lease: Lease) -> None:
        await take(lease)
        waits.append(0.0 if sdk in sys.modules else math.inf)

    async def sleeping(seconds: float) -> None:
        if sys._getframe(1).f_code is take.__code__:
            waits.append(seconds)
        await sleep(seconds)

    monkeypatch.setattr(Lease, "take", taking)
    monkeypatch.setattr(anyio, "sleep", sleeping)
    endpoint = wiring.endpoint(site.home, ConfigSource(site.config).current(), None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wiring.serve, "bell", site.home, ConfigSource(site.config), endpoint)
        await there.until(lambda: there.connections == 2)
        tasks.cancel_scope.cancel()
    assert waits == [0.0]


async def test_a_frozen_process_does_nothing_once_another_has_taken_over(site: Site, there: Tower) -> None:
    async with site.process() as frozen:
        await there.until(lambda: bool(there.open))
        os.kill(frozen.pid, signal.SIGSTOP)
        async with site.process():
            await there.until(lambda: len(there.open) == 2)
            await there.ring("late", connection=1)
            os.kill(frozen.pid, signal.SIGCONT)
            await there.until(lambda: list(there.open) == [2])
            assert await asyncio.wait_for(frozen.wait(), DEADLINE) != 0
            await there.ring("m1")
            await there.until(lambda: there.acked == ["m1"])
            assert await site.received() == ["m1"]


async def test_refused_credentials_are_a_state_until_they_are_changed(site: Site, there: Tower) -> None:
    site.configure(bot_token="bad-0123456789")
    async with site.process():
        status = await site.until(state="credentials dead")
        assert status.reason == "the tower refuses the token"
        site.configure()
        await there.until(lambda: bool(there.open))
        await site.until(state="connected")
    assert (there.refused, there.connections) == (1, 2)


async def test_entered_credentials_win_over_the_configuration(site: Site, there: Tower) -> None:
    accounts = Accounts(site.log, ConfigSource(site.config).current, Seal(site.home))
    async with site.process():
        await there.until(lambda: bool(there.open))
        await accounts.configure("bell", {"bot_token": "good-entered-987654"}, actor="test")
        await there.until(lambda: list(there.open.values()) == ["good-entered-987654"])
        await accounts.reset("bell", actor="test")
        await there.until(lambda: list(there.open.values()) == ["good-0123456789"])
        await request(site.bus, "bell", "restart")
        await there.until(lambda: there.connections == 4)
    assert there.most == 1


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"bot_token": ""}, "channels.bell: missing: bot_token (Token)"),
        ({"bot_tken": "x"}, "channels.bell.bot_tken: unknown key; there are: bot_token, base_url, "),
        (
            {"use": "tests.actors.accounts.unbuilt"},
            "bell: there is no module no_such_sdk; if it is a package, install it with: pip install no-such-sdk\n",
        ),
        ({"use": "tests.actors.no_such"}, "channels.bell.use: there is no Python package tests.actors.no_such"),
    ],
)
async def test_what_is_wrong_is_said_once(site: Site, settings: dict[str, str], problem: str) -> None:
    site.configure(**settings)
    done = await asyncio.to_thread(
        subprocess.run, site.sika("channels", "test", "bell"), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"sika: {problem}"), done.stderr
    assert done.stderr.count("\n") == 1


async def test_an_account_is_tested_by_its_platform(site: Site) -> None:
    command = site.sika("channels", "test", "bell")
    good = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert good.stdout == "ok    the token is accepted\n"
    site.configure(bot_token="bad-0123456789")
    bad = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (bad.returncode, bad.stdout) == (1, "FAIL  the token is refused\n      get one\n")
