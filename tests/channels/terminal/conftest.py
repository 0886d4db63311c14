"""A real nats-server for the tests of the terminal; a prefix (hence streams) per test."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator

import pytest

from core.log import EventLog
from tests.support.nats import Nats, bus_on, log_on, running


@pytest.fixture(scope="session")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nats]:
    with running(tmp_path_factory.mktemp("nats")) as nats:
        yield nats


@pytest.fixture
async def log(nats: Nats) -> AsyncIterator[EventLog]:
    async with bus_on(nats, f"t{uuid.uuid4().hex[:10]}") as bus, log_on(bus) as log:
        yield log
