"""Conversion in a process of its own: every kind of document, hostile ones, and limits that hold."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from unittest.mock import ANY

import pytest

from adapters.documents import convert, local
from adapters.documents.local import LocalDocuments
from core.errors import Invalid, NotFound
from core.files.folder import Folder, Text
from core.ports.documents import UNCONFINED, Converted, Rejected
from tests.support import documents as build
from tests.support.nats import eventually

pytestmark = pytest.mark.anyio


async def _silent(_: str) -> None: ...


@pytest.fixture
def uploads(tmp_path: Path) -> Path:
    folder = Folder(tmp_path, "ada", "t1")
    folder.make()
    return folder.root / "user-data" / "uploads"


@pytest.fixture
def documents(tmp_path: Path) -> LocalDocuments:
    return LocalDocuments(tmp_path)


@pytest.mark.parametrize("name", build.REAL)
async def test_real_documents(documents: LocalDocuments, uploads: Path, name: str) -> None:
    make, expected = build.REAL[name]
    (uploads / name).write_bytes(make())
    found = await documents.convert("ada", "t1", name, None, _silent)
    assert isinstance(found, Converted), found
    assert found.text.name == f"{Path(name).stem}.md"
    assert expected in (uploads / found.text.name).read_text()
    assert found.pages == (2 if name.endswith((".pdf", ".pptx")) else None)
    assert sorted(os.listdir(uploads)) == sorted({name, found.text.name})
    assert os.listdir(uploads.parent.parent / "drafts") == []


@pytest.mark.long(keep=4)
@pytest.mark.parametrize("name", build.HOSTILE)
async def test_hostile_documents(documents: LocalDocuments, uploads: Path, name: str) -> None:
    make, reason = build.HOSTILE[name]
    (uploads / name).write_bytes(make())
    found = await documents.convert("ada", "t1", name, None, _silent)
    assert isinstance(found, Rejected), found
    assert reason in found.reason
    assert os.listdir(uploads) == [name]
    assert list((uploads.parent.parent).glob("drafts/*")) == []


async def test_progress_by_page(documents: LocalDocuments, uploads: Path) -> None:
    said: list[str] = []

    async def progress(text: str) -> None:
        said.append(text)

    (uploads / "long.pdf").write_bytes(build.pdf(*(f"Page {n}" for n in range(5))))
    await documents.convert("ada", "t1", "long.pdf", None, progress)
    assert said == [f"long.pdf: page {n} of 5\n" for n in range(1, 6)]


async def test_text_has_a_name_of_its_own(documents: LocalDocuments, uploads: Path) -> None:
    (uploads / "a.md").write_text("a person's own")
    (uploads / "a.csv").write_bytes(build.csv(("x",)))
    for _ in range(2):  # a crash may have come before the first time was written down
        found = await documents.convert("ada", "t1", "a.csv", None, _silent)
        assert isinstance(found, Converted)
        assert found.text.name == "a_1.md"
    (uploads / "a.csv").write_bytes(build.csv(("y",)))
    assert isinstance(found, Converted)
    again = await documents.convert("ada", "t1", "a.csv", found.text, _silent)
    assert isinstance(again, Converted)
    assert (again.text.name, (uploads / "a_1.md").read_text()) == ("a_1.md", "| y |\n| --- |\n")
    assert (uploads / "a.md").read_text() == "a person's own"


async def test_a_text_that_a_person_replaced_is_the_persons(documents: LocalDocuments, uploads: Path) -> None:
    """Also before the log knows."""
    (uploads / "a.csv").write_bytes(build.csv(("x",)))
    made = await documents.convert("ada", "t1", "a.csv", None, _silent)
    assert isinstance(made, Converted)
    assert made.text.name == "a.md"
    (uploads / "a.md").write_text("a person's own")
    await documents.discard("ada", "t1", made.text)
    (uploads / "a.csv").write_bytes(build.csv(("y",)))
    again = await documents.convert("ada", "t1", "a.csv", made.text, _silent)
    assert isinstance(again, Converted)
    assert again.text.name == "a_1.md"
    assert (uploads / "a.md").read_text() == "a person's own"
    await documents.discard("ada", "t1", again.text)
    await documents.discard("ada", "t1", again.text)
    assert sorted(path.name for path in uploads.iterdir()) == ["a.csv", "a.md"]


async def test_a_text_of_a_long_name_beside_another(documents: LocalDocuments, uploads: Path) -> None:
    stem = "ä" * 125  # with its suffix 254 bytes, of 255
    (uploads / f"{stem}.csv").write_bytes(build.csv(("a",)))
    (uploads / f"{stem}.md").write_text("of a person")
    found = await documents.convert("ada", "t1", f"{stem}.csv", None, _silent)
    assert isinstance(found, Converted)
    assert found.text.name == f"{stem}_1.md"
    (uploads / found.text.name).write_text("of a person, too")
    for number in range(2, 10):
        (uploads / f"{stem}_{number}.md").write_text("of a person, too")
    found = await documents.convert("ada", "t1", f"{stem}.csv", None, _silent)
    assert isinstance(found, Converted)
    assert found.text.name == f"{stem[:-1]}_10.md"


@pytest.mark.parametrize("trap", ["link", "hard link", "directory"])
async def test_text_is_not_written_through_a_link(
    documents: LocalDocuments, uploads: Path, tmp_path: Path, trap: str
) -> None:
    (tmp_path / "victim").write_text("untouched")
    match trap:
        case "link":
            (uploads / "a.md").symlink_to(tmp_path / "victim")
        case "hard link":
            (uploads / "a.md").hardlink_to(tmp_path / "victim")
        case _:
            (uploads / "a.md").mkdir()
    (uploads / "a.csv").write_bytes(build.csv(("x",)))
    found = await documents.convert("ada", "t1", "a.csv", Text("a.md", None), _silent)
    assert isinstance(found, Converted)
    assert found.text.name == "a_1.md"
    assert (tmp_path / "victim").read_text() == "untouched"


async def test_what_is_no_file(documents: LocalDocuments, uploads: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("a,b")
    (uploads / "link.csv").symlink_to(tmp_path / "secret.csv")
    (uploads / "folder.csv").mkdir()
    os.mkfifo(uploads / "pipe.csv")
    for name in ("link.csv", "folder.csv", "pipe.csv"):
        with pytest.raises(Invalid):
            await documents.convert("ada", "t1", name, None, _silent)
    for thread, name in (("t1", "none.csv"), ("t2", "a.csv")):
        with pytest.raises(NotFound):
            await documents.convert("ada", thread, name, None, _silent)


async def test_a_large_pdf(documents: LocalDocuments, uploads: Path) -> None:
    build.large_pdf(uploads / "large.pdf")
    found = await documents.convert("ada", "t1", "large.pdf", None, _silent)
    assert isinstance(found, Converted)
    assert (uploads / "large.md").read_text() == "Text on the page\n"


async def test_a_document_that_needs_too_much_memory(tmp_path: Path, uploads: Path) -> None:
    (uploads / "big.csv").write_bytes(build.csv(*[("x" * 20,) * 20] * 100_000))
    documents = LocalDocuments(tmp_path, memory_bytes=200 << 20)
    found = await documents.convert("ada", "t1", "big.csv", None, _silent)
    assert isinstance(found, Rejected)
    assert "more memory" in found.reason
    assert os.listdir(uploads) == ["big.csv"]


@pytest.mark.parametrize("busy", [True, False])
async def test_a_document_whose_reading_does_not_end(
    monkeypatch: pytest.MonkeyPatch, uploads: Path, tmp_path: Path, busy: bool
) -> None:
    """One that computes has a limit of processor time, one that waits a limit of time."""
    script, libraries = tmp_path / "endless.py", local._libraries()
    script.write_text(
        f"import json, sys, time\nsys.path.insert(0, {str(Path(convert.__file__).parents[2])!r})\n"
        "from adapters.documents import convert\nconvert.restrict(json.loads(sys.argv[2]))\n"
        f"while True: {'pass' if busy else 'time.sleep(600)'}\n"
    )
    monkeypatch.setattr(local, "_libraries", lambda: [*libraries, str(script)])
    monkeypatch.setattr(convert, "__file__", str(script))
    monkeypatch.setattr(local, "CPU_SECONDS", 1)
    (uploads / "a.csv").write_bytes(build.csv(("x",)))
    documents = LocalDocuments(tmp_path) if busy else LocalDocuments(tmp_path, wall_seconds=1)
    assert await documents.convert("ada", "t1", "a.csv", None, _silent) == Rejected(
        ANY, "takes longer than 1 s to be converted"
    )
    assert os.listdir(uploads) == ["a.csv"]


async def test_a_member_that_is_larger_than_it_says_ends_there(documents: LocalDocuments, uploads: Path) -> None:
    (uploads / "a.docx").write_bytes(build.lying(build.docx("x"), "word/document.xml"))
    found = await documents.convert("ada", "t1", "a.docx", None, _silent)
    assert isinstance(found, Converted), found
    text = (uploads / "a.md").read_text()
    assert text.startswith("x\n\n> [Not converted: word/document.xml: damaged")
    assert len(text) < 500


async def test_a_text_that_is_too_long_is_cut(documents: LocalDocuments, uploads: Path) -> None:
    (uploads / "big.csv").write_bytes(build.csv(*[("x" * 50,) * 20] * 20_000))
    found = await documents.convert("ada", "t1", "big.csv", None, _silent)
    assert isinstance(found, Converted), found
    text = (uploads / "big.md").read_text()
    assert len(text) <= local.TEXT_BYTES
    assert text.endswith("> [Not converted: the rest of 20 MB of text; 16 MB is the limit.]\n")


@pytest.mark.parametrize("confined", [True, False])
async def test_nothing_is_left_when_it_is_cancelled(
    monkeypatch: pytest.MonkeyPatch, documents: LocalDocuments, uploads: Path, tmp_path: Path, confined: bool
) -> None:
    if confined and not local._confinement_works():
        pytest.skip("no bubblewrap here")
    monkeypatch.setattr(local, "_confinement_works", lambda: confined)
    documents = LocalDocuments(tmp_path, unconfined=lambda: not confined)
    script = tmp_path / "endless.py"
    script.write_text('import os, time\nos.write(2, b\'{"page": 1, "of": 2}\\n\')\ntime.sleep(600)\n')
    monkeypatch.setattr(convert, "__file__", str(script))
    (uploads / "a.csv").write_bytes(build.csv(("x",)))
    begun = asyncio.Event()

    async def progress(_: str) -> None:
        begun.set()

    task = asyncio.create_task(documents.convert("ada", "t1", "a.csv", None, progress))
    await begun.wait()
    assert _running(script)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    async def buried() -> bool:
        return not _running(script)

    await eventually(buried)
    assert os.listdir(uploads) == ["a.csv"]


async def test_converter_of_documents(
    monkeypatch: pytest.MonkeyPatch, documents: LocalDocuments, uploads: Path, tmp_path: Path
) -> None:
    """What a document that took over its converter can open for writing, and what else it can reach."""
    if not local._confinement_works():
        pytest.skip("no bubblewrap here")
    script = tmp_path / "script" / "captured.py"
    script.parent.mkdir()
    script.write_text(
        "import ctypes, errno, json, os, socket\n"
        "libc, seen = ctypes.CDLL(None, use_errno=True), []\n"
        "for path in ('/proc/sys/kernel/core_pattern', '/proc/sys/vm/drop_caches', '/proc/slabinfo'):\n"
        "    try:\n"
        "        os.close(os.open(path, os.O_WRONLY if 'sys/' in path else os.O_RDONLY))\n"
        "        seen.append(path)\n"
        "    except OSError:\n"
        "        pass\n"
        "try:\n"
        "    seen.append(socket.socket(socket.AF_VSOCK).family.name)\n"
        "except OSError:\n"
        "    pass\n"
        "seen.append(libc.unshare(0x10000000))\n"
        "os.write(2, json.dumps({'rejected': repr(seen)}).encode() + b'\\n')\n"
    )
    monkeypatch.setattr(convert, "__file__", str(script))
    (uploads / "a.csv").write_bytes(build.csv(("x",)))
    assert await documents.convert("ada", "t1", "a.csv", None, _silent) == Rejected(ANY, "[-1]")


async def test_nothing_is_converted_without_walls(
    monkeypatch: pytest.MonkeyPatch, documents: LocalDocuments, uploads: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    (uploads / "a.csv").write_bytes(build.csv(("x",)))
    for absent in (lambda: None, lambda: str(broken)):
        monkeypatch.setattr(local, "binary", absent)
        documents = LocalDocuments(tmp_path)
        assert await documents.convert("ada", "t1", "a.csv", None, _silent) == Rejected(ANY, UNCONFINED)
    assert os.listdir(uploads) == ["a.csv"]
    allowed = LocalDocuments(tmp_path, unconfined=lambda: True)
    assert isinstance(await allowed.convert("ada", "t1", "a.csv", None, _silent), Converted)


async def test_the_process_sees_nothing_of_ours(
    monkeypatch: pytest.MonkeyPatch, documents: LocalDocuments, uploads: Path, tmp_path: Path
) -> None:
    if not local._confinement_works():
        pytest.skip("no bubblewrap here")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    script, home = tmp_path / "script" / "curious.py", tmp_path / "users"
    script.parent.mkdir()
    script.write_text(
        "import json, os, socket\n"
        f"seen = [os.path.exists({str(home)!r}), 'OPENAI_API_KEY' in os.environ, len(socket.if_nameindex())]\n"
        "os.write(2, json.dumps({'rejected': repr(seen)}).encode() + b'\\n')\n"
    )
    monkeypatch.setattr(convert, "__file__", str(script))
    (uploads / "a.csv").write_bytes(build.csv(("x",)))
    found = await documents.convert("ada", "t1", "a.csv", None, _silent)
    assert isinstance(found, Rejected)
    assert found.reason == "[False, False, 1]"  # the loopback interface is all there is


def _running(script: Path) -> bool:
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if str(script).encode() in Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0"):
                return True
        except OSError:
            continue
    return False
