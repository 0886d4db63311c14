"""A log and a server with scripted models, for the tests of the terminal."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator

import pytest

from core.log.store import EventLog
from tests.channels.client.stage import Stage, serving, written
from tests.channels.terminal.talks import RULE, SCRIPTS, Place
from tests.support.model_server import ModelServer, Script
from tests.support.nats import Nats, bus_on, log_on


@pytest.fixture
async def log(nats: Nats) -> AsyncIterator[EventLog]:
    async with bus_on(nats, f"t{uuid.uuid4().hex[:10]}") as bus, log_on(bus) as log:
        yield log


@pytest.fixture(scope="package")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder, stage = tmp_path_factory.mktemp("talks"), Stage()
    models = stage.enter(ModelServer({name: Script(tuple(turns), count="total") for name, turns in SCRIPTS.items()}))
    config = written(folder / "config", models, approvals=[RULE], goals={"model_name": "judge"})
    yield Place(stage, models, config, stage.enter(serving(folder / "home", config)))
    stage.close()


@pytest.fixture
async def nats_log(nats: Nats) -> AsyncIterator[EventLog]:
    """The log of another installation."""
    async with bus_on(nats, f"t{uuid.uuid4().hex[:10]}") as bus, log_on(bus) as log:
        yield log
