"""`sika serve --reload`: what is watched, and that a change of an extension is in force without a command."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

import aiohttp
import anyio
import pytest

from channels.cli.run import reload
from core.config.load import parse
from tests.extending.pages import ROOT
from tests.support.workers import wait_for

SECONDS = 120.0
PAGE = """
from aiohttp import web

from channels.http.server.routes import API, Route


async def get_word(request: web.Request) -> web.Response:
    '''A word.'''
    return web.Response(text="{word}")


ROUTES = (Route("GET", "/word", get_word, {{200: "text/plain"}}, mounts=API),)
"""


def package(folder: Path, word: str) -> None:
    """A package as it is while somebody works on it."""
    about = folder / "words-1.0.dist-info"
    about.mkdir(exist_ok=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: words\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[sika.protocols]\nwords = my_words\n")
    (folder / "my_words.py").write_text(PAGE.format(word=word))


def test_what_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code as a whole; of the configuration's folder, where a data directory may lie, two files."""
    package(tmp_path, "one")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    watched = reload.watched(tmp_path / "config.yaml", parse("actors: ['mine.actors:Mine']"))
    assert watched.files == {tmp_path / "my_words.py", tmp_path / "config.yaml", tmp_path / ".env"}
    assert watched.folders >= {tmp_path / "mine", *(ROOT / name for name in reload.OURS)}
    assert watched.is_code(None, str(tmp_path / "mine" / "deep" / "a.py"))
    assert not watched.is_code(None, str(tmp_path / "mine" / "a.txt"))
    assert not watched.is_code(None, str(tmp_path / ".sika" / "users" / "a.py"))
    assert watched.is_named(None, str(tmp_path / ".env"))


@pytest.mark.long
async def test_a_change_is_in_force(tmp_path: Path) -> None:
    """Also after a change that no server can start with: a policy that cannot be imported."""
    package(tmp_path, "one")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))}
    command = [
        sys.executable,
        "-m",
        "channels.cli",
        "serve",
        "--reload",
        "--home",
        str(tmp_path / "home"),
        "--port",
        "0",
    ]
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, cwd=tmp_path, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    lines = process.stdout

    async def word() -> str:
        with anyio.fail_after(SECONDS):
            url = re.search(r"http://\S+", (await lines.readline()).decode())
        assert url is not None
        async with aiohttp.ClientSession() as session, session.get(f"{url[0]}/api/word") as response:
            return await response.text()

    async def gone() -> bool:
        return not (tmp_path / "home" / "server.json").exists()

    try:
        assert await word() == "one"
        (tmp_path / "words-1.0.dist-info" / "entry_points.txt").write_text("[sika.policies]\nwords = my_words:Words\n")
        (tmp_path / "my_words.py").write_text("not Python")
        await wait_for(gone)
        package(tmp_path, "two")
        assert await word() == "two"
    finally:
        process.terminate()
        with anyio.CancelScope(shield=True):
            await process.communicate()
    assert process.returncode == 0
    assert await gone()
