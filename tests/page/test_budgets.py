"""What a first visit costs: requests, and shifts of the layout."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from tests.page.site import Site, Tab

pytestmark = pytest.mark.anyio

REQUESTS = 12
SHIFT = 0.02
"""Cumulative, as browsers count it; 0.1 is still called good."""
SHIFTS = """() => new Promise((resolve) => new PerformanceObserver((list) => resolve(
  list.getEntries().reduce((sum, {hadRecentInput, value}) => sum + (hadRecentInput ? 0 : value), 0)
)).observe({type: 'layout-shift', buffered: true}) ?? setTimeout(() => resolve(0), 500))"""


async def test_a_first_visit_asks_little_and_moves_nothing(page: Tab) -> None:
    urls: list[str] = []
    page.page.on("request", lambda request: urls.append(request.url))
    await page.open()
    await expect(page.page.locator(".try")).to_have_count(4)
    await expect(page.page.get_by_role("button", name="Model: ")).to_be_visible()
    await page.page.wait_for_function(
        "performance.getEntriesByType('resource').some((one) => /markdown|rooms/.test(one.name))"
    )
    assert len(urls) <= REQUESTS, urls
    assert await page.page.evaluate(SHIFTS) <= SHIFT


SLICES = """window.slices = [];
new MutationObserver((changes) => {
  const added = changes.flatMap((change) => [...change.addedNodes]);
  window.slices.push(added.filter((node) => node.matches?.('.person, .answer')).length);
}).observe(document, {subtree: true, childList: true});"""


async def test_a_long_conversation_is_drawn_in_slices_from_its_end(page: Tab, site: Site) -> None:
    """No frame draws many messages, neither of the first page nor of older ones; what is in view stays in view."""
    said = [
        {"type": kind, "id": f"{kind}{n}", "content": f"{kind} {n}"} for n in range(100) for kind in ("human", "ai")
    ]
    await site.ask("POST", "/threads", {"thread_id": "sliced"})
    await site.ask("POST", "/threads/sliced/state", {"values": {"messages": said}})
    await page.page.add_init_script(SLICES)
    await page.open(place="t/sliced")
    await expect(page.page.locator(".answer").last).to_be_in_viewport()
    await expect(page.page.locator(".person, .answer")).to_have_count(40)
    await page.page.locator(".conversation").evaluate("e => { e.scrollTop = 0 }")
    await expect(page.page.locator(".person, .answer")).to_have_count(140)
    await expect(page.page.get_by_text("human 80", exact=True)).to_be_in_viewport()
    assert 0 < max(await page.page.evaluate("window.slices")) <= 16
