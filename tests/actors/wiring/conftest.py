"""A platform with an account to serve."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.actors.accounts.tower import Tower, tower


@pytest.fixture
async def there() -> AsyncIterator[Tower]:
    async with tower() as there:
        yield there
