"""A provider whose machines are real processes."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.bus.endpoint import Endpoint
from tests.support.machines import Processes
from tests.support.nats import Nats


@pytest.fixture
def endpoint(nats: Nats) -> Endpoint:
    return nats.endpoint(f"t{uuid.uuid4().hex[:10]}")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def processes(home: Path) -> Iterator[Processes]:
    provider = Processes(home)
    yield provider
    provider.end_all()
