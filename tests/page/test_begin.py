"""The first minute: a server without a model shows what an agent does, and what is wrong with its configuration."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.e2e.servers import serving
from tests.page.site import Site, Tab
from tests.support.model_server import ModelServer
from tests.support.workers import wait_for

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def config(tmp_path_factory: pytest.TempPathFactory, anyio_backend: str) -> Path:
    path = tmp_path_factory.mktemp("fresh") / "config.yaml"
    path.write_text(json.dumps({"http": {"heartbeat_seconds": 1}, "memory": {"enabled": False}}))
    return path


@pytest.fixture(scope="module")
async def site(config: Path) -> AsyncIterator[Site]:
    async with ModelServer({}) as models, serving(config.parent / "home", config) as server:
        yield Site(server, models)


@pytest.fixture
async def begun(page: Tab) -> Tab:
    """The empty page. It says who answers, and how to add a model."""
    await page.open("")
    hint = page.page.locator(".begin p", has_text="demo model")
    await expect(hint.locator("code")).to_have_text(["sika init", "models:"])
    assert "`" not in await page.page.inner_text(".begin")
    await expect(page.page.locator(".begin a")).to_have_attribute("href", "#/settings/models")
    await expect(page.page.locator(".try")).to_have_count(4)
    return page


async def test_a_chart_is_drawn(begun: Tab) -> None:
    await begun.page.get_by_role("button", name="A chart").click()
    await begun.ended()
    picture = begun.page.locator(".answer img")
    await expect(picture).to_be_visible()
    assert await picture.evaluate("async (image) => { await image.decode(); return image.naturalWidth > 0; }")
    await expect(begun.page.locator(".step").last).to_contain_text("planets.svg")


@pytest.mark.long
async def test_a_table_is_made(begun: Tab) -> None:
    await begun.page.get_by_role("button", name="A table").click()
    await begun.ended()
    await expect(begun.page.get_by_role("cell", name="142,984")).to_be_visible()
    await expect(begun.page.locator(".answer table tr")).to_have_count(9)


@pytest.mark.long
async def test_a_report_is_written_by_a_plan(begun: Tab) -> None:
    await begun.page.get_by_role("button", name="Research").click()
    await begun.ended()
    await expect(begun.page.locator(".step", has_text="Wrote")).to_contain_text("report.md")
    await expect(begun.page.locator(".step", has_text="Planned").first).to_be_visible()


@pytest.mark.long
async def test_a_file_is_written(begun: Tab, site: Site) -> None:
    await begun.page.get_by_role("button", name="A file").click()
    await begun.ended()
    await expect(begun.page.locator(".step")).to_contain_text("hello.txt")
    files = await site.ask("GET", f"/threads/{begun.thread}/files")
    assert [file["name"] for file in files["files"] if file["kind"] == "file"] == ["hello.txt"]


@pytest.mark.parametrize(
    "offer", ["A chart", *(pytest.param(offer, marks=pytest.mark.long) for offer in ("A table", "Research", "A file"))]
)
async def test_each_offer_can_be_tried_again(begun: Tab, offer: str) -> None:
    """The files of the answer before are there; the model reads them first, as the tools ask."""
    await begun.page.locator(".try", has_text=offer).click()
    await begun.ended()
    answer = await begun.page.locator(".answer .markdown").last.inner_text()
    await begun.page.locator(".answer").last.hover()
    await begun.page.get_by_role("button", name="Try again").click()
    await expect(begun.page.get_by_text("2/2")).to_be_visible()
    await begun.ended()
    await expect(begun.page.locator(".step", has_text="Read").first).to_be_visible()
    assert await begun.page.locator(".answer .markdown").last.inner_text() == answer


async def test_words_are_found_in_titles_and_read_without_marks(begun: Tab) -> None:
    await begun.page.locator(".try", has_text="A chart").click()
    await begun.ended()
    await begun.page.fill("#search", "widest")
    excerpt = begun.page.locator("li.thread small")
    await expect(excerpt.locator("mark").first).to_have_text("widest")
    assert not set("`[](") & set(await excerpt.first.inner_text())
    await begun.page.fill("#search", "chart")
    await expect(begun.page.locator(".thread-title mark").first).to_have_text("chart")


async def test_what_is_wrong_with_the_configuration_is_said(page: Tab, config: Path, site: Site) -> None:
    before = config.read_text()
    config.write_text(json.dumps({"http": {"port": "many"}}))

    async def noticed() -> bool:
        return (await site.ask("GET", "/models"))["problem"] is not None

    try:
        await wait_for(noticed, every=0.2)
        await page.open("")
        card = page.page.get_by_role("group", name="The configuration is not in force")
        await expect(card).to_contain_text("http.port")
    finally:
        config.write_text(before)
