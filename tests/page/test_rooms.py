"""What waits for a person, and the files of a conversation, as rooms of the page."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.e2e.servers import serving
from tests.page.site import Site, Tab, bash
from tests.support.model_server import ModelServer, ToolCall, Turn
from tests.support.ports import free_port
from tests.support.workers import configure, wait_for

pytestmark = pytest.mark.anyio

FILES = "/mnt/user-data/outputs"
PAGE = "<!doctype html><script>document.title = 'ran'; document.write('<p id=p>drawn by a script</p>')</script>"
WRITES = tuple(
    ToolCall("write_file", {"path": f"{FILES}/{name}", "content": text})
    for name, text in (("notes.md", "# Notes <script>"), ("page.html", PAGE), ("deep/er.txt", "below"))
)
SCRIPTS = {
    "plain": [Turn(text="One two three.")],
    "asks": [Turn(tool_calls=(bash("echo careful"),)), Turn(text="It is done.")],
    "files": [Turn(tool_calls=WRITES), Turn(text="Three files.")],
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


async def test_files_are_found_and_shown_as_what_they_are(page: Tab, site: Site) -> None:
    await page.open("files")
    await page.say("Write them")
    await page.ended()
    await page.page.click("a[href^='#/files/']")
    tree = page.page.locator(".files")
    await tree.get_by_text("outputs", exact=True).click()
    await tree.get_by_text("deep", exact=True).click()
    await tree.get_by_role("link", name="er.txt").click()
    await expect(tree.locator(".file-shown pre")).to_have_text("below")
    await tree.get_by_role("link", name="notes.md").click()
    await expect(tree.locator(".file-shown pre")).to_have_text("# Notes <script>")
    await tree.get_by_role("link", name="page.html").click()
    frame = page.page.frame_locator(".file-shown iframe")
    await expect(frame.locator("#p")).to_have_text("drawn by a script")
    assert "ran" not in await page.page.title()
    await page.page.reload()
    await expect(frame.locator("#p")).to_have_text("drawn by a script")
    await expect(tree.get_by_role("link", name="page.html")).to_have_attribute("aria-current", "true")


async def test_files_of_a_conversation_without_any(page: Tab, site: Site) -> None:
    await page.open("plain")
    await page.say("Hello")
    await page.ended()
    await page.page.click("a[href^='#/files/']")
    await expect(page.page.get_by_text("There are no files here.")).to_be_visible()
