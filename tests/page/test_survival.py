"""The page follows from where it was: reloads, servers that are killed, networks that are gone, laptops that sleep,
long threads. Afterwards the text on the screen is the log's, and nothing is there twice.
"""

from __future__ import annotations

import pytest
from playwright.async_api import Browser, expect

from tests.page.site import Site, Tab, tab
from tests.support.workers import wait_for

pytestmark = pytest.mark.anyio


async def agree(page: Tab, site: Site) -> None:
    """The screen shows what the log has."""

    async def same() -> bool:
        return await page.shown() == await site.texts(page.thread)

    await wait_for(same)


async def test_the_server_is_killed_in_mid_stream_and_comes_back(page: Tab, site: Site) -> None:
    await page.open("killed")
    await page.say("Go on whatever happens")
    await expect(page.page.locator(".growing .markdown")).to_contain_text("word5")
    await page.page.fill("#composer", "typed meanwhile")
    await site.server.kill()
    await expect(page.page.locator(".connection")).to_contain_text("Connection lost")
    site.models.release("killed")
    await site.server.start()
    await expect(page.page.locator(".connection")).to_contain_text("nothing was lost")
    await page.ended()
    await agree(page, site)
    await expect(page.page.locator("#composer")).to_have_value("typed meanwhile")


async def test_the_network_is_gone_for_a_while(page: Tab, site: Site) -> None:
    await page.open("plain")
    await page.say("First")
    await page.ended()
    await page.watch()
    await page.page.context.set_offline(True)
    await expect(page.page.locator(".connection")).to_contain_text("Connection lost")
    await site.run(page.thread, "Said while nobody heard", "plain")
    await wait_for_end(site, page.thread, 2)
    await page.page.context.set_offline(False)
    await page.ended(2)
    await agree(page, site)
    assert await page.changes() == []


async def wait_for_end(site: Site, thread: str, runs: int) -> None:
    async def ended() -> bool:
        records = await site.ask("GET", f"/threads/{thread}/log")
        return len([record for record in records if record["type"] == "run.completed"]) == runs

    await wait_for(ended)


async def test_a_page_that_was_frozen_catches_up(page: Tab, site: Site) -> None:
    await page.open("plain")
    await page.say("First")
    await page.ended()
    await page.watch()
    session = await page.page.context.new_cdp_session(page.page)
    await session.send("Page.setWebLifecycleState", {"state": "frozen"})
    for count, text in enumerate(("Second", "Third"), 2):
        await site.run(page.thread, text, "plain")
        await wait_for_end(site, page.thread, count)
    await session.send("Page.setWebLifecycleState", {"state": "active"})
    await page.ended(3)
    await agree(page, site)
    assert await page.changes() == []


async def test_a_conversation_that_is_deleted_while_it_is_open_says_so(page: Tab, site: Site) -> None:
    await page.open("plain")
    await page.say("Soon gone")
    await page.ended()
    await site.ask("DELETE", f"/threads/{page.thread}")
    await expect(page.page.locator(".gone")).to_contain_text("This conversation was deleted")
    assert "Soon gone" not in await page.page.inner_text("main")
    await page.open(place="t/none-such")
    await page.page.reload()
    await expect(page.page.locator(".gone")).to_contain_text("There is no such conversation")


async def test_two_thousand_messages_are_opened_page_by_page(page: Tab, site: Site) -> None:
    thread = "long-thread"
    await site.ask("POST", "/threads", {"thread_id": thread})
    for part in range(10):
        said = [
            {"type": kind, "id": f"{kind}{n}", "content": f"{kind} {n}"}
            for n in range(part * 100, part * 100 + 100)
            for kind in ("human", "ai")
        ]
        await site.ask("POST", f"/threads/{thread}/state", {"values": {"messages": said}})
    await page.open(place=f"t/{thread}")
    await expect(page.page.locator(".answer").last).to_contain_text("ai 999")
    assert len(await page.shown()) <= 200
    await page.page.locator(".conversation").evaluate("e => { e.scrollTop = 0 }")

    async def older() -> bool:
        texts = await page.shown()
        return len(texts) > 100 and texts == sorted(set(texts), key=texts.index) and texts[-1] == "ai 999"

    await wait_for(older)
    await page.watch()
    await site.run(thread, "One more", "plain")
    await page.ended()
    assert await page.changes() == []
    await expect(page.page.locator(".answer").last).to_contain_text("One two three.")


async def test_two_hundred_calls_in_a_turn_are_lines(page: Tab, site: Site) -> None:
    await page.open("busy")
    await page.say("Do a lot")
    await page.ended()
    await expect(page.page.locator(".step")).to_have_count(200)
    await expect(page.page.locator(".step").last).to_contain_text("Ran echo call 199")
    await agree(page, site)


async def test_a_long_output_is_cut_until_it_is_asked_for(page: Tab) -> None:
    await page.open("long")
    await page.say("Print a lot")
    await page.ended()
    step = page.page.locator(".step")
    await step.locator("button.step-line").click()
    text = await step.locator(".output").last.inner_text()
    assert len(text) < 60_000
    assert "line 1" in text


async def test_three_tabs_and_a_program_are_one_conversation(page: Tab, site: Site, chromium: Browser) -> None:
    await page.open("plain")
    await page.say("From the first")
    await page.ended()
    context = page.page.context
    async with tab(chromium, site, context) as second, tab(chromium, site, context) as third:
        for other in (second, third):
            await other.open(place=f"t/{page.thread}")
            await other.ended()
        await second.say("From the second")
        for one in (page, second, third):
            await one.ended(2)
        await site.run(page.thread, "From a program", "plain")
        for one in (page, second, third):
            await one.ended(3)
            await agree(one, site)
            assert one.complaints == []
