"""Everybody can use it: rules of axe-core on every view, a keyboard alone, small and large screens, paper."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.async_api import Browser, expect

from tests.page.site import AXE, Site, Tab, looks, tab, violations
from tests.support.workers import wait_for

pytestmark = pytest.mark.anyio

SHA256 = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"
UNFOLD = "document.querySelectorAll('main [aria-expanded=false]:not([aria-haspopup])').forEach((one) => one.click())"


def test_axe_is_what_was_published() -> None:
    text = AXE.read_bytes()
    assert hashlib.sha256(text).hexdigest() == SHA256
    assert b"axe v4.14.1" in text[:200]


async def shot(page: Tab, name: str) -> None:
    """Keeps a picture of what is on the screen, if the environment says where."""
    if folder := os.environ.get("SIKA_SCREENS"):
        await page.page.screenshot(path=Path(folder) / f"{name}.png")


@pytest.fixture(scope="module")
async def conversation(chromium: Browser, site: Site) -> str:
    """A thread with everything that a conversation may show."""
    async with tab(chromium, site) as opened:
        await opened.open("thinks")
        await opened.say("Think")
        await opened.ended()
        for count, model in enumerate(("markdown", "tools", "fails"), start=2):
            await site.run(opened.thread, f"Go on with {model}", model)
            await opened.ended(count)
        return opened.thread


@pytest.mark.long
@looks
async def test_no_rule_is_broken(page: Tab, conversation: str, scheme: Literal["light", "dark"], language: str) -> None:
    await page.page.emulate_media(color_scheme=scheme)
    await page.open(language=language)
    broken = {"begin": await violations(page)}
    await shot(page, f"begin-{scheme}-{language}")
    await page.page.goto(f"{page.site.server.url}/#/t/{conversation}")
    await page.ended(4)
    await expect(page.page.locator(".answer .h-keyword").first).to_be_visible()
    await page.page.evaluate(UNFOLD)
    await expect(page.page.locator(".diff .added").first).to_be_visible()
    await page.page.locator(".diagram iframe").scroll_into_view_if_needed()
    await expect(page.page.locator(".diagram iframe[height]")).to_be_visible()
    broken["conversation"] = await violations(page)
    await shot(page, f"chat-{scheme}-{language}")
    await page.page.locator(".chat-header .menu > button").click()
    broken["menu"] = await violations(page)
    for entry in range(3):
        if entry == 1:
            continue
        await page.page.get_by_role("menuitem").nth(entry).click()
        await expect(page.page.get_by_role("dialog")).to_be_visible()
        broken[f"dialog {entry}"] = await violations(page)
        await page.page.keyboard.press("Escape")
        await page.page.locator(".chat-header .menu > button").click()
    await page.page.keyboard.press("Escape")
    await page.page.keyboard.press("?")
    await expect(page.page.get_by_role("dialog")).to_be_visible()
    broken["keys"] = await violations(page)
    await page.page.keyboard.press("Escape")
    await page.page.fill("#composer", "/")
    await expect(page.page.locator("#completions")).to_be_visible()
    broken["completions"] = await violations(page)
    await page.page.fill("#composer", "")
    await page.page.goto(f"{page.site.server.url}/#/t/nothing-there")
    await expect(page.page.locator(".gone")).to_be_visible()
    broken["gone"] = await violations(page)
    assert {view: found for view, found in broken.items() if found} == {}


async def test_a_whole_conversation_without_a_mouse(page: Tab) -> None:
    await page.open("tools")
    keys = page.page.keyboard
    await expect(page.page.locator("#composer")).to_be_focused()
    await keys.type("Work")
    await keys.press("Shift+Enter")
    await keys.type("and rest")
    await keys.press("Enter")
    await page.ended()
    assert (await page.shown())[0] == "Work\nand rest"

    line = page.page.locator(".step-line").first
    await line.focus()
    await keys.press("Enter")
    await expect(line).to_have_attribute("aria-expanded", "true")
    await keys.press("Space")
    await expect(line).to_have_attribute("aria-expanded", "false")

    await keys.press("?")
    await expect(page.page.get_by_role("dialog")).to_be_visible()
    for key in ("Ctrl", "Esc", "Enter"):
        await expect(page.page.get_by_role("dialog").locator("kbd", has_text=key).first).to_be_visible()
    await keys.press("Escape")
    await expect(page.page.locator("dialog")).to_have_count(0)
    await expect(line).to_be_focused()

    await keys.press("/")
    await expect(page.page.locator("#composer")).to_be_focused()
    await expect(page.page.get_by_role("button", name="Model: tools")).to_be_visible()
    await keys.press("Tab")
    await expect(page.page.get_by_role("button", name="Attach files")).to_be_focused()
    await keys.press("Tab")
    await keys.press("Enter")
    menu = page.page.get_by_role("menu")
    await expect(menu.get_by_role("menuitemradio", name="tools")).to_be_focused()

    async def found() -> bool:
        """Letters are a word only when they come quickly, which a busy machine may fail to do."""
        await keys.press("Home")
        await keys.type("plain")
        return bool(await page.page.evaluate("document.activeElement.textContent.trim() === 'plain'"))

    await wait_for(found)
    await keys.press("Enter")
    await expect(menu).to_have_count(0)
    await expect(page.page.get_by_role("button", name="Model: plain")).to_be_focused()

    thread = page.thread
    await keys.press("Control+Shift+O")
    await expect(page.page.locator(".begin")).to_be_visible()
    await expect(page.page.locator("#composer")).to_be_focused()
    await keys.press("Control+k")
    await expect(page.page.locator("#search")).to_be_focused()
    await expect(page.page.locator("li.thread a").first).to_have_attribute("href", f"#/t/{thread}")
    await keys.press("Tab")
    await keys.press("Enter")
    await page.ended()
    assert page.thread == thread


@pytest.fixture
async def narrow(chromium: Browser, site: Site) -> AsyncIterator[Tab]:
    async with tab(chromium, site, viewport={"width": 360, "height": 640}) as opened:
        yield opened


WIDER = "document.documentElement.scrollWidth - innerWidth"


async def test_a_narrow_screen_shows_all_and_nothing_beside_it(narrow: Tab, conversation: str) -> None:
    await narrow.open(place=f"t/{conversation}")
    await narrow.ended(4)
    assert await narrow.page.evaluate(WIDER) <= 0
    await shot(narrow, "chat-narrow")
    await expect(narrow.page.locator("nav.sidebar")).to_have_count(0)
    await narrow.page.get_by_role("button", name="Conversations").click()
    await narrow.page.get_by_role("button", name="New conversation", exact=True).click()
    await expect(narrow.page.locator("nav.sidebar")).to_have_count(0)
    await expect(narrow.page.locator(".try")).to_have_count(4)
    assert await narrow.page.evaluate(WIDER) <= 0
    await narrow.say("Hello")
    await narrow.ended()


@pytest.mark.parametrize(("width", "height"), [(640, 400), pytest.param(3840, 2160, marks=pytest.mark.long)])
async def test_zoom_and_large_screens_fit(page: Tab, conversation: str, width: int, height: int) -> None:
    """A window of 1280 × 800 at 200 % has 640 × 400 pixels of CSS."""
    await page.page.set_viewport_size({"width": width, "height": height})
    await page.open(place=f"t/{conversation}")
    await page.ended(4)
    assert await page.page.evaluate(WIDER) <= 0
    box = await page.page.locator("#composer").bounding_box()
    assert box is not None
    assert box["y"] + box["height"] <= height
    read = await page.page.locator(".conversation").bounding_box()
    assert read is not None
    assert read["height"] >= height / 3


async def test_text_from_right_to_left_stands_right(page: Tab) -> None:
    await page.open()
    await page.say("שלום עולם")
    await page.ended()
    bubble = page.page.locator(".person .bubble")
    assert await bubble.evaluate("e => getComputedStyle(e).direction") == "rtl"
    assert await page.page.locator(".answer .block").first.evaluate("e => getComputedStyle(e).direction") == "ltr"
    await page.page.fill("#composer", "مرحبا")
    assert await page.page.locator("#composer").evaluate("e => getComputedStyle(e).direction") == "rtl"


async def test_nothing_moves_for_those_who_do_not_want_it(page: Tab, site: Site) -> None:
    await page.page.emulate_media(reduced_motion="reduce")
    await page.open("slow")
    await page.say("Go")
    await expect(page.page.locator(".growing")).to_contain_text("word5")
    assert await page.page.evaluate("document.getAnimations().length") == 0
    site.models.release("slow")
    await page.ended()


async def test_a_conversation_is_printed_whole_and_alone(page: Tab, conversation: str) -> None:
    await page.open(place=f"t/{conversation}")
    await page.ended(4)
    await page.page.emulate_media(media="print")
    for hidden in ("nav.sidebar", "#composer", ".bar"):
        await expect(page.page.locator(hidden)).to_be_hidden()
    await expect(page.page.locator(".person").first).to_be_visible()
    cut = "e => e.scrollHeight - e.clientHeight"
    assert await page.page.locator(".conversation").evaluate(cut) <= 1
    pdf = await page.page.pdf()
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) >= 2
