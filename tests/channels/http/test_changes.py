"""What a run did to the files: found by the actor after the run, shown over the wire."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from actors.workspace import Workspace
from adapters import differences
from adapters import workspace as adapter
from adapters.workspace import LocalWorkspace
from channels.http.app import Services
from core.events import Aggregate, ModelCompleted, RunCompleted, ToolCompleted, ToolRequested
from core.files.workspace import KIND, WorkspaceForgotten
from core.runtime.system import System
from tests.channels.http.conftest import Api, Worker
from tests.channels.http.story import ai, answer, call
from tests.channels.http.test_uploads import Settings, config, folder, send, services  # noqa: F401  fixtures
from tests.support.nats import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture
async def watched(system: System, services: Services) -> AsyncIterator[None]:  # noqa: F811
    actor = Workspace(system.log, LocalWorkspace(services.home))
    async with anyio.create_task_group() as tasks:
        await tasks.start(partial(system.serve, [actor], alone=True))
        yield
        tasks.cancel_scope.cancel()


@pytest.fixture
async def files(api: Api, services: Services, watched: None) -> Path:  # noqa: F811
    """Of the thread `t`, with an upload `a.txt`."""
    await api.ask("POST", "/threads", {"thread_id": "t"})
    await send(api, "t", ("a.txt", b"one\ntwo\n"))
    return folder(services, "t").parent


async def finish(system: System, run_id: str) -> None:
    """As a worker ends a run that has used tools."""
    tool = ToolRequested(call_id="c", name="bash", effect="once")
    await system.threads.decide("t", lambda _: [tool], actor="lead", run=run_id)
    await system.threads.decide("t", lambda _: [RunCompleted()], actor="lead", run=run_id)


async def changes(api: Api, run_id: str, query: str = "") -> Any:
    """Once they are there."""

    async def probe() -> Any:
        found = await api.ask("GET", f"/threads/t/runs/{run_id}/workspace-changes{query}")
        return found if found["available"] else None

    return await eventually(probe)


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


async def test_two_runs(api: Api, system: System, worker: Worker, files: Path) -> None:
    first = await api.run("t")
    await worker.start("t", first)
    none = await api.ask("GET", f"/threads/t/runs/{first}/workspace-changes")
    assert (none["available"], none["files"], none["summary"]["created"]) == (False, [], 0)
    (files / "outputs" / "new.txt").write_text("a\nb\nc\n")
    (files / "uploads" / "a.txt").write_text("one\n2\n")
    (files / "workspace" / "deep" / "node_modules").mkdir(parents=True)
    (files / "workspace" / "deep" / "node_modules" / "x.js").write_text("not looked at")
    (files / "workspace" / "deep" / "data.bin").write_bytes(b"\0\1")
    (files / "workspace" / ".env").write_text("KEY=secret")
    (files / "workspace" / "link").symlink_to("/etc/passwd")
    await finish(system, first)
    found = await changes(api, first)
    assert found["version"] == 1
    assert found["limits"]["max_files"] == 200
    assert found["summary"] == {
        "created": 3,
        "modified": 1,
        "deleted": 0,
        "symlink_created": 1,
        "additions": 3,
        "deletions": 0,
        "truncated": False,
    }
    by_path = {file["path"].removeprefix("/mnt/user-data/"): file for file in found["files"]}
    assert by_path["outputs/new.txt"] == {
        "path": "/mnt/user-data/outputs/new.txt",
        "root": "outputs",
        "status": "created",
        "binary": False,
        "sensitive": False,
        "size_before": None,
        "size_after": 6,
        "sha256_before": None,
        "sha256_after": sha("a\nb\nc\n"),
        "diff": "--- a/mnt/user-data/outputs/new.txt\n+++ b/mnt/user-data/outputs/new.txt\n@@ -0,0 +1,3 @@\n+a\n+b\n+c",
        "diff_truncated": False,
        "diff_unavailable_reason": None,
        "additions": 3,
        "deletions": 0,
        "symlink": False,
        "symlink_target_before": None,
        "symlink_target_after": None,
    }
    reasons = {path: (file["status"], file["diff_unavailable_reason"]) for path, file in by_path.items()}
    assert reasons == {
        "outputs/new.txt": ("created", None),
        "uploads/a.txt": ("modified", "truncated"),  # what was uploaded had not been looked at before
        "workspace/deep/data.bin": ("created", "binary"),
        "workspace/.env": ("created", "sensitive"),
        "workspace/link": ("symlink_created", "symlink"),
    }
    assert by_path["uploads/a.txt"]["sha256_before"] == sha("one\ntwo\n")
    assert "secret" not in str(found)

    new = {"content": "a\nb\nby a person\n", "expected_sha256": sha("a\nb\nc\n")}
    await api.ask("PUT", "/threads/t/artifacts/mnt/user-data/outputs/new.txt", new)
    await send(api, "t", ("b.txt", b"uploaded"), ("noise.log", b"x"))
    await api.ask("DELETE", "/threads/t/uploads/a.txt")
    second = await api.run("t")
    await worker.start("t", second)
    (files / "workspace" / "deep" / "data.bin").unlink()
    (files / "outputs" / "more.txt").write_text("x")
    await send(api, "t", ("c.txt", b"uploaded meanwhile"))
    await finish(system, second)
    found = await changes(api, second)
    assert [(file["path"].rpartition("/")[2], file["status"]) for file in found["files"]] == [
        ("more.txt", "created"),
        ("data.bin", "deleted"),
    ]
    assert (await changes(api, first))["summary"]["created"] == 3


async def test_differences(api: Api, system: System, worker: Worker, files: Path) -> None:
    for text in ("a\nb\nc\n", "a\nB\nc\nd\n"):
        run_id = await api.run("t")
        await worker.start("t", run_id)
        (files / "workspace" / "x.txt").write_text(text)
        await finish(system, run_id)
        found = await changes(api, run_id)
    [file] = found["files"]
    assert (file["status"], file["additions"], file["deletions"]) == ("modified", 2, 1)
    assert file["diff"].splitlines()[3:] == [" a", "-b", "+B", " c", "+d"]
    assert (found["summary"]["additions"], found["summary"]["deletions"]) == (2, 1)
    without = await changes(api, run_id, "?include_diff=false")
    assert (without["files"][0]["diff"], without["files"][0]["additions"]) == ("", 2)
    bare = await changes(api, run_id, "?include_files=false")
    assert (bare["files"], bare["summary"]["modified"]) == ([], 1)


async def test_limits(api: Api, system: System, worker: Worker, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "MAX_SCANNED", 20)
    monkeypatch.setattr(adapter, "MAX_FILES", 10)
    monkeypatch.setattr(adapter, "MAX_DIFF_BYTES", 100)
    monkeypatch.setattr(differences, "MAX_DIFF_BYTES", 100)
    monkeypatch.setattr(differences, "MAX_TOTAL_DIFF_BYTES", 400)
    run_id = await api.run("t")
    await worker.start("t", run_id)
    for number in range(15):
        (files / "workspace" / f"{number:02}.txt").write_text("x" * 10 * number)
    await finish(system, run_id)
    found = await changes(api, run_id)
    assert (len(found["files"]), found["summary"]["truncated"]) == (10, True)
    assert sum(len(file["diff"]) for file in found["files"]) <= 400
    assert any(file["diff_truncated"] for file in found["files"])

    again = await api.run("t")
    await worker.start("t", again)
    for number in range(30):
        (files / "workspace" / f"{number:02}.txt").unlink(missing_ok=True)
        (files / "workspace" / f"new{number:02}.txt").write_text("y" * 200)
    await finish(system, again)
    found = await changes(api, again)
    assert found["summary"]["truncated"] is True
    assert found["summary"]["deleted"] == 0  # what was not seen is not said to be gone
    assert {file["diff_unavailable_reason"] for file in found["files"]} == {"large"}


async def test_outputs_that_nobody_was_shown(api: Api, system: System, worker: Worker, files: Path) -> None:
    run_id = await api.run("t")
    await worker.start("t", run_id)
    for name in ("shown.md", "kept.md"):
        (files / "outputs" / name).write_text(name)
    (files / "workspace" / "draft.md").write_text("a draft")
    shown = "/mnt/user-data/outputs/shown.md"
    asked = ai("m1", "", call("c1", "present_files", filepaths=[shown]))
    done = ToolCompleted(call_id="c1", message=answer("c1", "present_files", "shown"), update={"artifacts": [shown]})
    await worker.write("t", run_id, ModelCompleted(message=asked), done)
    await finish(system, run_id)
    found = await changes(api, run_id)
    assert found["summary"]["created"] == 3
    assert found["unpresented"] == ["/mnt/user-data/outputs/kept.md"]


async def test_whose_runs_they_are(api: Api, system: System, worker: Worker, files: Path) -> None:
    await api.ask("GET", "/threads/t/runs/none/workspace-changes", status=404)
    await system.intake.create_thread("hers", user="ada")
    await api.ask("GET", "/threads/hers/runs/none/workspace-changes", status=404)
    run_id = await api.run("t")
    await worker.start("t", run_id)
    await finish(system, run_id)
    await changes(api, run_id)
    await api.ask("DELETE", "/threads/t", status=204)
    await api.ask("GET", f"/threads/t/runs/{run_id}/workspace-changes", status=404)

    async def forgotten() -> bool:
        records = [record async for record in system.log.read(Aggregate(KIND, "t"))]
        return [type(record.event) for record in records] == [WorkspaceForgotten]

    await eventually(forgotten)
