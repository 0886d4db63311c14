"""What a first visit costs: requests, and shifts of the layout."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from tests.page.site import Tab

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
