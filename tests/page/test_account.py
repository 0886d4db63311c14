"""Signing in over the page: what was typed stays, and nothing of one person is shown to another."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from playwright.async_api import Browser, Page, Route, expect

from tests.e2e.servers import serving
from tests.page.site import SCRIPTS, Site, Tab, tab, violations
from tests.page.test_access import shot
from tests.support.model_server import ModelServer
from tests.support.oidc import CLIENT, SECRET, provider
from tests.support.workers import configure

pytestmark = pytest.mark.anyio

PASSWORD = "correct horse battery"
ROOT, ADA, BOB, EVE = (f"{name}@example.org" for name in ("root", "ann", "bob", "eve"))


@pytest.fixture(scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory, anyio_backend: str) -> AsyncIterator[Site]:
    """A server with accounts, of which there is none yet."""
    path: Path = tmp_path_factory.mktemp("accounts")
    async with ModelServer({"plain": SCRIPTS["plain"]}) as models, provider() as idp:
        company = {"name": "company", "issuer": idp.url, "client_id": CLIENT, "client_secret": SECRET}
        auth = {"enabled": True, "registration": True, "oidc": [{**company, "display_name": "The company"}]}
        config = configure(path / "config.yaml", models, auth=auth, http={"heartbeat_seconds": 1})
        async with serving(path / "home", config) as server:
            yield Site(server, models)


async def account(site: Site, email: str, how: str) -> None:
    """Makes an account, unless another test has made it."""
    async with aiohttp.ClientSession() as session:
        body = {"email": email, "password": PASSWORD}
        async with session.post(f"{site.server.url}/api/v1/auth/{how}", json=body) as response:
            assert response.status < 300 or response.status in (400, 409), await response.text()


@pytest.fixture
async def root(site: Site) -> str:
    """The address of the first administrator."""
    await account(site, ROOT, "initialize")
    return ROOT


@pytest.fixture
async def bob(site: Site, root: str) -> str:
    """The address of a member."""
    await account(site, BOB, "register")
    return BOB


async def enter(page: Page, email: str, button: str = "Sign in") -> None:
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Address").fill(email)
    await dialog.get_by_label("Password").fill(PASSWORD)
    await dialog.get_by_role("button", name=button, exact=True).click()
    await expect(dialog).to_have_count(0)


async def leave(page: Page, email: str, entry: str = "Sign out") -> None:
    await page.get_by_role("button", name=f"Account of {email}").click()
    await page.get_by_role("menuitem", name=entry, exact=True).click()
    await expect(page.get_by_role("dialog")).to_be_visible()


async def session_ends(tab: Tab) -> None:
    """With the next message the session ends elsewhere, and the browser loses its cookies, too. Were it over before,
    another request could meet that first, and the message would not be on its way.
    """

    over = False

    async def end(route: Route) -> None:
        nonlocal over
        if route.request.method == "POST" and not over:
            over = True
            await tab.page.context.clear_cookies()
        await route.continue_()

    await tab.page.route("**/runs", end)


async def test_people_come_and_go_and_see_nothing_of_each_other(page: Tab, site: Site, chromium: Browser) -> None:
    await page.open()
    await enter(page.page, ROOT, "Make the first administrator")
    await page.say("The secret of root")
    await page.ended()
    await expect(page.page.get_by_text("Your session ends at")).to_have_count(0)
    thread = page.thread
    await page.page.fill("#composer", "Typed by root")

    async with tab(chromium, site, page.page.context) as second:
        await second.open(place=f"t/{thread}")
        await second.ended()
        await leave(page.page, ROOT)
        for each in (page, second):
            await expect(each.page.get_by_role("dialog")).to_be_visible()
            assert "secret" not in await each.page.evaluate("document.body.innerText + JSON.stringify(localStorage)")
            assert "root" not in await each.page.evaluate("document.body.innerText + JSON.stringify(localStorage)")

        await page.page.get_by_role("button", name="Make an account").click()
        await enter(page.page, ADA, "Make an account")
        await expect(second.page.get_by_role("button", name=f"Account of {ADA}")).to_be_visible()
        await page.page.goto(f"{site.server.url}/#/t/{thread}")
        await expect(page.page.locator(".gone")).to_be_visible()
        await page.page.goto(f"{site.server.url}/#/")
        await expect(page.page.locator("#composer")).to_have_value("")
        await expect(page.page.locator("nav li.thread")).to_have_count(0)
    await leave(page.page, ADA, "Sign out everywhere")


async def test_a_session_ends_while_one_types(page: Tab, site: Site, root: str) -> None:
    await page.open()
    await page.page.get_by_role("button", name="Make an account").click()
    await enter(page.page, EVE, "Make an account")
    await page.say("First")
    await page.ended()
    thread = page.thread
    await session_ends(page)
    await page.page.fill("#composer", "Said without a session")
    await page.page.press("#composer", "Enter")
    dialog = page.page.get_by_role("dialog")
    await expect(dialog).to_be_visible()
    await page.page.keyboard.press("Escape")
    await page.page.keyboard.press("Escape")
    await expect(dialog).to_be_visible()
    await dialog.get_by_label("Address").fill(EVE)
    await dialog.get_by_label("Password").fill("wrong")
    await dialog.get_by_role("button", name="Sign in", exact=True).click()
    await expect(dialog.get_by_role("alert")).to_have_text("The address or the password is wrong.")
    await enter(page.page, EVE)
    await page.ended(2)
    assert page.thread == thread
    assert [text for text in await page.shown() if "." not in text] == ["First", "Said without a session"]
    await page.say("And on")
    await page.ended(3)


@pytest.mark.long
async def test_another_person_signs_in_where_a_session_ended(page: Tab, root: str, bob: str) -> None:
    await page.open()
    await enter(page.page, bob)
    await page.page.fill("#composer", "Typed by bob")
    await session_ends(page)
    await page.page.get_by_role("button", name="New conversation", exact=True).click()
    await page.say("Sent by bob")
    await expect(page.page.get_by_role("dialog")).to_be_visible()
    dialog = page.page.get_by_role("dialog")
    await dialog.get_by_label("Address").fill(root)
    await dialog.get_by_label("Password").fill(PASSWORD)
    async with page.page.expect_navigation():
        await dialog.get_by_role("button", name="Sign in", exact=True).click()
    await expect(page.page.get_by_role("button", name=f"Account of {root}")).to_be_visible()
    await expect(page.page.locator("#composer")).to_have_value("")
    assert "bob" not in await page.page.evaluate("document.body.innerText + JSON.stringify(localStorage)")


async def test_by_an_identity_provider_one_comes_back_to_where_one_was(page: Tab, root: str) -> None:
    await page.open(place="t/00000000-0000-7000-8000-000000000000")
    await page.page.get_by_role("link", name="Go on with The company").click()
    await expect(page.page.locator(".gone")).to_be_visible()
    assert page.page.url.endswith("/#/t/00000000-0000-7000-8000-000000000000")


@pytest.mark.long
async def test_a_password_is_changed(page: Tab, bob: str) -> None:
    await page.open()
    await enter(page.page, bob)
    await page.page.get_by_role("button", name=f"Account of {bob}").click()
    await page.page.get_by_role("menuitem", name="Change the password").click()
    dialog = page.page.get_by_role("dialog")
    await dialog.get_by_label("Password until now").fill("wrong")
    await dialog.get_by_label("New password").fill("another horse battery")
    await dialog.get_by_role("button", name="Save").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("The password until now is another.")
    await dialog.get_by_label("Password until now").fill(PASSWORD)
    await dialog.get_by_role("button", name="Save").click()
    await expect(dialog).to_have_count(0)
    await page.say("Still here")
    await page.ended()


async def test_a_key_is_made_shown_once_used_by_a_program_and_revoked(page: Tab, site: Site, root: str) -> None:
    await page.open()
    await enter(page.page, root)
    await page.page.get_by_role("button", name=f"Account of {root}").click()
    await page.page.get_by_role("menuitem", name="API keys").click()
    dialog = page.page.get_by_role("dialog")
    await dialog.get_by_label("May only read").check()
    await dialog.get_by_label("Password until now").fill("wrong")
    await dialog.get_by_role("button", name="Make a key").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("The password until now is another.")
    await dialog.get_by_label("Password until now").fill(PASSWORD)
    await dialog.get_by_role("button", name="Make a key").click()
    key = await dialog.get_by_label("API key", exact=True).input_value()
    await page.may_copy()
    await dialog.get_by_role("button", name="Copy", exact=True).click()
    assert await page.copied() == key
    await expect(dialog.locator(".rows li")).to_have_count(1)
    assert await violations(page) == []
    await shot(page, "api-keys")
    headers = {"Authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(headers=headers) as program:
        async with program.post(f"{site.server.url}/api/threads/search", json={}) as answer:
            assert answer.status == 200
        async with program.post(f"{site.server.url}/api/threads", json={}) as answer:
            assert answer.status == 403, "it may only read"
        await page.page.keyboard.press("Escape")
        assert key not in await page.page.content(), "it was shown once"
        await page.page.get_by_role("button", name=f"Account of {root}").click()
        await page.page.get_by_role("menuitem", name="API keys").click()
        await dialog.get_by_role("button", name="Revoke").click()
        await expect(dialog.locator(".rows li")).to_have_count(0)
        async with program.post(f"{site.server.url}/api/threads/search", json={}) as answer:
            assert answer.status == 401


@pytest.mark.long
async def test_who_has_no_password_makes_a_key_without_one(page: Tab, root: str) -> None:
    await page.open()
    await page.page.get_by_role("link", name="Go on with The company").click()
    await page.page.get_by_role("button", name="Account of").click()
    await page.page.get_by_role("menuitem", name="API keys").click()
    dialog = page.page.get_by_role("dialog")
    await expect(dialog.get_by_label("Password until now")).to_have_count(0)
    await dialog.get_by_role("button", name="Make a key").click()
    await expect(dialog.get_by_label("API key", exact=True)).not_to_have_value("")
