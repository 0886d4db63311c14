"""A session that ends soon is told of before."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.e2e.servers import serving
from tests.page.site import SCRIPTS, Site, Tab
from tests.page.test_account import ROOT, enter
from tests.support.model_server import ModelServer
from tests.support.workers import configure

pytestmark = pytest.mark.anyio

FOUR_MINUTES = 4 / 24 / 60


@pytest.fixture(scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory, anyio_backend: str) -> AsyncIterator[Site]:
    path: Path = tmp_path_factory.mktemp("sessions")
    async with ModelServer({"plain": SCRIPTS["plain"]}) as models:
        config = configure(path / "config.yaml", models, auth={"enabled": True, "session_days": FOUR_MINUTES})
        async with serving(path / "home", config) as server:
            yield Site(server, models)


async def test_the_end_of_a_session_is_told_of_and_what_is_typed_stays(page: Tab) -> None:
    await page.open()
    await enter(page.page, ROOT, "Make the first administrator")
    await expect(page.page.get_by_text("Your session ends at")).to_be_visible()
    await page.page.fill("#composer", "Half a sentence")
    await page.page.reload()
    await expect(page.page.get_by_text("Your session ends at")).to_be_visible()
    await expect(page.page.locator("#composer")).to_have_value("Half a sentence")
