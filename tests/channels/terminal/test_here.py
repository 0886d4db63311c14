"""`sika chat --here`: a person's folder, from the question to the undoing."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from channels.client import AsyncSikaClient
from channels.client.here import Consents, Here
from core.errors import Invalid
from tests.channels.client.stage import Stage, serving, written
from tests.channels.terminal.terminals import Terminal, on_terminal
from tests.support import warm
from tests.support.model_server import ModelServer, Script, ToolCall, Turn

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=4)]

DOT = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
CALC = "def add(a, b):\n    return a - b\n"
FIXED = CALC.replace("-", "+")
TEST = """
import unittest, calc
class Adds(unittest.TestCase):
    def test_it(self): self.assertEqual(calc.add(1, 2), 3)
"""


def bash(command: str) -> Turn:
    return Turn(tool_calls=(ToolCall("bash", {"command": command}),))


def tool(name: str, **arguments: Any) -> Turn:
    return Turn(tool_calls=(ToolCall(name, arguments),))


SCRIPTS = {
    "fixing": [
        tool("read_file", path="calc.py"),
        tool("str_replace", path="/mnt/project/calc.py", old_str="a - b", new_str="a + b"),
        bash("pwd; python3 -m unittest -q 2>&1 | tail -1; cat .env; git status --short; git log --format=%s"),
        Turn(text="Fixed."),
        bash("echo more >> notes.txt"),
        Turn(text="Noted."),
    ],
    "outside": [bash("ls /mnt/project; cat /mnt/project/calc.py"), Turn(text="Nothing there.")],
    "looking": [
        tool("view_image", image_path="logo.png"),
        tool("view_image", image_path="/mnt/project/.ssh/key.png"),
        Turn(text="A dot."),
    ],
    "reading": [bash("echo x > new.txt; echo x >> calc.py; cat calc.py"), Turn(text="Read.")],
}


@pytest.fixture(scope="module")
def models() -> Iterator[ModelServer]:
    stage = Stage()
    yield stage.enter(ModelServer({name: Script(tuple(turns), count="total") for name, turns in SCRIPTS.items()}))
    stage.close()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "people/ada/calc"
    folder.mkdir(parents=True)
    for name, text in {
        "calc.py": CALC,
        "test_calc.py": TEST,
        ".env": "KEY=canary-77\n",
        ".gitignore": ".env\n__pycache__\n",
    }.items():
        (folder / name).write_text(text)
    git = ["git", "-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "begin"]):
        subprocess.run([*git, *words], cwd=folder, check=True, env={**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null"})
    return folder


class Installation:
    def __init__(self, place: Path, models: ModelServer, model: str) -> None:
        self.home = place / "home"
        place.mkdir()
        self.config = written(place / "config", models, model_roles={"lead": [model]})

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        async with serving(self.home, self.config) as url:
            yield url

    async def chat(self, work: Any, folder: Path, *arguments: str) -> None:
        await on_terminal(work, "chat", "--home", str(self.home), *arguments, cwd=folder)


async def say(terminal: Terminal, line: str, words: str) -> None:
    await terminal.prompt()
    terminal.type(line.encode() + b"\r")
    await terminal.until(words)


async def test_edit_test_diff_undo_and_a_restart(tmp_path: Path, models: ModelServer, repository: Path) -> None:
    installation = Installation(tmp_path / "sika", models, "fixing")

    async def first(terminal: Terminal) -> None:
        await terminal.until("Do you agree")
        terminal.type(b"y\r")
        await say(terminal, "fix add", "seen by the agent as /mnt/project")
        await terminal.until("Fixed.")
        assert (repository / "calc.py").read_text() == FIXED
        await say(terminal, "/diff", "M calc.py")
        await terminal.until("-    return a - b")
        await terminal.until("+    return a + b")
        await say(terminal, "/undo", "as before: calc.py")
        assert (repository / "calc.py").read_text() == CALC
        await say(terminal, "/diff", "no run has changed files")
        await say(terminal, "/undo", "no run has changed files")
        await terminal.prompt()
        terminal.type(b"/quit\r")
        assert await terminal.ended() == 0

    async with installation.running() as url:
        await installation.chat(first, repository, "--here", "--thread", "T")
        async with AsyncSikaClient(url=url) as client:
            messages = (await client.describe_thread("T"))["values"]["messages"]
    [output] = [message["content"] for message in messages if message.get("name") == "bash"]
    assert "/mnt/project\nOK\n M calc.py\nbegin" in output, output
    assert "canary-77" not in json.dumps(messages)
    assert "I took the changes" in str(messages[-1]["content"])
    assert sorted(json.loads((installation.home / "folders.json").read_text())) == [str(repository)]
    assert sorted(path.name for path in repository.iterdir()) == [
        ".env", ".git", ".gitignore", "__pycache__", "calc.py", "test_calc.py",
    ]  # fmt: skip

    async def second(terminal: Terminal) -> None:
        await say(terminal, "note it", "Noted.")
        await say(terminal, "/diff", "A notes.txt")
        (repository / "notes.txt").write_text("mine\n")
        await say(terminal, "/undo", "notes.txt was changed since")
        await terminal.prompt()
        terminal.type(b"/quit\r")
        assert await terminal.ended() == 0

    async with installation.running():
        await installation.chat(second, repository, "--here", "--thread", "T")
    assert (repository / "notes.txt").read_text() == "mine\n"


async def test_another_thread_does_not_see_the_folder(tmp_path: Path, models: ModelServer, repository: Path) -> None:
    installation = Installation(tmp_path / "sika", models, "outside")
    async with installation.running() as url, AsyncSikaClient(url=url) as client:
        await client.attach_folder("with", str(repository))
        await client.chat("look", thread_id="without")
        messages = (await client.describe_thread("without"))["values"]["messages"]
        [output] = [message["content"] for message in messages if message.get("name") == "bash"]
        assert "No such file or directory" in output
        assert "return" not in output


async def test_the_agent_sees_pictures_of_the_folder(tmp_path: Path, models: ModelServer, repository: Path) -> None:
    (repository / ".ssh").mkdir()
    for name in ("logo.png", ".ssh/key.png"):
        (repository / name).write_bytes(DOT)
    entry = {"name": "looking", "model": "looking", "base_url": models.url, "api_key": "none", "supports_vision": True}
    installation = Installation(tmp_path / "sika", models, "looking")
    installation.config.write_text(json.dumps({**json.loads(installation.config.read_text()), "models": [entry]}))
    async with installation.running() as url, AsyncSikaClient(url=url) as client:
        await client.attach_folder("T", str(repository), access="read-only")
        await client.chat("what is the logo?", thread_id="T")
        messages = (await client.describe_thread("T"))["values"]["messages"]
    seen = [record.body["messages"] for record in models.requests if record.body["model"] == "looking"]
    assert f"data:image/png;base64,{base64.b64encode(DOT).decode()}" in json.dumps(seen[1])
    assert "image_url" not in json.dumps(seen[2])
    assert [str(message["content"]) for message in messages if message.get("name") == "view_image"] == [
        f"/mnt/project/logo.png: image/png, {len(DOT)} bytes",
        "Error: /mnt/project/.ssh/key.png: is hidden, because files of such names hold secrets; only the person can "
        "make it readable",
    ]


async def test_read_only_and_a_person_who_says_no(tmp_path: Path, models: ModelServer, repository: Path) -> None:
    installation = Installation(tmp_path / "sika", models, "reading")

    async def refuses(terminal: Terminal) -> None:
        await terminal.until("Do you agree")
        terminal.type(b"n\r")
        assert await terminal.ended() == 1

    async def reads(terminal: Terminal) -> None:
        await terminal.until("read, and change nothing")
        await terminal.until("Do you agree")
        terminal.type(b"y\r")
        await say(terminal, "read it", "Read.")
        await say(terminal, "/here", "(read-only)")
        await say(terminal, "/here off", "no folder")
        await say(terminal, "/here", "no folder; /here rw")
        await terminal.prompt()
        terminal.type(b"/quit\r")
        assert await terminal.ended() == 0

    async with installation.running():
        await installation.chat(refuses, repository, "--here")
        await installation.chat(reads, repository, "--here", "--read-only")
    assert (repository / "calc.py").read_text() == CALC
    assert not (repository / "new.txt").exists()


def test_a_consent_covers_what_was_agreed_to(tmp_path: Path) -> None:
    consents = Consents(tmp_path / "home")
    assert not consents.covers(Here("/a"))
    consents.agree(Here("/a", "read-only"))
    assert consents.covers(Here("/a", "read-only"))
    assert not consents.covers(Here("/a"))
    assert not consents.covers(Here("/a/b", "read-only"))
    consents.agree(Here("/a", "read-write", (".env",)))
    assert consents.covers(Here("/a", "read-only", (".env",)))
    assert not consents.covers(Here("/a", "read-write", (".env", "x")))
    assert (tmp_path / "home/folders.json").stat().st_mode & 0o777 == 0o600
    assert consents.forget("/a")
    assert not consents.forget("/a")
    (tmp_path / "home/folders.json").write_text("{")
    with pytest.raises(Invalid, match="remove it to be asked again"):
        consents.covers(Here("/a"))


def sika(*arguments: str, cwd: Path, home: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    names = {name: value for name, value in os.environ.items() if not name.startswith(("SIKA_", "DEER_FLOW_"))}
    environment = {**names, "PYTHONPATH": str(Path(__file__).parents[3]), "HOME": str(home), **variables}
    return warm.run("channels.cli", *arguments, cwd=cwd, env=environment, stdin="", timeout=200)


def test_the_folders_are_listed_and_forgotten(tmp_path: Path) -> None:
    person, app = tmp_path / "ada", tmp_path / "ada/app"
    app.mkdir(parents=True)
    assert sika("folders", "--allow", ".", "--read-only", cwd=app, home=person).returncode == 0
    stored = person / ".sika/.sika/folders.json"  # of the installation in the home directory, not in the folder
    assert list(json.loads(stored.read_text())) == [str(app)]
    assert list(app.iterdir()) == []
    listed = sika("folders", cwd=tmp_path, home=person)
    assert listed.stdout.split()[::2] == ["read-only", str(app)]
    assert sika("folders", "--forget", str(app), cwd=tmp_path, home=person).stdout == ""
    assert sika("folders", "--forget", str(app), cwd=tmp_path, home=person).returncode != 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--here",), "nobody has agreed to"),
        (("--here", "--url", "http://sika.example:8000"), "another machine"),
        (("--read-only",), "belong to --here"),
        (("--show", ".env"), "belong to --here"),
    ],
)
def test_what_is_refused_before_anything_begins(tmp_path: Path, arguments: tuple[str, ...], reason: str) -> None:
    app = tmp_path / "ada/app"
    app.mkdir(parents=True)
    refused = sika("chat", "hi", *arguments, cwd=app, home=tmp_path / "ada")
    assert refused.returncode != 0
    assert reason in refused.stderr
    assert list(app.iterdir()) == []


def test_a_talk_that_starts_its_own_server_leaves_nothing_in_the_folder(tmp_path: Path) -> None:
    person, app = tmp_path / "ada", tmp_path / "ada/app"
    app.mkdir(parents=True)
    (app / ".env").write_text("canary-77")
    assert sika("folders", "--allow", ".", cwd=app, home=person).returncode == 0
    talk = sika("chat", "--here", "run: pwd; cat .env; echo new > made.txt", cwd=app, home=person)
    assert talk.returncode == 0, talk.stderr
    assert "/mnt/project" in talk.stdout
    assert "canary-77" not in talk.stdout
    assert "sika chat --here --thread " in talk.stderr
    assert sorted(path.name for path in app.iterdir()) == [".env", "made.txt"]
