"""Pictures of the page: in both lights, narrow, in Chinese. SIKA_PICTURES=1 renews the two that the README shows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser

from channels.web import assets
from tests.page.site import Site, tab

pytestmark = pytest.mark.anyio

README = Path(__file__).parents[2] / "README.md"
PICTURES = Path(assets.__file__).parent / "pictures"
LARGEST = 150_000
SHOWN: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1120, "height": 700}},
    "dark": {"viewport": {"width": 1120, "height": 700}, "color_scheme": "dark"},
    "narrow": {"viewport": {"width": 360, "height": 740}},
    "zh": {"viewport": {"width": 1120, "height": 700}},
}
COMMITTED = ("light", "dark")


@pytest.mark.parametrize("name", SHOWN)
async def test_the_page_is_seen_whole(chromium: Browser, site: Site, tmp_path: Path, name: str) -> None:
    async with tab(chromium, site, **SHOWN[name]) as page:
        await page.open("counts", language="zh" if name == "zh" else "en")
        await page.say("How many people live in our cities?")
        await page.ended()
        place = PICTURES if name in COMMITTED and os.environ.get("SIKA_PICTURES") else tmp_path
        picture = await page.page.screenshot(path=place / f"{name}.png")
        assert len(picture) < LARGEST
        sideways = "document.scrollingElement.scrollWidth > document.scrollingElement.clientWidth"
        assert not await page.page.evaluate(sideways)
        colour = await page.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, colour.removeprefix("rgb(").removesuffix(")").split(","))) < 128) == (name == "dark")
        assert page.complaints == []


def test_the_readme_shows_two() -> None:
    text = README.read_text()
    for name in COMMITTED:
        file = PICTURES / f"{name}.png"
        assert f"({file.relative_to(README.parent)})" in text
        assert file.read_bytes().startswith(b"\x89PNG")
        assert file.stat().st_size < LARGEST
