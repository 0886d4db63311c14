"""Settings in the browser, section by section: from opening to the effect that is seen elsewhere, and in the log."""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import aiohttp
import pytest
from playwright.async_api import Browser, Locator, expect

from channels.web import assets
from tests.adapters.web.site import serving as skills_served
from tests.channels.telegram.server import TOKEN, TelegramServer
from tests.e2e.servers import serving
from tests.page import hub
from tests.page.hub import Hub
from tests.page.site import SCRIPTS, Site, Tab, tab, violations
from tests.page.test_skills import archive
from tests.support.mcp import server as server_of
from tests.support.model_server import ModelServer, ToolCall, Turn
from tests.support.oauth import authorization_server
from tests.support.workers import configure, wait_for

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=4)]

PASSWORD = "correct horse battery"
ROOT, ADA = "root@example.org", "ada@example.org"
SECRET = "sk-the-key-of-the-file-4711"
ADDED_KEY = "sk-the-key-of-an-added-model-4712"
MAKES = ToolCall("setup_agent", {"description": "Answers in rhymes", "soul": "You rhyme.", "skills": []})
OWN_SCRIPTS = {
    "judge": [Turn(text='{"decision": "allow", "reason": "harmless words"}')],
    "notes": [Turn(tool_calls=(ToolCall("notes_read", {}),)), Turn(text="Read.")],
    "makes": [Turn(text="Then I make it.", tool_calls=(MAKES,)), Turn(text="It is made.")],
}
HEADER = "the-header-that-is-secret-4714"
SKILL = "---\nname: haiku\ndescription: Writes a haiku about what it is given.\n---\n\nThree lines.\n"
ODE = SKILL.replace("name: haiku", "name: ode")

SHOWING = ("model-settings", "models", "configuration")
HOSTILE = "<img src=x onerror=window.hacked=1>"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("settings")


@pytest.fixture(scope="module")
async def github(path: Path, anyio_backend: str) -> AsyncIterator[Hub]:
    """Has the branches `main` and `feature/verse` of ada/tools."""
    files = {
        f"skills/{name}/SKILL.md": SKILL.replace("name: haiku", f"name: {name}") for name in ("limerick", "sonnet")
    }
    branches = {"main": {**files, "README.md": "Tools."}, "feature/verse": {"more/ode/SKILL.md": ODE}}
    async with hub.serving(path, {"ada/tools": branches}) as running:
        yield running


@pytest.fixture(scope="module")
async def telegram(anyio_backend: str) -> AsyncIterator[TelegramServer]:
    async with TelegramServer() as running:
        yield running


@pytest.fixture(scope="module")
async def site(path: Path, github: Hub, telegram: TelegramServer, anyio_backend: str) -> AsyncIterator[Site]:
    """A server with accounts, with a GitHub and a platform of its bot of its own."""
    async with ModelServer({**SCRIPTS, **OWN_SCRIPTS}) as models:
        settings: dict[str, Any] = {
            "auth": {"enabled": True, "registration": True},
            "http": {"heartbeat_seconds": 1},
            "agents_api": {"enabled": True},
            "skills": {"allow_private": True},
            "webhooks": {"allow_private": True},
            "skill_evolution": {"moderation_model_name": "judge"},
            "mcp": {"servers": {"here": server_of("changing")}},
            "channels": {"telegram": {"enabled": True, "bot_token": TOKEN, "base_url": telegram.url}},
            "actors": ["tests.page.hub:Names"],
            "channel_connections": {"enabled": True, "providers": {"telegram": {"enabled": True}}},
            "memory": {"enabled": True, "debounce_seconds": 300},
            "sandbox": {"environment": {"TOKEN_OF_OTHERS": SECRET}},
        }
        config = configure(path / "config.yaml", models, **settings)
        async with serving(path / "home", config) as server:
            yield Site(server, models)


@pytest.fixture(scope="module")
async def people(chromium: Browser, site: Site) -> dict[str, Any]:
    """What the browsers keep of an administrator and of a member who are signed in."""
    kept = {}
    for how, email in (("initialize", ROOT), ("register", ADA)):
        async with tab(chromium, site) as page:
            url = f"{site.server.url}/api/v1/auth/{how}"
            assert (await page.page.context.request.post(url, data={"email": email, "password": PASSWORD})).ok
            kept[email] = await page.page.context.storage_state()
    return kept


class Settings:
    """A tab that shows a section."""

    def __init__(self, page: Tab) -> None:
        self.tab, self.page = page, page.page
        self.section = page.page.locator(".settings-section")

    async def go(self, section: str) -> None:
        await self.page.goto(f"{self.tab.site.server.url}/#/settings/{section}")
        await expect(self.page.locator(".settings nav [aria-current]")).to_have_attribute(
            "href", f"#/settings/{section}"
        )

    async def names(self) -> list[str]:
        """The sections that are offered."""
        links = self.page.locator(".settings nav li a")
        return [str(await link.get_attribute("href")).rpartition("/")[2] for link in await links.all()]

    def row(self, text: str) -> Locator:
        return self.section.locator(".rows li", has_text=text)

    async def press(self, name: str, where: Locator | None = None, *, sure: bool = False) -> None:
        place = where or self.section
        await place.get_by_role("button", name=name, exact=True).click()
        if sure:
            await place.get_by_role("button", name="Really?", exact=True).click()

    async def run(self, text: str, model: str = "plain", **context: Any) -> str:
        """Runs the agent to its end, and returns the thread."""
        thread = str((await self.ask("POST", "threads", {}))["body"]["thread_id"])
        body = {
            "input": {"messages": [{"role": "user", "content": text}]},
            "assistant_id": "lead_agent",
            "context": {"model_name": model, **context},
        }
        assert (await self.ask("POST", f"threads/{thread}/runs/wait", body))["status"] == 200
        return thread

    def prompt(self) -> str:
        """What the agent's model got last."""
        bodies = [request.body for request in self.tab.site.models.requests if request.body.get("stream")]
        return json.dumps(bodies[-1], ensure_ascii=False)

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The answer of a route to the person who is signed in."""
        script = """async ([method, path, body]) => {
          const token = decodeURIComponent(document.cookie.match(/csrf_token=([^;]*)/)?.[1] ?? '');
          const headers = { 'content-type': 'application/json', 'X-CSRF-Token': token };
          const init = { method, headers, ...(body === null ? {} : { body: JSON.stringify(body) }) };
          const response = await fetch('/api/' + path, init);
          const text = await response.text();
          return { status: response.status, body: text ? JSON.parse(text) : null };
        }"""
        return await self.page.evaluate(script, [method, path, body])


@asynccontextmanager
async def signed_in(
    chromium: Browser, site: Site, state: Any, section: str, language: str = "en", **more: Any
) -> AsyncIterator[Settings]:
    async with tab(chromium, site, storage_state=state, **more) as page:
        await page.open(language=language)
        opened = Settings(page)
        await opened.go(section)
        yield opened
        assert not await page.page.evaluate("'hacked' in window")


@pytest.fixture
async def ada(chromium: Browser, site: Site, people: dict[str, Any]) -> AsyncIterator[Settings]:
    """A member's."""
    async with signed_in(chromium, site, people[ADA], "memory") as settings:
        yield settings


@pytest.fixture
async def root(chromium: Browser, site: Site, people: dict[str, Any]) -> AsyncIterator[Settings]:
    async with signed_in(chromium, site, people[ROOT], "users") as settings:
        yield settings


async def test_a_member_sees_only_what_is_about_their_own_things(
    chromium: Browser, site: Site, people: dict[str, Any]
) -> None:
    async with signed_in(chromium, site, people[ADA], "looks") as ada:
        names = await ada.page.locator(".settings nav li").all_inner_texts()
        assert not {"Users and roles", "API keys", "Configuration in force", "Models"} & set(names)
        await ada.page.goto(f"{site.server.url}/#/settings/users")
        await expect(ada.page.locator(".settings nav [aria-current]")).not_to_have_text("Users and roles")
        await expect(ada.page.get_by_text(ROOT)).to_have_count(0)
        for path in ("users", "keys", "configuration", "model-settings"):
            assert (await ada.ask("GET", path))["status"] == 403


PICTURE = Path(assets.__file__).parent / "pictures/settings.png"
LARGEST = 150_000
SIDEWAYS = "document.scrollingElement.scrollWidth > document.scrollingElement.clientWidth"


@pytest.mark.parametrize(
    ("language", "look"),
    [
        ("en", {"viewport": {"width": 1120, "height": 700}}),
        ("zh", {"viewport": {"width": 1120, "height": 700}, "color_scheme": "dark"}),
        ("zh", {"viewport": {"width": 360, "height": 740}}),
        ("en", {"viewport": {"width": 360, "height": 740}, "color_scheme": "dark"}),
    ],
)
async def test_every_section_is_seen_whole_and_keeps_every_rule(
    chromium: Browser, site: Site, people: dict[str, Any], tmp_path: Path, language: str, look: dict[str, Any]
) -> None:
    async with signed_in(chromium, site, people[ROOT], "users", language, **look) as root:
        names = await root.names()
        assert len(names) == 13
        broken = {}
        for name in names:
            await root.go(name)
            await expect(root.section.locator(".quiet", has_text=re.compile("^(Loading|加载中)"))).to_have_count(0)
            if name == "models":
                renewed = os.environ.get("SIKA_PICTURES") and language == "en" and "color_scheme" not in look
                picture = await root.page.screenshot(path=PICTURE if renewed else tmp_path / f"{name}.png")
                assert len(picture) < LARGEST
            if problems := [*await violations(root.tab), *(["sideways"] if await root.page.evaluate(SIDEWAYS) else [])]:
                broken[name] = problems
        assert broken == {}


OF_THE_BROWSER = ["looks"]
"""Sections about what this browser remembers."""


@pytest.mark.long
async def test_every_section_shows_what_others_changed_when_it_is_looked_at_again(root: Settings) -> None:
    for name in await root.names():
        async with root.tab.asking() as first:
            await root.go(name)
            await expect(root.section.locator(".quiet", has_text=re.compile("^Loading"))).to_have_count(0)
        mine = {path for path in first if path != "v1/auth/me"}
        assert bool(mine) is (name not in OF_THE_BROWSER), name
        await root.tab.asks_again(mine)


@pytest.mark.long
async def test_what_somebody_types_stays_when_it_is_looked_at_again(root: Settings) -> None:
    await root.go("keys")
    await root.section.get_by_label("For (address or id)").fill("half an addr")
    made = await root.ask("POST", "keys", {"user": ADA, "scopes": ["threads:read"]})  # as another tab does
    assert made["status"] == 201, made
    await expect(root.row(ADA)).to_have_count(0)
    await root.tab.look_again()
    await expect(root.row(ADA)).to_have_count(1)
    await expect(root.section.get_by_label("For (address or id)")).to_have_value("half an addr")
    await root.page.route("**/api/keys", lambda route: route.abort())
    await root.tab.look_again()
    await expect(root.section.get_by_role("alert")).to_be_visible()
    await expect(root.row(ADA)).to_have_count(1)
    await expect(root.section.get_by_label("For (address or id)")).to_have_value("half an addr")
    await root.page.unroute("**/api/keys")
    await root.tab.look_again()
    await expect(root.section.get_by_role("alert")).to_have_count(0)
    await root.press("Revoke", root.row(ADA), sure=True)


async def test_sections_are_reached_by_keys(root: Settings) -> None:
    await root.page.locator(".settings nav a").first.focus()
    await root.page.keyboard.press("Tab")
    await root.page.keyboard.press("Enter")
    await expect(root.page.locator(".settings nav li a").nth(1)).to_have_attribute("aria-current", "page")
    await root.go("users")
    await root.section.get_by_label("Address").focus()
    await root.page.keyboard.type("keys@example.org")
    await root.page.keyboard.press("Enter")
    await expect(root.row("keys@example.org")).to_be_visible()


async def test_a_model_is_added_tried_made_the_default_and_answers(root: Settings, site: Site) -> None:
    await root.go("models")
    form = root.section.locator("form", has=root.page.get_by_label("Provider"))
    await form.get_by_label("Name", exact=True).fill("added")
    await form.get_by_label("Provider").select_option("custom")
    await form.get_by_label("Model", exact=True).fill("missing")
    await root.press("Save", form)
    address = form.locator(".labelled", has_text="Base address")
    await expect(address.get_by_role("alert")).to_contain_text("base_url: the address is needed")
    await form.get_by_label("Base address").fill(site.models.url)
    await form.get_by_label("API key").fill(ADDED_KEY)
    await root.press("Try it", form)
    await expect(form.get_by_role("status")).to_contain_text("It did not answer: ")
    await form.get_by_label("Model", exact=True).fill("plain")
    await root.press("Try it", form)
    outcome = form.get_by_role("status")
    await expect(outcome).to_contain_text("It answered after ")
    await expect(outcome).to_be_in_viewport()  # people press the button below a form that is longer than the screen
    assert (await root.ask("GET", "models/added"))["status"] == 404, "it was tried only"
    await form.get_by_label("Name on pages").fill(HOSTILE)
    await root.press("Save", form)
    row = root.row(HOSTILE)
    await root.press("Try it", row)
    await expect(row.get_by_role("status")).to_contain_text("It answered after ")
    await root.press("Make the default", row)
    await expect(row.locator(".tag")).to_have_text("default")
    checks = (await root.ask("GET", "doctor"))["body"]["checks"]
    assert [check["status"] for check in checks if check["text"].startswith("added (")] == ["ok"]
    assert await violations(root.tab) == []
    before = len(site.models.requests)
    thread = (await root.ask("POST", "threads", {}))["body"]["thread_id"]
    said = {"input": {"messages": [{"role": "user", "content": "Who answers?"}]}, "assistant_id": "lead_agent"}
    assert (await root.ask("POST", f"threads/{thread}/runs/wait", said))["status"] == 200
    asked = site.models.requests[before:]
    assert {each.model for each in asked} == {"plain"}
    model = (await root.ask("GET", f"threads/{thread}/log"))["body"]
    assert [each["model"] for each in model if each["type"] == "run.started"] == ["added"]
    await root.go("configuration")
    await root.section.get_by_label("Search in names and texts").fill("].api_key")
    await expect(root.section.locator(".source", has_text="added here")).to_have_count(1)
    await root.go("models")
    everything = json.dumps([await root.page.content(), *[await root.ask("GET", path) for path in SHOWING]])
    assert ADDED_KEY not in everything
    await root.press("Delete", row, sure=True)
    await expect(row).to_have_count(0)
    assert (await root.ask("GET", "models/added"))["status"] == 404
    assert ADDED_KEY not in site.server.said()


async def test_an_account_is_made_used_disabled_and_given_another_password(root: Settings, site: Site) -> None:
    await root.section.get_by_label("Address").fill("no address")
    await root.section.locator("form").evaluate("form => { form.noValidate = true }")
    await root.press("Make the account")
    alert = root.section.locator(".labelled", has_text="Address").get_by_role("alert")
    await expect(alert).to_have_text("email: expected an address like name@example.org")
    await expect(root.section.get_by_label("Address")).to_have_attribute("aria-invalid", "true")
    await root.section.get_by_label("Address").fill("eve@example.org")
    await root.press("Make the account")
    shown = root.section.get_by_role("textbox", name="Password")
    password = await shown.input_value()
    url = f"{site.server.url}/api/v1/auth"
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as eve:

        async def enter(word: str) -> int:
            form = {"username": "eve@example.org", "password": word}
            async with eve.post(f"{url}/login/local", data=form) as answer:
                return answer.status

        assert await enter(password) == 200
        row = root.row("eve@example.org")
        await expect(row).to_contain_text("has to choose a password")
        await root.press("Make an administrator", row, sure=True)
        await expect(row).to_contain_text("Administrator")
        await root.press("Disable", row, sure=True)
        await expect(row).to_contain_text("disabled")
        async with eve.get(f"{url}/me") as answer:
            assert answer.status == 401
        assert await enter(password) == 401
        await root.press("Enable", row)
        await root.press("New password", row, sure=True)
        await expect(shown).not_to_have_value(password)
        assert await enter(password) == 401
        assert await enter(await shown.input_value()) == 200
    await expect(root.row(ROOT).get_by_role("button", name="Disable")).to_have_count(0)
    await root.press("Make a member", root.row("eve@example.org"), sure=True)
    await root.press("Make a member", root.row(ROOT), sure=True)
    await expect(root.row(ROOT).get_by_role("alert")).to_contain_text("last administrator")
    assert await violations(root.tab) == []


async def test_what_somebody_may_do_changes_while_settings_are_open(
    chromium: Browser, site: Site, root: Settings
) -> None:
    """They become an administrator, a member again, and are signed out: in the open page, and it says who it is."""
    email = "mia@example.org"
    async with tab(chromium, site) as page:
        url, who = f"{site.server.url}/api/v1/auth/register", {"email": email, "password": PASSWORD}
        assert (await page.page.context.request.post(url, data=who)).ok
        await page.open()
        mia = Settings(page)
        await mia.go("memory")
        users = page.page.locator('.settings nav a[href="#/settings/users"]')
        await expect(page.page.locator(".settings nav li").first).to_be_visible()
        await expect(users).to_have_count(0)
        await root.tab.look_again()
        row = root.row(email)
        await root.press("Make an administrator", row, sure=True)
        await expect(row).to_contain_text("Administrator")
        await page.look_again()
        await mia.go("users")
        await root.press("Make a member", row, sure=True)
        await expect(row).not_to_contain_text("Administrator")
        await mia.section.get_by_label("Address").fill("noa@example.org")
        await mia.press("Make the account")
        await expect(users).to_have_count(0)
        await expect(page.page.locator(".settings nav [aria-current]")).to_have_attribute("href", "#/settings/memory")
        await mia.go("looks")
        await page.page.context.clear_cookies()
        await page.look_again()
        await expect(page.page.get_by_role("dialog", name="Sign in")).to_be_visible()
    await expect(root.row("noa@example.org")).to_have_count(0)


async def test_a_key_is_made_for_somebody_works_and_is_revoked(root: Settings, site: Site) -> None:
    await root.go("keys")
    await root.section.get_by_label("For (address or id)").fill(ADA)
    await root.section.get_by_label("What it may do").fill("everything")
    await root.press("Make a key")
    await expect(root.section.get_by_role("alert")).to_contain_text("scopes: 'everything' is none")
    await root.section.get_by_label("What it may do").fill("threads:read, runs")
    await root.press("Make a key")
    key = await root.section.get_by_label("API key", exact=True).input_value()
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as program:

        async def status() -> int:
            async with program.post(f"{site.server.url}/api/threads/search", json={}) as answer:
                return answer.status

        assert await status() == 200
        assert await violations(root.tab) == []
        await root.press("Revoke", root.row(ADA), sure=True)
        await expect(root.row(ADA)).to_have_count(0)
        assert await status() == 401


async def test_the_configuration_says_where_each_value_comes_from_and_no_secret(root: Settings) -> None:
    await root.go("configuration")
    search = root.section.get_by_label("Search in names and texts")
    await search.fill("auth registration")
    entry = root.section.locator(".config li", has_text="auth.registration")
    await expect(entry.locator(".source")).to_contain_text("file, line ")
    await entry.locator("summary").click()
    await expect(entry.locator("pre")).to_have_text("auth:\n  registration: true")
    await expect(entry).to_contain_text("default: false")
    await search.fill("sandbox.environment")
    await expect(root.section.locator(".config li", has_text="TOKEN_OF_OTHERS")).to_contain_text("***")
    await search.fill("")
    await root.section.get_by_role("button", name="Show more").click()
    assert await violations(root.tab) == []
    everything = json.dumps([await root.page.content(), await root.ask("GET", "configuration")])
    assert SECRET not in everything


@pytest.mark.long
@pytest.mark.parametrize(
    ("section", "key", "line"),
    [
        ("limits", "limits.tokens_per_day", "limits:\n  tokens_per_day: null"),
        ("limits", "budgets.thread.cost", "budgets:\n  thread:\n    cost: null"),
        ("webhooks", "webhooks.allow_private", "webhooks:\n  allow_private: true"),
    ],
)
async def test_what_the_file_alone_decides_says_so_with_the_line_to_write(
    root: Settings, section: str, key: str, line: str
) -> None:
    await root.go(section)
    entry = root.section.locator(".config li", has=root.page.get_by_text(key, exact=True))
    await entry.locator("summary").click()
    await expect(entry.locator("p").first).not_to_be_empty()
    await expect(entry.locator(".file-only")).to_contain_text("configuration file")
    await expect(entry.locator("pre")).to_have_text(line)
    source = "file, line " if "true" in line else "default"
    await expect(entry.locator(".source")).to_contain_text(source)


@pytest.mark.long
async def test_models_are_chosen_for_a_role(root: Settings) -> None:
    await root.go("models")
    [role, *_] = [one for one in (await root.ask("GET", "model-settings"))["body"]["roles"] if one["source"] != "file"]
    form = root.section.locator(".role").first
    await form.get_by_label("First").select_option("plain")
    await form.get_by_label("If that fails").select_option("slow")
    await root.press("Save", form)

    async def chosen(*models: str) -> bool:
        roles = (await root.ask("GET", "model-settings"))["body"]["roles"]
        return [one["models"] for one in roles if one["role"] == role["role"]] == [[*models]]

    await wait_for(partial(chosen, "plain", "slow"))
    await expect(form.get_by_label("If that fails")).to_have_value("slow")
    await form.get_by_label("If that fails").select_option("")
    await form.get_by_label("First").select_option("")
    await root.press("Save", form)
    await wait_for(chosen)


async def test_theme_and_language_are_chosen(root: Settings) -> None:
    await root.go("looks")
    await root.section.get_by_label("Dark").check()
    assert await root.page.evaluate("document.documentElement.dataset.theme") == "dark"
    await root.section.get_by_label("中文").check()
    await expect(root.page.locator(".settings h2")).to_have_text("外观和语言")
    await expect(root.page.locator(".settings nav")).to_contain_text("用户和角色")
    await root.page.reload()
    await expect(root.page.locator(".settings h2")).to_have_text("外观和语言")
    assert await violations(root.tab) == []


async def test_a_fact_is_remembered_told_corrected_forgotten_and_exported(ada: Settings) -> None:
    form = ada.section.locator("form").last
    await form.get_by_label("Fact").fill(f"Ada likes purple boats {HOSTILE}")
    await ada.press("Remember it", form)
    row = ada.row("purple boats")
    await expect(row).to_contain_text(HOSTILE)
    thread = await ada.run("What do I like, boats?")
    assert "purple boats" in ada.prompt()
    await ada.press("Correct", row)
    edited = ada.section.locator(".rows li")
    await edited.get_by_label("Fact").fill("Ada likes green boats")
    await ada.press("Save", edited)
    await expect(ada.row("green boats")).to_be_visible()
    await ada.run("What do I like, boats?")
    assert "green boats" in ada.prompt()
    assert "purple" not in ada.prompt()
    await expect(ada.page.locator("#told-thread option")).to_have_count(3)
    await ada.page.locator("#told-thread").select_option(thread)
    await expect(ada.section.locator(".told")).to_contain_text("purple boats")
    await ada.press("Use it in groups")
    await expect(ada.section.get_by_role("button", name="Keep it out of groups")).to_be_visible()
    assert (await ada.ask("GET", "memory/settings"))["body"] == {"in_groups": True}
    assert await violations(ada.tab) == []
    async with ada.page.expect_download() as saved:
        await ada.press("Export")
    assert "green boats" in Path(await (await saved.value).path()).read_text()
    await ada.press("Forget", ada.row("green boats"), sure=True)
    await expect(ada.section.get_by_text("Nothing is remembered.")).to_be_visible()
    await ada.run("What do I like, boats?")
    assert "boats" not in ada.prompt().replace("What do I like, boats?", "")
    told = (await ada.ask("GET", f"threads/{thread}/memory"))["body"]["runs"]
    assert [fact["text"] for run in told for fact in run["facts"]] == [None]


async def test_an_agent_is_made_answers_is_changed_and_becomes_what_it_was(ada: Settings) -> None:
    await ada.go("agents")
    form = ada.section.locator("form").last
    await form.get_by_label("Name").fill("bad name")
    await form.get_by_label("Character").fill("You are Captain Blue.")
    await ada.press("Make the agent", form)
    await expect(form.locator(".labelled", has_text="Name").get_by_role("alert")).to_be_visible()
    await form.get_by_label("Name").fill("captain")
    await form.get_by_label("Description").fill(HOSTILE)
    await form.get_by_label("Model").select_option("plain")
    await ada.press("Make the agent", form)
    row = ada.row("captain")
    await expect(row).to_contain_text(HOSTILE)
    await ada.run("Who are you?", agent_name="captain")
    assert "Captain Blue" in ada.prompt()
    await ada.press("Edit", row)
    await row.get_by_label("Character").fill("You are Captain Red.")
    await ada.press("Save", row)
    await expect(row.get_by_label("Character")).to_have_count(0)
    await ada.run("Who are you?", agent_name="captain")
    assert "Captain Red" in ada.prompt()
    await ada.press("History", row)
    await expect(row.locator(".history li")).to_have_count(2)
    assert await violations(ada.tab) == []
    await ada.press("Back to this", row, sure=True)
    await expect(row.locator(".history li")).to_have_count(3)
    await ada.run("Who are you?", agent_name="captain")
    assert "Captain Blue" in ada.prompt()
    await ada.press("Talk to it", row)
    await ada.tab.say("Aye?")
    await ada.tab.ended()
    assert "Captain Blue" in ada.prompt()
    await ada.go("agents")
    await ada.press("Delete", row, sure=True)
    await expect(row).to_have_count(0)


async def test_an_agent_is_made_in_a_conversation(ada: Settings) -> None:
    await ada.page.evaluate(
        "localStorage.setItem('sika.choices', JSON.stringify({model: 'makes', mode: 'pro', agent: ''}))"
    )
    await ada.page.reload()
    await ada.go("agents")
    form = ada.section.locator("form", has_text="What it should be like")
    await form.get_by_label("Name").fill("rhymer")
    await form.get_by_label("What it should be like").fill("One that rhymes")
    await ada.press("Begin the conversation", form)
    await ada.tab.ended()
    await ada.tab.say("Once more")
    await ada.tab.ended(2)
    runs = (await ada.ask("GET", f"threads/{ada.tab.thread}/runs"))["body"]
    assert [run["kwargs"]["context"].get("agent_name") for run in runs] == ["rhymer", "rhymer"]
    await ada.go("agents")
    await expect(ada.row("rhymer")).to_contain_text("Answers in rhymes")


async def test_a_schedule_is_made_runs_now_pauses_and_goes(ada: Settings) -> None:
    await ada.go("schedules")
    form = ada.section.locator("form")
    await form.get_by_label("Title").fill(HOSTILE)
    await form.get_by_label("What the agent is asked").fill("Say it now")
    await form.get_by_label("When").fill("whenever")
    await ada.press("Schedule it")
    await expect(form.get_by_role("alert")).to_contain_text("cron")
    await form.get_by_label("When").fill("30 7 * * *")
    await ada.press("Schedule it")
    row = ada.row(HOSTILE)
    await expect(row).to_contain_text("next: ")
    zone = await ada.page.evaluate("Intl.DateTimeFormat().resolvedOptions().timeZone")
    await expect(row).to_contain_text(zone)
    await ada.press("Run now", row)
    await ada.press("History", row)
    await expect(row.locator(".history li")).to_have_count(1)
    assert await violations(ada.tab) == []
    await ada.press("Pause", row)
    await expect(row).to_contain_text("paused")
    await ada.press("Go on", row)
    await expect(row).to_contain_text("next: ")
    await row.locator(".history a").click()
    await expect(ada.page.locator(".person").first).to_contain_text("Say it now")
    await ada.go("schedules")
    await ada.press("Delete", row, sure=True)
    await expect(row).to_have_count(0)


async def test_a_skill_is_checked_installed_edited_switched_and_rolled_back(ada: Settings) -> None:
    await ada.go("skills")
    archives = {name: archive(text) for name, text in (("broken", "no front matter"), ("haiku", SKILL))}
    choose = ada.section.locator("input[type=file]")
    await choose.set_input_files({"name": "broken.skill", "mimeType": "application/zip", "buffer": archives["broken"]})
    await ada.press("Upload a skill")
    await expect(ada.section.get_by_role("alert")).to_contain_text("SKILL.md")
    await choose.set_input_files({"name": "haiku.skill", "mimeType": "application/zip", "buffer": archives["haiku"]})
    await ada.press("Upload a skill")
    await expect(ada.section.get_by_role("status").first).to_have_text(
        "The skill haiku is installed. The check says: allow: harmless words"
    )
    row = ada.row("/haiku")
    await ada.press("Edit", row)
    await expect(row.get_by_label("SKILL.md")).to_have_value(SKILL)
    await row.get_by_label("SKILL.md").fill("nothing")
    await ada.press("Save", row)
    await expect(row.get_by_role("alert")).to_contain_text("SKILL.md")
    await row.get_by_label("SKILL.md").fill(SKILL.replace("Three lines", f"Seventeen syllables {HOSTILE}"))
    await ada.press("Save", row)
    await expect(row.get_by_label("SKILL.md")).to_have_count(0)
    await ada.run("/haiku of rain")
    assert "Seventeen syllables" in ada.prompt()
    await ada.press("History", row)
    await row.locator(".history summary").last.click()
    await expect(row.locator(".history pre").last).to_contain_text("Three lines.")
    assert await violations(ada.tab) == []
    await ada.press("Back to this", row.locator(".history li").last, sure=True)
    await expect(row.locator(".history li")).to_have_count(3)
    await ada.run("/haiku of rain")
    assert "Three lines." in ada.prompt()
    await ada.press("Turn off", row)
    await expect(row).to_have_class("off")
    await ada.run("/haiku of rain")
    assert "Three lines." not in ada.prompt()
    await ada.press("Delete", row, sure=True)
    await expect(row).to_have_count(0)


@pytest.mark.long
async def test_a_skill_of_an_address_is_off_until_the_verdict_was_read(root: Settings, ada: Settings) -> None:
    await ada.go("skills")
    form = ada.section.locator("form", has_text="Or its address")
    async with skills_served() as at:
        at.say("/tanka/SKILL.md", SKILL.replace("name: haiku", "name: tanka"))
        for url, problem in (
            ("https://github.com/ada/tools/issues", "OWNER/REPO/tree/REF/PATH is expected"),
            (f"{at.url}/gone", "answers HTTP 404"),
        ):
            await form.get_by_label("Or its address").fill(url)
            await ada.press("Install from the address")
            await expect(form.get_by_role("alert")).to_contain_text(problem)
        await form.get_by_label("Or its address").fill(f"{at.url}/tanka/SKILL.md")
        await ada.press("Install from the address")
        await expect(form.get_by_role("status")).to_have_text(
            "The skill tanka is installed, and off until you turn it on. The check says: allow: harmless words"
        )
    row = ada.row("/tanka")
    await expect(row).to_have_class("off")
    await root.go("skills")
    await expect(root.section.locator(".rows")).to_be_visible()
    await expect(root.row("/tanka")).to_have_count(0)
    assert await violations(ada.tab) == []
    await ada.run("/tanka of rain")
    assert "Three lines." not in ada.prompt()
    await ada.press("Turn on", row)
    await expect(row).not_to_have_class("off")
    await ada.run("/tanka of rain")
    assert "Three lines." in ada.prompt()
    await ada.press("Delete", row, sure=True)
    await expect(row).to_have_count(0)


@pytest.mark.long
async def test_a_skill_of_a_folder_at_github(ada: Settings, github: Hub) -> None:
    """Behind GitHub's redirects, also of a branch with slashes in its name; its limits and refusals name what to do."""
    await ada.go("skills")
    form = ada.section.locator("form", has_text="Or its address")

    async def install(address: str, role: Literal["alert", "status"], text: str) -> None:
        await form.get_by_label("Or its address").fill(f"https://github.com/ada/{address}")
        await ada.press("Install from the address")
        await expect(form.get_by_role(role)).to_contain_text(text)

    for address, name in (
        ("tools/tree/main/skills/sonnet", "sonnet"),
        ("tools/blob/main/skills/limerick/SKILL.md", "limerick"),
        ("tools/tree/feature/verse/more/ode", "ode"),
    ):
        await install(address, "status", f"The skill {name} is installed, and off until you turn it on.")
        row = ada.row(f"/{name}")
        await ada.press("Turn on", row)
        await expect(row).not_to_have_class("off")
    assert "codeload.github.com/ada/tools/zip/refs/heads/feature/verse" in github.asked
    await ada.run("/ode of rain")
    assert "Three lines." in ada.prompt()
    for address, problem in (
        ("secrets/tree/main/x", "github.com answers HTTP 404; is the address right, and may everybody read it?"),
        ("tools/tree/gone/skills/sonnet", "github.com answers HTTP 404; is the address right, and may everybody"),
        ("tools/tree/main/skills", "there is no SKILL.md in"),
    ):
        await install(address, "alert", problem)
    for status, headers, problem in (
        (429, {"Retry-After": "60"}, "HTTP 429: it takes no more requests from here; try again in 60 s"),
        (403, {"X-RateLimit-Remaining": "0"}, "HTTP 403: it takes no more requests from here; try again later"),
        (403, {}, "HTTP 403; is the address right, and may everybody read it?"),
    ):
        github.limited, github.status = headers, status
        await install("tools/tree/main/skills/sonnet", "alert", problem)
    github.limited = None


async def test_a_server_of_tools_is_tried_added_and_says_why_it_fails(root: Settings) -> None:
    await root.go("mcp")
    here = root.row("here")
    await root.press("Try it", here)
    await expect(here.locator(".tag")).to_have_text("works")
    await here.locator("summary").click()
    await expect(here.locator("code").first).to_contain_text("here_")
    form = root.section.locator("form")
    await form.get_by_label("Name").fill("away")
    await form.get_by_label("Settings").fill("{no json")
    await root.press("Add it")
    await expect(form.locator(".labelled", has_text="Settings").get_by_role("alert")).to_contain_text("mcp_servers: ")
    await form.get_by_label("Settings").fill('{"command": "sh", "args": ["-c", "id"]}')
    await root.press("Add it")
    await expect(form.get_by_role("alert")).to_contain_text("mcp_servers.away.command: 'sh' is none of")
    settings = {"type": "http", "url": "http://127.0.0.1:9/mcp", "headers": {"X-Any": HEADER}, "zebra": 1}
    await form.get_by_label("Settings").fill(json.dumps(settings))
    await root.press("Add it")
    away = root.row("away")
    await root.press("Try it", away)
    await expect(away.locator(".tag")).to_have_text("failed")
    await expect(away.locator(".error")).not_to_be_empty()
    await expect(root.section.locator(".warning")).to_contain_text("mcp_servers.away.zebra: unknown key")
    await root.press("Edit", away)
    shown = await away.get_by_label("Settings").input_value()
    assert json.loads(shown)["headers"] == {"X-Any": "***"}
    await away.get_by_label("Settings").fill(shown.replace(":9/", ":11/"))
    assert await violations(root.tab) == []
    await root.press("Save", away)
    everything = json.dumps([await root.page.content(), await root.ask("GET", "mcp/config")])
    assert HEADER not in everything
    await root.press("Turn off", away)
    await expect(away.locator(".tag")).to_have_text("off")
    await root.press("Delete", away, sure=True)
    await expect(away).to_have_count(0)
    await expect(here.first).to_be_visible()


async def test_a_login_at_a_server_of_tools_goes_there_and_back(root: Settings, ada: Settings) -> None:
    """By the browser's own redirects. The access is the person's, its tokens are shown nowhere, and it is given up."""
    async with authorization_server() as there:
        await root.go("mcp")
        form, notes = root.section.locator("form"), root.row("notes").first
        await form.get_by_label("Name").fill("notes")
        await form.get_by_label("Settings").fill(json.dumps({"type": "http", "url": there.server}))
        await root.press("Add it")
        await root.press("Try it", notes)
        await expect(notes).to_contain_text("not logged in")
        async with root.page.context.expect_page() as opened:
            await root.press("Log in", notes)
        back = await opened.value
        await expect(back.get_by_role("heading")).to_have_text("Logged in")
        assert back.url.startswith(f"{root.tab.site.server.url}/api/mcp/oauth/callback?"), "by way of its server"
        await back.close()
        await root.tab.look_again()
        await expect(notes.get_by_role("button", name="Give the access up")).to_be_visible()
        await root.press("Try it", notes)
        await expect(notes.locator(".tag")).to_have_text("works")
        await expect(notes).to_contain_text("logged in")
        thread = await root.run("Read my notes", "notes")
        log = await root.ask("GET", f"threads/{thread}/log")
        assert "buy milk" in json.dumps(log["body"])
        assert [one["state"] for one in (await ada.ask("GET", "mcp/oauth"))["body"]["servers"]] == ["none"]
        answers = [await root.ask("GET", path) for path in ("mcp/config", "mcp/oauth", "mcp/servers")]
        shown = [await root.page.content(), log, *answers]
        [family] = there.families
        assert not [token for token in (family.access, family.refresh) if token in json.dumps(shown)]
        await root.press("Give the access up", notes, sure=True)
        await expect(notes).not_to_contain_text("logged in")
        assert family.revoked
        await root.press("Delete", notes, sure=True)
        await expect(notes).to_have_count(0)


async def test_a_link_to_a_moment_is_for_people_who_may_see_the_thread(
    root: Settings, ada: Settings, chromium: Browser, site: Site
) -> None:
    """Elsewhere its owner signs in, and is at the moment; to a colleague the thread is not there."""
    thread = await ada.run("Count")
    [answer] = (await ada.ask("GET", f"threads/{thread}/log/events?type=model.completed"))["body"]["events"]
    address = f"{site.server.url}/#/timeline/{thread}/{answer['seq']}"
    async with tab(chromium, site) as elsewhere:
        await elsewhere.page.goto(address)
        dialog = elsewhere.page.get_by_role("dialog")
        await dialog.get_by_label("Address").fill(ADA)
        await dialog.get_by_label("Password").fill(PASSWORD)
        await dialog.get_by_role("button", name="Sign in", exact=True).click()
        await expect(elsewhere.page.locator(".tl-moment")).to_contain_text("One two three.")
    await root.page.goto(address)
    await expect(root.page.get_by_role("alert")).to_have_text("There is no such conversation")
    assert "One two three." not in await root.page.content()
    for path in ("log", "log/events", "log/state", "log/export", "log/pin?run=1", "log/replay?run=1", "log/files"):
        assert (await root.ask("GET", f"threads/{thread}/{path}"))["status"] == 404, path


async def test_a_bot_says_how_it_is_and_its_credentials_are_entered_and_tested(
    root: Settings, ada: Settings, telegram: TelegramServer
) -> None:
    """Its platform refuses a message, then its token."""
    await root.go("channels")
    row = root.section.locator(".rows > li", has_text="telegram").first
    await root.press("Test", row)
    await expect(row.locator(".findings > *").first).to_be_visible()
    await expect(row.locator(".error")).to_have_count(0)
    telegram.faults.add("sendMessage", "gone", 100, status=400, description=HOSTILE)
    telegram.person("stranger").says("hello")

    async def failed() -> bool:
        await root.tab.look_again()
        return await row.get_by_text("Last failure: ").count() > 0

    await wait_for(failed, every=1.0)  # each look asks the server, and what it asked before is not shown any more
    await expect(row.locator("small.error")).to_contain_text(HOSTILE)
    telegram.faults.clear()
    telegram.token = "another one"
    await root.press("Test", row)
    await expect(row.locator(".findings .error").first).to_contain_text("does not accept the bot token")
    platform = root.section.locator(".rows > li", has_text="Slack").last
    await root.press("Enter credentials", platform)
    await root.press("Save", platform)
    await expect(platform.get_by_role("alert")).to_contain_text("missing: ")
    for field in await platform.locator("input").all():
        await field.fill("xoxb-entered-by-root-4715")
    await root.press("Save", platform)
    await expect(platform).to_contain_text("has its credentials.")
    assert await violations(root.tab) == []
    everything = json.dumps([await root.page.content(), await root.ask("GET", "channels/providers")])
    assert "xoxb-entered-by-root-4715" not in everything
    await root.press("Forget what was entered", platform, sure=True)
    await expect(platform).to_contain_text("has no credentials.")
    await ada.go("channels")
    await ada.press("Connect me", ada.section.locator(".rows > li", has_text="Telegram").last)
    await expect(ada.section.get_by_role("status").locator("code")).not_to_be_empty()
    await expect(ada.section.get_by_role("button", name="Test")).to_have_count(0)
    assert (await ada.ask("POST", "channels/telegram/test"))["status"] == 403
