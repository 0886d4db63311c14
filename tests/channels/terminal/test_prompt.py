"""`sika prompt show`: the system prompt that a run would get."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.agent.setup.prompt import short_hash
from tests.channels.terminal.test_cli import sika


@pytest.mark.parametrize(
    ("arguments", "begins"),
    [([], "You are Sika, an agent"), (["--bootstrap", "--agent", "nurse"], "You are Sika, and you help")],
)
def test_the_prompt_and_its_hash(tmp_path: Path, arguments: list[str], begins: str) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "SOUL.md").write_text("Be kind.")
    done = sika("prompt", "show", "--home", "home", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(begins)
    assert ("<soul>\nBe kind.\n</soul>" in done.stdout) == (not arguments)
    assert done.stderr == f"hash: {short_hash(done.stdout.removesuffix(chr(10)))}\n"


def test_the_page_of_a_run_that_nobody_watches(tmp_path: Path) -> None:
    done = sika("prompt", "show", "--unattended", cwd=tmp_path)
    assert ("<unattended_run>" in done.stdout, "<clarification>" in done.stdout) == (True, False)


@pytest.mark.parametrize("option", ["--subagents", "--plan"])
def test_there_is_no_option_without_effect(tmp_path: Path, option: str) -> None:
    done = sika("prompt", "show", option, cwd=tmp_path)
    assert (done.returncode, f"unrecognized arguments: {option}" in done.stderr) == (2, True)


def test_an_agent_that_is_not_there(tmp_path: Path) -> None:
    done = sika("prompt", "show", "--home", "home", "--agent", "nurse", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "sika: Agent nurse not found\n")
