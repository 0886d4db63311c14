"""Debugging shown on a recorded thread: a subagent, a retry, an approval, `kill -9` and a steer.

The page `channels/http/docs/debugging.md` names the tests of this and other files by what they show.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from channels.terminal import log as logs
from channels.terminal.story import UNCUT
from channels.terminal.text import Style
from core.events import RunRequested, RunStarted, SubagentStarted, thread
from core.replay import moment
from core.replay.causes import why
from core.replay.find import Query, find, picked
from core.replay.listing import listed
from core.replay.prompts import sent
from core.replay.tree import shares, tree
from tests.core.replay.recorded import Story

pytestmark = pytest.mark.anyio
STORY = thread("story")
PAGE = Path(__file__).parents[3] / "channels/http/docs/debugging.md"


async def shown(name: str = "story") -> list[str]:
    lines: list[str] = []
    await logs.steps(Story(), name, lines.append, extent=logs.Extent(), width=UNCUT)
    return [" ".join(line.split()) for line in lines]


async def test_events_are_listed_in_order_with_filters() -> None:
    lines = await shown()
    assert any("✗ bash exit 3" in line for line in lines)
    assert any("! model 429" in line for line in lines)
    assert any(line.endswith("took over, attempt 2") and "⚡" in line for line in lines)
    assert any("? approval: may bash do this? It deletes." in line for line in lines)
    assert "rm x.txt" in lines
    assert any("Clean up afterwards." in line for line in lines)
    records = await Story().read(STORY)
    failures = [record.type for record in picked(records, Query(errors=True))]
    assert failures == ["model.failed", "tool.completed"]
    assert next(record.type for record in picked(records, Query.of("rm x"))) == "model.completed"


async def test_events_of_all_threads_are_found() -> None:
    hits = [record async for record in find(Story(), Query(tool="bash", types=("tool.requested",)))]
    assert [record.head.kind for record in hits] == ["thread", "thread", "subagent", "thread", "thread"]
    [summary] = (await listed(Story())).summaries
    assert (summary.status, summary.runs, summary.failures, summary.user) == ("success", 2, 0, "ada")


async def test_a_run_is_a_tree_with_retries_and_subagents_as_lanes() -> None:
    first, second = await tree(Story().read, STORY)
    kinds = {span.kind for span in first.all()}
    assert {"answer", "call", "retry", "attempt", "run"} <= kinds
    [delegated] = [span for span in first.all() if span.subagent]
    assert [run.state for run in delegated.children] == ["success"]
    assert max(shares(first), key=lambda name: shares(first)[name]) == "bash", "the command that was cut off"
    assert second.state == "success"


async def test_the_state_at_any_moment() -> None:
    records = await Story().read(STORY)
    lengths = [len(moment.at(records, record.seq).messages) for record in records]
    assert lengths == sorted(lengths), "messages only grow"
    assert (lengths[0], lengths[-1]) == (0, len(moment.at(records, None).messages))
    assert moment.at(records, records[-1].seq).status == "idle"


async def test_two_moments_and_two_runs_differ_where_they_do() -> None:
    lines: list[str] = []
    assert await logs.diff(Story(), "story@4", "story", lines.append, style=Style())
    assert any("There were 3 lines." in line for line in lines)
    lines.clear()
    assert await logs.diff(Story(), "story#1", "story#2", lines.append, style=Style())
    assert lines[0].startswith("first difference after 0 steps")


async def test_a_cause_leads_over_the_subagent_the_crash_and_the_approval_to_the_person() -> None:
    story = Story()
    records = await story.read(STORY)
    chain = [link.record for link in await why(story.read, STORY, str(len(records)))]
    assert next(record.type for record in chain) == "run.requested"
    assert [record.run for record in chain if isinstance(record.event, RunRequested)] == ["run-1", "run-2"]
    assert "run.paused" in [record.type for record in chain]
    [started] = [record.event for record in records if isinstance(record.event, SubagentStarted)]
    inner = await story.read(thread(started.subagent)._replace(kind="subagent"))
    links = await why(story.read, inner[-1].aggregate, str(len(inner)))
    assert links[0].record.aggregate == STORY
    assert any(len(link.beside) >= 1 for link in links), "the join of parallel outcomes"


async def test_one_event_in_full() -> None:
    records = await Story().read(STORY)
    place = next(number for number, record in enumerate(records, 1) if record.type == "approval.requested")
    lines: list[str] = []
    await logs.event(Story(), "story", str(place), lines.append)
    text = "\n".join(lines)
    assert "rm x.txt" in text
    assert "causes (log why has all)" in text


async def test_prompts_tools_and_parameters_of_a_run_are_there() -> None:
    story = Story()
    starts = [record.event for record in await story.read(STORY) if isinstance(record.event, RunStarted)]
    parts = [await sent(story.read, start) for start in starts]
    assert all({"prompt", "tools", "model"} == set(part) for part in parts)
    assert "bash" in parts[0]["tools"]
    assert starts[0].release


def test_every_row_of_the_page_names_a_test_that_is_there() -> None:
    rows = re.findall(r"^\| .* \| `(tests/[\w/]+\.py)::(\w+)` \|$", PAGE.read_text(), flags=re.MULTILINE)
    table = [line for line in PAGE.read_text().splitlines() if "| `tests/" in line]
    assert len(rows) == len(table) >= 8
    for path, name in rows:
        source = (PAGE.parents[3] / path).read_text()
        assert re.search(rf"^(async )?def {name}\(", source, flags=re.MULTILINE), f"{path} has no {name}"
