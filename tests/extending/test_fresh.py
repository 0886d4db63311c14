"""Packages as wheels in a fresh environment beside ours: one with every kind of plug-in, and what `sika new` writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import aiohttp
import anyio
import pytest

from channels import cli
from channels.cli import common
from channels.cli.extend import new
from core.errors import Invalid
from tests.extending.test_pages import SCRIPTS, Site, served_by
from tests.extending.venvs import environment, fresh, wheels
from tests.support.model_server import ModelServer
from tests.support.workers import configure, wait_for

pytestmark = pytest.mark.long

EVERY = Path(__file__).parent / "every"
SECONDS = 240


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a package of each kind, as the command writes them."""
    folder = tmp_path_factory.mktemp("new")
    for kind in new.KINDS:
        assert cli.main(["new", kind, f"my-{kind}", "--dir", str(folder)]) == common.OK
    return folder


@pytest.fixture(scope="module")
def python(written: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("fresh")
    packages = [EVERY, *sorted(written.iterdir())]
    return str(fresh(folder / "venv", wheels(packages, folder / "wheels")))


@pytest.fixture(scope="module")
async def site(python: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    home = tmp_path_factory.mktemp("site")
    folders = {name: {"enabled": True, "folder": str(home / name)} for name in ("slot", "mychannel")}
    for folder in folders:
        (home / folder).mkdir()
    async with ModelServer({"plain": SCRIPTS["plain"]}) as models:
        configure(
            home / "config.yaml",
            models,
            more_models=[{"name": "parrot", "model": "parrot", "use": "parrot"}],
            sandbox={"provider": "careful", "allow_host_bash": True},
            channels=folders,
        )
        async with (
            served_by(python, home, home, "--config", "config.yaml") as url,
            aiohttp.ClientSession() as session,
        ):
            yield Site(home, url, session)


async def reply_to(site: Site, text: str) -> str:
    """The last message of a run with the installed model."""
    thread = str((await site.post("/threads", {}))["thread_id"])
    body = {"input": {"messages": [{"role": "user", "content": text}]}, "context": {"model_name": "parrot"}}
    values = await site.post(f"/threads/{thread}/runs/wait", {**body, "assistant_id": "lead_agent"})
    assert "messages" in values, values
    return str(values["messages"][-1]["content"])


# ── one of each kind ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_all_are_listed_with_what_they_give(site: Site, python: str) -> None:
    """By the server, and by the command."""
    plugins = await site.get("/plugins")
    assert [plugin for plugin in plugins if plugin["problem"]] == []
    gives = {
        (plugin["group"], plugin["name"]): plugin["gives"] for plugin in plugins if plugin["package"] == "sika-every"
    }
    assert gives == {
        ("sika.actors", "tally"): "tally: run.completed",
        ("sika.channels", "slot"): "channels.slot: Slot",
        ("sika.events", "every"): "tally.kept",
        ("sika.models", "parrot"): "models[].use: sika_every:Parrot",
        ("sika.policies", "hush"): "hush, a policy of every run",
        ("sika.protocols", "every"): "GET /api/every",
        ("sika.sandboxes", "careful"): "sandbox.provider: careful",
        ("sika.skills", "every"): "greet",
        ("sika.tools", "shout"): "shout (pure)",
        ("sika.tools", "survey"): "survey (idempotent)",
        ("sika.verbs", "say"): "sika say: Say a word.",
        ("sika.views", "board"): "#/added/board: Board",
    }
    command = [python, "-m", "channels.cli", "plugins", "--json", "--config", "config.yaml"]
    done = await anyio.run_process(command, env=environment(), cwd=site.home)
    assert json.loads(done.stdout) == plugins


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("shout: hello", "Parrot says HELLO"),
        ("shout: a secret", "Parrot says Hush."),
        ("bash: echo $CARE", "Parrot says taken"),
        ("bash: head -2 /mnt/skills/package-every/greet/SKILL.md", "Parrot says ---\nname: greet"),
        (
            "my_tool: /mnt/skills/package-every/greet/SKILL.md",
            "Parrot says /mnt/skills/package-every/greet/SKILL.md: LINES lines\n"
            "written to /mnt/user-data/outputs/lines.txt",
        ),
        ("shout: classified", "Parrot says Error: 'classified' does not leave the house."),
    ],
    ids=["tool", "policy", "sandbox", "skill", "new tool", "new policy"],
)
async def test_tools_policies_models_and_sandboxes_work(site: Site, text: str, answer: str) -> None:
    lines = len((EVERY / "sika_every" / "skills" / "greet" / "SKILL.md").read_text().splitlines())
    assert (await reply_to(site, text)).strip() == answer.replace("LINES", str(lines))


async def test_a_tool_of_a_package_has_files_a_stage_and_a_log(site: Site) -> None:
    """Its stage is seen while it works; its defect, and what it holds up, are in the server's log with their lines."""
    thread = str((await site.post("/threads", {}))["thread_id"])
    body = {
        "input": {"messages": [{"role": "user", "content": "survey: hills"}]},
        "context": {"model_name": "parrot"},
        "assistant_id": "lead_agent",
        "stream_mode": ["custom"],
    }
    url = f"{site.url}/api/threads/{thread}/runs/stream"
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
        stream = await response.text()
    assert '"name":"survey","text":"surveying hills\\n","stage":true' in stream
    assert await reply_to(site, "survey: hills") == "Parrot says /mnt/user-data/outputs/survey.txt has hills"

    assert "Error: Tool 'survey' failed: no bridge" in await reply_to(site, "survey: fail")
    assert "survey.txt has block" in await reply_to(site, "survey: block")

    async def told() -> bool:
        return "the event loop goes on" in (site.home / "stderr").read_text()

    await wait_for(told)
    lines = map(json.loads, filter(lambda line: line.startswith("{"), (site.home / "stderr").read_text().splitlines()))
    events = {line["event"]: line for line in lines}
    assert events["tool failed"]["tool"] == "survey"
    assert 'raise LookupError("no bridge")' in events["tool failed"]["exception"]
    assert events["the event loop stands still"]["by"] == "tool survey"
    assert "time.sleep(3)" in events["the event loop stands still"]["stack"]
    async with aiohttp.ClientSession() as session, session.get(f"{site.url}/ready") as response:
        ready = await response.json()
    assert ready["status"] == "degraded"
    assert ready["missing"][0]["reason"].startswith("tool survey held up everything else")


async def test_actors_and_their_events_work(site: Site) -> None:
    thread = await site.run("plain")

    async def counted() -> bool:
        state = await site.get(f"/threads/{thread}")
        return bool(state["values"].get("tally") == 1 and state["metadata"].get("my_actor") == 1)

    await wait_for(counted)


async def test_channels_work(site: Site) -> None:
    (site.home / "draft").write_text("hello")
    (site.home / "draft").rename(site.home / "slot" / "in")
    await wait_for(partial(_has, site.home / "slot", "out"))
    await wait_for(anyio.Path(site.home / "mychannel" / "in").exists)
    (site.home / "draft").write_text("hello")
    (site.home / "draft").rename(site.home / "mychannel" / "in" / "ada-1.txt")
    await wait_for(partial(_has, site.home / "mychannel" / "out", "ada-*.txt"))


async def _has(folder: Path, pattern: str) -> bool:
    return any(file.read_text() == "All is well.\nReally." for file in folder.glob(pattern))


async def test_skills_are_there(site: Site) -> None:
    listed = {skill["name"]: skill["enabled"] for skill in (await site.get("/skills"))["skills"]}
    assert listed["greet"]
    assert listed["my-skill"]


async def test_protocols_work(site: Site) -> None:
    async with aiohttp.ClientSession() as session, session.get(f"{site.url}/api/every") as response:
        assert await response.text() == "every"


async def test_verbs_work(site: Site, python: str) -> None:
    await site.run("plain")
    command = [python, "-m", "channels.cli"]
    said = await anyio.run_process([*command, "say", "hello"], env=environment(), cwd=site.home)
    assert said.stdout == b"hello\n"
    home = ["--home", str(site.home / "home")]
    counted = await anyio.run_process([*command, "my-verb", *home], env=environment(), cwd=site.home)
    assert counted.stdout.count(b"-") >= 2


# ── what `sika new` writes ──────────────────────────────────────────────────────────────────────────────────────────


def test_the_tests_of_new_packages_pass(written: Path, python: str) -> None:
    """With the environment's Python, in which the wheels are installed."""
    command = [python, "-m", "pytest", "-q", "-p", "anyio.pytest_plugin", "-p", "no:cacheprovider", "-c", os.devnull]
    done = subprocess.run(
        [*command, *map(str, sorted(written.iterdir()))],
        env={**environment(), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_new_packages_can_be_installed_in_place(written: Path, tmp_path: Path) -> None:
    """As their README says: `pip install -e .`"""
    packages = wheels(sorted(written.iterdir()), tmp_path / "wheels", "build_editable")
    command = [str(fresh(tmp_path / "venv", packages)), "-m", "channels.cli", "plugins", "--json"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=SECONDS)
    assert {plugin["name"]: plugin["problem"] for plugin in json.loads(done.stdout)} == {
        "mychannel" if kind == "channel" else f"my-{kind}": "" for kind in new.KINDS
    }


def test_new_packages_are_in_good_form(written: Path) -> None:
    subprocess.run(
        [str(Path(sys.executable).parent / "ruff"), "check", "--isolated", str(written)],
        check=True,
        capture_output=True,
        timeout=SECONDS,
    )


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("Loud", "small letters"),
        ("../up", "small letters"),
        ("class", "no word of Python"),
        ("my-tool", "there already"),
    ],
)
def test_what_cannot_be_written_is_refused(written: Path, name: str, problem: str) -> None:
    before = sorted(written.iterdir())
    with pytest.raises(Invalid, match=problem):
        new.write("tool", name, written)
    assert sorted(written.iterdir()) == before
