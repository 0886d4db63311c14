"""Each kind of extension, added by the package of its page: which places it touches, and that it works on a server."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest

from core.config.settings import Config
from core.plugins import plugins
from core.skills.folders import Folders
from core.skills.library import folders_of
from tests.extending.pages import KINDS, PAGES, ROOT, files, install, is_test, write
from tests.extending.venvs import environment
from tests.support import warm
from tests.support.model_server import ModelServer, Script, ToolCall, Turn
from tests.support.workers import configure, wait_for

pytestmark = pytest.mark.long(keep=4)

SCRIPTS = {
    "plain": Script((Turn(text="All is well.\nReally."),)),
    "counts": Script((Turn(tool_calls=(ToolCall("count_words", {"text": "one two"}),)), Turn(text="Two.")), "total"),
    "rude": Script((Turn(tool_calls=(ToolCall("count_words", {"text": "heck it"}),)), Turn(text="Sorry.")), "total"),
    "sour": Script((Turn(text="Oh heck."),)),
    "mask": Script(
        (Turn(tool_calls=(ToolCall("bash", {"description": "look", "command": "umask"}),)), Turn(text="So.")), "total"
    ),
}
SECONDS = 120.0


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the packages of all pages are installed."""
    folder = tmp_path_factory.mktemp("packages")
    install([write(kind, folder / kind) for kind in KINDS], folder / "target")
    return folder / "target"


class Site:
    """A server with all of them, and a client."""

    def __init__(self, home: Path, url: str, session: aiohttp.ClientSession) -> None:
        self.home = home
        self.url = url
        self._session = session

    async def post(self, path: str, body: Any) -> Any:
        async with self._session.post(f"{self.url}/api{path}", json=body) as response:
            assert response.status < 300, await response.text()
            return await response.json()

    async def get(self, path: str) -> Any:
        async with self._session.get(f"{self.url}/api{path}") as response:
            assert response.status == 200, await response.text()
            return await response.json()

    async def run(self, model: str) -> str:
        """The thread of a finished run."""
        thread = str((await self.post("/threads", {}))["thread_id"])
        message = {"role": "user", "content": "hello"}
        body = {"input": {"messages": [message]}, "context": {"model_name": model}, "assistant_id": "lead_agent"}
        await self.post(f"/threads/{thread}/runs/wait", body)
        return thread

    async def log(self, thread: str, kind: str) -> list[Any]:
        return [event for event in await self.get(f"/threads/{thread}/log") if event["type"] == kind]

    async def frames(self, path: str, count: int) -> str:
        """The first frames of an endless stream."""
        async with self._session.get(f"{self.url}/api{path}") as response:
            text = ""
            async for chunk in response.content.iter_any():
                text += chunk.decode()
                if text.count("event: ") >= count and text.endswith("\n\n"):
                    break
            return text


@asynccontextmanager
async def served(home: Path, target: Path, *options: str) -> AsyncIterator[str]:
    """A `sika serve` whose Python finds the packages; its address."""
    words = ["serve", "--home", str(home / "home"), "--port", "0", *options]
    with (home / "stderr").open("ab") as errors:
        process = warm.start("channels.cli", *words, env=paths(target), cwd=home, stderr=errors.fileno())
    try:
        with anyio.fail_after(SECONDS):
            line = await process.line()
        yield address(line.decode(), home)
    finally:
        process.terminate()
        with anyio.CancelScope(shield=True):
            await process.waited()


@asynccontextmanager
async def served_by(python: str, home: Path, target: Path, *options: str) -> AsyncIterator[str]:
    """The same, of another Python, or of another checkout in `target`."""
    command = [python, "-m", "channels.cli", "serve", "--home", str(home / "home"), "--port", "0", *options]
    with (home / "stderr").open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            *command, env=paths(target), cwd=home, stdout=asyncio.subprocess.PIPE, stderr=errors
        )
    try:
        assert process.stdout is not None
        with anyio.fail_after(SECONDS):
            line = await process.stdout.readline()
        yield address(line.decode(), home)
    finally:
        if process.returncode is None:
            process.terminate()
        with anyio.CancelScope(shield=True):
            await process.communicate()


def paths(target: Path) -> Mapping[str, str]:
    """An environment in which Python finds the packages, and this checkout."""
    return {**environment(), "PYTHONPATH": os.pathsep.join((str(target), str(ROOT)))}


def address(line: str, home: Path) -> str:
    match = re.search(r"http://\S+", line)
    assert match, (home / "stderr").read_text()
    return match[0]


@pytest.fixture(scope="module")
async def site(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    home = tmp_path_factory.mktemp("site")
    async with ModelServer(SCRIPTS) as models:
        configure(
            home / "config.yaml",
            models,
            more_models=[{"name": "echo", "model": "echo-1", "use": "echo", "prefix": "I hear"}],
            sandbox={"provider": "private", "allow_host_bash": True},
            channels={"pigeon": {"enabled": True, "folder": str(home / "pigeons")}},
            installed={"manners": {"words": ["heck"]}},
        )
        async with served(home, installed, "--config", "config.yaml") as url, aiohttp.ClientSession() as session:
            yield Site(home, url, session)


# ── places to touch ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", KINDS)
def test_two_places_are_touched(kind: str) -> None:
    places = [*dict.fromkeys(name.partition("/")[0] for name in files(kind) if not is_test(name))]
    assert len(places) == 2
    assert places[0] == "pyproject.toml"
    assert "**Places to touch: two.**" in (PAGES / f"extend-{kind}.md").read_text()


def test_every_page_is_tried() -> None:
    assert {path.stem.removeprefix("extend-") for path in PAGES.glob("extend-*.md")} == set(KINDS)


def test_the_tests_of_the_pages_pass(tmp_path: Path) -> None:
    folders = [str(write(kind, tmp_path / kind)) for kind in KINDS if any(map(is_test, files(kind)))]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join((*folders, str(ROOT)))}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "anyio.pytest_plugin", "-p", "no:cacheprovider"]
    command += ["-c", os.devnull]
    done = subprocess.run(
        [*command, *folders],
        env={**variables, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr


# ── each kind ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_actor(site: Site) -> None:
    thread = await site.run("plain")
    [run] = await site.get(f"/threads/{thread}/runs")
    await site.post(f"/threads/{thread}/runs/{run['run_id']}/feedback", {"rating": 1})

    async def liked() -> bool:
        return bool((await site.get(f"/threads/{thread}"))["metadata"].get("likes") == 1)

    await wait_for(liked)


async def test_tool(site: Site) -> None:
    [outcome] = await site.log(await site.run("counts"), "tool.completed")
    assert outcome["message"]["content"] == "2 words"


async def test_policy_refuses_and_records(site: Site) -> None:
    thread = await site.run("rude")
    [outcome] = await site.log(thread, "tool.completed")
    assert outcome["message"]["content"] == "Error: 'heck' is not said to tools."
    assert [(one["policy"], one["action"]) for one in outcome["decisions"]] == [("manners", "refused")]
    [fact] = await site.log(thread, "rudeness.heard")
    assert (fact["tool"], fact["word"], fact["actor"]) == ("count_words", "heck", "lead")


async def test_policy_ends_a_run(site: Site) -> None:
    [answer] = await site.log(await site.run("sour"), "model.completed")
    assert answer["message"]["content"].endswith("(withdrawn)")
    assert [(one["action"], one["text"]) for one in answer["decisions"]] == [
        ("noted", "Be polite."),
        ("ended", "(withdrawn)"),
    ]


async def test_channel(site: Site) -> None:
    """A person talks to the agent: two letters are answered."""
    pigeons, answers = site.home / "pigeons", list[Path]()

    async def answered() -> bool:
        answers[:] = [path for path in pigeons.glob("out/ada-*.txt") if path.read_text() == "All is well.\nReally."]
        return len(answers) == number

    await wait_for((anyio.Path(pigeons) / "in").exists)
    for number in (1, 2):
        (pigeons / "draft").write_text("hello")
        (pigeons / "draft").rename(pigeons / "in" / f"ada-{number}.txt")
        await wait_for(answered)


async def test_verb(site: Site, installed: Path) -> None:
    """It asks the server, and the help of all lists it."""
    await site.run("plain")
    words = (["days", "--limit", "5", "--home", str(site.home / "home")], ["--help"])
    environment = paths(installed)
    counted, listed = [
        await anyio.to_thread.run_sync(partial(warm.run, "channels.cli", *each, env=environment, cwd=site.home))
        for each in words
    ]
    assert (counted.returncode, counted.stderr) == (0, "")
    assert re.search(r"^\d{4}-\d\d-\d\d [1-5]$", counted.stdout, re.MULTILINE)
    assert "of installed packages:\n  days         of the package sika-days\n" in listed.stdout


async def test_model(site: Site) -> None:
    [answer] = await site.log(await site.run("echo"), "model.completed")
    assert answer["message"]["content"].startswith("I hear ")


async def test_skill(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is listed, with where sandboxes find it."""
    monkeypatch.syspath_prepend(installed)
    plugins.cache_clear()
    try:
        skill = Folders(folders_of(Config(), Path())).scan().skills["haiku"]
        assert skill.path == "/mnt/skills/package-haiku/haiku/SKILL.md"
        assert "Three lines" in skill.text()
    finally:
        plugins.cache_clear()


async def test_sandbox(site: Site) -> None:
    [outcome] = await site.log(await site.run("mask"), "tool.completed")
    assert outcome["message"]["content"].strip() == "0077"


async def test_event(site: Site, installed: Path) -> None:
    """In the state that clients get, and by its fields on the command line."""
    thread = await site.run("plain")

    async def reached() -> bool:
        return bool((await site.get(f"/threads/{thread}/state"))["values"].get("milestones") == [1])

    await wait_for(reached)
    words = ["log", "state", thread, "--json", "--home", str(site.home / "home")]
    done = await anyio.to_thread.run_sync(
        partial(warm.run, "channels.cli", *words, env=paths(installed), cwd=site.home)
    )
    assert json.loads(done.stdout)["values"]["milestones"] == [1]


async def test_protocol(site: Site) -> None:
    thread = await site.run("plain")
    text = await site.frames(f"/threads/{thread}/headlines", 2)
    assert 'event: headline\ndata: "All is well."\nid: ' in text
    assert 'event: end\ndata: "run.completed"\nid: ' in text
    paths = await _document(site)
    assert "/api/threads/{thread_id}/headlines" in paths


async def _document(site: Site) -> Any:
    async with aiohttp.ClientSession() as session, session.get(f"{site.url}/openapi.json") as response:
        return (await response.json())["paths"]
