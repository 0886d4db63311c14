"""A full disk: appends say so, nothing acknowledged is lost, and with space again they work. Needs root (tmpfs)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.bus import embedded
from core.bus.connection import connect
from core.bus.endpoint import Endpoint
from core.errors import Conflict, Unavailable
from core.events import Aggregate, ThreadAnnotated
from core.log import store as core_log
from core.log.store import EventLog
from tests.support.disks import fill, small_disk
from tests.support.nats import append, fresh, read

BODY = "x" * 40_000
SIZE = "24m"


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A data directory on a disk of a few megabytes."""
    with small_disk(tmp_path / "disk", SIZE) as disk:
        yield disk


async def until_refused(log: EventLog, thread: Aggregate) -> tuple[list[str], Unavailable]:
    """Append until the log refuses; what it acknowledged, and what it said."""
    acknowledged: list[str] = []
    last = 0
    for n in range(2000):
        try:
            [record] = await append(log, thread, ThreadAnnotated(metadata={"n": n, "text": BODY}), expected=last)
        except Unavailable as error:
            return acknowledged, error
        acknowledged.append(record.id)
        last = record.seq
    raise AssertionError("the disk never got full")


async def test_a_full_disk(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_log, "APPEND_SECONDS", 2.0)
    thread, home = fresh(), small / "home"
    async with embedded.start(home) as server, connect(Endpoint(server.url, token=server.token)) as bus:
        log = EventLog(bus)
        ballast = fill(small, leave=2 << 20)
        acknowledged, refusal = await until_refused(log, thread)
        assert acknowledged
        assert "unknown whether it was stored" in str(refusal)
        with pytest.raises((Unavailable, Conflict)):
            await append(log, fresh(), ThreadAnnotated(metadata={"text": BODY}))
        ballast.unlink()
    async with embedded.start(home) as server, connect(Endpoint(server.url, token=server.token)) as bus:
        log = EventLog(bus)
        found = [r.id for r in await read(log, thread)]
        assert found[: len(acknowledged)] == acknowledged
        assert len(found) <= len(acknowledged) + 1  # the last was stored, but not acknowledged
        [after] = await append(log, thread, ThreadAnnotated(metadata={}), expected=await log.tip(thread))
        assert [r.id for r in await read(log, thread)] == [*found, after.id]


async def test_a_full_disk_is_named(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_log, "APPEND_SECONDS", 1.0)
    async with embedded.start(small / "home") as server, connect(Endpoint(server.url, token=server.token)) as bus:
        fill(small, leave=1 << 20)
        _, refusal = await until_refused(EventLog(bus), fresh())
        assert re.search(r"disk|space|resources|storage", str(refusal))
