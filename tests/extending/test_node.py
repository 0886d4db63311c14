"""An actor in Node, written from the AsyncAPI document alone; and the document, read by the public parser."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import aiohttp
import anyio
import pytest

from tests.conformance.releases import CACHE
from tests.extending.test_pages import SCRIPTS, Site, served
from tests.support import certificates, warm
from tests.support.model_server import ModelServer
from tests.support.workers import configure

pytestmark = pytest.mark.long

HERE = Path(__file__).parent / "node"
PACKAGE = ("package.json", "package-lock.json", ".npmrc")
INSTALL_SECONDS = 150
SECONDS = 120.0
RUNS = 4
PRAISED = "x.acme.run_praised"


@pytest.fixture(scope="module")
def scripts() -> Path:
    """A folder with the scripts and the packages of the lock file."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node is not installed")
    digest = hashlib.sha256(b"".join((HERE / name).read_bytes() for name in PACKAGE)).hexdigest()[:16]
    folder = CACHE / f"node-actor-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    for file in HERE.iterdir():
        shutil.copy(file, folder)
    if not (folder / "installed").exists():
        command = ["npm", "ci"]
        environment = certificates.environment()
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_SECONDS, env=environment
        )
        if done.returncode:
            pytest.skip(f"the JavaScript packages cannot be installed here: {done.stderr.strip()[-300:]}")
        (folder / "installed").touch()
    return folder


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The document as `sika asyncapi` prints it."""
    path = tmp_path_factory.mktemp("asyncapi") / "asyncapi.json"
    path.write_text(warm.run("channels.cli", "asyncapi", timeout=SECONDS).stdout)
    return path


def test_the_public_parser_takes_the_document(scripts: Path, document: Path) -> None:
    done = subprocess.run(
        ["node", "check.mjs", str(document)], cwd=scripts, capture_output=True, text=True, timeout=SECONDS
    )
    assert json.loads(done.stdout)["problems"] == 0, done.stderr
    assert json.loads(done.stdout)["channels"] == len(json.loads(document.read_bytes())["channels"])


class Praiser:
    """The actor's process, which waits after each step."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def step(self) -> dict[str, str]:
        assert self._process.stdout is not None
        with anyio.fail_after(SECONDS):
            line = await self._process.stdout.readline()
        step: dict[str, str] = json.loads(line)
        return step

    async def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        await self._process.stdin.drain()

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        with anyio.CancelScope(shield=True):
            await self._process.communicate()


@asynccontextmanager
async def praiser(scripts: Path, home: Path, document: Path) -> AsyncIterator[Praiser]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        "node", "actor.mjs", str(home), str(document), "--step", cwd=scripts, stdin=pipe, stdout=pipe
    )
    actor = Praiser(process)
    try:
        assert (await actor.step())["step"] == "ready"
        yield actor
    finally:
        await actor.kill()


async def praise(scripts: Path, home: Path, document: Path, run: str, deaths: random.Random) -> list[str]:
    """Lets the actor answer a run, killed at random steps. Returns the steps."""
    steps: list[str] = []
    while True:
        async with praiser(scripts, home, document) as actor:
            while True:
                step = await actor.step()
                assert step["run"] == run, "an acknowledged event comes again"
                steps.append(step["step"])
                if step["step"] == "acknowledged":
                    return steps
                if steps.count("received") < 4 and deaths.random() < 0.6:
                    break
                await actor.go_on()


async def test_an_actor_in_node_survives_being_killed(scripts: Path, document: Path, tmp_path: Path) -> None:
    """Nothing is lost, and nothing is there twice; the gateway streams its events, and the thread is sound."""
    deaths = random.Random(12)
    async with ModelServer({"plain": SCRIPTS["plain"]}) as models:
        configure(tmp_path / "config.yaml", models)
        async with served(tmp_path, tmp_path, "--config", "config.yaml") as url, aiohttp.ClientSession() as session:
            site, home = Site(tmp_path, url, session), tmp_path / "home"
            async with praiser(scripts, home, document):
                pass  # its durable position begins here
            steps: list[str] = []
            threads = []
            for _ in range(RUNS):
                threads.append(await site.run("plain"))
                [run] = await site.get(f"/threads/{threads[-1]}/runs")
                steps += await praise(scripts, home, document, run["run_id"], deaths)
            for thread in threads:
                [end] = await site.log(thread, "run.completed")
                [praised] = await site.log(thread, PRAISED)
                assert (praised["cause"], praised["run"], praised["text"]) == (end["id"], end["run"], "Well done.")
                await _is_sound(site, thread)
            text = await site.frames(f"/threads/{thread}/log?follow=1&after={end['seq']}", 1)
            assert f"event: {PRAISED}\n" in text
            await verified(home, tmp_path)
    assert steps.count("answered before") >= 1, "it was killed between append and acknowledgement"
    assert steps.count("received") > RUNS


async def _is_sound(site: Site, thread: str) -> None:
    state = await site.get(f"/threads/{thread}/state")
    assert state["values"]["messages"][-1]["content"] == "All is well.\nReally."


async def verified(home: Path, folder: Path) -> None:
    words = ["log", "verify", "--all", "--home", str(home)]
    done = await anyio.to_thread.run_sync(partial(warm.run, "channels.cli", *words, cwd=folder, timeout=SECONDS))
    assert done.returncode == 0, done.stdout
