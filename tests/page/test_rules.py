"""Every view and dialog keeps every rule of axe-core, in all pairs of themes and languages."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.async_api import Browser, expect

from channels import web
from tests.e2e.servers import serving
from tests.page.site import TODOS, Site, Tab, bash, tab, violations
from tests.support.model_server import Failure, ModelServer, Script, ToolCall, Turn
from tests.support.workers import configure

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300), pytest.mark.long(keep=6)]

OUTPUTS = "/mnt/user-data/outputs"
TASK = ToolCall("task", {"description": "Count", "prompt": "How many?", "subagent_type": "general-purpose"})
QUESTION = ToolCall("ask_clarification", {"question": "Which city?", "options": ["Bern", "Graz"]})
WRITES = tuple(
    ToolCall("write_file", {"path": f"{OUTPUTS}/{name}", "content": text})
    for name, text in (("notes.md", "# Notes\n\ntext"), ("table.csv", "a,b\n1,2\n"), ("page.html", "<p>text"))
)
SCRIPTS: dict[str, Script | list[Turn]] = {
    "plain": [Turn(text="One two three.")],
    "suggests": [Turn(text='["And of Graz?", "And of Bern?"]')],
    "careful": [Turn(tool_calls=(bash("echo careful"),)), Turn(text="It is done.")],
    "asks": [Turn(tool_calls=(QUESTION,)), Turn(text="I see.")],
    "delegates": [Turn(tool_calls=(TASK,)), Turn(text="Two.")],
    "writes": [Turn(tool_calls=WRITES), Turn(text="Written.")],
    "fails": [Turn(error=Failure(status=401, message="Incorrect API key provided", code="invalid_api_key"))],
}
WORDS = " ".join(f"word{n}" for n in range(60))
SCRIPTS |= {
    gate: Script(
        (Turn(tool_calls=(TODOS,)), Turn(text=WORDS, gate=gate, gate_after=12), Turn(text="Understood.")), count="total"
    )
    for gate in ("gated0", "gated1", "gated2", "gated3")
}
CHOOSE = "name => localStorage.setItem('sika.choices', JSON.stringify({model: name, mode: 'ultra', agent: ''}))"
Scheme = Literal["light", "dark"]
LOOKS: list[tuple[Scheme, str]] = [("light", "en"), ("dark", "zh"), ("light", "zh"), ("dark", "en")]
looks = pytest.mark.parametrize(("scheme", "language"), LOOKS)


@pytest.fixture(scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory, anyio_backend: str) -> AsyncIterator[Site]:
    """A server with accounts, of which there is none yet, and with everything that a view may show."""
    path: Path = tmp_path_factory.mktemp("rules")
    async with ModelServer(SCRIPTS) as models:
        settings: dict[str, Any] = {
            "auth": {"enabled": True, "registration": True},
            "approvals": [{"tool": "bash", "match": {"command": "careful"}}],
            "suggestions": {"model_name": "suggests"},
            "subagents": {"agents": {"general-purpose": {"model": "plain"}}},
            "agents_api": {"enabled": True},
            "http": {"heartbeat_seconds": 1},
        }
        config = configure(path / "config.yaml", models, **settings)
        async with serving(path / "home", config) as server:
            yield Site(server, models)


ACCOUNT_DIALOGS = {"password": "dialog [autocomplete=new-password]", "keys": "dialog #key-days"}
DIALOGS = {
    "account/keys.js": 1,
    "account/password.js": 1,
    "account/view.js": 1,
    "chat/dialogs.js": 4,  # keys, rename, goal, export
    "chat/subagent.js": 1,
    "files/changes.js": 1,
    "share/dialog.js": 1,
    "skills/dialog.js": 1,
}
"""Dialogs of each module: all of them are opened below."""
VIEWS = {"": ".try", "t": ".answer", "approvals": ".waiting-list article", "files": ".file-tree li"}
VIEWS |= {"settings": ".settings-section form", "operate": ".operate-section .tiles"}
VIEWS |= {"timeline": ".tl-row"}
"""By the beginning of its address, what a view shows: all of them are opened by `test_views`, as is what people share
with others here (`shared`). Those of packages (`added`) are opened by `test_added`."""
ROOMS = {"account/view.js": "SignIn", "approvals/view.js": "View", "chat/view.js": "Chat", "files/view.js": "View"}
ROOMS |= {"share/view.js": "View", "added/view.js": "View"}
"""Modules of views: those of addresses, where people sign in, and the page at `/shared`."""


def sources() -> dict[str, str]:
    """The modules of the page, by their place."""
    root = Path(web.__file__).parent
    modules = (path for path in root.rglob("*.js") if "vendor" not in path.parts)
    return {str(path.relative_to(root)): path.read_text() for path in modules}


def test_no_dialog_is_forgotten() -> None:
    assert {name: text.count("<${Dialog}") for name, text in sources().items() if "<${Dialog}" in text} == DIALOGS


def test_no_view_is_forgotten() -> None:
    texts = sources()
    [table] = re.findall(r"const VIEWS = \{\n(.*?)\n\};", texts["main.js"], re.DOTALL)
    assert [line.strip().split(":")[0].strip('"') for line in table.splitlines()] == [*VIEWS, "shared", "added"]
    rooms = {name: re.findall(r"^export function ([A-Z]\w*)", text, re.MULTILINE) for name, text in texts.items()}
    assert {name: views[0] for name, views in rooms.items() if views and name.endswith("/view.js")} == ROOMS


class Walk:
    """A tab that is led from view to view, and the rules that each breaks."""

    def __init__(self, page: Tab) -> None:
        self.tab, self.page = page, page.page
        self.thread = ""
        self.broken: dict[str, list[str]] = {}

    async def look(self, name: str, selector: str) -> None:
        """Tries the rules as soon as there is something."""
        await expect(self.page.locator(selector).first).to_be_visible()
        if broken := await violations(self.tab):
            self.broken[name] = broken

    async def go(self, place: str) -> None:
        await self.page.goto(f"{self.tab.site.server.url}/#/{place}")

    async def press(self, selector: str) -> None:
        await self.page.locator(selector).first.click()

    async def menu(self, button: str, name: str) -> None:
        await self.press(button)
        await self.look(name, "[role=menu]")
        await self.page.keyboard.press("Escape")

    async def share(self, audience: str) -> str:
        """Makes an address for people in the dialog, which stays open."""
        await self.tab.say("/share")
        await self.look("share", "dialog .card-actions")
        await self.page.locator(f"dialog input[type=radio][value={audience}]").check()
        await self.press("dialog .card-actions .first")
        await self.look("address", "dialog .rows li")
        return await self.page.locator("dialog input[readonly]").input_value()

    async def run(self, model: str, *, ended: bool = True) -> None:
        """Begins a conversation with a run of a model, and waits for its end if it has one."""
        await self.go("")
        await self.page.evaluate(CHOOSE, model)
        await self.page.reload()
        await self.page.wait_for_selector("#composer")
        await self.tab.say("Go on")
        await self.page.wait_for_url("**/#/t/*")
        self.thread = self.tab.thread
        if ended:
            await self.tab.ended()


@asynccontextmanager
async def walking(
    browser: Browser, site: Site, scheme: Scheme, language: str, state: Any = None
) -> AsyncIterator[Walk]:
    async with tab(browser, site, color_scheme=scheme, storage_state=state) as page:
        await page.open(language=language)
        walk = Walk(page)
        yield walk
        assert walk.broken == {}


@looks
async def test_where_the_first_administrator_is_made(
    chromium: Browser, site: Site, scheme: Scheme, language: str
) -> None:
    async with walking(chromium, site, scheme, language) as walk:
        await walk.look("first", "dialog.sign-in input")


@pytest.fixture(scope="module")
async def person(chromium: Browser, site: Site) -> Any:
    """What the browser keeps of somebody who is signed in."""
    async with tab(chromium, site) as page:
        account = {"email": "root@example.org", "password": "correct horse battery"}
        url = f"{site.server.url}/api/v1/auth/initialize"
        assert (await page.page.context.request.post(url, data=account)).ok
        return await page.page.context.storage_state()


@looks
async def test_where_people_sign_in(chromium: Browser, site: Site, person: Any, scheme: Scheme, language: str) -> None:
    async with walking(chromium, site, scheme, language) as walk:
        await walk.look("sign in", "dialog.sign-in input")
        await walk.page.fill("dialog [type=email]", "nobody@example.org")
        await walk.page.fill("dialog [type=password]", "wrong")
        await walk.page.press("dialog [type=password]", "Enter")
        await walk.look("wrong", "dialog [role=alert]")
        await walk.press("dialog p > button.quiet")
        await walk.look("register", "dialog.sign-in [autocomplete=new-password]")


@looks
async def test_a_conversation_at_work(
    chromium: Browser, site: Site, person: Any, scheme: Scheme, language: str
) -> None:
    gate = f"gated{LOOKS.index((scheme, language))}"
    async with walking(chromium, site, scheme, language, person) as walk:
        await walk.look("begin", ".try")
        await walk.run(gate, ended=False)
        await walk.press(".todos-line")
        await walk.look("text in the making", ".growing .markdown")
        await walk.tab.say("Later")
        await walk.look("queue or steer", ".how")
        await walk.press(".how button")
        await walk.look("queue", ".queue")
        await walk.page.context.set_offline(True)
        await walk.look("lost", ".connection")
        await walk.page.context.set_offline(False)
        site.models.release(gate)
        await walk.tab.ended(2)
        await walk.run("plain")
        await walk.look("suggestions", ".suggestion")
        for model, selector in (("asks", ".card.waiting"), ("delegates", ".subagent-card"), ("fails", ".error-card")):
            await walk.run(model)
            await walk.look(model, selector)
            if model == "delegates":
                await walk.press(".subagent-card")
                await walk.look("subagent", "dialog .answer")


@looks
async def test_views(chromium: Browser, site: Site, person: Any, scheme: Scheme, language: str) -> None:
    """Each view, and what a share shows to those who have no account and once it is revoked."""
    async with walking(chromium, site, scheme, language, person) as walk:
        await walk.run("careful", ended=False)
        await walk.look("card", ".card.waiting")
        await walk.run("writes")
        for view, selector in VIEWS.items():
            await walk.go(f"{view}/{walk.thread}" if view in ("t", "files", "timeline") else view)
            await walk.look(view, selector)
        await walk.go(f"t/{walk.thread}")
        address = await walk.share("everybody")
        async with walking(chromium, site, scheme, language) as stranger:
            await stranger.page.goto(address)
            await stranger.look("shared", ".shared .answer")
            await walk.press("dialog .rows button")
            await expect(walk.page.locator("dialog .rows li")).to_have_count(0)
            await stranger.page.reload()
            await stranger.look("revoked", ".gone")
        await walk.go(f"t/{walk.thread}")
        await walk.page.goto(await walk.share("accounts"))
        await walk.look("shared with people here", ".answer")


@looks
async def test_dialogs_menus_and_forms(
    chromium: Browser, site: Site, person: Any, scheme: Scheme, language: str
) -> None:
    async with walking(chromium, site, scheme, language, person) as walk:
        await walk.run("plain")
        await walk.page.set_input_files("[data-attach]", {"name": "a.txt", "mimeType": "text/plain", "buffer": b"a"})
        await walk.look("attachment", ".attachments .file")
        for number in range(await walk.page.locator("button.chooser").count()):
            await walk.menu(f"button.chooser >> nth={number}", f"chooser {number}")
        for button in (".sidebar-foot", ".chat-header", "li.thread"):
            for number in range(await walk.page.locator(f"{button} [aria-haspopup=menu]").count())[:4]:
                await walk.menu(f"{button} [aria-haspopup=menu] >> nth={number}", f"{button} {number}")
        for command in ("goal", "export", "help", "skills"):
            await walk.tab.say(f"/{command}")
            await walk.look(command, "dialog[open]")
            if command == "goal":
                await walk.page.fill("dialog textarea", "All is said")
                await walk.press("dialog [type=submit]")
                await walk.look("goal in view", ".goal")
            await walk.page.keyboard.press("Escape")
        for number, (name, selector) in enumerate(ACCOUNT_DIALOGS.items()):
            await walk.press(".sidebar-foot .menu:has([aria-label*='root@example.org']) > button")
            await walk.press(f"[role=menuitem] >> nth={number}")
            await walk.look(name, selector)
            await walk.page.keyboard.press("Escape")
        await walk.press(".chat-header [aria-haspopup=menu]")
        await walk.press("[role=menuitem] >> nth=0")
        await walk.look("rename", "dialog input")
        await walk.page.keyboard.press("Escape")
        await walk.share("everybody")
        await walk.page.keyboard.press("Escape")
        await walk.page.hover(".person")
        await walk.press(".person .edit")
        await walk.look("edit", ".editing")
        await walk.page.keyboard.press("Escape")
        await walk.page.fill("#search", "Go")
        await walk.look("search", "li.thread mark")
        await walk.page.fill("#search", "")
        await walk.press("li.thread.current [aria-haspopup=menu]")
        await walk.press("[role=menu] .danger")
        await walk.look("undo", ".toast")


@looks
async def test_rooms(chromium: Browser, site: Site, person: Any, scheme: Scheme, language: str) -> None:
    async with walking(chromium, site, scheme, language, person) as walk:
        await walk.run("careful", ended=False)
        await walk.look("card", ".card.waiting")
        await walk.press("a[href='#/approvals']")
        await walk.look("approvals", ".waiting-list article")
        await walk.run("writes")
        await walk.press("a[href^='#/files/']")
        await walk.look("files", ".files-room")
        for file in ("notes.md", "table.csv", "page.html"):
            await walk.go(f"files/{walk.thread}{OUTPUTS}/{file}")
            await walk.look(file, ".file-shown")
        await walk.go(f"files/{walk.thread}")
        await walk.press(".files-room .tab >> nth=1")
        await walk.look("changes", ".change pre")
        await walk.press(".change-undo button")
        await walk.look("take back", "dialog[open]")
