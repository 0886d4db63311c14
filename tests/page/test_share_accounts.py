"""A moment is shared with the people of a server: they see it as its owner does, and change nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, Locator, expect

from tests.e2e.servers import serving
from tests.page.site import SCRIPTS, Site, Tab, bash, tab, violations
from tests.page.test_access import WIDER, shot
from tests.page.test_account import BOB, ROOT, account, enter
from tests.support.model_server import ModelServer, ToolCall, Turn
from tests.support.workers import configure

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]

NOTES = "/mnt/user-data/outputs/notes.md"
PAGE = "/mnt/user-data/outputs/page.html"
WORK = [
    Turn(
        text="I look.",
        tool_calls=(
            bash("echo oops >&2; exit 3"),
            ToolCall("write_file", {"path": NOTES, "content": "# The notes\n"}),
            ToolCall("write_file", {"path": PAGE, "content": "<p>A drawing</p>"}),
        ),
    ),
    Turn(tool_calls=(ToolCall("present_files", {"filepaths": [NOTES, PAGE]}),)),
    Turn(text="All is done."),
]


@pytest.fixture(scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory, anyio_backend: str) -> AsyncIterator[Site]:
    path: Path = tmp_path_factory.mktemp("colleagues")
    async with ModelServer({"plain": SCRIPTS["plain"], "work": WORK}) as models:
        auth = {"enabled": True, "registration": True}
        config = configure(path / "config.yaml", models, auth=auth, http={"heartbeat_seconds": 1})
        async with serving(path / "home", config) as server:
            made = Site(server, models)
            await account(made, ROOT, "initialize")
            await account(made, BOB, "register")
            yield made


async def made(dialog: Locator) -> str:
    await dialog.get_by_role("button", name="Make an address").click()
    return await dialog.get_by_label("Address to share").input_value()


async def test_a_moment_is_shared_with_a_colleague(page: Tab, site: Site, chromium: Browser) -> None:
    await page.open("work")
    await enter(page.page, ROOT)
    await page.say("Do the work")
    await page.ended()
    await page.say("What came later.")
    await page.ended(2)
    answer = page.page.locator(".answer", has_text="All is done.").first
    await answer.hover()
    await answer.get_by_role("link", name="Show in the timeline").click()
    await page.page.get_by_role("button", name="From here", exact=True).click()
    await page.page.get_by_role("button", name="Share this moment").click()
    dialog = page.page.get_by_role("dialog")
    await expect(dialog.get_by_label("People of this server")).to_be_checked()
    await expect(dialog.get_by_label("Also show the timeline")).to_be_checked()
    await expect(dialog).to_contain_text("what is remembered of you")
    assert await violations(page) == []
    await shot(page, "share-accounts")
    address = await made(dialog)
    await expect(dialog.locator(".rows li")).to_contain_text("people of this server · with the timeline")

    async with tab(chromium, site) as colleague:
        view = colleague.page
        await view.goto(address)
        await enter(view, BOB)
        await expect(view.locator(".tl-moment")).to_contain_text("All is done.")
        await expect(view.get_by_role("status").filter(has_text="As it was shared")).to_be_visible()
        await expect(view.get_by_text("What came later.")).to_have_count(0)
        await expect(view.locator(".tl-row").last).to_contain_text("The model answered")
        for name in ("Why", "How it stood", "Prompt"):
            await view.get_by_role("button", name=name, exact=True).click()
            await expect(view.locator(".tl-part .error, .tl-part [role=alert]")).to_have_count(0)
            await expect(view.locator(".tl-part")).to_contain_text("Do the work")
        for name in ("What if", "From here", "Subagent", "Mark this moment", "Share this moment", "Fork"):
            await expect(view.get_by_role("button", name=name)).to_have_count(0)
        await expect(view.get_by_role("link", name="Show in the conversation")).to_have_count(0)
        await expect(view.locator("#composer")).to_have_count(0)
        await view.locator(".tl-problem").click()
        await expect(view.locator(".tl-moment")).to_contain_text("oops")
        assert await violations(colleague) == []
        await shot(colleague, "shared-timeline")

        await view.get_by_role("link", name="Back to the conversation").click()
        await expect(view.get_by_text(f"by {ROOT}, to be read only")).to_be_visible()
        await expect(view.locator(".answer", has_text="All is done.")).to_be_visible()
        await expect(view.get_by_text("What came later.")).to_have_count(0)
        await expect(view.locator("#composer")).to_have_count(0)
        await view.get_by_role("button", name="notes.md").click()
        await expect(view.get_by_role("heading", name="The notes")).to_be_visible()
        await view.get_by_role("button", name="page.html").click()
        await expect(view.frame_locator("iframe").get_by_text("A drawing")).to_be_visible()
        assert await view.evaluate(WIDER) <= 0
        assert await violations(colleague) == []
        await shot(colleague, "shared-accounts")

        await dialog.get_by_role("button", name="Revoke").click()
        await expect(dialog.locator(".rows li")).to_have_count(0)
        await view.reload()
        await expect(view.get_by_text("This address leads nowhere")).to_be_visible()


@pytest.mark.long
async def test_the_conversation_alone(page: Tab, site: Site, chromium: Browser) -> None:
    """From the chat the timeline is not offered by itself; a stranger without an account is asked to sign in."""
    await page.open("plain")
    await enter(page.page, ROOT)
    await page.say("Say something")
    await page.ended()
    await page.page.locator(".chat-header .menu > button").click()
    await page.page.get_by_role("menuitem", name="Share").click()
    dialog = page.page.get_by_role("dialog")
    await expect(dialog.get_by_label("Also show the timeline")).not_to_be_checked()
    await expect(dialog).to_contain_text("Not shown: reasoning")
    address = await made(dialog)
    await dialog.get_by_label("Everybody who has the address").check()
    await expect(dialog.get_by_label("Also show the timeline")).to_have_count(0)
    await expect(dialog).to_contain_text("No account is needed.")
    async with tab(chromium, site, viewport={"width": 360, "height": 640}) as colleague:
        await colleague.page.goto(address)
        await expect(colleague.page.get_by_role("dialog")).to_be_visible()
        await expect(colleague.page.get_by_text("Say something")).to_have_count(0)
        await enter(colleague.page, BOB)
        await expect(colleague.page.locator(".bubble")).to_have_text("Say something")
        await expect(colleague.page.get_by_role("link", name="Timeline up to there")).to_have_count(0)
        assert await colleague.page.evaluate(WIDER) <= 0
