"""One table for each platform, which all tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from actors.contracts.table import Table, table
from tests.channels.contract.seats import SEATS, All


@pytest.fixture(scope="package")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="package", params=SEATS)
async def here(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, anyio_backend: str
) -> AsyncIterator[Table[All]]:
    async with table(SEATS[request.param](), tmp_path_factory.mktemp(request.param)) as opened:
        yield opened
