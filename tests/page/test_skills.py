"""Skills in the browser: an archive is uploaded or dropped, refused with its reason, called, and removed."""

from __future__ import annotations

import io
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.e2e.servers import serving
from tests.page.site import SCRIPTS, Site, Tab, violations
from tests.page.test_access import shot
from tests.support.model_server import ModelServer, Script, Turn
from tests.support.workers import configure

pytestmark = pytest.mark.anyio

TEXT = "---\nname: haiku\ndescription: Writes a haiku about what it is given.\n---\n\nThree lines: 5, 7, 5.\n"


def archive(text: str = TEXT, name: str = "haiku/SKILL.md") -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr(name, text)
    return packed.getvalue()


@pytest.fixture(scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory, anyio_backend: str) -> AsyncIterator[Site]:
    path: Path = tmp_path_factory.mktemp("skills")
    models: dict[str, Script | list[Turn]] = {
        "plain": SCRIPTS["plain"],
        "judge": [Turn(text='{"decision": "allow", "reason": "harmless"}')],
    }
    async with ModelServer(models) as server_of_models:
        config = configure(path / "config.yaml", server_of_models, skill_evolution={"moderation_model_name": "judge"})
        async with serving(path / "home", config) as server:
            yield Site(server, server_of_models)


async def test_a_skill_is_uploaded_called_and_removed(page: Tab) -> None:
    await page.open()
    await page.page.get_by_role("button", name="More", exact=True).click()
    await page.page.get_by_role("menuitem", name="Skills").click()
    dialog = page.page.get_by_role("dialog")
    broken = {"name": "broken.skill", "mimeType": "application/zip", "buffer": archive("no front matter")}
    await dialog.locator("input[type=file]").set_input_files(broken)  # type: ignore[arg-type]
    await expect(dialog.get_by_role("alert")).to_contain_text("SKILL.md")
    good = {"name": "haiku.skill", "mimeType": "application/zip", "buffer": archive()}
    await dialog.locator("input[type=file]").set_input_files(good)  # type: ignore[arg-type]
    await expect(dialog.get_by_role("status")).to_have_text("The skill haiku is installed.")
    own = dialog.locator("li", has_text="/haiku")
    await expect(own).to_contain_text("Writes a haiku")
    assert await violations(page) == []
    await shot(page, "skills")
    await page.page.keyboard.press("Escape")
    await page.page.fill("#composer", "/hai")
    await expect(page.page.locator("#completions")).to_contain_text("/haiku")
    await page.page.fill("#composer", "/skills")
    await page.page.press("#composer", "Enter")
    await own.get_by_role("button", name="Delete").click()
    await expect(own).to_have_count(0)
    await page.page.keyboard.press("Escape")
    await page.page.fill("#composer", "/hai")
    await expect(page.page.locator("#completions")).to_have_count(0)


async def test_a_dropped_archive_is_a_skill_and_no_attachment(page: Tab) -> None:
    await page.open()
    await page.say("/skills")
    dialog = page.page.get_by_role("dialog")
    data = await page.page.evaluate_handle(
        """bytes => { const data = new DataTransfer();
        data.items.add(new File([new Uint8Array(bytes)], "haiku.skill")); return data; }""",
        list(archive()),
    )
    await dialog.locator(".skill-drop").dispatch_event("drop", {"dataTransfer": data})
    await expect(dialog.get_by_role("status")).to_have_text("The skill haiku is installed.")
    await expect(page.page.locator(".attachments")).to_have_count(0)
    await dialog.locator("li", has_text="/haiku").get_by_role("button", name="Delete").click()
