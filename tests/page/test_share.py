"""A conversation is shared by an address that anybody may read, and that can be revoked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from tests.e2e.servers import serving
from tests.page.site import Site, Tab, tab, violations
from tests.page.test_access import WIDER, shot
from tests.support import documents
from tests.support.model_server import ModelServer, ToolCall, Turn
from tests.support.ports import free_port
from tests.support.workers import configure

pytestmark = pytest.mark.anyio

NOTES = "/mnt/user-data/outputs/notes.md"
PAPER = "/mnt/user-data/outputs/paper.pdf"
SECRET = "/mnt/user-data/outputs/secret.txt"
SCRIPTS = {
    "shares": [
        Turn(
            reasoning="A thought of its own",
            tool_calls=(
                ToolCall("write_file", {"path": NOTES, "content": "# The notes\n"}),
                ToolCall("write_file", {"path": PAPER, "content": documents.pdf("A letter").decode()}),
                ToolCall("write_file", {"path": SECRET, "content": "not presented"}),
            ),
        ),
        Turn(tool_calls=(ToolCall("present_files", {"filepaths": [NOTES, PAPER]}),)),
        Turn(text="Here are **the notes**, and [a file](/mnt/user-data/outputs/notes.md).\n\n```sh\nls\n```"),
    ],
}


@pytest.fixture(scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory, anyio_backend: str) -> AsyncIterator[Site]:
    path: Path = tmp_path_factory.mktemp("share")
    async with ModelServer(SCRIPTS) as models:
        config = configure(path / "config.yaml", models, http={"heartbeat_seconds": 1})
        async with serving(path / "home", config, "--port", str(free_port())) as server:
            yield Site(server, models)


async def dialog(page: Tab) -> Any:
    await page.page.locator(".chat-header .menu > button").click()
    await page.page.get_by_role("menuitem", name="Share").click()
    return page.page.get_by_role("dialog")


async def test_an_address_is_made_read_by_a_stranger_and_revoked(chromium: Browser, page: Tab) -> None:
    await page.may_copy()
    await page.open("shares")
    await page.say("Write the notes")
    await page.ended()
    shown = await dialog(page)
    await expect(shown).to_contain_text("Not shown: reasoning")
    assert await violations(page) == []
    await shown.get_by_role("button", name="Make an address").click()
    address = await shown.get_by_label("Address to share").input_value()
    await shot(page, "share-dialog")
    await shown.get_by_role("button", name="Copy", exact=True).click()
    assert await page.copied() == address
    await expect(shown.locator(".rows li")).to_have_count(1)
    async with tab(chromium, page.site, viewport={"width": 360, "height": 640}) as stranger:
        urls: list[str] = []
        stranger.page.on("request", lambda request: urls.append(request.url))
        await stranger.page.goto(address)
        await expect(stranger.page.locator(".bubble")).to_have_text("Write the notes")
        await expect(stranger.page.locator(".answer strong")).to_have_text("the notes")
        text = await stranger.page.locator("body").inner_text()
        assert "thought" not in text
        assert "secret" not in text
        assert not [url for url in urls if "/api/" in url and "/api/shared/" not in url], "nobody is asked who they are"
        assert not await stranger.page.locator(".answer a").evaluate("link => link.hasAttribute('href')")
        await stranger.page.get_by_role("button", name="paper.pdf").click()
        await expect(stranger.page.get_by_role("region", name="Page 1 of 1")).to_contain_text("A letter")
        await stranger.may_copy()
        await stranger.page.get_by_role("button", name="Copy", exact=True).click()
        assert await stranger.copied() == "ls\n"
        await stranger.page.get_by_role("button", name="notes.md").click()
        await expect(stranger.page.get_by_role("heading", name="The notes")).to_be_visible()
        assert await stranger.page.evaluate(WIDER) <= 0
        assert await violations(stranger) == []
        await shot(stranger, "shared-narrow")
        await shown.get_by_role("button", name="Revoke").click()
        await expect(shown.locator(".rows li")).to_have_count(0)
        await stranger.page.reload()
        await expect(stranger.page.get_by_text("This address leads nowhere")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.long)])
async def test_arguments_are_shown_only_if_that_was_chosen(chromium: Browser, page: Tab, scheme: Any) -> None:
    await page.open("shares")
    await page.say("Write the notes")
    await page.ended()
    for chosen in (False, True):
        shown = await dialog(page)
        if chosen:
            await shown.get_by_label("Also show what tools were called with").check()
        await shown.get_by_role("button", name="Make an address").click()
        address = await shown.get_by_label("Address to share").input_value()
        async with tab(chromium, page.site, color_scheme=scheme) as stranger:
            await stranger.page.goto(address)
            await expect(stranger.page.locator(".answer strong")).to_have_text("the notes")
            await expect(stranger.page.locator(".shared-call")).to_have_count(4 if chosen else 0)
            assert await violations(stranger) == []
            await shot(stranger, f"shared-{scheme}")
        await page.page.keyboard.press("Escape")
