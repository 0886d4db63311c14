"""The uploads on disk, as the agent is told of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapters.uploads import READ_BYTES, LocalUploads
from core.errors import Invalid
from core.thread.uploads import Heading, Outline, Upload

pytestmark = pytest.mark.anyio


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "users/u/threads/t/user-data/uploads"
    found.mkdir(parents=True)
    return found


async def test_files_by_name_with_the_outlines_asked_for(tmp_path: Path, folder: Path) -> None:
    (folder / "b.pdf").write_bytes(b"12345")
    (folder / "b.md").write_text("# Title\n\ntext\n## Second")
    (folder / "a.md").write_text("only\n\ntext")
    (folder / "c.txt").write_text("")
    listing = LocalUploads(tmp_path).listing
    title = Outline([Heading(1, "Title"), Heading(4, "Second")])
    assert await listing("u", "t", ["b.pdf", "a.md", "c.txt"]) == [
        Upload("a.md", 10, "a.md", Outline(preview=["only", "text"])),
        Upload("b.md", 23, "b.md"),
        Upload("b.pdf", 5, "b.md", title),
        Upload("c.txt", 0),
    ]
    assert [file.outline for file in await listing("u", "t", [])] == [None] * 4


async def test_only_plain_files_with_names_that_can_be_shown(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "secret.md").write_text("# Secret")
    (folder / "link.md").symlink_to(tmp_path / "secret.md")
    (folder / "link.pdf").write_text("")
    (folder / "folder").mkdir()
    (folder / "two\nlines").write_text("")
    (folder / "größe.txt").write_text("")
    found = await LocalUploads(tmp_path).listing("u", "t", ["link.pdf"])
    assert found == [Upload("größe.txt", 0), Upload("link.pdf", 0)]


async def test_a_huge_text_is_not_read_whole(tmp_path: Path, folder: Path) -> None:
    (folder / "a.md").write_bytes(b"# One\n" + b"\n" * READ_BYTES + b"# Two\n")
    [found] = await LocalUploads(tmp_path).listing("u", "t", ["a.md"])
    assert found.outline == Outline([Heading(1, "One")])


async def test_no_folder_no_files(tmp_path: Path) -> None:
    assert await LocalUploads(tmp_path).listing("u", "t", []) == []
    with pytest.raises(Invalid):
        await LocalUploads(tmp_path).listing("u", "../t", [])
