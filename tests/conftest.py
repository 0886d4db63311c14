"""Fixtures shared by all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from core.config.redaction import redactor
from tests.support import certificates, memory

certificates.leave_out()
memory.use()
pytest_plugins = ["tests.support.budget"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _no_secrets_of_other_tests() -> Iterator[None]:
    """A process forgets no secret: one of a test must not be replaced in the texts of another."""
    yield
    redactor.__init__()  # type: ignore[misc]
