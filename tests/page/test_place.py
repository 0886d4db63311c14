"""A run for which the server has no place: the page says how many are before it."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser, expect

from tests.e2e.servers import serving
from tests.page.site import Site, tab
from tests.support.model_server import ModelServer, Turn
from tests.support.workers import configure

pytestmark = [pytest.mark.anyio, pytest.mark.long]


async def test_waiting_for_a_place(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("place")
    async with ModelServer({"slow": [Turn(text="one two three", gate="slow", gate_after=1)]}) as models:
        config = configure(path / "config.yaml", models, runs={"max_concurrent": 1})
        async with serving(path / "home", config) as server:
            site = Site(server, models)
            async with tab(chromium, site) as first, tab(chromium, site) as second:
                await first.open("slow")
                await first.say("Go slowly")
                await expect(first.page.locator(".growing .markdown")).to_contain_text("one")
                await second.open("slow")
                await second.say("Me too")
                place = second.page.get_by_text("Waiting, 0 before you")
                await expect(place).to_be_visible()
                models.release("slow")
                await first.ended()
                await second.ended()
                await expect(place).to_have_count(0)
