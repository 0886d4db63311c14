"""Fixtures shared by all tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from aiohttp import web_app

from core import collector
from core.config.redaction import redactor
from tests.support import certificates, laws, logs, memory, warm
from tests.support.nats import Nats, running

collector.relax()
certificates.leave_out()
laws.use()
memory.use()
pytest_plugins = [
    "tests.support.lanes",
    "tests.support.limits",
    "tests.support.budget",
    "tests.support.engine",
    "tests.support.forks",
]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Garbage is collected as in a server (`core.collector`): seldom, and not among what was imported."""
    collector.settle()
    if session.config.getoption("processes") and not session.config.option.collectonly:
        warm.share()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nats]:
    """A nats-server for the tests of a file, each on streams of its own. It ends with them: an idle server costs more
    CPU with every stream that it keeps.
    """
    with running(tmp_path_factory.mktemp("nats")) as nats:
        yield nats


@pytest.fixture(scope="module")
def nats(single: Nats) -> Nats:
    return single


_configure = structlog.configure


def _configure_uncached(*arguments: Any, **settings: Any) -> None:
    """A logger keeps the configuration of its first use: in one process, that of another test."""
    _configure(*arguments, **{**settings, "cache_logger_on_first_use": False})


structlog.configure = _configure_uncached
logs.plain()
_AT_FIRST = structlog.get_config()


@pytest.fixture(autouse=True)
def _no_configuration_of_logs_of_other_tests() -> Iterator[None]:
    """Fixtures of a module, too, may have configured them."""
    yield
    _configure(**_AT_FIRST)


@pytest.fixture(autouse=True)
def _no_secrets_of_other_tests() -> Iterator[None]:
    """A process forgets no secret: one of a test must not be replaced in the texts of another."""
    yield
    redactor.__init__()  # type: ignore[misc]


@pytest.fixture(autouse=True)
def _no_servers_of_other_tests() -> Iterator[None]:
    """aiohttp remembers the applications of the newest 1 024 handlers: the collector would look at hundreds of them."""
    yield
    web_app._cached_build_middleware.cache_clear()
