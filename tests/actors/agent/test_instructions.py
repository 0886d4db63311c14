"""`AGENTS.md` of the workspace in a run: beside the message, recorded, the same until the next run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from core.events import FolderAttached, RunStarted
from core.files.paths import PROJECT, thread_root
from tests.actors.agent.test_tools import bash
from tests.support.model_server import ModelServer, ToolCall, Turn
from tests.support.workers import site

pytestmark = pytest.mark.anyio

TASK = ToolCall("task", {"description": "d", "prompt": "Count.", "subagent_type": "general-purpose"})
OWN = {"agents": {"general-purpose": {"model": "sub"}}}


def workspace(home: Path) -> Path:
    folder = thread_root(home, "ada", "t1") / "user-data" / "workspace"
    folder.mkdir(parents=True)
    return folder


def requests(models: ModelServer) -> list[dict[str, Any]]:
    return [record.body for record in models.requests]


def texts(body: dict[str, Any]) -> list[str]:
    return [message["content"] for message in body["messages"] if "<project_instructions>" in str(message["content"])]


async def test_they_hold_for_the_run_and_change_with_the_next(tmp_path: Path) -> None:
    (workspace(tmp_path) / "AGENTS.md").write_text("Use tabs.")
    edits = [Turn(tool_calls=(bash("echo Use blanks. > AGENTS.md"),)), Turn(text="Done.")]
    async with site(tmp_path, {"edits": edits, "m": [Turn(text="Done.")]}) as (client, models):
        await client.thread()
        for text, model in (("Go", "edits"), ("Go on", "m"), ("And on", "m")):
            await client.said("t1", text, model)
        started = [record.event for record in await client.records("t1", RunStarted)]
    first, second, changed, unchanged = map(texts, requests(models))
    [text] = first
    assert "# /mnt/user-data/workspace/AGENTS.md\nUse tabs." in text
    assert second == first
    assert [*changed][:1] == first
    assert len(changed) == 2
    assert "Use blanks." in changed[1]
    assert unchanged == changed
    systems = {body["messages"][0]["content"] for body in requests(models)}
    assert len(systems) == 1, "the system prompt stays, so that providers cache it"
    recorded = [json.dumps(event.prepared) for event in started if isinstance(event, RunStarted)]
    assert ["Use tabs." in text for text in recorded] == [True, False, False]
    assert ["Use blanks." in text for text in recorded] == [False, True, False]


async def test_what_lies_deeper_or_was_uploaded_is_not_the_persons(tmp_path: Path) -> None:
    folder = workspace(tmp_path)
    for place in (folder / "fetched", folder.parent / "uploads"):
        place.mkdir()
        (place / "AGENTS.md").write_text("Obey.")
    async with site(tmp_path, {"m": [Turn(text="Done.")]}) as (client, models):
        await client.said(await client.thread(), "Go", "m")
    [body] = requests(models)
    assert texts(body) == []
    assert "Obey." not in json.dumps(body)


async def test_the_folder_of_the_person_counts(tmp_path: Path) -> None:
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "AGENTS.md").write_text("Use tabs.")
    folder = FolderAttached(path=str(tmp_path / "books"), access="read-only", by="ada")
    async with site(tmp_path, {"m": [Turn(text="Done.")]}) as (client, models):
        await client.system.threads.decide(await client.thread(), lambda _: [folder], actor="test")
        await client.said("t1", "Go", "m")
    [text] = texts(requests(models)[0])
    assert f"# {PROJECT}/AGENTS.md\nUse tabs." in text


async def test_nobody_is_asked_in_a_run_that_nobody_watches(tmp_path: Path) -> None:
    async with site(tmp_path, {"m": [Turn(text="Done.")]}) as (client, models):
        await client.said(await client.thread(), "Go", "m", context={"unattended": True})
    [body] = requests(models)
    assert "<unattended_run>" in body["messages"][0]["content"]
    assert "ask_clarification" not in json.dumps(body)


async def test_subagents_work_by_them_too(tmp_path: Path) -> None:
    (workspace(tmp_path) / "CLAUDE.md").write_text("Use tabs.")
    scripts = {"m": [Turn(tool_calls=(TASK,)), Turn(text="Done.")], "sub": [Turn(text="One.")]}
    async with site(tmp_path, scripts, subagents=OWN) as (client, models):
        await client.said(await client.thread(), "Go", "m")
    [body] = [record.body for record in models.requests if record.model == "sub"]
    [text] = texts(body)
    assert "# /mnt/user-data/workspace/CLAUDE.md\nUse tabs." in text


async def test_a_run_without_files_reads_none(tmp_path: Path) -> None:
    (workspace(tmp_path) / "AGENTS.md").write_text("Use tabs.")
    async with site(tmp_path, {"m": [Turn(text="Hi.")]}, tools=()) as (client, models):
        await client.said(await client.thread(), "Go", "m", context={"is_bootstrap": True, "agent_name": "nurse"})
    assert texts(requests(models)[0]) == []
