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
    await expect(page.page.locator(".try")).to_have_count(4)
    return page


async def test_a_chart_is_drawn(begun: Tab) -> None:
    await begun.page.get_by_role("button", name="A chart").click()
    await begun.ended()
    picture = begun.page.locator(".answer img")
    await expect(picture).to_be_visible()
    assert await picture.evaluate("async (image) => { await image.decode(); return image.naturalWidth > 0; }")
    await expect(begun.page.locator(".step").last).to_contain_text("planets.svg")


async def test_a_table_is_made(begun: Tab) -> None:
    await begun.page.get_by_role("button", name="A table").click()
    await begun.ended()
    await expect(begun.page.get_by_role("cell", name="142,984")).to_be_visible()
    await expect(begun.page.locator(".answer table tr")).to_have_count(9)


async def test_a_report_is_written_by_a_plan(begun: Tab) -> None:
    await begun.page.get_by_role("button", name="Research").click()
    await begun.ended()
    await expect(begun.page.locator(".step", has_text="Wrote")).to_contain_text("report.md")
    await expect(begun.page.locator(".step", has_text="Planned").first).to_be_visible()


async def test_a_file_is_written(begun: Tab, site: Site) -> None:
    await begun.page.get_by_role("button", name="A file").click()
    await begun.ended()
    await expect(begun.page.locator(".step")).to_contain_text("hello.txt")
    files = await site.ask("GET", f"/threads/{begun.thread}/files")
    assert [file["name"] for file in files["files"] if file["kind"] == "file"] == ["hello.txt"]


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
