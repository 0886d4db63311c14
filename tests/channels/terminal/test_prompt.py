"""`sika prompt show`: the system prompt that a run would get."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.lead.setup.prompt import short_hash
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


def test_plan_mode_has_a_section_of_its_own(tmp_path: Path) -> None:
    plain, plan = (sika("prompt", "show", *words, cwd=tmp_path) for words in ([], ["--plan"]))
    assert plan.stdout.startswith(plain.stdout)
    assert "write_todos" in plan.stdout.removeprefix(plain.stdout)
    of_run = plain.stderr.removeprefix("hash: ")
    assert plan.stderr.splitlines() == [
        f"hash: {short_hash(plan.stdout.removesuffix(chr(10)))}",
        f"hash without the list of steps, as run.started has it: {of_run.strip()}",
    ]


def test_there_is_no_option_without_effect(tmp_path: Path) -> None:
    done = sika("prompt", "show", "--subagents", cwd=tmp_path)
    assert (done.returncode, "unrecognized arguments: --subagents" in done.stderr) == (2, True)


def test_an_agent_that_is_not_there(tmp_path: Path) -> None:
    done = sika("prompt", "show", "--home", "home", "--agent", "nurse", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "sika: Agent nurse not found\n")
