"""The conversation on the screen: what is said, while it is made and afterwards, is what the log has."""

from __future__ import annotations

import json
import re

import pytest
from playwright.async_api import Browser, expect

from tests.page.site import Site, Tab, tab

pytestmark = pytest.mark.anyio


async def test_a_message_is_answered_and_survives_a_reload(page: Tab, site: Site) -> None:
    await page.open("plain")
    await page.say("Hello there")
    await page.ended()
    assert await page.shown() == ["Hello there", "One two three."] == await site.texts(page.thread)
    await page.page.reload()
    await page.ended()
    assert await page.shown() == await site.texts(page.thread)
    await expect(page.page.locator("nav li.current")).to_be_visible()


async def test_text_is_seen_while_it_is_made_and_over_a_reload_and_in_a_second_tab(
    page: Tab, site: Site, chromium: Browser
) -> None:
    await page.open("slow")
    await page.say("Go slowly")
    await expect(page.page.locator(".growing .markdown")).to_contain_text("word5")
    await page.page.reload()
    await expect(page.page.locator(".growing .markdown")).to_contain_text("word5")
    async with tab(chromium, site, page.page.context) as second:
        await second.open(place=f"t/{page.thread}")
        await expect(second.page.locator(".growing .markdown")).to_contain_text("word5")
        site.models.release("slow")
        await second.ended()
        await page.ended()
        assert await page.shown() == await second.shown() == await site.texts(page.thread)


async def test_markdown_is_drawn_with_tables_code_formulas_and_diagrams(page: Tab) -> None:
    await page.open("markdown")
    await page.say("Show it")
    await page.ended()
    answer = page.page.locator(".answer .markdown")
    await expect(answer.get_by_role("heading", name="A heading")).to_be_visible()
    await expect(answer.get_by_role("cell", name="Bern")).to_be_visible()
    await expect(answer.locator("math")).to_have_count(2)
    await expect(answer.locator(".h-keyword").first).to_have_text("def")
    await expect(answer.locator("a.cite")).to_have_attribute("href", "https://example.org/s")
    await expect(answer.locator("a.cite")).to_have_attribute("rel", re.compile("noopener"))
    frame = page.page.frame_locator(".diagram iframe")
    await expect(frame.locator("svg .node").first).to_be_attached()


async def test_reasoning_is_folded(page: Tab) -> None:
    await page.open("thinks")
    await page.say("Think")
    await page.ended()
    assert "Let me think" not in await page.page.inner_text("main")
    await page.page.get_by_role("button", name="Reasoning").click()
    await expect(page.page.locator(".reasoning .markdown")).to_have_text("Let me think about it.")


async def test_tool_calls_are_lines_that_open_and_failures_open_by_themselves(page: Tab) -> None:
    await page.open("tools")
    await page.say("Work")
    await page.ended()
    steps = page.page.locator(".step")
    await expect(steps.nth(0)).to_contain_text("Ran echo first; echo last line")
    await expect(steps.nth(0).locator(".step-details")).to_have_count(0)
    await expect(steps.nth(1).locator(".step-state")).to_have_text(re.compile(r"^exit code 3 · \d+(\.\d)? m?s$"))
    await expect(steps.nth(1).locator(".step-details")).to_contain_text("oops")
    await steps.nth(0).locator("button.step-line").click()
    await expect(steps.nth(0).locator(".step-details")).to_contain_text("last line")
    await expect(steps.nth(2)).to_contain_text("Wrote a.txt")
    await expect(steps.nth(2)).to_contain_text("+2")
    await steps.nth(4).locator("button.step-line").click()
    await expect(steps.nth(4).locator(".diff .added")).to_have_text("+three\n")
    await expect(steps.nth(4).locator(".diff .removed")).to_have_text("-two\n")


async def test_what_a_tool_prints_is_seen_while_it_runs(page: Tab, site: Site) -> None:
    """Its newest line below the call, and all of it in the call that is opened; also over a reload."""
    await page.open("prints")
    await page.say("Print")
    step = page.page.locator(".step")
    for _ in range(2):
        await expect(step.locator(".step-last")).to_have_text("first")
        await expect(step.locator(".step-state.working")).to_be_visible()
        await step.locator("button.step-line").click()
        output = step.get_by_role("group", name="Output so far")
        await expect(output).to_have_text("first\n")
        await page.page.reload()
    await site.upload(page.thread, "go.txt", b"go")
    await page.ended()
    await expect(step.locator(".step-last")).to_have_count(0)
    await step.locator("button.step-line").click()
    await expect(step.get_by_role("group", name="Output", exact=True)).to_contain_text("first\nlast")


@pytest.mark.long
async def test_the_card_of_an_error_is_copied_and_tried_again(page: Tab) -> None:
    await page.may_copy()
    await page.open("mends")
    await page.say("Try")
    card = page.page.get_by_role("group", name="That did not work")
    text = await card.locator("p").inner_text()
    await card.get_by_role("button", name="Copy details").click()
    details = json.loads(await page.copied())
    assert details["thread"] == page.thread
    assert details["text"] == text
    assert details["run"]
    assert details["error"]
    await card.get_by_role("button", name="Try again").click()
    await expect(page.page.locator(".answer .markdown")).to_have_text("Well.")
    await expect(card).to_have_count(0)
    await page.page.get_by_role("button", name="Earlier version").click()
    await expect(card.locator("p")).to_have_text(text)
    await page.page.reload()
    await page.ended()
    await expect(card).to_have_count(0)
    assert await page.shown() == ["Try", "Well."]


async def test_an_error_is_a_card_in_words_that_survives_a_reload(page: Tab) -> None:
    await page.open("fails")
    await page.say("Try")
    card = page.page.locator(".error-card")
    await expect(card).to_be_visible()
    text = await card.inner_text()
    assert "{" not in text
    assert "http" not in text
    await page.page.reload()
    await expect(card).to_be_visible()
    assert await card.inner_text() == text
    await page.page.get_by_role("button", name="Model: fails").click()
    entry = page.page.get_by_role("menuitemradio", name="fails")
    await expect(entry).to_contain_text("failed last: the key was refused")


async def test_finished_messages_are_not_touched_while_others_come(page: Tab, site: Site) -> None:
    await page.open("markdown")
    await page.say("First")
    await page.ended()
    await expect(page.page.locator(".answer math")).to_have_count(2)
    await expect(page.page.locator(".answer .h-keyword").first).to_be_visible()
    await expect(page.page.locator(".diagram iframe[height]")).to_be_visible()
    await page.watch()
    await site.run(page.thread, "Second", "plain")
    await page.ended(2)
    await site.run(page.thread, "Third", "tools")
    await page.ended(3)
    assert await page.changes() == []
    assert [text for text in await page.shown() if text in ("First", "Second", "Third")] == ["First", "Second", "Third"]


async def test_without_accounts_no_sign_in_is_seen(page: Tab) -> None:
    await page.open("plain")
    await page.say("Hello")
    await page.ended()
    await expect(page.page.get_by_role("dialog")).to_have_count(0)
    await expect(page.page.get_by_role("button", name="Account")).to_have_count(0)
