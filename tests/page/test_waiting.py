"""What waits for a person, as a room of the page."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.e2e.servers import serving
from tests.page.site import Site, Tab, bash
from tests.support.model_server import ModelServer, Turn
from tests.support.ports import free_port
from tests.support.workers import configure, wait_for

pytestmark = pytest.mark.anyio

SCRIPTS = {
    "plain": [Turn(text="One two three.")],
    "asks": [Turn(tool_calls=(bash("echo careful"),)), Turn(text="It is done.")],
}


@pytest.fixture(scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory, anyio_backend: str) -> AsyncIterator[Site]:
    """A server on which commands that are careful wait for a person."""
    path: Path = tmp_path_factory.mktemp("rooms")
    rule = {"tool": "bash", "match": {"command": "careful"}}
    async with ModelServer(SCRIPTS) as models:
        config = configure(path / "config.yaml", models, approvals=[rule], http={"heartbeat_seconds": 1})
        async with serving(path / "home", config, "--port", str(free_port())) as server:
            yield Site(server, models)


async def test_what_waits_is_listed_edited_and_approved(page: Tab, site: Site) -> None:
    """The list follows what happens; the command is run as it was changed."""
    await page.open("asks")
    await page.page.click("a[href='#/approvals']")
    await expect(page.page.get_by_text("Nothing waits for you.")).to_be_visible()
    await site.run("waits", "Go", "asks")
    command = page.page.get_by_label("The command or text, which you can change")
    await expect(command).to_have_value("echo careful")
    await command.fill("echo changed")
    await page.page.get_by_role("button", name="Approve").click()

    async def edited() -> bool:
        [*_, first] = await site.ask("GET", "/threads/waits/approvals")
        return bool(first["status"] == "edited" and first["edited_args"]["command"] == "echo changed")

    await wait_for(edited)


async def test_what_is_rejected_waits_no_more(page: Tab, site: Site) -> None:
    await site.run("refused", "Go", "asks")
    await page.open("asks", place="t/refused")
    await page.page.click("a[href='#/approvals']")
    entry = page.page.locator(".waiting-list article:has(a[href='#/t/refused'])")
    await entry.get_by_role("button", name="Reject").click()
    await expect(entry).to_have_count(0)
    [approval] = await site.ask("GET", "/threads/refused/approvals")
    assert approval["status"] == "rejected"
