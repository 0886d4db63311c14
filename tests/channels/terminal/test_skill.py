"""`sika skill`: what people see of skills, begin with, check and test."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.wiring import sandboxes
from channels.cli.extend import skill
from core.config.load import parse
from core.errors import Invalid
from core.skills.folders import Folders, folders_in, skill_at
from tests.channels.terminal.test_cli import sika
from tests.support.skills import archive, document, write

pytestmark = pytest.mark.anyio


SHIPPED = Path(__file__).parents[3] / "skills/public"


async def outcomes(source: Path) -> dict[str, str]:
    return {title: text async for title, text in skill.test(source, sandboxes.for_tests(parse("")), [])}


async def test_a_new_skill_passes_its_check_and_its_test(tmp_path: Path) -> None:
    folder = skill.create("my-skill", tmp_path)
    assert skill.report(folder) == ([], [])
    assert set((await outcomes(folder)).values()) == {""}
    with pytest.raises(Invalid, match="is there already"):
        skill.create("my-skill", tmp_path)
    with pytest.raises(Invalid, match="name"):
        skill.create("My Skill", tmp_path)


def test_the_cases_of_the_shipped_skills() -> None:
    """Each request finds the skill that it is an example for, and no other of its counterexamples."""
    others = [
        skill_at(folder, folder.name, "public") for folder in SHIPPED.iterdir() if (folder / "SKILL.md").is_file()
    ]
    outcomes = [outcome for other in others for outcome in skill._cases(SHIPPED / other.name, others)]
    assert len(outcomes) >= 36
    assert [outcome for outcome in outcomes if outcome[1]] == []


async def test_cases_that_are_wrong(tmp_path: Path) -> None:
    folder = skill.create("bank-book", tmp_path)
    (folder / "SKILL.md").write_text(document("bank-book", "Sorts the payments of a bank statement into a book."))
    (folder / "examples").mkdir()
    cases = folder / "examples/cases.yaml"
    cases.write_text(
        "- {prompt: Sort the payments of my bank statement, loads: true}\n"
        "- {prompt: Sort the payments of this bank, loads: false}\n- {prompt: Sing, loads: true}\n"
    )
    problems = {title: text for title, text in (await outcomes(folder)).items() if title.startswith("examples")}
    assert [bool(text) for text in problems.values()] == [False, True, True]
    cases.write_text("- just text")
    assert "loads: true or false" in (await outcomes(folder))["examples/cases.yaml"]


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
        "on  public  a  Does it.",
        "not used: /mnt/skills/custom/b/SKILL.md:"[:40],
    ]


def test_on_the_command_line(tmp_path: Path) -> None:
    assert sika("skill", "new", "notes", "--to", "skills/custom", cwd=tmp_path).returncode == 0
    assert sika("skill", "disable", "notes", cwd=tmp_path).returncode == 0
    listed = sika("skill", "list", cwd=tmp_path)
    assert "off  custom  notes" in listed.stdout, listed
    refused = sika("skill", "install", "skills/custom/notes", cwd=tmp_path)
    assert (refused.returncode, "could not be checked" in refused.stderr) == (2, True), refused
    inside = sika("skill", "install", "https://127.0.0.1/x.skill", cwd=tmp_path)
    assert (inside.returncode, "is not a public address" in inside.stderr) == (2, True), inside
