"""Views of installed packages in the browser: reached by the menu, in both languages, and broken ones harm nothing."""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.e2e.servers import Server
from tests.extending.pages import ROOT, install, write
from tests.page.site import SCRIPTS, Site, Tab, violations
from tests.support.model_server import ModelServer
from tests.support.workers import configure

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=2)]

BROKEN = {
    "throws": "export const view = () => () => { throw new Error('on purpose'); };",
    "unreadable": "export const view = ;",
    "eager": "export const view = () => { document.body.innerHTML = '<b>mine</b>'; };",
}
"""Scripts of views that cannot be shown; the last one does what the content policy forbids."""


@pytest.fixture(scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory, anyio_backend: str) -> AsyncIterator[Site]:
    path: Path = tmp_path_factory.mktemp("added")
    install([write("view", path / "calendar")], path / "packages")
    about = path / "packages" / "broken-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[sika.views]\n" + "".join(f"{name} = {name}\n" for name in BROKEN))
    for name, script in BROKEN.items():
        (path / "packages" / name).mkdir()
        (path / "packages" / name / "view.js").write_text(script)
        (path / "packages" / name / "words.json").write_text(json.dumps({"en": {"title": f"<b>{name}</b>"}}))
    async with ModelServer(SCRIPTS) as models:
        server = Server(path / "home", configure(path / "config.yaml", models))
        await server.start(PYTHONPATH=os.pathsep.join((str(path / "packages"), str(ROOT))))
        try:
            yield Site(server, models)
        finally:
            await server.kill()


@pytest.mark.parametrize(("language", "more", "title"), [("en", "More", "Days"), ("zh", "更多", "日期")])
async def test_a_view_is_entered_by_the_menu(page: Tab, site: Site, language: str, more: str, title: str) -> None:
    """Its files are asked for then, and no sooner."""
    await site.ask("POST", "/threads", {})
    names: list[str] = []
    page.page.on("request", lambda request: names.extend(re.findall(r"/page/(added-.*)-", request.url)))
    await page.open(language=language)
    await page.page.get_by_role("button", name=more, exact=True).click()
    assert names == []
    await page.page.get_by_role("menuitem", name=title).click()
    await expect(page.page.get_by_role("heading", name=title)).to_be_visible()
    await expect(page.page.locator(".added-calendar tbody tr")).to_have_text([re.compile(r"\d{4}-\d\d-\d\d\d+")])
    assert await page.page.locator(".added-calendar td").last.evaluate("e => getComputedStyle(e).textAlign") == "right"
    assert set(names) == {"added-calendar"}
    assert await violations(page) == []


@pytest.mark.parametrize("name", [*BROKEN, "nowhere"])
async def test_a_view_that_is_broken_leaves_the_page_as_it_is(page: Tab, name: str) -> None:
    page.expected = ("Failed", "Error: on purpose", "SyntaxError", "TypeError", "policy require-trusted", "This doc")
    await page.open()
    await page.page.evaluate(f"location.hash = '#/added/{name}'")
    await expect(page.page.get_by_role("alert")).to_have_text(re.compile("cannot be shown"))
    await page.page.evaluate("location.hash = '#/'")
    await expect(page.page.locator("#composer")).to_be_visible()
