"""Files and stages of tools: through the sandbox as it is, and as previews of the run."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from actors.agent.loop import files as tool_files
from actors.agent.loop.stage import CHARACTERS, Stage
from actors.delivery.progress import Progress as ChatProgress
from core.config.redaction import redactor
from core.errors import Invalid
from core.events import ModelCompleted, RunRequested, RunStarted, ThreadCreated, ToolCompleted, ToolRequested
from core.files.paths import file_path
from core.runs.previews import Progress, RunPreview
from core.testing import ToolStage
from core.thread.fold import fold
from core.tools import MOST_BYTES, Files, ToolContext, tool
from tests.actors.agent.turns import RUN, Kept, turn
from tests.support.model_server import ToolCall, Turn
from tests.support.records import ai, call, log_of, record
from tests.support.workers import site

pytestmark = pytest.mark.anyio

KEY = "sk-hunter2hunter2hunter2"
Step = Callable[[Files], Awaitable[Any]]


async def in_a_run(tmp_path: Path, step: Step) -> Any:
    """What a tool gets of the files of its call."""
    outcomes: list[Any] = []

    @tool(effect="idempotent")
    async def touch(ctx: ToolContext) -> str:
        """Touch."""
        try:
            outcomes.append(await step(ctx.files))
        except Invalid as error:
            outcomes.append(error)
        return "done"

    turns = [Turn(tool_calls=(ToolCall("touch", {}),)), Turn(text="Done.")]
    async with site(tmp_path, {"m": turns}, tools=[touch]) as (client, _):
        await client.said(await client.thread(), "Go")
    return outcomes[0]


CONTENTS: Mapping[str, bytes] = {
    "empty": b"",
    "text": "é\r\n".encode(),
    "not text": bytes(range(256)) * 3,
    "in parts": os.urandom(2 * tool_files.PART_BYTES + 1),
    "a secret": b"a " + KEY.encode() + b" b " + base64.b64encode(KEY.encode()),
}


async def test_what_a_tool_writes_it_reads(tmp_path: Path) -> None:
    """Byte for byte, also what is no text, what takes several requests, and what is redacted elsewhere."""
    redactor.add(KEY)

    async def step(files: Files) -> Any:
        places = {}
        for name, content in CONTENTS.items():
            places[name] = await files.write(f"outputs/sub/{name}.bin", b"longer than the next one" * 9)
            assert await files.write(places[name], content) == places[name]
        read = {name: await files.read(f"outputs/sub/{name}.bin") for name in CONTENTS}
        return read, list(await files.list("outputs"))

    read, listed = await in_a_run(tmp_path, step)
    assert read == CONTENTS
    assert sorted(listed) == sorted(f"/mnt/user-data/outputs/sub/{name}.bin" for name in CONTENTS)
    [folder] = tmp_path.rglob("outputs")
    assert (folder / "sub" / "not text.bin").read_bytes() == CONTENTS["not text"]


@pytest.mark.parametrize(
    "path",
    ["outputs/none", "/etc/passwd", "../../../secret", "outputs/../../../../x", "outputs", "", "/proc/self/environ"],
)
async def test_a_path_that_is_no_file_of_the_thread_is_refused(tmp_path: Path, path: str) -> None:
    refusal = await in_a_run(tmp_path, lambda files: files.read(path))
    assert isinstance(refusal, Invalid)
    assert str(tmp_path) not in str(refusal)


@pytest.mark.parametrize("path", ["/etc/cron.d/x", "../../x", "/mnt/skills/x/SKILL.md", ""])
async def test_a_path_that_is_not_the_thread_s_is_not_written(tmp_path: Path, path: str) -> None:
    refusal = await in_a_run(tmp_path, lambda files: files.write(path, b"x"))
    assert isinstance(refusal, Invalid)


async def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    refusal = await in_a_run(tmp_path, lambda files: files.write("outputs/a", bytes(MOST_BYTES + 1)))
    assert str(refusal) == "/mnt/user-data/outputs/a: larger than 16 MB"


@pytest.mark.parametrize(
    ("path", "absolute"),
    [
        ("uploads/a.csv", "/mnt/user-data/uploads/a.csv"),
        ("outputs/b/c", "/mnt/user-data/outputs/b/c"),
        ("notes.md", "/mnt/user-data/workspace/notes.md"),
        ("outputs2/x", "/mnt/user-data/workspace/outputs2/x"),
        ("/mnt/project/a", "/mnt/project/a"),
        ("", "/mnt/user-data/workspace"),
    ],
)
def test_relative_paths(path: str, absolute: str) -> None:
    assert file_path(path) == absolute


# ── stages ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Watched(Kept):
    """A journal whose previews are kept."""

    def __init__(self, state: Any) -> None:
        super().__init__(state)
        self.shown: list[tuple[str, bool]] = []

    async def progress(self, call_id: str, name: str, text: str, *, stage: bool = False) -> None:
        self.shown.append((text, stage))


async def test_a_stage_is_shown_at_most_so_often_and_the_newest_in_the_end() -> None:
    redactor.add(KEY)
    attempt = turn()
    attempt.journal = journal = Watched(attempt.state)
    stage = Stage(attempt, "c", "t")
    for number in range(1000):
        await stage.show(f"step\n{number} with {KEY}" + "!" * CHARACTERS)
        await asyncio.sleep(0)
    await asyncio.gather(*attempt.working)
    texts = [text for text, _ in journal.shown]
    assert texts[0].startswith("step 0 with ***!")
    assert texts[-1].startswith("step 999 with ***!")
    assert len(texts) < 100
    assert all(len(text) == CHARACTERS + 1 and text.endswith("\n") for text in texts)
    assert all(stage for _, stage in journal.shown)


async def test_nothing_is_shown_after_the_call() -> None:
    attempt = turn()
    attempt.journal = journal = Watched(attempt.state)
    stage = Stage(attempt, "c", "t")
    await stage.show("one")
    await stage.show("two")
    stage.close()
    await asyncio.gather(*attempt.working, return_exceptions=True)
    assert journal.shown == [("one\n", True)]


def test_a_chat_shows_the_stage_of_a_call_and_not_its_output() -> None:
    made = ModelCompleted(message=ai("m", "", [call("c", "fetch", description="Fetch all")]))
    requested = ToolRequested(call_id="c", name="fetch", effect="pure", args={})
    begun = [(RunRequested(input={"messages": []}), RUN), (RunStarted(attempt=1, worker="w", lease=1), RUN)]
    records = log_of(ThreadCreated(user="u"), *begun, (made, RUN), (requested, RUN))
    progress = ChatProgress(RUN, fold(records))

    def said(text: str, **fields: Any) -> str:
        progress.take([RunPreview(RUN, Progress(call_id="c", name="fetch", text=text, **fields))])
        return progress.status

    assert said("a line of output\n") == "fetch: Fetch all"
    assert said("3 of\n7\n", stage=True) == "fetch: Fetch all · 3 of 7"
    assert said("4 of 7\n", stage=True) == "fetch: Fetch all · 4 of 7"
    outcome = ToolCompleted(call_id="c", message={"type": "tool", "id": "t", "tool_call_id": "c", "content": "ok"})
    progress.take([record(100, outcome, RUN)])
    assert progress.status == ""


# ── the stage of tests ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_stage_of_tests_has_all_that_a_context_has() -> None:
    names = {name for name in dir(ToolContext) if not name.startswith("_")}
    assert {name for name in names if not hasattr(ToolStage(), name)} == set()
    stage = ToolStage({"uploads/a": b"a"})
    assert await stage.files.write("b", "é") == "/mnt/user-data/workspace/b"
    assert await stage.files.read("/mnt/user-data/workspace/b") == "é".encode()
    assert await stage.files.list("uploads") == ["/mnt/user-data/uploads/a"]
