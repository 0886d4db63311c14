"""The uploads on disk, as the agent is told of them."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from adapters.uploads import READ_BYTES, LocalUploads
from core.errors import Invalid
from core.events import Event, FileConverted, FileRemoved, FileUploaded, ThreadCreated, thread
from core.files.uploads import Heading, Outline, Upload
from core.log.store import EventLog
from tests.support.nats import Nats, bus_on, log_on

pytestmark = pytest.mark.anyio


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "users/u/threads/t/user-data/uploads"
    found.mkdir(parents=True)
    return found


@pytest.fixture
async def log(single: Nats) -> AsyncIterator[EventLog]:
    async with bus_on(single, f"t{uuid.uuid4().hex[:10]}") as bus, log_on(bus) as log:
        await log.append(thread("t"), [ThreadCreated(user="u")], expected=0, actor="http")
        yield log


async def write(log: EventLog, *events: Event) -> None:
    last = [record async for record in log.read(thread("t"))][-1]
    await log.append(thread("t"), events, expected=last.seq, actor="documents")


def converted(name: str, markdown: str) -> Sequence[Event]:
    return FileUploaded(name=name, size=1, sha256=name), FileConverted(name=name, markdown=markdown, source_sha256=name)


async def test_files_by_name_with_the_outlines_asked_for(tmp_path: Path, folder: Path, log: EventLog) -> None:
    (folder / "b.pdf").write_bytes(b"12345")
    (folder / "b.md").write_text("# Title\n\ntext\n## Second")
    (folder / "a.md").write_text("only\n\ntext")
    (folder / "c.txt").write_text("")
    await write(log, *converted("b.pdf", "b.md"))
    listing = LocalUploads(tmp_path, log).listing
    title = Outline([Heading(1, "Title"), Heading(4, "Second")])
    assert await listing("u", "t", ["b.pdf", "a.md", "c.txt"]) == [
        Upload("a.md", 10, "a.md", Outline(preview=["only", "text"])),
        Upload("b.md", 23, "b.md"),
        Upload("b.pdf", 5, "b.md", title),
        Upload("c.txt", 0),
    ]
    assert [file.outline for file in await listing("u", "t", [])] == [None] * 4


async def test_only_plain_files_with_names_that_can_be_shown(tmp_path: Path, folder: Path, log: EventLog) -> None:
    (tmp_path / "secret.md").write_text("# Secret")
    (folder / "link.md").symlink_to(tmp_path / "secret.md")
    (folder / "link.pdf").write_text("")
    (folder / "folder").mkdir()
    (folder / "two\nlines").write_text("")
    (folder / "größe.txt").write_text("")
    found = await LocalUploads(tmp_path, log).listing("u", "t", ["link.pdf"])
    assert found == [Upload("größe.txt", 0), Upload("link.pdf", 0)]


async def test_a_huge_text_is_not_read_whole(tmp_path: Path, folder: Path, log: EventLog) -> None:
    (folder / "a.md").write_bytes(b"# One\n" + b"\n" * READ_BYTES + b"# Two\n")
    [found] = await LocalUploads(tmp_path, log).listing("u", "t", ["a.md"])
    assert found.outline == Outline([Heading(1, "One")])


async def test_no_folder_no_files(tmp_path: Path, log: EventLog) -> None:
    assert await LocalUploads(tmp_path, log).listing("u", "t", []) == []
    with pytest.raises(Invalid):
        await LocalUploads(tmp_path, log).listing("u", "../t", [])


async def test_the_text_of_a_document_is_the_recorded_one(tmp_path: Path, folder: Path, log: EventLog) -> None:
    """Two documents of one stem have two texts. A file that is called as a text would be is no text of a document."""
    for name in ("report.docx", "report.pdf", "report.md", "report_1.md", "notes.pdf", "notes.md", "gone.pdf"):
        (folder / name).write_text(name)

    async def texts() -> dict[str, str | None]:
        return {file.name: file.markdown for file in await LocalUploads(tmp_path, log).listing("u", "t", [])}

    own = {name: name for name in ("notes.md", "report.md", "report_1.md")}
    none = dict.fromkeys(("gone.pdf", "notes.pdf", "report.docx", "report.pdf"))
    assert await texts() == own | none
    await write(log, *converted("report.docx", "report.md"), *converted("report.pdf", "report_1.md"))
    await write(log, *converted("gone.pdf", "gone.md"))
    assert await texts() == own | none | {"report.docx": "report.md", "report.pdf": "report_1.md"}
    await write(log, FileUploaded(name="report.docx", size=1, sha256="another"), FileRemoved(name="report.pdf"))
    assert await texts() == own | none


async def test_a_document_that_a_command_replaced_has_no_text(tmp_path: Path, folder: Path, log: EventLog) -> None:
    """Commands write no facts: the content tells, where the document is newer than its text."""
    content = b"the bill"
    (folder / "bill.pdf").write_bytes(content)
    (folder / "bill.md").write_text("the text")
    fact = FileUploaded(name="bill.pdf", size=8, sha256=hashlib.sha256(content).hexdigest())
    await write(log, fact, FileConverted(name="bill.pdf", markdown="bill.md", source_sha256=fact.sha256))

    async def text() -> str | None:
        [_, bill] = await LocalUploads(tmp_path, log).listing("u", "t", [])
        return bill.markdown

    assert await text() == "bill.md"
    (folder / "bill.pdf").write_bytes(content)
    assert await text() == "bill.md"
    (folder / "bill.pdf").write_bytes(b"the will")
    assert await text() is None
    (folder / "other.tmp").write_bytes(b"the sill")
    (folder / "other.tmp").rename(folder / "bill.pdf")
    assert await text() is None
