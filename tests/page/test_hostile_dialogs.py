"""Texts of others in cards, forms, dialogs and where people sign in: they run nothing, and hide nothing."""

from __future__ import annotations

import io
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Locator, expect

from tests.e2e.servers import serving
from tests.page.site import Site, Tab, bash
from tests.page.test_hostile import FINDINGS, HIDDEN, PROVOKE, TEXTS, TURNED, watched, written
from tests.support.model_server import Failure, ModelServer, Script, ToolCall, Turn
from tests.support.oidc import CLIENT, SECRET, provider
from tests.support.workers import configure

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=3)]

EVIL = f"{TEXTS[0]}{TURNED} {TEXTS[2]} {TEXTS[1]}"
ALLOW = Turn(text='{"decision": "allow", "reason": "harmless"}')
FIELDS = [
    {"name": "city", "label": EVIL, "type": "select", "options": [EVIL, "Graz"]},
    {"name": "why", "label": EVIL, "type": "text", "placeholder": EVIL, "help": EVIL},
]
FORM = ToolCall("ask_clarification", {"question": EVIL, "context": EVIL, "options": [EVIL, "b"], "fields": FIELDS})
WRITE = ToolCall("write_file", {"path": f"/mnt/user-data/outputs/{TEXTS[0].replace('/', '')}", "content": EVIL})
SCRIPTS: dict[str, Script | list[Turn]] = {
    "careful": [Turn(text=EVIL, tool_calls=(bash(f"echo '{EVIL}'"),))],
    "writes": [Turn(tool_calls=(WRITE,))],
    "asks": [Turn(tool_calls=(FORM,))],
    "fails": [Turn(error=Failure(status=400, message=EVIL, code="bad"))],
    "judge": [ALLOW],
}
SKILL = f'---\nname: evil\ndescription: "{EVIL.replace(chr(34), "")}"\n---\n\nx\n'

READ = """() => {
  const attributes = ['aria-label', 'title', 'alt', 'placeholder'];
  const values = (element) => attributes.map((name) => element.getAttribute(name) ?? '');
  return [document.title, document.body.innerText, ...[...document.querySelectorAll('*')].flatMap(values)].join(' ');
}"""
"""What people read, and what is read to them."""


@pytest.fixture(scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory, anyio_backend: str) -> AsyncIterator[Site]:
    path: Path = tmp_path_factory.mktemp("dialogs")
    async with ModelServer(SCRIPTS) as models:
        settings: dict[str, Any] = {
            "approvals": [{"tool": "bash"}, {"tool": "write_file"}],
            "skill_evolution": {"moderation_model_name": "judge"},
            "http": {"heartbeat_seconds": 1},
        }
        async with serving(path / "home", configure(path / "config.yaml", models, **settings)) as server:
            yield Site(server, models)


@pytest.fixture
async def page(chromium: Browser, site: Site) -> AsyncIterator[Tab]:
    async with watched(chromium, site) as opened:
        yield opened


async def harmless(page: Tab, place: Locator, *shown: str) -> None:
    """What is at a place shows these texts, runs nothing, and has no character that nobody sees."""
    for text in shown:
        await expect(place).to_contain_text(text)
    await page.page.evaluate(PROVOKE, ["#page", False])
    assert await page.page.evaluate(FINDINGS) == []
    values: str = await page.page.evaluate(READ)
    assert HIDDEN.findall(values) == []


@pytest.mark.parametrize("model", ["careful", "writes", "asks"])
async def test_what_waits_for_a_person(page: Tab, site: Site, model: str) -> None:
    await page.open(model)
    await page.say("Begin")
    card = page.page.locator(".card.waiting")
    await harmless(page, card, TEXTS[0][:8], "[U+202E]")
    thread = page.thread
    await page.page.goto(f"{site.server.url}/#/approvals")
    entry = page.page.locator(".waiting-list article", has=page.page.locator(f"a[href='#/t/{thread}']"))
    await harmless(page, entry, TEXTS[0][:8], "[U+202E]")


async def test_an_error_in_the_words_of_a_provider(page: Tab) -> None:
    await page.open("fails")
    await page.say("Begin")
    await harmless(page, page.page.locator(".error-card"))


async def test_dialogs_about_a_conversation(page: Tab, site: Site, chromium: Browser) -> None:
    thread = await written(site, [{"type": "human", "content": EVIL}, {"type": "ai", "content": EVIL}], EVIL)
    await site.ask("PUT", f"/threads/{thread}/goal", {"objective": EVIL})
    await page.open(place=f"t/{thread}")
    await harmless(page, page.page.locator(".goal"), TEXTS[0], "[U+202E]")
    dialog = page.page.get_by_role("dialog")
    for command in ("goal", "export", "share", "skills"):
        await page.say(f"/{command}")
        await expect(dialog).to_be_visible()
        if command == "share":
            await dialog.get_by_role("button", name="Make an address").click()
            address = await dialog.get_by_label("Address to share").input_value()
        await harmless(page, dialog)
        await page.page.keyboard.press("Escape")
    await page.page.locator("li.thread.current [aria-haspopup=menu]").click()
    await page.page.get_by_role("menuitem").first.click()
    await harmless(page, page.page.locator("body"))
    async with watched(chromium, site) as stranger:
        await stranger.page.goto(address)
        await expect(stranger.page.locator(".bubble")).to_contain_text(TEXTS[0])
        await harmless(stranger, stranger.page.locator("body"), "[U+202E]")


async def test_skills(page: Tab) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("evil/SKILL.md", SKILL)
    await page.open("careful")
    await page.say("/skills")
    dialog = page.page.get_by_role("dialog")
    upload = {"name": "evil.skill", "mimeType": "application/zip", "buffer": packed.getvalue()}
    await dialog.locator("input[type=file]").set_input_files(upload)  # type: ignore[arg-type]
    await expect(dialog.locator("[role=status], [role=alert]")).to_be_visible()
    await harmless(page, dialog)
    await page.page.keyboard.press("Escape")
    await page.page.fill("#composer", "/evil")
    await harmless(page, page.page.locator("body"))


async def test_where_people_sign_in(chromium: Browser, tmp_path: Path) -> None:
    async with ModelServer({"judge": [ALLOW]}) as models, provider() as idp:
        company = {"name": "company", "issuer": idp.url, "client_id": CLIENT, "client_secret": SECRET}
        auth = {"enabled": True, "registration": True, "oidc": [{**company, "display_name": EVIL}]}
        config = configure(tmp_path / "config.yaml", models, auth=auth)
        async with serving(tmp_path / "home", config) as server:
            site = Site(server, models)
            account = {"email": "root@example.org", "password": "correct horse battery"}
            await site.ask("POST", "/v1/auth/initialize", account)
            async with watched(chromium, site) as page:
                await page.page.goto(f"{server.url}/#/t/{TEXTS[2]}")
                dialog = page.page.get_by_role("dialog")
                await harmless(page, dialog, TEXTS[0], "[U+202E]")
                await dialog.get_by_label("Address").fill("nobody@example.org")
                await dialog.get_by_label("Password").fill(EVIL)
                await dialog.get_by_role("button", name="Sign in", exact=True).click()
                await expect(dialog.get_by_role("alert")).to_be_visible()
                await harmless(page, dialog)
