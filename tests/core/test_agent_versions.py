"""Versions of custom agents: their history, rollback, and files; what hostile files are answered."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from channels.cli.extend.agent import Shelf
from core.config.load import parse
from core.errors import Invalid, NotFound, Refused
from core.runtime import system as core
from core.user.agent_bundles import MOST_BYTES, Bundle, bundle, read
from core.user.agents import Definition, Rosters
from tests.support.nats import Nats

pytestmark = pytest.mark.anyio

OPTIONS: dict[str, Any] = {
    "thinking_enabled": True,
    "reasoning_effort": "low",
    "is_plan_mode": False,
    "subagent_enabled": True,
}
NURSE = Definition(
    "nurse", "Cares.", model="big", tool_groups=["web"], skills=[], soul="# K\n", mcp_servers=["git"], **OPTIONS
)
FILE = {"format": "sika.agent", "version": 1, "name": "Nurse"}


@pytest.fixture
async def rosters(single: Nats, tmp_path: Path) -> AsyncIterator[Rosters]:
    endpoint = single.endpoint(f"t{uuid.uuid4().hex[:10]}")
    async with core.start(endpoint, tmp_path / "views.db", lease_seconds=2, slots=4) as system:
        yield Rosters(system.log, actor="test")


async def test_each_change_is_a_version_and_each_can_be_returned_to(rosters: Rosters) -> None:
    await rosters.create("ada", NURSE)
    await rosters.create("ada", Definition("other"))
    await rosters.change("ada", "nurse", {"soul": "# Strict", "model": None})
    await rosters.remove("ada", "nurse")
    removed, changed, made = await rosters.history("ada", "nurse")
    assert [version.agent for version in (made, removed)] == [NURSE, None]
    assert (changed.changed, made.by) == (["model", "soul"], "test")
    assert await rosters.rollback("ada", "nurse", made.version) == NURSE
    assert (await rosters.of("ada")).agents["nurse"] == NURSE
    await rosters.rollback("ada", "nurse", changed.version)
    assert (await rosters.of("ada")).agents["nurse"].soul == "# Strict"
    for user, version in (("ada", removed.version), ("ada", 10**9), ("eve", made.version)):
        with pytest.raises(NotFound):
            await rosters.rollback(user, "nurse", version)


async def test_a_file_of_an_agent_makes_the_same_agent(rosters: Rosters, tmp_path: Path) -> None:
    warnings: list[str] = []
    shelf = Shelf(rosters, "ada", parse(""), warnings.append)
    await rosters.create("ada", NURSE)
    file = tmp_path / "nurse.agent"
    file.write_text(await shelf.export("nurse"))
    with pytest.raises(Refused):
        await shelf.take(file, None, replace=False)
    assert await shelf.take(file, "Twin", replace=False) == ["twin: imported"]
    assert (await rosters.of("ada")).agents["twin"] == msgspec.structs.replace(NURSE, name="twin")
    assert warnings[-1] == "twin: its model 'big' is not configured; its runs fail until it is"
    await rosters.change("ada", "nurse", {"soul": None})
    await shelf.take(file, None, replace=True)
    assert (await rosters.of("ada")).agents["nurse"] == NURSE
    assert [line.split()[-1] for line in await shelf.history("nurse")] == ["soul", "soul", "defined"]
    assert {"skills: (none)", "reasoning_effort: low", "is_plan_mode: false"} <= set(await shelf.show("nurse"))


async def test_deerflows_folders_are_taken_as_they_lie(rosters: Rosters, tmp_path: Path) -> None:
    folder = tmp_path / "users" / "ada" / "agents"
    for name, config in (
        ("Cook", "name: Cook\ndescription: Cooks.\nskills: [soup]\n"),
        ("poet", "model: small\nthinking_enabled: false\nreasoning_effort: high\n"),
    ):
        (folder / name).mkdir(parents=True)
        (folder / name / "config.yaml").write_text(config)
    (folder / "Cook" / "SOUL.md").write_text("# Cook")
    shelf = Shelf(rosters, "ada", parse(""), lambda _: None)
    assert await shelf.take(folder, None, replace=False) == ["cook: imported", "poet: imported"]
    agents = (await rosters.of("ada")).agents
    assert agents["cook"] == Definition("cook", "Cooks.", skills=["soup"], soul="# Cook")
    assert agents["poet"] == Definition("poet", model="small", thinking_enabled=False, reasoning_effort="high")
    with pytest.raises(Invalid, match="no agent is there"):
        await shelf.take(tmp_path, None, replace=False)
    with pytest.raises(Invalid, match="has 2 agents"):
        await shelf.take(folder, "x", replace=False)


HOSTILE: dict[str, tuple[bytes, str]] = {
    "no JSON": (b"PK\x03\x04", "malformed"),
    "no agent": (b"[]", "Expected `object`"),
    "deep": (b"[" * 100_000, "file.agent"),
    "another format": (json.dumps(FILE | {"format": "zip"}).encode(), "format"),
    "a later version": (json.dumps(FILE | {"version": 2}).encode(), "version"),
    "an unknown field": (json.dumps(FILE | {"hooks": "rm -r /"}).encode(), "hooks"),
    "a path as a name": (json.dumps(FILE | {"name": "../../etc"}).encode(), "name"),
    "too long a soul": (json.dumps(FILE | {"soul": "x" * 100_001}).encode(), "soul"),
    "too many skills": (json.dumps(FILE | {"skills": ["x"] * 201}).encode(), "skills"),
    "too large": (b" " * (MOST_BYTES + 1), "larger than 1 MB"),
    "no text": (b'{"name": "\xff"}', "file.agent"),
}


@pytest.mark.parametrize(("content", "text"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_files(tmp_path: Path, content: bytes, text: str) -> None:
    (tmp_path / "file.agent").write_bytes(content)
    with pytest.raises(Invalid, match=r"file\.agent") as refused:
        read(tmp_path / "file.agent")
    assert text in str(refused.value)


FOLDERS: dict[str, tuple[dict[str, Any], str]] = {
    "no config": ({"SOUL.md": "x"}, "config.yaml: no such file"),
    "python in it": ({"config.yaml": "!!python/object/apply:os.system [ls]"}, "config.yaml"),
    "a bad name": ({"config.yaml": "name: ../x"}, "config.yaml: name"),
    "a list": ({"config.yaml": "[1]"}, "config.yaml"),
    "a bad soul": ({"config.yaml": "name: a", "SOUL.md": b"\xff\xfe"}, "SOUL.md"),
}


@pytest.mark.parametrize(("files", "text"), FOLDERS.values(), ids=FOLDERS)
def test_hostile_folders(tmp_path: Path, files: dict[str, Any], text: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(Invalid) as refused:
        read(tmp_path)
    assert text in str(refused.value)


def test_a_link_to_a_file_of_the_server_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hush")
    (tmp_path / "config.yaml").write_text("name: a")
    (tmp_path / "SOUL.md").symlink_to(tmp_path / "secret")
    with pytest.raises(Invalid, match="symbolic links"):
        read(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Invalid):
        read(tmp_path / "pipe")


def test_a_bundle_of_an_agent() -> None:
    assert msgspec.json.decode(msgspec.json.encode(bundle(NURSE)), type=Bundle).definition() == NURSE
