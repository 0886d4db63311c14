"""Forks: a thread of its own with the conversation and the files of a moment, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.debugging.forks import INSIDE, fork_thread
from actors.workspace import Workspace
from adapters.workspace import LocalWorkspace
from core.errors import Invalid, Refused
from core.events import ModelCompleted, RunCompleted, ThreadForked, ToolCompleted, thread
from core.files.paths import thread_root
from core.files.workspace import WorkspaceScanned
from core.replay.source import LogSource
from tests.actors.agent.test_tools import bash
from tests.support.model_server import Turn
from tests.support.workers import Client, site, wait_for

pytestmark = pytest.mark.anyio


async def scanned(client: Client, runs: int) -> None:
    async def done() -> bool:
        found = [r async for r in client.system.log.between(0, await client.system.log.last())]
        return sum(isinstance(record.event, WorkspaceScanned) for record in found) >= runs

    await wait_for(done)


async def test_the_conversation_and_the_files_of_a_moment(tmp_path: Path) -> None:
    first = [Turn(tool_calls=(bash("printf 'one\\ntwo\\n' > a.txt"),)), Turn(text="First.")]
    second = [Turn(tool_calls=(bash("printf 'one\\nTWO\\n' > a.txt; echo b > b.txt"),)), Turn(text="Second.")]

    def scans(system: object, _: object) -> Workspace:
        return Workspace(system.log, LocalWorkspace(tmp_path))  # type: ignore[attr-defined]

    async with site(tmp_path, {"m": first, "n": second}, others=[scans]) as (client, _):
        await client.said(await client.thread(), "Go", "m")
        await scanned(client, 1)
        await client.said("t1", "On", "n")
        await scanned(client, 2)
        end = (await client.records("t1", RunCompleted))[0].seq
        threads, source = client.system.threads, LogSource(client.system.log)
        about = (threads, source, tmp_path, thread("t1"))
        forked = await fork_thread(*about, end, "t2")
        again = await fork_thread(*about, end, "t2")
        with pytest.raises(Refused, match="the id is taken"):
            await fork_thread(*about, end + 1, "t1")
        outcomes = await client.records("t1", ToolCompleted)
        inside = await fork_thread(*about, outcomes[1].seq, "t3")
        asking = (await client.records("t1", ModelCompleted))[0].seq
        with pytest.raises(Invalid, match=f"event seq:{asking}: the outcome of bash comes later"):
            await fork_thread(*about, asking, "t4")
        events = await client.records("t2", ThreadForked)
        messages = await client.said("t2", "And now?", "m")
    files = thread_root(tmp_path, "ada", "t2") / "user-data" / "workspace"
    assert (forked.new, forked.not_restored, again.new) == (True, [], False)
    assert (files / "a.txt").read_text() == "one\ntwo\n"
    assert not (files / "b.txt").exists()
    assert [getattr(record.event, "source", "") for record in events] == ["t1"]
    assert [message["content"] for message in messages if message["type"] == "human"] == ["Go", "And now?"]
    assert inside.not_restored == [INSIDE]
