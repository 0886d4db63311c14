"""The server of each test, and the names of the world."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.adapters.web.site import Site, serving, world


@pytest.fixture
async def site(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    world(monkeypatch)
    async with serving() as found:
        yield found
