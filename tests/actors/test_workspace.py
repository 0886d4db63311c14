"""The workspace actor on a real log: scans after runs that used tools, and forgetting."""

from __future__ import annotations

from pathlib import Path

from actors.workspace import Workspace
from adapters.workspace import LocalWorkspace
from core.events import Aggregate, Event, ModelCompleted, ThreadErased, ToolCompleted, ToolRequested
from core.files.paths import make_thread, thread_root
from core.files.workspace import KIND, WorkspaceScanned
from core.testing import Stage, acting
from tests.support.records import ai, call

SCANS = Aggregate(KIND, "t1")


def used_tools() -> list[Event]:
    """Of a run that called one tool."""
    result = {"type": "tool", "id": "t", "tool_call_id": "c", "content": "ok"}
    return [
        ModelCompleted(message=ai("m", calls=[call("c")])),
        ToolRequested(call_id="c", name="bash", effect="pure"),
        ToolCompleted(call_id="c", message=result),
    ]


def files_of(home: Path) -> Path:
    """Where the agent's files lie."""
    root = thread_root(home, "ada", "t1")
    make_thread(root)
    return root / "user-data" / "outputs"


async def scans(stage: Stage) -> list[WorkspaceScanned]:
    return [event for event in await stage.appended(SCANS) if isinstance(event, WorkspaceScanned)]


async def test_a_run_without_tools_is_not_looked_at(tmp_path: Path) -> None:
    async with acting(lambda system: Workspace(system.log, LocalWorkspace(tmp_path)), home=tmp_path / "nats") as stage:
        (files_of(tmp_path) / "a.txt").write_text("a")
        await stage.given_run()
        assert await scans(stage) == []


async def test_what_a_run_did_is_recorded_and_forgotten(tmp_path: Path) -> None:
    async with acting(lambda system: Workspace(system.log, LocalWorkspace(tmp_path)), home=tmp_path / "nats") as stage:
        outputs = files_of(tmp_path)
        (outputs / "a.txt").write_text("a")
        await stage.given_run("hello", *used_tools())
        [first] = await scans(stage)
        assert [entry.size for entry in first.seen.values()] == [1]
        (outputs / "a.txt").unlink()
        await stage.given_run("again", *used_tools())
        [_, second] = await scans(stage)
        assert second.gone == list(first.seen)
        await stage.given(ThreadErased(by="ada"))
        assert await scans(stage) == []
