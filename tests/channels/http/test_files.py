"""The tree of a thread's files: all of it, page by page, of any folder, and nothing outside."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from channels.http.app import Services
from channels.http.page import files as listing
from core.events import Aggregate
from core.files.workspace import KIND, FileChange, WorkspaceForgotten, WorkspaceScanned, WorkspaceUndone
from core.runtime.system import System
from tests.channels.http.conftest import Api
from tests.channels.http.people import ADA, BOB, WithAccounts, place
from tests.channels.http.test_uploads import Settings, config, services  # noqa: F401  fixtures

pytestmark = pytest.mark.anyio

TOP = "/mnt/user-data"


@pytest.fixture
async def root(api: Api, services: Services) -> Path:  # noqa: F811
    """Of the thread `t`: the directory of its three."""
    await api.ask("POST", "/threads", {"thread_id": "t"})
    path = services.home / "users" / "default" / "threads" / "t" / "user-data"
    for name in ("uploads", "workspace", "outputs"):
        (path / name).mkdir(parents=True)
    return path


async def ask(api: Api, query: str = "", status: int = 200) -> Any:
    return await api.ask("GET", f"/threads/t/files{query}", status=status)


def paths(answer: Any) -> list[str]:
    return [file["path"].removeprefix(f"{TOP}/") for file in answer["files"]]


def walked(path: Path) -> Iterator[str]:
    """Every entry below, each folder before what is in it, by another way than the one tested."""
    every = [entry.relative_to(path).parts for entry in path.rglob("*")]
    yield from ("/".join(parts) for parts in sorted(every))


async def test_everything_there_is(api: Api, root: Path) -> None:
    (root / "outputs" / "a b.html").write_text("<p>")
    (root / "outputs" / "über.csv.gz").write_bytes(b"x" * 7)
    (root / "workspace" / "deep" / "er").mkdir(parents=True)
    (root / "workspace" / "deep.txt").write_text("t")
    (root / "workspace" / "deep" / "er" / "f").write_text("")
    (root / "workspace" / "out").symlink_to("/etc")
    os.mkfifo(root / "workspace" / "pipe")
    answer = await ask(api)
    assert paths(answer) == list(walked(root))
    assert (answer["next"], answer["truncated"]) == (None, False)
    by = {file["path"].removeprefix(f"{TOP}/"): file for file in answer["files"]}
    page = by["outputs/a b.html"]
    assert (page["name"], page["kind"], page["size"], page["media_type"]) == ("a b.html", "file", 3, "text/html")
    assert page["modified_at"].endswith("+00:00")
    assert (by["outputs/über.csv.gz"]["size"], by["outputs/über.csv.gz"]["media_type"]) == (7, None)
    kinds = {name: by[f"workspace/{name}"]["kind"] for name in ("deep", "out", "pipe")}
    assert kinds == {"deep": "directory", "out": "link", "pipe": "other"}
    assert not any(path.startswith("workspace/out/") for path in by), "links are not followed"


async def test_one_level_of_a_folder(api: Api, root: Path) -> None:
    (root / "workspace" / "a" / "b").mkdir(parents=True)
    (root / "workspace" / "a" / "b" / "c").write_text("")
    assert paths(await ask(api, "?depth=1")) == ["outputs", "uploads", "workspace"]
    assert paths(await ask(api, f"?depth=1&under={TOP}/workspace")) == ["workspace/a"]
    assert paths(await ask(api, f"?under={TOP}/workspace/a")) == ["workspace/a/b", "workspace/a/b/c"]
    assert paths(await ask(api, f"?depth=2&under={TOP}/workspace")) == ["workspace/a", "workspace/a/b"]
    for nothing in ("workspace/none", "workspace/a/b/c", "elsewhere"):
        assert paths(await ask(api, f"?under={TOP}/{nothing}")) == []


@pytest.mark.parametrize("seed", range(6))
async def test_pages_are_the_whole(api: Api, root: Path, seed: int) -> None:
    """Any tree, cut anywhere, is the same tree."""
    dice = random.Random(seed)
    names = ["a", "a.b", "a-b", "aa", "B", "ä", "z z", "%41", "#1", "日本"]
    folders = [root / "workspace", root / "outputs"]
    for _ in range(60):
        path = dice.choice(folders) / dice.choice(names)
        if not path.exists():
            if dice.random() < 0.4 and len(path.relative_to(root).parts) < 8:
                path.mkdir()
                folders.append(path)
            else:
                path.write_text("x")
    seen: list[str] = []
    after, limit = "", dice.choice([1, 2, 3, 7, 50])
    while True:
        page = await ask(api, f"?limit={limit}&after={quote(after)}")
        assert len(page["files"]) <= limit
        seen += paths(page)
        if (after := page["next"]) is None:
            break
    assert seen == list(walked(root))


@pytest.mark.parametrize(
    ("query", "word"),
    [
        ("?under=/etc", "must be in"),
        (f"?under={TOP}/../../etc", "'..'"),
        ("?under=/mnt/skills", "must be in"),
        (f"?after={TOP}/%00", "NUL"),
        ("?after=/etc/passwd", "must be in"),
    ],
)
async def test_elsewhere_is_refused(api: Api, root: Path, query: str, word: str) -> None:
    assert word in (await ask(api, query, 400))["detail"]


async def test_a_link_is_no_way_out(api: Api, root: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("k")
    (root / "workspace" / "way").symlink_to(tmp_path / "secret")
    (root / "workspace" / "near").symlink_to("../outputs")
    (root / "outputs" / "f").write_text("")
    assert paths(await ask(api, f"?under={TOP}/workspace/way")) == []
    assert paths(await ask(api, f"?under={TOP}/workspace/near")) == []


async def test_a_thread_without_files_and_one_that_is_not_there(api: Api) -> None:
    await api.ask("POST", "/threads", {"thread_id": "t"})
    assert await ask(api) == {"files": [], "next": None, "truncated": False}


async def test_too_many_to_look_at(api: Api, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MOST_LOOKED_AT", 20)
    for index in range(30):
        (root / "outputs" / f"f{index}").write_text("")
    answer = await ask(api)
    assert answer["truncated"]
    assert 3 < len(answer["files"]) <= 3 + 20


async def test_names_that_are_no_text_are_left_out(api: Api, root: Path) -> None:
    (root / "outputs" / os.fsdecode(b"\xff\xfe")).write_text("")
    (root / "outputs" / "line\nbreak").write_text("")
    assert paths(await ask(api, f"?under={TOP}/outputs")) == ["outputs/line\nbreak"]


async def test_which_run_changed_it_last(api: Api, root: Path, system: System) -> None:
    for name in ("one", "two", "mine"):
        (root / "outputs" / name).write_text("")

    async def scanned(run: str, upto: int, *changes: tuple[str, Any]) -> None:
        files = [FileChange(path=f"{TOP}/outputs/{name}", root="outputs", status=status) for name, status in changes]
        await append(WorkspaceScanned(upto=upto, changes=files), run)

    async def append(event: Any, run: str | None = None) -> None:
        aggregate = Aggregate(KIND, "t")
        await system.log.append(aggregate, [event], expected=await system.log.tip(aggregate), actor="test", run=run)

    async def runs() -> dict[str, str | None]:
        return {file["name"]: file["run_id"] for file in (await ask(api, f"?under={TOP}/outputs"))["files"]}

    await scanned("r1", 10, ("one", "created"), ("two", "created"))
    assert await runs() == {"one": "r1", "two": "r1", "mine": None}
    await scanned("r2", 20, ("one", "modified"), ("two", "deleted"))
    assert await runs() == {"one": "r2", "two": None, "mine": None}
    await append(WorkspaceUndone(upto=20, paths=[], by="default"))
    await append(WorkspaceForgotten())
    assert await runs() == {"one": None, "two": None, "mine": None}


async def test_files_of_others(system: System, tmp_path: Path) -> None:
    async with place(system, WithAccounts(), tmp_path / "home") as here:
        ada, bob = await here.person(ADA), await here.person(BOB)
        thread = (await ada.ask("POST", "/api/threads", {})).body["thread_id"]
        assert (await ada.ask("GET", f"/api/threads/{thread}/files")).status == 200
        assert (await bob.ask("GET", f"/api/threads/{thread}/files")).status == 404
