"""A server of the bus, and a platform with an account to serve."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.actors.accounts.tower import Tower, tower
from tests.support.nats import Nats, running


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nats]:
    with running(tmp_path_factory.mktemp("nats")) as nats:
        yield nats


@pytest.fixture
async def there() -> AsyncIterator[Tower]:
    async with tower() as there:
        yield there
