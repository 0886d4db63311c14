"""The scaffold, the check and the pack of skills; and all that is shipped holds to the format."""

from __future__ import annotations

import re
import zipfile

import pytest
import yaml
from skills_ref import validate

from core.skills import format as skill_format
from tests.skills.conftest import NAMES, PUBLIC, Desk

pytestmark = pytest.mark.anyio
S = "python3 $S/skill-creator/scripts"
SKILL = """\
---
name: bank-book
description: Cleans bank exports into the accounting sheet. Use when the user uploads a bank statement.
---

Run `scripts/clean.py`.
"""
CASES = "\n".join(f'- {{prompt: "p{n}", loads: {loads}}}' for n, loads in enumerate(("true", "false") * 3))


@pytest.mark.parametrize("name", NAMES)
async def test_every_shipped_skill_is_valid(desk: Desk, name: str) -> None:
    text = (PUBLIC / name / "SKILL.md").read_text()
    assert validate(PUBLIC / name) == []
    assert skill_format.problems(text, name) == []
    assert skill_format.remarks(text) == []
    assert "0 errors, 0 warnings" in await desk.run(f"{S}/check_skill.py $S/{name}")


def test_the_shipped_skills_are_those_of_the_readme() -> None:
    text = (PUBLIC.parents[1] / "README.md").read_text()
    listed = text.split("## Skills that come with it")[1].split("\n## ")[0]
    assert sorted(re.findall(r"^\| `([\w-]+)` \|", listed, re.MULTILINE)) == NAMES


async def test_a_new_skill_is_made_checked_and_packed(desk: Desk) -> None:
    text = 'Cleans "bank" exports: CSV. Use when the user uploads a bank statement.'
    await desk.run(f"{S}/new_skill.py bank-book --description '{text}' --in skills --script clean.py")
    assert "is there already" in await desk.run(f"{S}/new_skill.py bank-book --description x --in skills", 2)
    assert skill_format.read((desk.folder / "skills/bank-book/SKILL.md").read_text()).description == text
    assert "leftover {{First step" in await desk.run(f"{S}/check_skill.py skills/bank-book", 1)
    assert "not packed" in await desk.run(f"{S}/pack_skill.py skills/bank-book --out out", 1)
    desk.write("skills/bank-book/SKILL.md", SKILL)
    desk.write("skills/bank-book/examples/cases.yaml", CASES)
    desk.write("skills/bank-book/.secret", "x")
    desk.write("a.txt", "x")
    await desk.run("python3 skills/bank-book/scripts/clean.py a.txt --out b.txt")
    await desk.run(f"{S}/pack_skill.py skills/bank-book --out one && {S}/pack_skill.py skills/bank-book --out two")
    archive = desk.folder / "one/bank-book.skill"
    assert archive.read_bytes() == (desk.folder / "two/bank-book.skill").read_bytes()
    assert zipfile.ZipFile(archive).namelist() == [
        *("bank-book/SKILL.md", "bank-book/examples/cases.yaml", "bank-book/scripts/clean.py")
    ]


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("SKILL.md", SKILL.replace("bank-book", "Bank Book"), "name: 'Bank Book' is not of a-z"),
        ("SKILL.md", SKILL.replace("bank-book", "bank"), "name: bank is not the name of the folder"),
        ("SKILL.md", SKILL.replace("clean.py", "other.py"), "names scripts/other.py, which is not there"),
        ("SKILL.md", SKILL.replace("sheet. Use", "sheet: Use"), "quote a value that has ': ' in it"),
        ("SKILL.md", SKILL.replace("---\n\n", "version: 1\n---\n\n"), "unknown version"),
        ("SKILL.md", SKILL + "hidden\u200btext", "invisible character U+200B"),
        ("SKILL.md", SKILL + "x\n" * 500, "(at most 500)"),
        ("scripts/clean.py", "def broken(:\n", "scripts/clean.py:1:"),
        ("references/a.md", "ghp_" + "a" * 36, "references/a.md:1: a secret"),
        ("examples/cases.yaml", "- just text", "is not a list of {prompt: text, loads: true or false}"),
    ],
)
async def test_mistakes_in_skills_are_named(desk: Desk, name: str, text: str, reason: str) -> None:
    for path, content in {"SKILL.md": SKILL, "scripts/clean.py": "", "examples/cases.yaml": CASES, name: text}.items():
        desk.write(f"bank-book/{path}", content)
    assert reason in await desk.run(f"{S}/check_skill.py bank-book", 1)


async def test_requests_load_the_skill_that_they_mean_and_vague_descriptions_fail(desk: Desk) -> None:
    cases = sum(len(yaml.safe_load((PUBLIC / name / "examples/cases.yaml").read_text())) for name in NAMES)
    assert f"{cases} of {cases} cases as they should" in await desk.run(f"{S}/triggers.py $S")
    for name in NAMES[::2]:
        vague = f"sed -i 's/^description: .*/description: Helps with things./' copy/{name}/SKILL.md"
        text = await desk.run(f"rm -rf copy && cp -r $S copy && {vague} && {S}/triggers.py copy", 1)
        assert f"{name}: " in text
