"""A thread as steps: one line each, failures seen, waits and takeovers told, nothing cut in a pipe."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from channels.terminal.log.digest import is_routine
from channels.terminal.log.steps import lines, span
from channels.terminal.log.story import Story
from channels.terminal.text import Style
from core.events import (
    ApprovalRequested,
    Event,
    ModelCompleted,
    ModelFailed,
    Record,
    Resume,
    RunCompleted,
    RunPaused,
    RunRequested,
    RunStarted,
    ThreadCreated,
    ToolCompleted,
    ToolRequested,
    encode,
    written,
)
from core.phrases import UNCUT
from tests.support.records import ai, call, human

DANGEROUS = "cd /tmp\nrm -rf " + "x" * 200
ASKED = ApprovalRequested(approval="a", call_id="c3", tool="bash", args={"command": DANGEROUS}, digest="d")


def outcome(identity: str, content: str, exit_code: int | None = 0, took: int = 80) -> ToolCompleted:
    message = {"type": "tool", "id": f"o-{identity}", "tool_call_id": identity, "name": "bash", "content": content}
    return ToolCompleted(call_id=identity, message=message, exit_code=exit_code, duration_ms=took)


STEPS: Sequence[tuple[float, str | None, Event]] = (
    (0, None, ThreadCreated(user="ada")),
    (0, "r1", RunRequested(input={"messages": [human("h", "Count " + "y" * 200)]})),
    (0.1, "r1", RunStarted(attempt=1, worker="w1", lease=1, model="main")),
    (
        0.2,
        "r1",
        ModelCompleted(message=ai("a1", "I look.", [call("c1", command="wc -l x"), call("c2", command="exit 3")])),
    ),
    (0.2, "r1", ToolRequested(call_id="c1", name="bash", effect="once")),
    (0.2, "r1", ToolRequested(call_id="c2", name="bash", effect="idempotent")),
    (0.3, "r1", outcome("c1", "3 x")),
    (12.7, "r1", RunStarted(attempt=2, worker="w2", lease=1, model="main")),
    (12.8, "r1", outcome("c2", "Exit Code: 3", 3)),
    (
        12.9,
        "r1",
        ModelFailed(error="E", text="busy", attempt=1, max_attempts=3, reason="rate limit", status=429, wait_ms=1000),
    ),
    (14, "r1", ModelCompleted(message=ai("a2", "", [call("c3", command=DANGEROUS)]))),
    (14, "r1", ASKED),
    (14, "r1", RunPaused(next=["tools"])),
    (7814, "r2", RunRequested(resume=Resume(True))),
    (7814, "r2", RunStarted(attempt=1, worker="w2", lease=2, model="main")),
    (7815, "r2", RunCompleted()),
)


def records() -> list[Record]:
    result = []
    for seq, (second, run, event) in enumerate(STEPS, 1):
        hours, rest = divmod(second, 3600)
        at = f"2026-01-01T{int(hours):02}:{int(rest // 60):02}:{rest % 60:09.6f}+00:00"
        head = written(event, id=f"e{seq}", kind="thread", aggregate_id="t", actor="lead", at=at, run=run)
        result.append(Record(100 + seq, encode(event, head)))
    return result


def shown(width: int = UNCUT, style: Style = Style()) -> list[str]:  # noqa: B008  frozen
    return list(lines(records(), style, width))


def test_a_line_for_each_step() -> None:
    texts = [" ".join(line.split()) for line in shown()]
    assert "5 0.20 80ms bash wc -l x “3 x”" in texts, "a call and its outcome are one line, numbered in the thread"
    assert "6 0.20 open bash exit 3 (no end)" in texts
    assert "8 12.70 ⚡ w1 gone; attempt 2 by w2, model main" in texts
    assert "9 12.80 80ms ✗ bash …picked up exit 3 “Exit Code: 3”" in texts
    assert "10 12.90 ! The model did not answer: try 1 of 3, rate limit 429, again in 1.0 s: busy" in texts
    assert any("⋯ 2 h 10 min waiting for a person" in text for text in texts)
    assert texts[-1].startswith("2 runs · 16 events · 15.0 s · 0 tokens · 2 answers · 2 calls · 1 failed attempt · ")
    assert texts[-1].endswith("1 failure · 1 takeover · waited 2 h 10 min")


def test_the_whole_command_of_an_approval_is_shown() -> None:
    texts = [line.strip() for line in shown(width=80)]
    assert "rm -rf " + "x" * 200 in texts
    assert any(" ? bash cd /tmp rm -rf xxx" in text for text in texts)


def test_lines_fit_a_terminal_and_are_whole_in_a_pipe() -> None:
    long = [record for record in records() if not isinstance(record.event, ApprovalRequested)]
    assert max(map(len, lines(long, Style(), 80))) <= 80
    assert any("y" * 200 in line for line in lines(long, Style(), UNCUT))
    story = Story(width=UNCUT)
    assert any("x" * 200 in story.line(record) for record in records())


def test_a_command_that_failed_is_red_and_not_routine() -> None:
    [line] = [line for line in shown(style=Style(True)) if "picked up" in line]
    assert line.startswith("\x1b[31m")
    failed = outcome("c", "", 3)
    assert not is_routine(failed)
    assert is_routine(outcome("c", "", 0))


@pytest.mark.parametrize(("value", "text"), [(0.08, "80 ms"), (2.3, "2.3 s"), (7800, "2 h 10 min"), (90061, "1 d 1 h")])
def test_spans_of_time(value: float, text: str) -> None:
    assert span(value) == text
