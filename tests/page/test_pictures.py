"""Pictures of each room of the page: in both lights, narrow, in Chinese. SIKA_PICTURES=1 renews the two that the README
shows; SIKA_SCREENS names a folder that keeps all of them.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from channels.web import assets
from tests.e2e.servers import serving
from tests.page.site import SCRIPTS, Site, Tab, bash, tab
from tests.page.test_access import shot
from tests.support.model_server import ModelServer, ToolCall, Turn
from tests.support.workers import configure, wait_for

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=5)]

README = Path(__file__).parents[2] / "README.md"
PICTURES = Path(assets.__file__).parent / "pictures"
LARGEST = 150_000
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1120, "height": 700}},
    "dark": {"viewport": {"width": 1120, "height": 700}, "color_scheme": "dark"},
    "narrow": {"viewport": {"width": 360, "height": 740}},
    "zh": {"viewport": {"width": 1120, "height": 700}},
}
BROKEN = """[...document.querySelectorAll(".button")].filter((button) => {
  const range = new Range();
  range.selectNodeContents(button);
  const lines = new Set([...range.getClientRects()].map((box) => Math.round(box.bottom)));
  return lines.size > 1 && !/\\s/.test(button.innerText.trim());
}).map((button) => button.innerText)"""
"""Words of buttons that are set in more than one line."""
COMMITTED = ("light", "dark")
"""Of the room of conversations."""

REPORT = "/mnt/user-data/outputs/report.md"
TABLE = "/mnt/user-data/outputs/cities.csv"
WRITTEN = {
    TABLE: "city,people\nBern,134591\nGraz,303270\nLyon,522250\n",
    REPORT: "# Cities\n\nThree of them, with **960,111** people.\n\n| city | people |\n|---|---:|\n"
    "| Bern | 134,591 |\n| Graz | 303,270 |\n| Lyon | 522,250 |\n\n```python\nsum(row.people for row in table)\n```\n",
}
WRITE = tuple(ToolCall("write_file", {"path": path, "content": text}) for path, text in WRITTEN.items())
QUESTION = ToolCall("ask_clarification", {"question": "Which cities?", "options": ["All of them", "The largest three"]})
TURNS = {
    "counts": SCRIPTS["counts"],
    "writes": [
        Turn(tool_calls=WRITE),
        Turn(tool_calls=(ToolCall("present_files", {"filepaths": [REPORT, TABLE]}),)),
        Turn(text="The report is written, and the table that it is made from."),
    ],
    "cleans": [Turn(tool_calls=(bash("rm -r drafts"),)), Turn(text="Removed.")],
    "asks": [Turn(tool_calls=(QUESTION,)), Turn(text="Good.")],
}


@pytest.fixture(scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory, anyio_backend: str) -> AsyncIterator[Site]:
    path: Path = tmp_path_factory.mktemp("pictures")
    async with ModelServer(TURNS) as models:
        rules = [{"tool": "bash", "match": {"command": "rm "}}]
        config = configure(path / "config.yaml", models, approvals=rules, http={"heartbeat_seconds": 1})
        async with serving(path / "home", config) as server:
            yield Site(server, models)


async def chat(page: Tab) -> None:
    await page.say("How many people live in our cities?")
    await page.ended()


async def files(page: Tab) -> None:
    await page.say("Write a report on our cities")
    await page.ended()
    await page.page.locator(".presented a", has_text="report.md").click()
    await expect(page.page.locator(".files-room h1")).to_have_text("Cities")
    await expect(page.page.locator(".files-room [class^=h-]").first).to_be_visible()


async def approvals(page: Tab) -> None:
    site = page.site
    for thread, text, model in (("tidy", "Tidy up", "cleans"), ("choose", "Compare cities", "asks")):
        if thread not in [one["thread_id"] for one in await site.ask("POST", "/threads/search", {})]:
            await site.run(thread, text, model)

    async def both() -> bool:
        return len((await site.ask("GET", "/approvals"))["waiting"]) == 2

    await wait_for(both)
    await page.page.goto(f"{site.server.url}/#/approvals")
    await expect(page.page.locator(".waiting-list article")).to_have_count(2)
    await expect(page.page.locator(".waiting-list textarea").first).to_have_value("rm -r drafts")
    if await page.page.locator("nav.sidebar").count():
        await expect(page.page.locator(".badge")).to_have_text("2")


ROOMS: dict[str, tuple[str, Callable[[Tab], Awaitable[None]]]] = {
    "chat": ("counts", chat),
    "files": ("writes", files),
    "approvals": ("counts", approvals),
}
"""The model that answers there, and how one comes there."""


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("room", ROOMS)
async def test_the_page_is_seen_whole(chromium: Browser, site: Site, tmp_path: Path, room: str, look: str) -> None:
    async with tab(chromium, site, **LOOKS[look]) as page:
        model, enter = ROOMS[room]
        await page.open(model, language="zh" if look == "zh" else "en")
        await enter(page)
        renewed = room == "chat" and look in COMMITTED and os.environ.get("SIKA_PICTURES")
        place = PICTURES / f"{look}.png" if renewed else tmp_path / f"{room}-{look}.png"
        picture = await page.page.screenshot(path=place)
        await shot(page, f"picture-{room}-{look}")
        assert len(picture) < LARGEST
        sideways = "document.scrollingElement.scrollWidth > document.scrollingElement.clientWidth"
        assert not await page.page.evaluate(sideways)
        assert await page.page.evaluate(BROKEN) == []
        colour = await page.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, colour.removeprefix("rgb(").removesuffix(")").split(","))) < 128) == (look == "dark")


def test_the_readme_shows_two() -> None:
    text = README.read_text()
    for name in COMMITTED:
        file = PICTURES / f"{name}.png"
        assert f"({file.relative_to(README.parent)})" in text
        assert file.read_bytes().startswith(b"\x89PNG")
        assert file.stat().st_size < LARGEST
