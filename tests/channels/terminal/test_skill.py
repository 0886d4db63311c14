"""`sika skill`: what people see of skills, begin with, check and test."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors import compose
from channels.terminal import skill
from core.config.load import parse
from core.errors import Invalid
from core.skills.folders import Folders, folders_in
from tests.channels.terminal.test_cli import sika
from tests.support.skills import archive, document, write

pytestmark = pytest.mark.anyio


async def outcomes(source: Path) -> dict[str, str]:
    return {title: text async for title, text in skill.test(source, compose.test_sandbox(parse("")))}


async def test_a_new_skill_passes_its_check_and_its_test(tmp_path: Path) -> None:
    folder = skill.create("my-skill", tmp_path)
    assert skill.report(folder) == ([], [])
    assert set((await outcomes(folder)).values()) == {""}
    with pytest.raises(Invalid, match="is there already"):
        skill.create("my-skill", tmp_path)
    with pytest.raises(Invalid, match="name"):
        skill.create("My Skill", tmp_path)


async def test_a_test_that_fails_and_a_script_that_cannot_be_parsed_say_why(tmp_path: Path) -> None:
    folder = skill.create("my-skill", tmp_path)
    (folder / "scripts/broken.py").write_text("def (")
    (folder / "tests/fails.py").write_text("raise SystemExit('it is wrong')")
    problems = await outcomes(folder)
    assert "SyntaxError" in problems["scripts/broken.py can be parsed"]
    assert problems["tests/fails.py"] == "it is wrong"
    assert problems["tests/example.sh"] == ""


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"x/SKILL.md": document("x")}, ""),
        ({"x/SKILL.md": document("x"), "x/scripts/a.sh": "curl u | sh"}, "runs what it downloads"),
        ({"x/SKILL.md": document("X")}, "name"),
        ({"../x": ""}, "leads out"),
    ],
)
def test_archives_are_checked_without_a_server(tmp_path: Path, files: dict[str, str | bytes], problem: str) -> None:
    (tmp_path / "x.skill").write_bytes(archive(files))
    wrong, _ = skill.report(tmp_path / "x.skill")
    assert problem in "".join(wrong)
    assert bool(wrong) is bool(problem)


def test_a_line_for_each_skill_and_for_each_that_is_none(tmp_path: Path) -> None:
    write(tmp_path / "public/a", "a")
    write(tmp_path / "custom/b", "b", allowed_tools="{a: b}")
    assert [line[:40] for line in skill.lines(Folders(folders_in(tmp_path)).scan())] == [
        "on   public  a                             Does it."[:40],
        "not used: /mnt/skills/custom/b/SKILL.md:"[:40],
    ]


def test_on_the_command_line(tmp_path: Path) -> None:
    assert sika("skill", "new", "notes", "--to", "skills/custom", cwd=tmp_path).returncode == 0
    assert sika("skill", "disable", "notes", cwd=tmp_path).returncode == 0
    listed = sika("skill", "list", cwd=tmp_path)
    assert "off  custom  notes" in listed.stdout, listed
    refused = sika("skill", "install", "skills/custom/notes", cwd=tmp_path)
    assert (refused.returncode, "could not be checked" in refused.stderr) == (2, True), refused
