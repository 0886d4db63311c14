"""Debugging features of other tools, each shown on one recorded thread: subagent, retry, approval, `kill -9`, steer.

A test has the name of a feature in the comparison of debuggers (page `debugging`). The thread is the log of a real
server (`tests.golden.make_story`), exported into a file where the feature takes one.
"""

from __future__ import annotations

import io
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from textual.pilot import Pilot

from actors.debugging import pins, rehearsal
from actors.debugging.forks import fork_thread
from actors.debugging.whatif import WhatIf
from actors.wiring import compose
from channels.cli import main
from channels.cli.log.futures import result_lines
from channels.cli.log.report import replayed
from channels.cli.log.stepping import Prompt
from channels.terminal.log import views as logs
from channels.terminal.log.story import Story as Lines
from channels.terminal.text import Style
from channels.terminal.tui.app import Viewer
from channels.terminal.tui.recording import Recording
from core.events import Event, Record, RunRequested, SubagentStarted, ThreadForked, ToolCompleted, ToolRequested, thread
from core.phrases import UNCUT
from core.replay.causes import why
from core.replay.exports.archive import Archive
from core.replay.exports.archives import Archives
from core.replay.exports.importing import restore
from core.replay.exports.redact import Redaction
from core.replay.find import Query, find, picked
from core.replay.listing import threads_of_file
from core.replay.moments import moment
from core.replay.recorded import read_of
from core.replay.source import LogSource, Source
from core.replay.tree import shares, tree
from core.replay.whatif.running import Changes
from core.thread.fold import fold
from core.views.overview import newest_file
from core.views.sql import query
from tests.actors.agent.test_tools import bash
from tests.core.replay.recorded import Story, configured, exported
from tests.golden.make_story import NAME, SECTIONS
from tests.support.model_server import ModelServer, Turn
from tests.support.workers import configure, site, wait_for

pytestmark = pytest.mark.anyio
STORY = thread(NAME)
PAGE = Path(__file__).parents[3] / "channels/http/docs/debugging.md"
KEY = "sk-proj-" + "a1B2" * 12
"""Looks like a key of a model."""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The thread with its subagent as an exported file."""
    return anyio.run(exported, tmp_path_factory.mktemp("story") / "story.jsonl")


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[Source]:
    archives, archive = Archives(), await Archive.open(path)
    archives.name(archive)
    yield archives
    archive.close()


def options(home: Path, **sections: Any) -> compose.Options:
    return compose.Options(home, configured(home / "config.yaml", **sections))


def of_kind(records: Sequence[Record], kind: type[Event]) -> list[Record]:
    return [record for record in records if isinstance(record.event, kind)]


def run(*words: object) -> int:
    """Runs a command."""
    return main(["log", *map(str, words)])


async def shown(source: Source) -> list[str]:
    lines: list[str] = []
    await logs.steps(source, NAME, lines.append, extent=logs.Extent(), width=UNCUT)
    return [" ".join(line.split()) for line in lines]


async def test_full_ordered_event_list_filter_search(file: Path) -> None:
    async with opened(file) as source:
        lines, records = await shown(source), await source.read(STORY)
        calls = [record async for record in find(source, Query(tool="bash", types=("tool.requested",)))]
    assert [record.seq for record in records] == sorted(record.seq for record in records)
    assert any("✗ bash exit 3" in line for line in lines)
    assert any(re.search("! The model did not answer: .*429", line) for line in lines)
    assert any(re.search("⚡ .*attempt 2 by ", line) for line in lines)
    assert any(re.search("[?] bash .*waits for a person.*: It deletes.", line) for line in lines)
    assert "rm x.txt" in lines
    assert any("Clean up afterwards." in line for line in lines)
    assert [record.type for record in picked(records, Query(errors=True))] == ["model.failed", "tool.completed"]
    assert picked(records, Query.of("rm x"))[0].type == "model.completed"
    assert sorted(record.aggregate.kind for record in calls) == ["subagent", *["thread"] * 4]


async def test_timeline_with_retries_and_parallel_branches(file: Path) -> None:
    async with opened(file) as source:
        first, second = await tree(read_of(source), STORY)
    assert {"answer", "call", "retry", "attempt", "run", "wait"} <= {span.kind for span in first.all()}
    [delegated] = [span for span in first.all() if span.subagent]
    assert [span.state for span in delegated.children] == ["success"], "the subagent, as a lane of its own"
    one, other = next(span.children for span in first.all() if len(span.children) == 2)
    assert one.begin < other.begin < (one.end or "") < (other.end or ""), "both commands at once"
    assert max(shares(first), key=lambda name: shares(first)[name]) == "bash", "the command that was cut off"
    assert second.state == "success"


async def test_state_at_any_point(file: Path) -> None:
    async with opened(file) as source:
        records = await source.read(STORY)
    states = [moment.at(records, record.seq) for record in records]
    lengths = [len(state.messages) for state in states]
    assert lengths == sorted(lengths), "messages only grow"
    assert (lengths[0], states[-1].status) == (0, "idle")
    assert states[-1].values == fold(records).values
    assert {"pending", "running", "interrupted", "success"} >= {run.status for run in states[-1].runs.values()}
    assert {"busy", "interrupted", "idle"} <= {state.status for state in states}


async def test_diff_between_two_points(file: Path) -> None:
    async def differs(left: str, right: str) -> list[str]:
        lines: list[str] = []
        async with opened(file) as source:
            assert await logs.diff(source, left, right, lines.append, style=Style())
        return lines

    assert any("There were 3 lines." in line for line in await differs(f"{NAME}@4", NAME))
    between_runs = await differs(f"{NAME}#1", f"{NAME}#2")
    assert between_runs[0].startswith("first difference after 0 steps")
    assert any("There were 3 lines." in line for line in between_runs)


async def test_step_back_with_a_slider_per_event(file: Path) -> None:
    async with opened(file) as source:
        records = await source.read(STORY)
    viewer = Viewer(NAME, Recording(records))

    async def shows(pilot: Pilot[None], text: str) -> None:
        async def there() -> bool:
            await pilot.pause()
            return bool(viewer.detail) and viewer.detail[0] == text

        await wait_for(there)

    async with viewer.run_test(size=(120, 40)) as pilot:
        await pilot.press("end")
        for number in range(len(records), len(records) - 4, -1):
            await shows(pilot, f"{number} {records[number - 1].type}")
            await pilot.press("up")
        await pilot.press("home", "right")
        assert 0 < viewer.place < len(records) - 4, "a twentieth of the time"
        await pilot.press("left")
        assert viewer.place == 0


async def test_fork_edit_and_continue(file: Path, tmp_path: Path) -> None:
    turns = [Turn(text="I go on from here.")]
    async with opened(file) as source, site(tmp_path, {"lead": turns, "sub": []}, **SECTIONS) as (client, _):
        records = await source.read(STORY)
        answered = of_kind(records, ToolCompleted)[2].seq
        home, threads = tmp_path, client.system.threads
        forked = await fork_thread(threads, source, home, STORY, answered, "fork")
        [origin] = [record.event for record in await client.records("fork", ThreadForked)]
        messages = await client.said("fork", "And now?", "lead")
    assert forked.new
    assert isinstance(origin, ThreadForked)
    assert (origin.source, origin.source_seq) == (NAME, answered)
    assert [message["content"] for message in messages if message["type"] == "human"] == [
        "Count the lines.", "And now?",
    ]  # fmt: skip
    assert messages[-1]["content"].startswith("I go on from here.")
    assert not any("Clean up" in str(message) for message in messages), "came after the fork point"


async def test_deterministic_re_execution_on_recorded_outcomes(file: Path, tmp_path: Path) -> None:
    async with opened(file) as source:
        report = await rehearsal.replay(source, NAME, None, options(tmp_path))
    assert (report.verdict, report.divergence, report.unfinished) == ("same decisions", None, 0)
    assert (report.runs, report.steps) == (3, 16), "both runs and that of the subagent"
    changed = {text.partition(":")[0] for text in report.changed}
    assert changed == {"prompt", "configuration"}, "the prompt of today, and other addresses of the models"


def test_re_execution_is_a_check_of_continuous_integration(file: Path, tmp_path: Path) -> None:
    strict = configured(tmp_path / "strict.yaml", approvals=[{"tool": "bash", "match": "wc -l"}])
    assert run("replay", file, "--config", configured(tmp_path / "same.yaml")) == 0
    assert run("replay", file, "--config", strict) == 1


async def test_divergence_report_with_both_payloads(file: Path, tmp_path: Path) -> None:
    strict = options(tmp_path, approvals=[{"tool": "bash", "match": "sleep"}, *SECTIONS["approvals"]])
    async with opened(file) as source:
        report = await rehearsal.replay(source, NAME, None, strict)
        records = await source.read(STORY)
    asked = of_kind(records, ToolRequested)[3]
    text, code = replayed(report, NAME)
    assert (report.seq, code) == (asked.seq, 1), "the first event that differs, behind a crash of the run"
    assert report.recorded is not None
    assert report.now is not None
    assert (report.recorded["type"], report.now["type"]) == ("tool.requested", "approval.requested")
    assert re.search(r"recorded +tool\.requested .*sleep 4", text)
    assert re.search(r"now +approval\.requested .*", text)


async def test_what_if_with_another_model_prompt_and_tool_result(file: Path, tmp_path: Path) -> None:
    turns = [Turn(text="Never said."), Turn(text="I see.", tool_calls=(bash("echo 4 > y.txt"),)), Turn(text="Four.")]
    async with opened(file) as source, ModelServer({"lead": [], "sub": [], "other": turns}) as models:
        records = await source.read(STORY)
        outcomes = of_kind(records, ToolCompleted)[:2]
        calls = [getattr(outcome.event, "call_id", "") for outcome in outcomes]
        config = configure(tmp_path / "config.yaml", models, **SECTIONS)
        changes = Changes(model="other", prompt="Be brief.", results={calls[0]: "4 x.txt"})
        whatif = WhatIf(source, compose.Options(tmp_path, config), changes)
        result = await whatif.run(await whatif.point(NAME, outcomes[-1].seq))
        requests = [request.body["messages"] for request in models.requests]
    [sample] = result.samples
    assert len(requests) == 2, "live answers only: nothing before the fork point is asked for"
    assert requests[0][0]["content"] == "Be brief."
    assert "4 x.txt" in str(requests[0])
    assert (sample.future.text, result.recorded.text) == ("Four.", "I clean up.")
    assert [change.path.rpartition("/")[2] for change in sample.future.files] == ["y.txt"]
    lines = "\n".join(result_lines(result, records, Style()))
    for part in ("recorded", "what-if", "tokens", "cost", "took", "first difference"):
        assert part in lines


async def test_live_tail_of_a_running_run(tmp_path: Path) -> None:
    raws = [record.raw for record in Story().records if record.aggregate == STORY]
    lines: list[str] = []
    async with site(tmp_path, {"lead": [], "sub": []}, **SECTIONS) as (client, _):
        log = client.system.log
        last = await log.restore(STORY, raws[:18], expected=0)
        assert (await client.state(NAME)).active is not None

        async def reached(count: int) -> None:
            async def there() -> bool:
                return len(lines) == count

            await wait_for(there)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(logs.tail, log, NAME, lines.append, raw=True, story=Lines(Style(), UNCUT)))
            await reached(18)
            await log.restore(STORY, raws[18:], expected=last)
            await reached(len(raws))
            tasks.cancel_scope.cancel()
    assert any("Clean up afterwards." in line for line in lines)


async def test_export_and_share_one_file(file: Path, tmp_path: Path) -> None:
    archive = await Archive.open(file)
    async with site(tmp_path, {"lead": [], "sub": []}, **SECTIONS) as (client, _):
        result = await restore(client.system.log, archive)
        there = LogSource(client.system.log)
        for aggregate in archive.aggregates():
            mine = [record.raw for record in await archive.read(aggregate)]
            assert [record.raw for record in await there.read(aggregate)] == mine
        assert (await client.state(NAME)).values == fold(await archive.read(STORY)).values
        assert (await restore(client.system.log, archive)).events == 0
    assert (result.thread, result.cancelled) == (NAME, 0)
    archive.close()


def test_bug_to_regression_test_in_one_command(file: Path, tmp_path: Path) -> None:
    configured(tmp_path / "config.yaml")
    assert run("pin", file, "--name", "bug", "--dir", tmp_path, "--config", tmp_path / "config.yaml") == 0
    assert (tmp_path / "test_pinned.py").exists()

    def check(**sections: Any) -> str:
        return anyio.run(pins.check, tmp_path / "bug.jsonl", options(tmp_path, **sections))

    assert check() == ""
    assert check(approvals=[*SECTIONS["approvals"], {"tool": "bash", "match": "rm -rf"}]) == "", "without effect"
    assert check(approvals=[]).startswith("decides otherwise: ")


async def test_causality_across_actors(file: Path) -> None:
    async with opened(file) as source:
        records = await source.read(STORY)
        chain = [link.record for link in await why(source.read, STORY, str(len(records)))]
        [started] = [record.event for record in of_kind(records, SubagentStarted)]
        assert isinstance(started, SubagentStarted)
        inner = await source.read(STORY._replace(kind="subagent", id=started.subagent))
        links = await why(source.read, inner[-1].aggregate, str(len(inner)))
    assert chain[0].type == "run.requested", "the person"
    assert [record.run for record in of_kind(chain, RunRequested)] == ["run-1", "run-2"], "over the approval"
    assert "run.paused" in [record.type for record in chain]
    assert links[0].record.aggregate == STORY, "from the subagent to its caller"
    assert any(link.beside for link in links), "the join of parallel outcomes"


async def test_redaction_on_export(tmp_path: Path) -> None:
    records = [
        Record(record.seq, record.raw.replace(b"Count the lines.", f"Count the lines of {KEY}.".encode()))
        for record in Story().records
    ]
    path = await exported(tmp_path / "redacted.jsonl", records, Redaction())
    content = path.read_text()
    assert KEY in str([record.raw for record in records])
    assert not [text for text in (KEY, '"ada"', "host-") if text in content]
    async with opened(path) as source:
        report = await rehearsal.replay(source, NAME, None, options(tmp_path))
    assert (report.divergence, report.steps) == (None, 16), "it still replays"


async def test_query_across_runs(file: Path, tmp_path: Path) -> None:
    archive = await Archive.open(file)
    async with site(tmp_path, {"lead": [], "sub": []}, **SECTIONS) as (client, _):
        await restore(client.system.log, archive)
        await client.system.views.current()
        path = newest_file(tmp_path)
        assert path is not None
        sql = "SELECT status, count(*) FROM runs WHERE user = 'ada' AND model = 'lead' GROUP BY status"
        table = await anyio.to_thread.run_sync(query, path, sql)
    archive.close()
    assert table.rows == [("success", 2)], "a pause is no failure"
    async with opened(file) as source:
        [summary] = (await threads_of_file(source)).summaries
    assert (summary.status, summary.runs, summary.failures, summary.user) == ("success", 2, 0, "ada")


def test_breakpoints(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = configured(tmp_path / "config.yaml")
    typed = io.StringIO("show messages[0].content\nnext\nstep\ncontinue\n")
    monkeypatch.setattr(Prompt.__init__, "__defaults__", (print, typed.readline))
    assert run("replay", file, "--break", "tool.requested name=bash args.command~sleep", "--config", config) == 0
    out = capsys.readouterr().out
    assert out.index("tool.completed") < out.index("Count the lines."), "the stop, then the folded state"
    assert '"command": "sleep 4; echo out"' in out, "the next decision with its inputs"
    [verdict] = [line for line in out.splitlines() if line.startswith("same")]
    assert verdict.startswith("same decisions under another prompt and configuration: 16 steps")
    assert run("replay", file, "--until", "5", "--config", config) == 0
    assert capsys.readouterr().out.startswith("same so far under another prompt and configuration")


def test_every_row_of_the_page_names_a_test_that_is_there() -> None:
    rows = re.findall(r"^\| .* \| `(tests/[\w/]+\.py)::(\w+)` \|$", PAGE.read_text(), flags=re.MULTILINE)
    table = [line for line in PAGE.read_text().splitlines() if "| `tests/" in line]
    assert len(rows) == len(table) >= 16
    for path, name in rows:
        source = (PAGE.parents[3] / path).read_text()
        assert re.search(rf"^(async )?def {name}\(", source, flags=re.MULTILINE), f"{path} has no {name}"
