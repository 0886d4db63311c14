"""Uploads over the wire: shapes, names, limits, traps in the directory, and the conversion of documents."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest
from yarl import URL

from actors.documents import Documents
from adapters.documents.local import LocalDocuments
from channels.http.app import Services
from channels.http.deerflow import uploads as uploaded
from core.config.load import Config
from core.config.settings import Http, Uploads
from core.errors import Invalid
from core.events import FileConverted, FileRejected, FileRemoved, FileUploaded, Record, thread
from core.files.folder import KnownUploads, fold_uploads
from core.files.uploads import plain_name
from core.runtime.system import System
from tests.channels.http.conftest import Api, FirstWaits
from tests.support import documents as build
from tests.support.nats import eventually

pytestmark = pytest.mark.anyio

LIMITS = Uploads(max_files=4, max_file_size=300_000, max_total_size=500_000)


@dataclass
class Settings:
    """The configuration in force; tests may change it while the server runs."""

    http: Http = field(default_factory=lambda: Http(heartbeat_seconds=0.2, max_body_bytes=100_000))
    uploads: Uploads = LIMITS

    def __call__(self) -> Config:
        return Config(http=self.http, uploads=self.uploads)

    current = __call__


@pytest.fixture
def config() -> Settings:
    return Settings()


@pytest.fixture
def services(system: System, config: Settings, tmp_path: Path) -> Services:
    return Services.of(system, config, tmp_path / "home")


@pytest.fixture
async def converting(
    system: System, config: Settings, services: Services, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[None]:
    """A documents actor, and the configuration that has it convert all. A busy machine takes its time."""
    monkeypatch.setattr(uploaded, "CONVERSION_SECONDS", 100.0)
    config.uploads = Uploads(auto_convert_documents=True, max_file_size=200 << 20, max_total_size=400 << 20)
    actor = Documents(config, system.threads, LocalDocuments(services.home))  # type: ignore[arg-type]
    async with anyio.create_task_group() as tasks:
        await tasks.start(partial(system.serve, [actor], alone=True))
        yield
        tasks.cancel_scope.cancel()


def folder(services: Services, thread_id: str, name: str = "uploads") -> Path:
    return services.home / "users" / "default" / "threads" / thread_id / "user-data" / name


def form(*files: tuple[str, bytes]) -> tuple[bytes, dict[str, str]]:
    """A form as an attacker writes it: names as they are."""
    parts = [
        b'--edge\r\nContent-Disposition: form-data; name="files"; filename="%b"\r\n\r\n%b\r\n' % (name.encode(), data)
        for name, data in files
    ]
    return b"".join(parts) + b"--edge--\r\n", {"Content-Type": "multipart/form-data; boundary=edge"}


async def send(api: Api, thread_id: str, *files: tuple[str, bytes], status: int = 200) -> Any:
    body, headers = form(*files)
    return await post(api, thread_id, io.BytesIO(body), status, headers)


async def post(api: Api, thread_id: str, data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Any:
    url = f"{api.url}/api/threads/{thread_id}/uploads"
    async with api.session.post(url, data=data, headers=headers) as response:
        assert response.status == status, await response.text()
        return await response.json()


async def facts(system: System, thread_id: str) -> list[Record]:
    return [record async for record in system.log.read(thread(thread_id)) if record.type.startswith("file.")]


def left_over(services: Services, thread_id: str) -> list[str]:
    drafts = folder(services, thread_id).parent.parent / "drafts"
    return os.listdir(drafts) if drafts.is_dir() else []


@pytest.mark.usefixtures("converting")
async def test_the_text_of_a_document_of_any_folder(api: Api, services: Services) -> None:
    """Of what agents made, too. What has no text, and what is not there, says so; nothing is stored."""
    thread_id = await api.thread()
    outputs = folder(services, thread_id, "outputs")
    outputs.mkdir(parents=True)
    (outputs / "table.xlsx").write_bytes(build.xlsx(("id", "name"), ("007", "Ada")))
    (outputs / "long.csv").write_text("a,b\n" + "1,2\n" * 30_000)
    (outputs / "bad.docx").write_bytes(b"no document")
    (outputs / "out.docx").symlink_to("/etc/passwd")
    path = f"/threads/{thread_id}/texts/mnt/user-data/outputs"
    shown = await api.ask("GET", f"{path}/table.xlsx")
    assert "| 007 | Ada |" in shown["text"]
    assert (shown["path"], shown["truncated"]) == ("/mnt/user-data/outputs/table.xlsx", False)
    long = await api.ask("GET", f"{path}/long.csv")
    assert (len(long["text"]), long["truncated"]) == (100_000, True)
    for name, status in {"bad.docx": 422, "none.docx": 404, "out.docx": 422, "a.bin": 404}.items():
        assert name in (await api.ask("GET", f"{path}/{name}", status=status))["detail"]
    await api.ask("GET", f"/threads/{thread_id}/texts/etc/passwd", status=400)
    assert sorted(os.listdir(outputs)) == ["bad.docx", "long.csv", "out.docx", "table.xlsx"]


async def test_upload_list_and_delete(api: Api, services: Services, system: System) -> None:
    thread_id = await api.thread()
    made = await send(api, thread_id, ("größe %20.txt", b"hello"), ("../b/c.bin", bytes(70_000)))
    virtual = "/mnt/user-data/uploads/größe %20.txt"
    url = f"/api/threads/{thread_id}/artifacts/mnt/user-data/uploads/gr%C3%B6%C3%9Fe%20%2520.txt"
    assert made["files"][0] == {
        "filename": "größe %20.txt",
        "size": "5",
        "path": virtual,
        "virtual_path": virtual,
        "artifact_url": url,
    }
    assert (made["success"], made["skipped_files"], made["message"]) == (True, [], "Successfully uploaded 2 file(s)")
    second = made["files"][1]
    assert (second["filename"], second["size"], second["original_filename"]) == ("c.bin", "70000", "../b/c.bin")
    async with api.session.get(f"{api.url}{url}") as response:
        assert await response.read() == b"hello"

    listed = await api.ask("GET", f"/threads/{thread_id}/uploads/list")
    assert listed["count"] == 2
    assert [(f["filename"], f["size"], f["extension"]) for f in listed["files"]] == [
        ("c.bin", "70000", ".bin"),
        ("größe %20.txt", "5", ".txt"),
    ]
    assert abs(listed["files"][0]["modified"] - time.time()) < 60
    assert await api.ask("GET", f"/threads/{thread_id}/uploads/limits") == {
        "max_files": 4,
        "max_file_size": 300_000,
        "max_total_size": 500_000,
    }
    for status in (200, 404):
        await api.ask("DELETE", f"/threads/{thread_id}/uploads/c.bin", status=status)
    assert os.listdir(folder(services, thread_id)) == ["größe %20.txt"]
    events = [record.event for record in await facts(system, thread_id)]
    assert [type(event) for event in events] == [FileUploaded, FileUploaded, FileRemoved]
    assert isinstance(events[1], FileUploaded)
    assert (events[1].name, events[1].size, events[1].original) == ("c.bin", 70_000, "../b/c.bin")


async def test_a_file_that_cannot_be_deleted_stays_and_is_no_fact(api: Api, services: Services, system: System) -> None:
    thread_id = await api.thread()
    await send(api, thread_id, ("a.txt", b"a"))
    path = Path(folder(services, thread_id)) / "a.txt"
    path.unlink()
    path.mkdir()
    refused = await api.ask("DELETE", f"/threads/{thread_id}/uploads/a.txt", status=409)
    assert refused["detail"] == "a.txt: cannot be deleted: is a directory"
    assert [type(record.event) for record in await facts(system, thread_id)] == [FileUploaded]


async def test_upload_before_the_thread_exists(api: Api, services: Services, system: System) -> None:
    await send(api, "early", ("a.txt", b"a"))
    assert (await api.ask("GET", "/threads/early/uploads/list"))["count"] == 1
    await api.ask("DELETE", "/threads/early/uploads/a.txt", status=404)
    await api.ask("POST", "/threads", {"thread_id": "early"})
    assert (await api.ask("GET", "/threads/early/uploads/list"))["count"] == 1
    assert await facts(system, "early") == []
    await api.ask("DELETE", "/threads/early/uploads/a.txt")
    assert os.listdir(folder(services, "early")) == []


async def test_a_deleted_or_foreign_thread_takes_nothing(api: Api, services: Services, system: System) -> None:
    await system.intake.create_thread("hers", user="ada")
    await api.ask("POST", "/threads", {"thread_id": "gone"})
    await api.ask("DELETE", "/threads/gone", status=204)
    for thread_id in ("hers", "gone"):
        await send(api, thread_id, ("a.txt", b"a"), status=404)
        for path in ("list", "limits"):
            await api.ask("GET", f"/threads/{thread_id}/uploads/{path}", status=404)
        await api.ask("DELETE", f"/threads/{thread_id}/uploads/a.txt", status=404)
        await api.ask("POST", f"/threads/{thread_id}/uploads/a.txt/convert", status=404)
        assert not folder(services, thread_id).exists()


@pytest.mark.parametrize(
    ("sent", "name"),
    [
        ("../../etc/passwd", "passwd"),
        ("/etc/passwd", "passwd"),
        ("a/../../b.txt", "b.txt"),
        ("..%2f..%2fpasswd", "_..%2f..%2fpasswd"),
        ("%00.txt", "%00.txt"),
        (".bashrc", "_.bashrc"),
        ("...", None),
        ("..", None),
        (".", None),
        ("dir/", None),
        ("nul\0byte.txt", "nulbyte.txt"),
        ("line\r\nbreak\x1b[31m.txt", "linebreak[31m.txt"),
        ("invoice\u202efdp.exe", "invoicefdp.exe"),
        ("\u200b\ufeff", None),
        ("\U0001f468\u200d\U0001f469.txt", "\U0001f468\u200d\U0001f469.txt"),
        ("e\u0301.txt", "\u00e9.txt"),
        ("CON", "_CON"),
        ("nul.txt", "_nul.txt"),
        ("com1.tar.gz", "_com1.tar.gz"),
        ("console.txt", "console.txt"),
        ("a\\..\\b.txt", None),
        ("C:\\temp\\x", None),
        ("trailing. . ", "trailing"),
        ("\udcff.txt", "_.txt"),
        ("x" * 255, "x" * 255),
        ("x" * 256, None),
        ("ü" * 128, None),
    ],
)
def test_plain_names(sent: str, name: str | None) -> None:
    if name is None:
        with pytest.raises(Invalid):
            plain_name(sent)
    else:
        assert plain_name(sent) == name


@pytest.mark.parametrize(
    ("sent", "names", "skipped"),
    [
        ("../../../etc/cron.d/x", ["x"], 0),
        ("..%2f..%2fx", ["_..%2f..%2fx"], 0),
        ("a;b.txt", ["a;b.txt"], 0),
        ("CON", ["_CON"], 0),
        (".htaccess", ["_.htaccess"], 0),
        ("\u202egpj.exe", ["gpj.exe"], 0),
        ("y" * 300, [], 1),
        ("..", [], 1),
    ],
)
async def test_hostile_names(api: Api, services: Services, sent: str, names: list[str], skipped: int) -> None:
    thread_id = await api.thread()
    made = await send(api, thread_id, (sent, b"x"))
    assert ([file["filename"] for file in made["files"]], len(made["skipped_files"])) == (names, skipped)
    assert made["success"] is not bool(skipped)
    assert os.listdir(folder(services, thread_id)) == names
    assert left_over(services, thread_id) == []


async def test_same_names(api: Api, services: Services) -> None:
    thread_id = await api.thread()
    made = await send(api, thread_id, ("a.tar.gz", b"1"), ("a.tar.gz", b"2"), ("a.tar_1.gz", b"3"))
    assert [file["filename"] for file in made["files"]] == ["a.tar.gz", "a.tar_1.gz", "a.tar_1_1.gz"]
    await send(api, thread_id, ("a.tar.gz", b"newer"))
    assert (folder(services, thread_id) / "a.tar.gz").read_bytes() == b"newer"


@pytest.mark.parametrize(
    ("files", "detail"),
    [
        ([(f"{n}", b"x") for n in range(5)], "max_files"),
        ([("small", b"x"), ("large", bytes(300_001))], "max_file_size"),
        ([("a", bytes(250_000)), ("b", bytes(250_001))], "max_total_size"),
        ([("..", bytes(250_000)), ("b", bytes(250_001))], "max_total_size"),
        ([("b", bytes(200_001))], "max_total_size"),
    ],
)
async def test_limits(api: Api, services: Services, files: list[tuple[str, bytes]], detail: str) -> None:
    thread_id = await api.thread()
    (folder(services, thread_id)).mkdir(parents=True)
    (folder(services, thread_id) / "there").write_bytes(bytes(300_000 if len(files) == 1 else 1))
    refused = await send(api, thread_id, *files, status=413)
    assert detail in refused["detail"]
    assert os.listdir(folder(services, thread_id)) == ["there"]
    assert left_over(services, thread_id) == []


async def test_what_is_replaced_does_not_count(api: Api, services: Services) -> None:
    thread_id = await api.thread()
    await send(api, thread_id, ("a", bytes(250_000)), ("b", bytes(200_000)))
    await send(api, thread_id, ("a", bytes(300_000)))
    await send(api, thread_id, ("c", b"x"), status=413)
    assert sorted(os.listdir(folder(services, thread_id))) == ["a", "b"]


async def test_two_uploads_at_once_stay_within_the_total(api: Api, services: Services) -> None:
    thread_id = await api.thread()

    async def one(name: str) -> int:
        body, headers = form((name, bytes(200_000)))
        url = f"{api.url}/api/threads/{thread_id}/uploads"
        async with api.session.post(url, data=io.BytesIO(body), headers=headers) as response:
            return response.status

    assert sorted(await asyncio.gather(*(one(f"{n}") for n in range(5)))) == [200, 200, 413, 413, 413]
    assert len(os.listdir(folder(services, thread_id))) == 2
    assert left_over(services, thread_id) == []


@pytest.mark.parametrize("other", ["upload", "delete"])
async def test_the_log_has_what_lies_there_whoever_records_first(
    api: Api, services: Services, system: System, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    thread_id = await api.thread()
    turn = FirstWaits(services, monkeypatch)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(send(api, thread_id, ("a.txt", b"first")))
        await turn.waits.wait()
        if other == "upload":
            await send(api, thread_id, ("a.txt", b"second"), ("b.txt", b"b"))
        else:
            await api.ask("DELETE", f"/threads/{thread_id}/uploads/a.txt")
        turn.go_on.set()
    known = fold_uploads(await facts(system, thread_id), KnownUploads()).files
    there = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder(services, thread_id).iterdir()}
    assert {name: upload.sha256 for name, upload in known.items()} == there
    assert len(there) == (2 if other == "upload" else 0)


async def test_a_removal_is_no_fact_if_the_file_is_there_again(
    api: Api, services: Services, system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread_id = await api.thread()
    await send(api, thread_id, ("a.txt", b"first"))
    turn = FirstWaits(services, monkeypatch)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(api.ask("DELETE", f"/threads/{thread_id}/uploads/a.txt"))
        await turn.waits.wait()
        await send(api, thread_id, ("a.txt", b"second"))
        turn.go_on.set()
    known = fold_uploads(await facts(system, thread_id), KnownUploads()).files
    assert {name: upload.sha256 for name, upload in known.items()} == {"a.txt": hashlib.sha256(b"second").hexdigest()}


@pytest.mark.parametrize("trap", ["link", "dangling", "hard link", "directory", "pipe"])
async def test_traps_in_the_directory(api: Api, services: Services, tmp_path: Path, trap: str) -> None:
    thread_id = await api.thread()
    await send(api, thread_id, ("other.txt", b"x"))
    place, victim = folder(services, thread_id) / "a.txt", tmp_path / "victim"
    victim.write_text("untouched")
    match trap:
        case "link":
            place.symlink_to(victim)
        case "dangling":
            place.symlink_to(tmp_path / "nowhere")
        case "hard link":
            place.hardlink_to(victim)
        case "directory":
            place.mkdir()
        case _:
            os.mkfifo(place)
    made = await send(api, thread_id, ("a.txt", b"evil"), ("b.txt", b"fine"))
    assert (made["success"], made["skipped_files"]) == (False, ["a.txt"])
    assert [file["filename"] for file in made["files"]] == ["b.txt"]
    assert victim.read_text() == "untouched"
    assert not (tmp_path / "nowhere").exists()
    assert left_over(services, thread_id) == []


@pytest.mark.parametrize("trap", ["link", "dangling", "file"])
async def test_the_directory_itself_is_a_trap(api: Api, services: Services, tmp_path: Path, trap: str) -> None:
    thread_id = await api.thread()
    (tmp_path / "elsewhere").mkdir()
    folder(services, thread_id).parent.mkdir(parents=True)
    if trap == "file":
        folder(services, thread_id).write_text("no directory")
    else:
        folder(services, thread_id).symlink_to(tmp_path / ("elsewhere" if trap == "link" else "nowhere"))
    await send(api, thread_id, ("a.txt", b"evil"), status=404)
    assert os.listdir(tmp_path / "elsewhere") == []


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "multipart/form-data; boundary=edge"),
        (b"--edge--\r\n", "multipart/form-data; boundary=edge"),
        (b"no form at all", "multipart/form-data; boundary=edge"),
        (b"x", "multipart/form-data"),
        (b"x", "multipart/form-data; boundary=" + "e" * 100),
        (b"{}", "application/json"),
        (b"a=b", "application/x-www-form-urlencoded"),
        (form(("a.txt", b"x"))[0][:-12], "multipart/form-data; boundary=edge"),
        (b'--edge\r\nContent-Disposition: form-data; name="files"; filename=""\r\n\r\n\r\n--edge--\r\n', ""),
        (b'--edge\r\nContent-Disposition: form-data; name="other"\r\n\r\nx\r\n--edge--\r\n', ""),
        (b'--edge\r\nContent-Disposition: form-data; name="files"\r\n\r\nx\r\n--edge--\r\n', ""),
        (b"--edge\r\nContent-Disposition: form-data; filename=x\r\n\r\nx\r\n--edge--\r\n", ""),
        (b"--edge\r\nContent-Disposition: ;;;=\r\n\r\nx\r\n--edge--\r\n", ""),
        (b"--edge\r\nX: \0\r\n\r\nx\r\n--edge--\r\n", ""),
        (b"--edge\r\n" + b"X: y\r\n" * 500 + b"\r\nx\r\n--edge--\r\n", ""),
        (b"--edge\r\nX: " + b"y" * 100_000 + b"\r\n\r\nx\r\n--edge--\r\n", ""),
        (b"--edge\r\nContent-Type: multipart/mixed; boundary=in\r\n\r\n--in--\r\n--edge--\r\n", ""),
        (b"--edge\r\nContent-Length: 99\r\nContent-Disposition: form-data; name=files; filename=x\r\n\r\nx", ""),
    ],
)
async def test_malformed_forms(api: Api, services: Services, body: bytes, kind: str) -> None:
    thread_id = await api.thread()
    headers = {"Content-Type": kind or "multipart/form-data; boundary=edge"}
    refused = await api.ask("POST", f"/threads/{thread_id}/uploads", body, status=400, headers=headers)
    assert set(refused) == {"detail", "code"}
    assert left_over(services, thread_id) == []


async def test_other_fields_are_read_over_to_a_degree(api: Api, services: Services) -> None:
    thread_id = await api.thread()
    field = b'--edge\r\nContent-Disposition: form-data; name="note"\r\n\r\n%b\r\n'
    file, headers = form(("a.txt", b"x"))
    await post(api, thread_id, io.BytesIO(field % b"hello" + file), 200, headers)
    await post(api, thread_id, io.BytesIO(field % bytes(2 << 20) + file), 413, headers)
    assert os.listdir(folder(services, thread_id)) == ["a.txt"]


async def test_a_client_that_leaves(api: Api, services: Services) -> None:
    thread_id = await api.thread()
    began = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        yield form(("a.txt", bytes(1000)))[0][:-12]
        began.set()
        await asyncio.sleep(60)

    request = api.session.post(
        f"{api.url}/api/threads/{thread_id}/uploads", data=endless(), headers=form()[1], chunked=True
    )
    task = asyncio.ensure_future(_do(request))

    async def drafted() -> bool:
        return bool(left_over(services, thread_id))

    async def clean() -> bool:
        return not left_over(services, thread_id)

    await began.wait()
    await eventually(drafted)
    task.cancel()
    await eventually(clean)
    assert os.listdir(folder(services, thread_id)) == []


async def _do(request: Any) -> None:
    async with request:
        pass


@pytest.mark.parametrize("name", ["..", "%2e%2e", "a%2fb", "..%2fx", "a%5cb", "a%00b", "x" * 256])
async def test_deleting_what_is_no_name(api: Api, name: str) -> None:
    thread_id = await api.thread()
    url = f"{api.url}/api/threads/{thread_id}/uploads/{name}"
    async with api.session.delete(URL(url, encoded=True)) as response:
        assert response.status in (400, 404, 405)
        assert set(await response.json()) == {"detail", "code"}


# ── documents ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.long
@pytest.mark.usefixtures("converting")
async def test_documents_are_converted(api: Api, services: Services, system: System) -> None:
    thread_id = await api.thread()
    files = {name: make() for name, (make, _) in build.REAL.items()}
    made = await send(api, thread_id, *files.items())
    assert made["success"] is True
    for file in made["files"]:
        text = f"{Path(file['filename']).stem}.md"
        assert file["markdown_file"] == text
        assert file["markdown_path"] == file["markdown_virtual_path"] == f"/mnt/user-data/uploads/{text}"
        async with api.session.get(f"{api.url}{file['markdown_artifact_url']}") as response:
            assert build.REAL[file["filename"]][1] in await response.text()
    texts = {file["filename"]: {k: v for k, v in file.items() if "markdown" in k} for file in made["files"]}
    listing = {file["filename"]: file for file in (await api.ask("GET", f"/threads/{thread_id}/uploads/list"))["files"]}
    assert listing.keys() == {*texts, *(text["markdown_file"] for text in texts.values())}
    for name, file in listing.items():
        assert {key: value for key, value in file.items() if "markdown" in key} == texts.get(name, {})
    known = fold_uploads(await facts(system, thread_id), KnownUploads()).files
    assert {name: upload.pages for name, upload in known.items() if upload.pages} == {"paper.pdf": 2, "show.pptx": 2}
    await api.ask("DELETE", f"/threads/{thread_id}/uploads/paper.pdf")
    assert not {"paper.pdf", "paper.md"} & set(os.listdir(folder(services, thread_id)))


@pytest.mark.long(keep=3)
@pytest.mark.usefixtures("converting")
@pytest.mark.parametrize("names", [list(build.HOSTILE)[n : n + 7] for n in range(0, len(build.HOSTILE), 7)])
async def test_hostile_documents(api: Api, services: Services, system: System, names: list[str]) -> None:
    thread_id = await api.thread()
    made = await send(api, thread_id, *((name, build.HOSTILE[name][0]()) for name in names))
    assert [file["filename"] for file in made["files"]] == names
    assert [file for file in made["files"] if "markdown_file" in file] == []
    assert [build.HOSTILE[file["filename"]][1] in file["markdown_error"] for file in made["files"]] == [True] * len(
        names
    )
    known = fold_uploads(await facts(system, thread_id), KnownUploads()).files
    for name in names:
        assert build.HOSTILE[name][1] in (known[name].reason or "")
        assert f"{name} ({known[name].reason})" in made["message"]
        refused = await api.ask("POST", f"/threads/{thread_id}/uploads/{name}/convert", status=422)
        assert refused["detail"] == f"{name} {known[name].reason}"
    listing = (await api.ask("GET", f"/threads/{thread_id}/uploads/list"))["files"]
    assert {f["filename"]: f["markdown_error"] for f in listing} == {name: known[name].reason for name in names}
    assert sorted(os.listdir(folder(services, thread_id))) == sorted(names)


async def _healthy(api: Api, stop: asyncio.Event) -> list[float]:
    """How long each question took that was asked meanwhile, in seconds."""
    found = []
    async with aiohttp.ClientSession() as session:
        while not stop.is_set():
            begun = time.perf_counter()
            async with session.get(f"{api.url}/health") as response:
                assert response.status == 200
            found.append(time.perf_counter() - begun)
            await asyncio.sleep(0.005)
    return found


@pytest.mark.usefixtures("converting")
async def test_the_server_answers_meanwhile(
    api: Api, services: Services, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """A PDF of 32 MB and four bombs; every question is answered (the latency is for people to read)."""
    thread_id, stop = await api.thread(), asyncio.Event()
    large = build.large_pdf(tmp_path / "large.pdf", 32 << 20)
    asking = asyncio.create_task(_healthy(api, stop))
    data = aiohttp.FormData()
    with large.open("rb") as file:
        data.add_field("files", file, filename="large.pdf")
        for name in ("bomb.docx", "bomb.xlsx", "bomb.pptx", "bomb.epub", "laughing.docx"):
            data.add_field("files", build.HOSTILE[name][0](), filename=name)
        made = await post(api, thread_id, data)
    stop.set()
    latencies = sorted(await asking)
    p99 = latencies[int(len(latencies) * 0.99)] * 1000
    record_property("health_p99_ms", p99)
    print(f"\n/health while converting: {len(latencies)} answers, p50 {latencies[len(latencies) // 2] * 1000:.1f} ms, "
          f"p99 {p99:.1f} ms, worst {latencies[-1] * 1000:.1f} ms")  # fmt: skip
    assert [file.get("markdown_file") for file in made["files"]] == ["large.md", None, None, None, None, None]
    assert (folder(services, thread_id) / "large.md").read_text() == "Text on the page\n"


async def test_not_converted_by_default(api: Api, services: Services) -> None:
    thread_id = await api.thread()
    made = await send(api, thread_id, ("a.csv", b"a,b"))
    assert "markdown_file" not in made["files"][0]
    assert os.listdir(folder(services, thread_id)) == ["a.csv"]


@pytest.mark.usefixtures("converting")
async def test_converted_when_asked(api: Api, services: Services, system: System, config: Settings) -> None:
    config.uploads = LIMITS
    thread_id = await api.thread()
    await send(api, thread_id, ("a.pdf", build.pdf("one", "two")))
    path = f"/threads/{thread_id}/uploads/a.pdf/convert"
    expected = {
        "filename": "a.pdf",
        "markdown_file": "a.md",
        "markdown_path": "/mnt/user-data/uploads/a.md",
        "pages": 2,
    }
    for _ in range(2):
        assert expected.items() <= (await api.ask("POST", path)).items()
    assert [type(record.event) for record in await facts(system, thread_id)] == [FileUploaded, FileConverted]
    await api.ask("POST", f"/threads/{thread_id}/uploads/none.pdf/convert", status=404)
    await api.ask("DELETE", f"/threads/{thread_id}/uploads/a.pdf")
    assert os.listdir(folder(services, thread_id)) == []


@pytest.mark.usefixtures("converting")
async def test_a_text_that_was_replaced_is_nobodys_to_remove(api: Api, services: Services) -> None:
    """An upload or the agent may have put another file in its place that is not recorded yet."""
    thread_id = await api.thread()
    await send(api, thread_id, ("a.csv", b"old,x"))
    (own := folder(services, thread_id) / "a.md").write_text("my own")
    made = await send(api, thread_id, ("a.csv", b"new,x"))
    assert made["files"][0]["markdown_file"] == "a_1.md"
    assert own.read_text() == "my own"
    (folder(services, thread_id) / "a_1.md").write_text("mine, too")
    await api.ask("DELETE", f"/threads/{thread_id}/uploads/a.csv")
    assert sorted(os.listdir(folder(services, thread_id))) == ["a.md", "a_1.md"]


@pytest.mark.usefixtures("converting")
async def test_a_new_version_takes_its_old_text_along(api: Api, services: Services, system: System) -> None:
    thread_id = await api.thread()
    await send(api, thread_id, ("a.csv", b"old,x"))
    made = await send(api, thread_id, ("a.csv", b"new,x"))
    assert made["files"][0]["markdown_file"] == "a.md"
    assert "new" in (folder(services, thread_id) / "a.md").read_text()
    (folder(services, thread_id) / "a.md").unlink()
    [file] = (await api.ask("GET", f"/threads/{thread_id}/uploads/list"))["files"]
    assert not [key for key in file if "markdown" in key], "a text that is gone is not named"
    await send(api, thread_id, ("a.csv", b""))
    assert os.listdir(folder(services, thread_id)) == ["a.csv"]
    await send(api, thread_id, ("a.md", b"my own"), ("a.csv", b"newer,x"))
    assert sorted(os.listdir(folder(services, thread_id))) == ["a.csv", "a.md", "a_1.md"]
    assert (folder(services, thread_id) / "a.md").read_text() == "my own"
    last = (await facts(system, thread_id))[-1].event
    assert isinstance(last, FileConverted | FileRejected)
    assert last.name == "a.csv"
