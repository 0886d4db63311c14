"""What-if: the shared part costs nothing, the rest is live in a copy of the files, and nothing else notices it."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from actors.debugging.whatif import WhatIf
from actors.wiring import compose
from channels.cli import main
from channels.cli.log.futures import result_lines
from channels.terminal.text import Style
from core.errors import Invalid
from core.events import Record, ToolCompleted
from core.files.paths import ROOTS, thread_root
from core.replay.source import LogSource
from core.replay.whatif.results import wilson
from core.replay.whatif.running import Changes, Result
from tests.actors.agent.test_tools import bash
from tests.core.replay.recorded import configured, exported
from tests.support.model_server import ToolCall, Turn
from tests.support.workers import Client, site

pytestmark = [pytest.mark.anyio, pytest.mark.long(keep=3)]
UNUSED = Turn(text="Never said: the recorded answer stands in the place of this turn.")
NOTE = "/mnt/user-data/workspace/note.txt"


def write(text: str) -> ToolCall:
    return ToolCall("write_file", {"description": "note", "path": NOTE, "content": text})


async def what_if(
    client: Client, home: Path, at: Record | int, samples: int = 1, allow: bool = False, **changes: Any
) -> Result:
    options = compose.Options(home, config=home / "config.yaml")
    source, log = LogSource(client.system.log), client.system.log
    whatif = WhatIf(source, options, Changes(**changes), log=log, allow_effects=allow, call=client.system.call)
    point = await whatif.point("t1", at if isinstance(at, int) else at.seq)
    return await whatif.run(point, samples)


async def test_another_model_goes_on_in_a_copy_of_the_files(tmp_path: Path) -> None:
    turns = [
        Turn(tool_calls=(write("one"),)),
        Turn(tool_calls=(bash("cat note.txt; echo three > note.txt"),)),
        Turn(text="Done."),
    ]
    other = [UNUSED, Turn(tool_calls=(bash("cat note.txt; echo four > other.txt"),)), Turn(text="Otherwise.")]
    async with site(tmp_path, {"m": turns, "other": other}) as (client, models):
        await client.said(await client.thread(), "Go", "m")
        records, outcome = await client.records("t1"), (await client.records("t1", ToolCompleted))[0]
        before, last = len(models.requests), await client.system.log.last()
        result = await what_if(client, tmp_path, outcome, model="other")
        asked = models.requests[before:]
        assert await client.system.log.last() == last, "nothing is on the log"
        note = thread_root(tmp_path, "ada", "t1") / "user-data" / "workspace" / "note.txt"
        assert note.read_text() == "three\n", "the thread's own files are as they were"
    [sample] = result.samples
    assert [request.model for request in asked] == ["other", "other"], "no call before the fork point"
    assert (sample.future.end, sample.future.text, result.recorded.text) == ("run.completed", "Otherwise.", "Done.")
    assert "one" in str(sample.future.events), "the file as it was at that moment"
    assert [(change.path.rpartition("/")[2], change.status) for change in sample.future.files] == [
        ("other.txt", "created")
    ]
    assert sample.future.calls[0].made == "live"
    assert not sample.same_next
    lines = result_lines(result, records, Style())
    number = [record.seq for record in records].index(outcome.seq) + 1
    assert lines[0] == f"what-if of thread t1 after event {number}: model other"
    first = next(line for line in lines if "left at" in line)
    assert first.endswith(f"left at {number + 1}, right at {number + 2}"), "after the event that tells of the fork"
    assert any("Otherwise." in line for line in lines)


async def test_the_users_own_skills_are_read_in_the_copy_and_not_written(tmp_path: Path) -> None:
    other = [UNUSED, Turn(tool_calls=(bash("cat /mnt/skills/user/hats/SKILL.md; echo no > /mnt/skills/user/x"),))]
    turns = [Turn(tool_calls=(bash("echo one"),)), Turn(text="Done.")]
    async with site(tmp_path, {"m": turns, "other": [*other, Turn(text="Read.")]}) as (client, _):
        await client.said(await client.thread(), "Go", "m")
        skills = tmp_path / "users" / "ada" / "skills"
        (skills / "hats").mkdir()
        (skills / "hats" / "SKILL.md").write_text("All about hats.")
        outcome = (await client.records("t1", ToolCompleted))[0]
        result = await what_if(client, tmp_path, outcome, model="other")
    assert "All about hats." in str(result.samples[0].future.events)
    assert [path.name for path in skills.iterdir()] == ["hats"]
    assert result.not_restored == []


async def test_prompt_settings_results_and_message_are_what_the_model_gets(tmp_path: Path) -> None:
    turns = [Turn(tool_calls=(bash("echo one"),)), Turn(text="Done.")]
    async with site(tmp_path, {"m": turns}) as (client, models):
        await client.said(await client.thread(), "Go", "m")
        outcome = (await client.records("t1", ToolCompleted))[0]
        call = getattr(outcome.event, "call_id", "")
        changes: Mapping[str, Any] = {
            "prompt": "Be a pirate.",
            "results": {call: "forty-two"},
            "message": "Hurry up.",
            "settings": {"runs.recursion_limit": "7"},
        }
        before = len(models.requests)
        result = await what_if(client, tmp_path, outcome, **changes)
        request = models.requests[before].body
        with pytest.raises(Invalid, match=r"--set runs\.nothing: unknown key 'nothing'"):
            await what_if(client, tmp_path, outcome, settings={"runs.nothing": "1"})
        with pytest.raises(Invalid, match="no recorded outcome of the call nobody"):
            await what_if(client, tmp_path, outcome, results={"nobody": "x"})
        end = (await client.records("t1"))[-1]
        with pytest.raises(Invalid, match="no run is at work"):
            await what_if(client, tmp_path, end)
        again = await what_if(client, tmp_path, end, message="And now?")
    texts = [str(message["content"]) for message in request["messages"]]
    assert texts[0] == "Be a pirate."
    assert any("forty-two" in text for text in texts)
    assert texts[-1] == "Hurry up."
    assert len(result.changes) == 4
    assert again.samples[0].future.end == "run.completed"


async def test_effects_are_blocked_and_said(tmp_path: Path) -> None:
    """`remember` acts on another actor, and `skill_manage` is `once`: neither is called."""
    turns = [Turn(text="Wait.", tool_calls=(bash("echo one"),)), Turn(text="Done.")]
    remember = ToolCall("remember", {"description": "x", "content": "A fact."})
    other = [UNUSED, Turn(tool_calls=(remember, ToolCall("skill_manage", {"action": "list"}))), Turn(text="Tried.")]
    scripts = {"m": turns, "other": other}
    async with site(tmp_path, scripts, memory={"enabled": True, "tools": True}) as (client, _):
        await client.said(await client.thread(), "Go", "m")
        records, outcome = await client.records("t1"), (await client.records("t1", ToolCompleted))[0]
        result = await what_if(client, tmp_path, outcome, model="other")
    [sample] = result.samples
    contents = [event["message"]["content"] for event in sample.future.events if event["type"] == "tool.completed"]
    blocked = [call for call in sample.future.calls if call.made == "blocked"]
    assert blocked, sample.future.calls
    assert all("blocked in what-if" in content or "not a valid tool" in content for content in contents), contents
    assert any("blocked" in line for line in result_lines(result, records, Style()))


async def test_a_thread_of_200_events_costs_no_model_call_before_the_fork_point(tmp_path: Path) -> None:
    calls = tuple(ToolCall("ls", {"description": "look", "path": f"/mnt/user-data/{root}"}) for root in ROOTS)
    turns = [*(Turn(tool_calls=calls) for _ in range(28)), Turn(text="Done.")]
    short = [*([UNUSED] * 28), Turn(text="Short.")]
    async with site(
        tmp_path,
        {"m": turns, "other": short},
        loop_detection={"enabled": False},
    ) as (client, models):
        await client.said(
            await client.thread(), "Go", "m", context={"model_name": "m"}, config={"recursion_limit": 500}
        )
        records = await client.records("t1")
        assert len(records) >= 200
        answers = [record for record in records if isinstance(record.event, ToolCompleted)]
        before = len(models.requests)
        result = await what_if(client, tmp_path, answers[-1], samples=2, model="other")
        asked = len(models.requests) - before
    assert asked == 2, "one live call for each sample"
    assert all(sample.future.answers == 1 for sample in result.samples)
    lines = result_lines(result, records, Style())
    assert "completed: 2/2 (0.34–1.00)" in lines


def test_a_dear_one_is_asked_for_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No model is there: one that was asked would be seen in the result."""
    path = anyio.run(exported, tmp_path / "story.jsonl")
    config = configured(tmp_path / "config.yaml")
    settings = msgspec.json.decode(config.read_bytes())
    settings["models"][0]["pricing"] = {"input_per_million": 1e6, "output_per_million": 1e6}
    config.write_bytes(msgspec.json.encode(settings))

    def run(*more: str, typed: str | None = None) -> tuple[int, str, str]:
        stdin = io.StringIO(typed or "")
        monkeypatch.setattr(stdin, "isatty", lambda: typed is not None, raising=False)
        monkeypatch.setattr(sys, "stdin", stdin)
        code = main(["log", "whatif", str(path), "--at", "9", "--samples", "2", "--config", str(config), *more])
        out, err = capsys.readouterr()
        return code, out, err

    code, out, err = run()
    assert (code, out) == (2, "")
    assert re.search(r"then about \d+ tokens, \d+ USD × 2 samples: not without --yes", err)
    code, out, err = run(typed="n\n")
    assert (code, out) == (1, "")
    assert err.endswith("\nGo on? [y/N] ")
    assert run(typed="y\n")[0] == run("--yes")[0] == 0
    assert run("--model", "sub")[0] == 0, "without a price, some hundred tokens are not asked for"


def test_wilson() -> None:
    shown = [tuple(round(end, 2) for end in wilson(*pair)) for pair in ((5, 5), (9, 10), (18, 20), (90, 100))]
    assert shown == [(0.57, 1.0), (0.6, 0.98), (0.7, 0.97), (0.83, 0.94)]
    assert wilson(0, 0) == (0.0, 1.0)
