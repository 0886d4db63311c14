"""Discovery of skills in folders."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import anyio
import pytest

from core.skills import folders as module
from core.skills.folders import Folders, Listing, folders_in


def write(folder: Path, name: str, description: str = "d", **lines: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    more = "".join(f"{key.replace('_', '-')}: {value}\n" for key, value in lines.items())
    (folder / "SKILL.md").write_text(f"---\nname: {name}\ndescription: {description}\n{more}---\nDo {name}.\n")
    return folder


def listing(root: Path) -> Listing:
    return Folders(folders_in(root)).scan()


def reasons(found: Listing) -> dict[str, str]:
    return {skipped.path: skipped.reason for skipped in found.skipped}


def test_nested_folders_and_what_lies_in_a_skill(tmp_path: Path) -> None:
    write(tmp_path / "public/deep/er/one", "one")
    write(tmp_path / "public/two", "two")
    write(tmp_path / "public/two/examples/inner", "inner")
    write(tmp_path / "public/.hidden/three", "three")
    write(tmp_path / "public/.trash", "four")
    skills = listing(tmp_path).skills
    assert [(skill.name, skill.path) for skill in skills.values()] == [
        ("one", "/mnt/skills/public/deep/er/one/SKILL.md"),
        ("two", "/mnt/skills/public/two/SKILL.md"),
    ]
    assert skills["two"].text().endswith("Do two.\n")


def test_custom_shadows_public_and_says_so(tmp_path: Path) -> None:
    write(tmp_path / "public/a", "same", "public")
    write(tmp_path / "custom/b", "same", "custom")
    found = listing(tmp_path)
    assert [(skill.category, skill.description) for skill in found.skills.values()] == [("custom", "custom")]
    assert reasons(found) == {"/mnt/skills/public/a/SKILL.md": "shadowed by /mnt/skills/custom/b/SKILL.md"}


def test_links_are_followed_within_the_folder_only(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", write(tmp_path / "outside/far", "far")
    write(root / "public/near", "near")
    (root / "custom").mkdir()
    os.symlink("../public", root / "custom/loop")
    os.symlink("../custom", root / "custom/round")
    os.symlink(outside, root / "custom/far")
    write(root / "custom/file", "file")
    (root / "custom/file/SKILL.md").unlink()
    os.symlink(outside / "SKILL.md", root / "custom/file/SKILL.md")
    found = listing(root)
    assert list(found.skills) == ["near"]
    assert {path: "out of the folder" in reason for path, reason in reasons(found).items()} == {
        "/mnt/skills/custom/far/SKILL.md": True,
        "/mnt/skills/custom/file/SKILL.md": True,
        "/mnt/skills/public/near/SKILL.md": False,
    }
    assert found.skills["near"].path == "/mnt/skills/custom/loop/near/SKILL.md"


def test_the_root_and_a_category_may_be_links(tmp_path: Path) -> None:
    write(tmp_path / "real/public/a", "a")
    os.symlink(tmp_path / "real", tmp_path / "root")
    assert list(listing(tmp_path / "root").skills) == ["a"]


def test_broken_skills_are_skipped_with_a_reason(tmp_path: Path) -> None:
    write(tmp_path / "public/good", "good")
    write(tmp_path / "public/tools", "tools", allowed_tools="{a: b}")
    for name, content in (("empty", b""), ("latin", b"---\nname: \xe4"), ("huge", b"x" * (300 << 10))):
        write(tmp_path / "public" / name, name)
        (tmp_path / "public" / name / "SKILL.md").write_bytes(content)
    (tmp_path / "public/folder/SKILL.md").mkdir(parents=True)
    os.mkfifo(write(tmp_path / "public/pipe", "x").joinpath("y"))
    found = listing(tmp_path)
    assert list(found.skills) == ["good", "x"]
    assert {path.split("/")[4]: reason[:22] for path, reason in reasons(found).items()} == {
        "tools": "allowed-tools: a list ",
        "empty": "no front matter: the f",
        "latin": "is not UTF-8",
        "huge": "is longer than 256 KB",
        "folder": "is not a regular file",
    }


def test_no_folder_is_no_skill(tmp_path: Path) -> None:
    assert listing(tmp_path / "nowhere") == Folders({}).scan() == Listing({}, [])


async def test_a_change_is_seen_at_the_next_look_and_callers_share_a_walk(tmp_path: Path) -> None:
    write(tmp_path / "public/a", "a")
    folders, walks = Folders(folders_in(tmp_path)), list[int]()
    scan = folders.scan

    def counted() -> Listing:
        walks.append(1)
        return scan()

    folders.scan = counted  # type: ignore[method-assign]
    assert list((await folders.listing()).skills) == ["a"]
    write(tmp_path / "public/b", "b")
    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(folders.listing)
    assert list((await folders.listing()).skills) == ["a", "b"]
    assert len(walks) <= 4, "twenty callers share a walk or two"


async def test_a_look_without_a_change_is_no_walk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skill = write(tmp_path / "public/a", "a")
    folders, stats = Folders(folders_in(tmp_path)), list[str]()
    await folders.listing()
    signature = module._signature

    def counted(path: str) -> tuple[int, ...] | None:
        stats.append(path)
        return signature(path)

    monkeypatch.setattr(module, "_signature", counted)
    await folders.listing()
    assert set(stats) == {str(tmp_path / "public"), str(tmp_path / "custom")}, "the kernel answers for the rest"
    (skill / "scripts").mkdir()
    assert list((await folders.listing()).skills) == ["a"]
    stats.clear()
    await folders.listing()
    assert len(stats) == 2, "what concerns no skill is looked at once"


@pytest.mark.parametrize("watched", [True, False], ids=["watched", "not watched"])
async def test_every_kind_of_change_is_seen_at_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, watched: bool
) -> None:
    if not watched:
        monkeypatch.setattr(module, "watch", lambda paths: None)
    first, folders = write(tmp_path / "public/a", "a"), Folders(folders_in(tmp_path))
    assert list((await folders.listing()).skills) == ["a"]
    write(tmp_path / "custom/deep/down/b", "b")
    assert list((await folders.listing()).skills) == ["a", "b"], "a folder that was not there"
    text = (first / "SKILL.md").read_text()
    (first / "SKILL.md").write_text(text.replace("name: a", "name: c"))
    (first / "SKILL.md").rename(first / "SKILL.old")
    (first / "SKILL.old").rename(first / "SKILL.md")
    assert list((await folders.listing()).skills) == ["b", "c"], "a file in its place"
    (tmp_path / "new.md").write_text(text)
    (tmp_path / "new.md").replace(first / "SKILL.md")
    assert list((await folders.listing()).skills) == ["a", "b"], "a file that replaces it"
    (tmp_path / "custom").rename(tmp_path / "gone")
    assert list((await folders.listing()).skills) == ["a"], "a folder as a whole"
    shutil.rmtree(first)
    assert not (await folders.listing()).skills
