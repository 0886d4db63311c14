"""A model that thinks for a while, on a server with the defaults: the page says nothing of its connection."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from playwright.async_api import Browser

from core.config.server import Http
from tests.e2e.servers import serving
from tests.page.site import Site, tab
from tests.support.model_server import ModelServer, Turn
from tests.support.workers import configure

pytestmark = [pytest.mark.anyio, pytest.mark.long]

WATCH = """() => {
  window.notices = [];
  new MutationObserver(() => {
    const text = document.querySelector(".connection")?.textContent;
    if (text) window.notices.push(text);
  }).observe(document.body, { subtree: true, childList: true, characterData: true });
}"""


async def test_a_silence_between_heartbeats_is_no_lost_connection(chromium: Browser, tmp_path: Path) -> None:
    """Tabs that begin at different moments of the server's rhythm."""
    async with ModelServer({"thinks": [Turn(text="Yes.", gate="thought", gate_after=1)]}) as models:
        config = configure(tmp_path / "config.yaml", models)
        async with serving(tmp_path / "home", config) as server, tab(chromium, Site(server, models)) as first:
            tabs = [first]
            async with tab(chromium, first.site) as second, tab(chromium, first.site) as third:
                tabs += [second, third]
                for each in tabs:
                    await each.open("thinks")
                    await each.page.evaluate(WATCH)
                    await each.say("Well?")
                    await asyncio.sleep(0.7)
                await asyncio.sleep(4 * Http().heartbeat_seconds)
                models.release("thought")
                for each in tabs:
                    await each.ended()
                assert [await each.page.evaluate("window.notices") for each in tabs] == [[], [], []]
