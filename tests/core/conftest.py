"""The servers of the core's tests: shared by those of a file, with a prefix (hence streams) per test."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator

import pytest

from core.bus.connection import Bus
from core.log.store import EventLog
from tests.support.nats import Nats, bus_on, log_on, running


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nats]:
    with running(tmp_path_factory.mktemp("cluster"), nodes=3) as nats:
        yield nats


@pytest.fixture(params=["single", "cluster"])
def nats(request: pytest.FixtureRequest) -> Nats:
    """One server, then three: what holds on one must hold on the other."""
    found: Nats = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def prefix() -> str:
    return f"t{uuid.uuid4().hex[:10]}"


@pytest.fixture
async def bus(single: Nats, prefix: str) -> AsyncIterator[Bus]:
    async with bus_on(single, prefix) as bus:
        yield bus


@pytest.fixture
async def log(bus: Bus) -> AsyncIterator[EventLog]:
    """On one server; tests of the append contract make theirs on `nats`."""
    async with log_on(bus) as log:
        yield log


@pytest.fixture
async def any_bus(nats: Nats, prefix: str) -> AsyncIterator[Bus]:
    async with bus_on(nats, prefix) as bus:
        yield bus


@pytest.fixture
async def any_log(any_bus: Bus) -> AsyncIterator[EventLog]:
    async with log_on(any_bus) as log:
        yield log
