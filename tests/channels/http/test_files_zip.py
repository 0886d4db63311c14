"""Files of a thread as one archive: what is in it, in which form, and what is refused."""

from __future__ import annotations

import io
import os
import random
import zipfile
from pathlib import Path

import pytest

from channels.http.page import files_zip
from channels.http.page.files import Files, Walk
from core.runtime.system import System
from tests.channels.http.conftest import Api
from tests.channels.http.people import ADA, BOB, WithAccounts, place
from tests.channels.http.test_files import TOP, root  # noqa: F401  fixture
from tests.channels.http.test_uploads import Settings, config, services  # noqa: F401  fixtures

pytestmark = pytest.mark.anyio


async def download(api: Api, query: str = "") -> tuple[str, dict[str, bytes]]:
    """Returns the archive's name, and what is in it."""
    async with api.session.get(f"{api.url}/api/threads/t/files.zip{query}") as response:
        assert (response.status, response.content_type) == (200, "application/zip"), await response.text()
        assert "Content-Encoding" not in response.headers
        data = await response.read()
        name = response.headers["Content-Disposition"]
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        return name, {entry.filename: archive.read(entry) for entry in archive.infolist()}


async def test_all_files_and_those_of_a_folder(api: Api, root: Path) -> None:  # noqa: F811
    (root / "outputs" / "a b").mkdir()
    (root / "outputs" / "a b" / "über.txt").write_text("über")
    (root / "uploads" / "empty").write_text("")
    large = random.Random(1).randbytes(3 * files_zip.CHUNK_BYTES + 5)
    (root / "workspace" / "large.bin").write_bytes(large)
    os.utime(root / "workspace" / "large.bin", (0, 0))
    (root / "workspace" / "link").symlink_to("/etc/passwd")
    (root / "workspace" / "way").symlink_to("/etc")
    os.mkfifo(root / "workspace" / "pipe")
    name, files = await download(api)
    assert name == "attachment; filename*=UTF-8''files.zip"
    assert files == {"outputs/a b/über.txt": "über".encode(), "uploads/empty": b"", "workspace/large.bin": large}
    name, files = await download(api, f"?under={TOP}/outputs")
    assert name == "attachment; filename*=UTF-8''outputs.zip"
    assert files == {"a b/über.txt": "über".encode()}
    name, files = await download(api, f"?under={TOP}/outputs/a%20b/")
    assert name == "attachment; filename*=UTF-8''a%20b.zip"
    assert files == {"über.txt": "über".encode()}
    async with api.session.head(f"{api.url}/api/threads/t/files.zip") as response:
        assert (response.status, await response.read()) == (200, b"")


HOSTILE = {
    "..\\..\\evil.exe": ".._.._evil.exe",
    "C:\\evil": "C__evil",
    "a\nb\x7f": "a_b_",
    'what?<"|*>:': "what_______",
    "SAME": "SAME",
    "same": "same~2",
    "x\\y": "x_y",
    "x:y": "x_y~2",
}


async def test_names_stay_within_the_folder_on_any_system(api: Api, root: Path) -> None:  # noqa: F811
    for name in HOSTILE:
        (root / "outputs" / name).write_text(name)
    _, files = await download(api, f"?under={TOP}/outputs")
    assert len(files) == len(HOSTILE), "none takes the place of another"
    assert {text.decode(): name for name, text in files.items() if text.decode() not in ("x\\y", "x:y")} == {
        name: plain for name, plain in HOSTILE.items() if name not in ("x\\y", "x:y")
    }
    assert {"x_y", "x_y~2"} < files.keys()


@pytest.mark.parametrize(
    ("query", "status", "word"),
    [
        ("?under=/etc", 400, "must be in"),
        (f"?under={TOP}/../../etc", 400, "'..'"),
        (f"?under={TOP}/outputs/none", 404, "there are no files"),
        (f"?under={TOP}/workspace/way", 404, "there are no files"),
        ("", 404, "there are no files"),
    ],
)
async def test_what_is_not_there(api: Api, root: Path, query: str, status: int, word: str) -> None:  # noqa: F811
    (root / "workspace" / "way").symlink_to("/etc")
    assert word in (await api.ask("GET", f"/threads/t/files.zip{query}", status=status))["detail"]


async def test_limits(api: Api, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    for index in range(5):
        (root / "outputs" / str(index)).write_text("x" * 10)
    for name, value in (("MOST_FILES", 4), ("MOST_BYTES", 49)):
        with monkeypatch.context() as patch:
            patch.setattr(files_zip, name, value)
            answer = await api.ask("GET", f"/threads/t/files.zip?under={TOP}/outputs", status=413)
        assert "download a folder in it" in answer["detail"]
    assert len((await download(api))[1]) == 5


async def test_a_file_that_goes_or_grows_meanwhile(
    api: Api,
    root: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("goes", "grows", "stays", "turns"):
        (root / "outputs" / name).write_text(name)
    counted = Walk.page

    def page(walk: Walk) -> Files:
        found = counted(walk)
        (root / "outputs" / "goes").unlink()
        (root / "outputs" / "grows").write_text("grows and grows")
        (root / "outputs" / "turns").unlink()
        (root / "outputs" / "turns").symlink_to("/etc/passwd")
        return found

    monkeypatch.setattr(Walk, "page", page)
    assert (await download(api, f"?under={TOP}/outputs"))[1] == {"grows": b"grows", "stays": b"stays"}


async def test_files_are_their_owners(system: System, tmp_path: Path) -> None:
    async with place(system, WithAccounts(), tmp_path / "home") as here:
        ada, bob = await here.person(ADA), await here.person(BOB)
        thread = (await ada.ask("POST", "/api/threads", {})).body["thread_id"]
        outputs = tmp_path / "home" / "users" / (await ada.me()).body["id"] / "threads" / thread / "user-data/outputs"
        outputs.mkdir(parents=True)
        (outputs / "x").write_text("x")
        for person, status in ((ada, 200), (bob, 404), (here.browser(), 401)):
            assert (await person.ask("GET", f"/api/threads/{thread}/files.zip")).status == status
