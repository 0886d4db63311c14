"""Addresses of skills: what is fetched for them, and what is taken of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.errors import Invalid
from core.skills.address import Download, downloads_of, take, without_query
from tests.support.skills import archive, document

HUB = "https://github.com/ada/tools"
RAW = "https://raw.githubusercontent.com/ada/tools"


@pytest.mark.parametrize(
    ("url", "download"),
    [
        ("https://example.org/x.skill?key=1", Download("https://example.org/x.skill?key=1")),
        (HUB, Download(f"{HUB}/archive/HEAD.zip", "")),
        (f"{HUB}.git", Download(f"{HUB}/archive/HEAD.zip", "")),
        (f"{HUB}/tree/v1.2", Download(f"{HUB}/archive/v1.2.zip", "")),
        (f"{HUB}/blob/main/x/SKILL.md", Download(f"{RAW}/main/x/SKILL.md")),
        (f"{HUB}/raw/main/x.skill", Download(f"{HUB}/raw/main/x.skill")),
        (f"{HUB}/releases/download/v1/x.skill", Download(f"{HUB}/releases/download/v1/x.skill")),
    ],
)
def test_what_is_fetched_for_an_address(url: str, download: Download) -> None:
    assert downloads_of(url) == [download]


@pytest.mark.parametrize(
    ("path", "refs"),
    [
        ("main/skills/a%20b/", {"main": "skills/a b", "main/skills": "a b", "main/skills/a%20b": ""}),
        ("a/b/c/d/e/f", {"a": "b/c/d/e/f", "a/b": "c/d/e/f", "a/b/c": "d/e/f", "a/b/c/d": "e/f"}),
    ],
)
def test_a_branch_may_end_at_any_of_the_first_slashes(path: str, refs: dict[str, str]) -> None:
    assert downloads_of(f"{HUB}/tree/{path}") == [Download(f"{HUB}/archive/{ref}.zip", refs[ref]) for ref in refs]


@pytest.mark.parametrize("path", ["", "/ada", "/ada/tools/issues/3", "/ada/tools/blob/main", "/ada/tools/pulls"])
def test_a_page_that_is_no_file_is_refused_with_what_to_give(path: str) -> None:
    with pytest.raises(Invalid, match="OWNER/REPO/tree/REF/PATH"):
        downloads_of(f"https://github.com{path}")


def test_the_query_of_an_address_is_not_recorded() -> None:
    assert without_query("https://example.org/x.skill?key=hush#there") == "https://example.org/x.skill"


REPOSITORY = archive(
    {
        "tools-main/README.md": "Tools.",
        "tools-main/odd:name": "is no concern of the skill",
        "tools-main/skills/a b/": "",
        "tools-main/skills/a b/SKILL.md": document("ab"),
        "tools-main/skills/a b/scripts/x.py": "1",
        "tools-main/skills/a bc/SKILL.md": document("abc"),
        "tools-main/none/x.md": "x",
    }
)


def test_a_folder_of_a_repository_is_taken_and_nothing_beside_it(tmp_path: Path) -> None:
    (tmp_path / "got").write_bytes(REPOSITORY)
    assert take(tmp_path / "got", tmp_path / "skill", "skills/a b") == "ab"
    files = {path.relative_to(tmp_path / "skill").as_posix() for path in (tmp_path / "skill").rglob("*.*")}
    assert files == {"SKILL.md", "scripts/x.py"}


@pytest.mark.parametrize("folder", ["", "none", "gone", "../tools-main/skills/a b"])
def test_a_folder_without_a_skill_is_refused(tmp_path: Path, folder: str) -> None:
    (tmp_path / "got").write_bytes(REPOSITORY)
    with pytest.raises(Invalid, match=r"there is no SKILL\.md in"):
        take(tmp_path / "got", tmp_path / "skill", folder)


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (document("lone").encode(), "lone"),
        (archive({"x/SKILL.md": document("x")}), "x"),
        (b"<!doctype html><title>A page</title>", None),
        (b"\xff\xfe---", None),
        (b"---\n" + b"a" * (2 << 20), None),
        (b"---\nname: [\n---\n", None),
        (archive({"x/SKILL.md": document("x")})[:-30], None),
        (b"", None),
    ],
)
def test_a_file_is_an_archive_or_a_text_with_front_matter(tmp_path: Path, content: bytes, name: str | None) -> None:
    (tmp_path / "got").write_bytes(content)
    if name is None:
        with pytest.raises(Invalid):
            take(tmp_path / "got", tmp_path / "skill")
    else:
        assert take(tmp_path / "got", tmp_path / "skill") == name
        assert (tmp_path / "skill/SKILL.md").read_text() == document(name)
