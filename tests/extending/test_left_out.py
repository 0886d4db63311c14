"""An actor whose package breaks: the server runs without it, and nothing that was to be handled is lost."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import aiohttp
import pytest

from tests.extending.test_pages import SCRIPTS, SECONDS, Site, paths, served
from tests.support import warm
from tests.support.model_server import ModelServer
from tests.support.workers import configure, wait_for

PRAISE = """
from core.actor import Actor, Context
from core.events import Event, RunCompleted


class RunApplauded(Event, frozen=True):
    '''Somebody clapped.'''


class Applause(Actor[RunCompleted]):
    name = "applause"

    async def handle(self, event, ctx):
        await ctx.append(RunApplauded())
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The module of a package whose actor appends an event of its own."""
    about = tmp_path / "packages" / "applause-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: applause\nVersion: 1.0\n")
    entries = "[sika.actors]\napplause = applause:Applause\n[sika.events]\napplause = applause\n"
    (about / "entry_points.txt").write_text(entries)
    return tmp_path / "packages" / "applause.py"


async def applauded(site: Site, thread: str) -> bool:
    return len(await site.log(thread, "run.applauded")) == 1


async def test_wake_ups_wait_for_an_actor_that_is_left_out(package: Path, tmp_path: Path) -> None:
    async with ModelServer({"plain": SCRIPTS["plain"]}) as models:
        configure(tmp_path / "config.yaml", models)
        threads: list[str] = []
        for code, problem in ((PRAISE, ""), (PRAISE + "\nimport nowhere", "there is no module nowhere"), (PRAISE, "")):
            package.write_text(code)
            async with (
                served(tmp_path, package.parent, "--config", "config.yaml") as url,
                aiohttp.ClientSession() as session,
            ):
                site = Site(tmp_path, url, session)
                problems = {plugin["problem"].partition(";")[0] for plugin in await site.get("/plugins")}
                assert problems == {problem}
                threads.append(await site.run("plain"))
                if problem:
                    state = await site.get(f"/threads/{threads[0]}/state")
                    assert state["values"]["messages"][-1]["content"] == "All is well.\nReally."
                    assert await applauded(site, threads[0]), "its event stays readable"
                    continue
                for thread in threads:
                    await wait_for(partial(applauded, site, thread))


def test_the_command_and_the_doctor_say_why(package: Path, tmp_path: Path) -> None:
    package.write_text("import nowhere")
    texts = {
        "plugins": "left out: there is no module nowhere",
        "doctor": "applause of sika.actors (applause): there is no module nowhere",
    }
    for command, text in texts.items():
        done = warm.run(
            "channels.cli", command, "--home", "home", env=paths(package.parent), cwd=tmp_path, timeout=SECONDS
        )
        assert text in done.stdout
        assert done.returncode == (command == "plugins")
