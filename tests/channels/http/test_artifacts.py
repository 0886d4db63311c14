"""Artifacts over the wire: what is shown and what saved, ranges and tags, archives, ways out of the tree, editing."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import socket
import zipfile
from contextlib import chdir
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from yarl import URL

from channels.http.app import Services
from core.errors import Unavailable
from core.events import ArtifactReplaced, thread
from core.files.folder import Draft
from core.runtime.system import System
from tests.channels.http.conftest import Api, FirstWaits, Worker
from tests.channels.http.test_uploads import Settings, config, folder, services  # noqa: F401  fixtures
from tests.support.documents import packed

pytestmark = pytest.mark.anyio

OUT = "mnt/user-data/outputs"
NOISE = os.urandom(5 << 20)


@pytest.fixture
async def outputs(api: Api, services: Services) -> Path:  # noqa: F811
    """Of the thread `t`."""
    await api.ask("POST", "/threads", {"thread_id": "t"})
    path = folder(services, "t", "outputs")
    path.mkdir(parents=True)
    return path


class Answer:
    def __init__(self, response: aiohttp.ClientResponse, body: bytes) -> None:
        self.status, self.headers, self.body = response.status, response.headers, body


async def get(api: Api, path: str, **headers: str) -> Answer:
    """`path` as it goes over the wire, after `…/artifacts/`."""
    url = URL(f"{api.url}/api/threads/t/artifacts/{path}", encoded=True)
    async with api.session.get(url, headers={"Accept-Encoding": "identity", **headers}) as response:
        return Answer(response, await response.read())


@pytest.mark.parametrize(
    ("name", "content", "kind", "how"),
    [
        ("a.txt", b"hi", "text/plain; charset=utf-8", "inline"),
        ("a.md", "ü".encode(), "text/markdown; charset=utf-8", "inline"),
        ("a.csv", b"a\xff,b", "text/csv", "inline"),
        ("a.py", b"x = 1", "text/x-python; charset=utf-8", "inline"),
        ("Makefile", b"all:", "text/plain; charset=utf-8", "inline"),
        ("long", b"x" * 8191 + "ü".encode() * 100, "text/plain; charset=utf-8", "inline"),
        ("program", b"\x7fELF\0", "application/octet-stream", "inline"),
        ("a.json", b"{}", "application/json", "inline"),
        ("a.png", b"\x89PNG\0", "image/png", "inline"),
        ("a.pdf", b"%PDF-", "application/pdf", "inline"),
        ("a.tar.gz", b"\x1f\x8b", "application/octet-stream", "inline"),
        ("a.tgz", b"\x1f\x8b", "application/octet-stream", "inline"),
        ("a.svgz", b"\x1f\x8b", "application/octet-stream", "attachment"),
        ("a.js", b"x()", "text/javascript; charset=utf-8", "attachment"),
        ("a.mjs", b"x()", "text/javascript; charset=utf-8", "attachment"),
        ("a.css", b"a{}", "text/css; charset=utf-8", "attachment"),
        ("a.swf", b"FWS\0", "application/x-shockwave-flash", "attachment"),
        ("a.wasm", b"\0asm", "application/wasm", "attachment"),
        ("a.html", b"<script>", "text/html; charset=utf-8", "attachment"),
        ("a.HTM", b"<script>", "text/html; charset=utf-8", "attachment"),
        ("a.xhtml", b"<script/>", "application/xhtml+xml", "attachment"),
        ("a.svg", b"<svg/>", "image/svg+xml", "attachment"),
        ("a.xml", b"<x/>", "text/xml; charset=utf-8", "attachment"),
        ("empty", b"", "text/plain; charset=utf-8", "inline"),
    ],
)
async def test_kinds(api: Api, outputs: Path, name: str, content: bytes, kind: str, how: str) -> None:
    (outputs / name).write_bytes(content)
    found = await get(api, f"{OUT}/{name}")
    assert (found.status, found.body, found.headers["Content-Type"]) == (200, content, kind)
    assert found.headers["Content-Disposition"] == f"{how}; filename*=UTF-8''{name}"
    assert found.headers["X-Content-Type-Options"] == "nosniff"
    assert ("sandbox" in found.headers.get("Content-Security-Policy", "")) is (how == "attachment")


@pytest.mark.parametrize(
    ("query", "how"), [("true", "attachment"), ("1", "attachment"), ("false", "inline"), ("", "inline")]
)
async def test_download(api: Api, outputs: Path, query: str, how: str) -> None:
    (outputs / 'größe "a".txt').write_text("x")
    found = await get(api, f"{OUT}/gr%C3%B6%C3%9Fe%20%22a%22.txt?download={query}")
    assert found.headers["Content-Disposition"] == f"{how}; filename*=UTF-8''gr%C3%B6%C3%9Fe%20%22a%22.txt"


@pytest.mark.parametrize(
    ("wanted", "status", "content", "place"),
    [
        ("bytes=0-3", 206, b"0123", "bytes 0-3/10"),
        ("bytes=4-", 206, b"456789", "bytes 4-9/10"),
        ("bytes=-3", 206, b"789", "bytes 7-9/10"),
        ("bytes=-99", 206, b"0123456789", "bytes 0-9/10"),
        ("bytes=8-99", 206, b"89", "bytes 8-9/10"),
        ("bytes=10-", 416, None, "bytes */10"),
        ("bytes=99-100", 416, None, "bytes */10"),
        ("bytes=-0", 416, None, "bytes */10"),
        ("bytes=5-2", 200, b"0123456789", None),
        ("bytes=-", 200, b"0123456789", None),
        ("bytes=0-1,3-4", 200, b"0123456789", None),
        ("bytes=a-b", 200, b"0123456789", None),
        ("lines=0-1", 200, b"0123456789", None),
        ("bytes=0-" + "9" * 40, 200, b"0123456789", None),
    ],
)
async def test_ranges(
    api: Api, outputs: Path, wanted: str, status: int, content: bytes | None, place: str | None
) -> None:
    (outputs / "a.txt").write_bytes(b"0123456789")
    found = await get(api, f"{OUT}/a.txt", Range=wanted)
    assert (found.status, found.headers.get("Content-Range")) == (status, place)
    assert content is None or found.body == content


async def test_a_head_has_no_body(api: Api, outputs: Path) -> None:
    """Not even on the wire, where it would be taken for the next answer."""
    (outputs / "a.txt").write_bytes(b"0123456789")
    port = int(api.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    path = f"/api/threads/t/artifacts/{OUT}/a.txt"
    writer.write(f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    async with asyncio.timeout(120):
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"\r\nContent-Length: 10" in head
    assert body == b""


async def test_tags(api: Api, outputs: Path) -> None:
    (outputs / "a.txt").write_bytes(b"0123456789")
    tag = (await get(api, f"{OUT}/a.txt")).headers["ETag"]
    for given in (tag, f'"x", {tag}', f"W/{tag}", "*"):
        known = await get(api, f"{OUT}/a.txt", **{"If-None-Match": given})
        assert (known.status, known.body, known.headers["ETag"]) == (304, b"", tag)
    assert (await get(api, f"{OUT}/a.txt", Range="bytes=0-1", **{"If-Range": tag})).status == 206
    (outputs / "a.txt").write_bytes(b"other")
    assert (await get(api, f"{OUT}/a.txt", **{"If-None-Match": tag})).body == b"other"
    assert (await get(api, f"{OUT}/a.txt", Range="bytes=0-1", **{"If-Range": tag})).status == 200


async def test_a_large_file(api: Api, outputs: Path) -> None:
    content = os.urandom(3 << 20)
    (outputs / "large.bin").write_bytes(content)
    found = await get(api, f"{OUT}/large.bin")
    assert (found.body == content, found.headers["Content-Length"]) == (True, str(3 << 20))


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"{OUT}/none.txt", 404),
        (f"{OUT}/a.txt/deeper", 404),
        (f"{OUT}/folder", 400),
        (f"{OUT}/pipe", 400),
        (f"{OUT}/socket", 400),
        (f"{OUT}/", 400),
        ("mnt/user-data", 400),
        ("mnt/user-data/outputsx/a.txt", 400),
        ("mnt/skills/x", 400),
        ("etc/passwd", 400),
        (f"{OUT}/..%2f..%2f..%2fsecret", 403),
        (f"{OUT}/%2e%2e/%2e%2e/secret", 403),
        (f"{OUT}/..%5csecret", 400),
        (f"{OUT}/a%00.txt", 400),
        (f"{OUT}/" + "x" * 300, 400),
        (f"{OUT}/" + "x/" * 3000 + "x", 400),
        (f"{OUT}/link-out", 403),
        (f"{OUT}/link-up", 403),
        (f"{OUT}/loop", 403),
        (f"{OUT}/dangling", 404),
        (f"{OUT}/folder-out/secret", 403),
    ],
)
async def test_ways_out(api: Api, outputs: Path, services: Services, path: str, status: int) -> None:  # noqa: F811
    secret = services.home / "secret"
    secret.write_text("secret")
    (outputs / "a.txt").write_text("a")
    (outputs / "folder").mkdir()
    os.mkfifo(outputs / "pipe")
    with socket.socket(socket.AF_UNIX) as listener, chdir(outputs):
        listener.bind("socket")
    (outputs / "link-out").symlink_to(secret)
    (outputs / "link-up").symlink_to("../../../../../../secret")
    (outputs / "folder-out").symlink_to(services.home)
    (outputs / "loop").symlink_to("loop")
    (outputs / "dangling").symlink_to("nothing")
    found = await get(api, path)
    assert (found.status, b"secret" in found.body.split(b"detail")[0]) == (status, False)


async def test_links_within_the_tree(api: Api, outputs: Path) -> None:
    (outputs.parent / "workspace").mkdir()
    (outputs.parent / "workspace" / "a.txt").write_text("a")
    (outputs / "relative").symlink_to("../workspace/a.txt")
    (outputs / "absolute").symlink_to("/mnt/user-data/workspace/a.txt")
    for name in ("relative", "absolute"):
        assert (await get(api, f"{OUT}/{name}")).body == b"a"


async def test_the_directory_itself_is_a_link(api: Api, outputs: Path, services: Services) -> None:  # noqa: F811
    (services.home / "a.txt").write_text("secret")
    outputs.rmdir()
    outputs.symlink_to(services.home)
    assert (await get(api, f"{OUT}/a.txt")).status in (403, 404)


async def test_whose_it_is(api: Api, services: Services, system: System) -> None:  # noqa: F811
    await system.intake.create_thread("t", user="ada")
    for user in ("ada", "default"):
        path = services.home / "users" / user / "threads" / "t" / "user-data" / "outputs"
        path.mkdir(parents=True)
        (path / "a.txt").write_text(user)
    assert (await get(api, f"{OUT}/a.txt")).status == 404


def _skill(**more: bytes) -> bytes:
    members: dict[str, str | bytes] = {
        "my/SKILL.md": "# My skill",
        "my/page.html": "<script>",
        "my/big.bin": bytes((16 << 20) + 1),
        "my/noise.bin": NOISE,
        "top.txt": "top",
        "my/sub/": "",
    }
    return packed({**members, **more})


@pytest.mark.parametrize(
    ("member", "status", "content"),
    [
        ("my/SKILL.md", 200, b"# My skill"),
        ("SKILL.md", 200, b"# My skill"),
        ("top.txt", 200, b"top"),
        ("my/page.html", 200, b"<script>"),
        ("my/big.bin", 413, None),
        ("none", 404, None),
        ("my/sub", 404, None),
        ("..%2fx", 403, None),
    ],
)
async def test_members_of_skills(api: Api, outputs: Path, member: str, status: int, content: bytes | None) -> None:
    (outputs / "x.skill").write_bytes(_skill())
    found = await get(api, f"{OUT}/x.skill/{member}")
    assert found.status == status
    if content is not None:
        assert (found.body, found.headers["Cache-Control"]) == (content, "private, max-age=300")
        assert found.headers["Content-Disposition"].startswith("attachment" if "html" in member else "inline")
        assert (await get(api, f"{OUT}/x.skill/{member}", Range="bytes=0-1")).body == content[:2]


async def test_a_folder_may_be_called_like_an_archive(api: Api, outputs: Path) -> None:
    (outputs / "my.skill").mkdir()
    (outputs / "my.skill" / "SKILL.md").write_text("# Mine")
    assert (await get(api, f"{OUT}/my.skill/SKILL.md")).body == b"# Mine"
    assert (await get(api, f"{OUT}/my.skill/none")).status == 404


async def test_a_large_member(api: Api, outputs: Path) -> None:
    (outputs / "x.skill").write_bytes(_skill())
    found = await get(api, f"{OUT}/x.skill/noise.bin")
    assert found.body == NOISE


@pytest.mark.parametrize("trap", ["no archive", "half", "contents", "lzma", "garbage"])
async def test_hostile_skills(api: Api, outputs: Path, trap: str) -> None:
    whole = packed({"a.txt": b"a" * 1000})
    match trap:
        case "no archive":
            data = b"PK\x03\x04 not really"
        case "half":
            data = whole[:60]
        case "contents":
            data = packed({f"{n:060}": b"" for n in range(12_000)} | {"a.txt": b"a"})
        case "lzma":
            file = io.BytesIO()
            with zipfile.ZipFile(file, "w", zipfile.ZIP_LZMA) as archive:
                archive.writestr("a.txt", "a" * 1000)
            data = file.getvalue()
        case _:
            data = whole[:40] + b"\xff\xff\xff" + whole[43:]
    (outputs / "x.skill").write_bytes(data)
    found = await get(api, f"{OUT}/x.skill/a.txt")
    assert found.status == (413 if trap == "contents" else 400)
    assert (await get(api, f"{OUT}/x.skill")).body == data


# ── editing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _edit(content: str, before: bytes) -> dict[str, Any]:
    return {"content": content, "expected_sha256": hashlib.sha256(before).hexdigest()}


async def test_editing(api: Api, outputs: Path, system: System) -> None:
    (outputs / "a.txt").write_text("before")
    (outputs / "a.txt").chmod(0o640)
    path = f"/threads/t/artifacts/{OUT}/a.txt"
    made = await api.ask("PUT", path, _edit("nachher ü", b"before"))
    after = "nachher ü".encode()
    assert made == {"path": f"/{OUT}/a.txt", "sha256": hashlib.sha256(after).hexdigest(), "size": len(after)}
    assert (outputs / "a.txt").read_bytes() == after
    refused = await api.ask("PUT", path, _edit("again", b"before"), status=412)
    assert "changed" in refused["detail"]
    [event] = [r.event async for r in system.log.read(thread("t")) if isinstance(r.event, ArtifactReplaced)]
    assert event == ArtifactReplaced(
        path=made["path"], size=made["size"], sha256=made["sha256"], before=hashlib.sha256(b"before").hexdigest()
    )


async def test_of_many_edits_of_one_text_the_first_counts(api: Api, outputs: Path, system: System) -> None:
    (outputs / "a.txt").write_text("before")
    url = f"{api.url}/api/threads/t/artifacts/{OUT}/a.txt"

    async def edit(text: str) -> int:
        async with api.session.put(url, json=_edit(text, b"before")) as response:
            return response.status

    statuses = await asyncio.gather(*(edit(f"edit {number}") for number in range(8)))
    assert sorted(statuses) == [200] + [412] * 7
    assert (outputs / "a.txt").read_text() == f"edit {statuses.index(200)}"
    facts = [r.event async for r in system.log.read(thread("t")) if isinstance(r.event, ArtifactReplaced)]
    assert [fact.sha256 for fact in facts] == [hashlib.sha256((outputs / "a.txt").read_bytes()).hexdigest()]


async def test_the_last_fact_of_two_edits_is_of_the_text_that_is_there(
    api: Api,
    services: Services,  # noqa: F811
    outputs: Path,
    system: System,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (outputs / "a.txt").write_text("before")
    path = f"/threads/t/artifacts/{OUT}/a.txt"
    turn = FirstWaits(services, monkeypatch)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(api.ask("PUT", path, _edit("first", b"before")))
        await turn.waits.wait()
        await api.ask("PUT", path, _edit("second", b"first"))
        turn.go_on.set()
    facts = [r.event async for r in system.log.read(thread("t")) if isinstance(r.event, ArtifactReplaced)]
    assert [fact.sha256 for fact in facts] == [hashlib.sha256(b"second").hexdigest()]


async def test_a_text_that_is_not_in_place_is_no_fact(
    api: Api,
    outputs: Path,
    system: System,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (outputs / "a.txt").write_text("before")

    def full(*_: Any) -> None:
        raise Unavailable("no space left on the server's disk")

    monkeypatch.setattr(Draft, "publish", full)
    await api.ask("PUT", f"/threads/t/artifacts/{OUT}/a.txt", _edit("after", b"before"), status=503)
    assert not [r async for r in system.log.read(thread("t")) if isinstance(r.event, ArtifactReplaced)]


async def test_no_editing_during_a_run(api: Api, outputs: Path, worker: Worker) -> None:
    (outputs / "a.txt").write_text("before")
    run_id = await api.run("t")
    path = f"/threads/t/artifacts/{OUT}/a.txt"
    refused = await api.ask("PUT", path, _edit("after", b"before"), status=409)
    assert "active run" in refused["detail"]
    await worker.perform("t", run_id)
    await api.ask("PUT", path, _edit("after", b"before"))


@pytest.mark.parametrize(
    ("name", "body", "status"),
    [
        ("none.txt", _edit("x", b"before"), 404),
        ("folder", _edit("x", b"before"), 400),
        ("link.txt", _edit("x", b"before"), 400),
        ("linked/a.txt", _edit("x", b"before"), 400),
        ("hard.txt", _edit("x", b"before"), 400),
        ("binary", _edit("x", b"\0"), 415),
        ("latin", _edit("x", b"\xff"), 415),
        ("x.skill/a", _edit("x", b"before"), 400),
        ("../uploads/a.txt", _edit("x", b"before"), 403),
        ("a.txt", _edit("a\0b", b"before"), 415),
        ("a.txt", _edit("x" * (3 << 20), b"before"), 413),
        ("large.txt", _edit("x", b"before"), 413),
        ("a.txt", {"content": "x"}, 422),
        ("a.txt", {"content": "x", "expected_sha256": "abc"}, 422),
        ("a.txt", {"content": 1, "expected_sha256": "0" * 64}, 422),
    ],
)
async def test_what_cannot_be_edited(
    api: Api,
    outputs: Path,
    config: Settings,  # noqa: F811
    name: str,
    body: dict[str, Any],
    status: int,
) -> None:
    (outputs.parent / "workspace").mkdir()
    for place in (outputs / "a.txt", outputs.parent / "workspace" / "a.txt"):
        place.write_text("before")
    (outputs / "folder").mkdir()
    (outputs / "link.txt").symlink_to("../workspace/a.txt")
    (outputs / "linked").symlink_to("../workspace")
    (outputs / "hard.txt").hardlink_to(outputs.parent / "workspace" / "a.txt")
    (outputs / "binary").write_bytes(b"\0")
    (outputs / "latin").write_bytes(b"\xff")
    (outputs / "large.txt").write_bytes(b"x" * (3 << 20))
    (outputs / "x.skill").write_bytes(_skill())
    url = URL(f"{api.url}/api/threads/t/artifacts/{OUT}/{name.replace('..', '%2e%2e')}", encoded=True)
    data = io.BytesIO(msgspec.json.encode(body))
    async with api.session.put(url, data=data, headers={"Content-Type": "application/json"}) as response:
        assert response.status == status, await response.text()
    for place in (outputs / "a.txt", outputs.parent / "workspace" / "a.txt"):
        assert place.read_text() == "before"


async def test_only_outputs_can_be_edited(api: Api, outputs: Path) -> None:
    for root in ("uploads", "workspace"):
        (outputs.parent / root).mkdir()
        (outputs.parent / root / "a.txt").write_text("before")
        path = f"/threads/t/artifacts/mnt/user-data/{root}/a.txt"
        await api.ask("PUT", path, _edit("x", b"before"), status=400)
