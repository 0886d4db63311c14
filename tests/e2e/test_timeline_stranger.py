"""Conversations that went wrong, and somebody who has not seen them: in at most four clicks the page shows the cause.

Each case is a task: what the person is told, the clicks that they make, and the words that are the cause.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Locator, expect

from core.ids import uuid7
from tests.e2e.servers import serving, until
from tests.page.conftest import anyio_backend as anyio_backend
from tests.page.conftest import chromium as chromium
from tests.page.conftest import page as page
from tests.page.site import Site, Tab, bash
from tests.support.model_server import Failure, ModelServer, Script, ToolCall, Turn
from tests.support.ports import free_port
from tests.support.workers import configure, wait_for

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240), pytest.mark.long(keep=5)]

MOST_CLICKS = 4
REPORT = "/mnt/user-data/outputs/report.md"
TASK = ToolCall("task", {"description": "Write", "prompt": "Write the report", "subagent_type": "general-purpose"})
WRONG = ToolCall("write_file", {"path": REPORT, "content": "Bern has 1345 people"})
SCRIPTS: dict[str, Script | list[Turn]] = {
    "loops": [*(Turn(tool_calls=(bash("cat /mnt/user-data/missing.csv"),)) for _ in range(12)), Turn(text="Sorry.")],
    "fails": [Turn(error=Failure(status=401, message="Incorrect API key provided", code="invalid_api_key"))],
    "asks": [Turn(tool_calls=(bash("rm -r drafts"),)), Turn(text="Removed.")],
    "writer": [Turn(tool_calls=(WRONG,)), Turn(text="Written.")],
    "delegates": [
        Turn(tool_calls=(TASK,)),
        Turn(tool_calls=(ToolCall("present_files", {"filepaths": [REPORT]}),)),
        Turn(text="Here is the report."),
    ],
    "dies": [Turn(text="one two three four", gate="dies", gate_after=2)],
}


@pytest.fixture(scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory, anyio_backend: str) -> AsyncIterator[Site]:
    path: Path = tmp_path_factory.mktemp("stranger")
    async with ModelServer(SCRIPTS) as models:
        settings: dict[str, Any] = {
            "runs": {"lease_seconds": 2},
            "http": {"heartbeat_seconds": 1},
            "approvals": [{"tool": "bash", "match": {"command": "rm "}}],
            "subagents": {"agents": {"general-purpose": {"model": "writer"}}},
        }
        config = configure(path / "config.yaml", models, **settings)
        async with serving(path / "home", config, "--port", str(free_port())) as server:
            yield Site(server, models)


class Stranger:
    """Somebody at a conversation, whose clicks are counted."""

    def __init__(self, page: Tab) -> None:
        self.tab, self.page = page, page.page
        self.clicks = 0

    async def click(self, target: Locator) -> None:
        await target.click()
        self.clicks += 1

    async def timeline(self) -> None:
        await self.click(self.page.get_by_role("button", name="This conversation"))
        await self.click(self.page.get_by_role("menuitem", name="Timeline"))

    async def lane(self, name: str) -> None:
        await expect(self.page.locator(".tl-names li", has_text=name)).to_be_visible()

    async def problem(self, text: str) -> None:
        await self.click(self.page.locator(".tl-problem", has_text=text).first)

    async def row(self, text: str) -> None:
        await self.click(self.page.locator(".tl-row", has_text=text).first)

    async def look_at(self, name: str) -> None:
        await self.click(self.page.locator(".tl-tabs").get_by_role("button", name=name, exact=True))

    async def sees(self, text: str | re.Pattern[str]) -> None:
        await expect(self.page.locator(".tl-moment")).to_contain_text(text)


@asynccontextmanager
async def told(page: Tab, thread: str) -> AsyncIterator[Stranger]:
    await page.open(place=f"t/{thread}")
    await expect(page.page.locator(".person").first).to_be_visible()
    stranger = Stranger(page)
    yield stranger
    assert 0 < stranger.clicks <= MOST_CLICKS


async def begin(site: Site, model: str, until: str) -> str:
    """A conversation, once its log has an event of a type."""
    thread = uuid7()
    await site.run(thread, "Report on our cities", model)
    await wait_for(lambda: has(site, thread, until))
    return thread


async def has(site: Site, thread: str, kind: str) -> bool:
    return kind in [record["type"] for record in await site.ask("GET", f"/threads/{thread}/log")]


async def test_a_tool_failed_again_and_again(page: Tab, site: Site) -> None:
    """“It said sorry. Why?”: the file that it looked for is not there, and it looked until it was stopped."""
    thread = await begin(site, "loops", "run.completed")
    async with told(page, thread) as stranger:
        await stranger.timeline()
        await expect(page.page.locator(".tl-problem", has_text="loop_detection stopped")).to_be_visible()
        await stranger.problem("missing.csv")
        await stranger.sees("No such file")


async def test_the_model_gave_up(page: Tab, site: Site) -> None:
    """“There is no answer.”: the provider refused the key."""
    thread = await begin(site, "fails", "run.failed")
    async with told(page, thread) as stranger:
        await stranger.click(page.page.locator(".error-card").get_by_role("link", name="Timeline"))
        await stranger.lane("Retries")
        await stranger.problem("The model did not answer")
        await stranger.sees(re.compile("401|auth"))


async def test_nobody_answered(page: Tab, site: Site) -> None:
    """“It has not moved since yesterday.”: it waits for a person."""
    thread = await begin(site, "asks", "run.paused")
    async with told(page, thread) as stranger:
        await stranger.timeline()
        await stranger.lane("Approvals")
        await stranger.problem("Approval asked for")
        await stranger.sees("Nobody has answered yet")
        await stranger.sees("rm -r drafts")


async def test_a_subagent_wrote_the_wrong_file(page: Tab, site: Site) -> None:
    """“The number in the report is wrong.”: the subagent wrote it so."""
    thread = await begin(site, "delegates", "run.completed")
    async with told(page, thread) as stranger:
        await stranger.timeline()
        await stranger.lane("Subagents")
        await stranger.row("Subagent ended")
        await stranger.look_at("Subagent")
        await stranger.sees("Bern has 1345 people")
        await stranger.sees("write_file")


async def test_a_process_was_killed(page: Tab, site: Site) -> None:
    """“It took for ever.”: its process was killed, and another one went on."""
    thread = await begin(site, "dies", "run.started")
    await until(lambda: site.models.counts["dies"] > 0)
    await site.server.kill()
    site.models.release("dies")
    await site.server.start()
    await wait_for(lambda: has(site, thread, "run.completed"))
    async with told(page, thread) as stranger:
        await stranger.timeline()
        await stranger.problem("A process works on the run")
        await stranger.sees(re.compile(r"the process before \(.+\) did not bring the run to its end"))
