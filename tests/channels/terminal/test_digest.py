"""The story in brief: what went as usual is one line per stretch, and nothing else is left out."""

from __future__ import annotations

from typing import Any

import pytest

from channels.terminal.log.digest import Digest, is_routine
from channels.terminal.log.story import Story
from channels.terminal.log.views import show
from channels.terminal.text import Style
from core.events import (
    ApprovalRequested,
    ContextCompacted,
    Decision,
    Event,
    ModelCompleted,
    ModelFailed,
    Opaque,
    Record,
    RunCompleted,
    RunFailed,
    RunRequested,
    RunSteered,
    ThreadCreated,
    ToolCompleted,
    ToolRequested,
    encode,
    thread,
    written,
)
from core.log.store import EventLog
from core.replay.source import LogSource

RESULT = {"type": "tool", "name": "bash", "content": "a"}
SAID = Decision(policy="loop_detection", action="warned", text="again?")


def record(seq: int, event: Event, run: str = "r") -> Record:
    """Events a quarter of a second apart."""
    at = f"2026-11-20T23:{seq // 240:02}:{seq // 4 % 60:02}.{seq % 4 * 25:02}0000+00:00"
    envelope = written(event, id=f"e{seq}", kind="thread", aggregate_id="t", actor="lead", at=at, run=run)
    return Record(seq, encode(event, envelope))


def answer(*tools: str, tokens: int = 0, **more: Any) -> ModelCompleted:
    calls = [{"id": f"c{n}", "name": name, "args": {}} for n, name in enumerate(tools)]
    usage = {"usage_metadata": {"input_tokens": tokens, "output_tokens": 1}} if tokens else {}
    return ModelCompleted(message={"type": "ai", "content": "So.", "tool_calls": calls, **usage}, **more)


def requested(name: str) -> ToolRequested:
    return ToolRequested(call_id="c0", name=name, effect="pure")


def completed(**more: Any) -> ToolCompleted:
    return ToolCompleted(call_id="c0", message=RESULT, **more)


def step(name: str, tokens: int = 0) -> list[Event]:
    return [answer(name, tokens=tokens), requested(name), completed()]


def failed(attempt: int, error: str = "E", **more: Any) -> ModelFailed:
    return ModelFailed(error=error, text="bad", attempt=attempt, max_attempts=3, wait_ms=5, **more)


def told(*events: Event, style: Style | None = None) -> list[str]:
    digest = Digest(Story(style), style)
    lines = [line for seq, event in enumerate(events, 1) for line in digest.lines(record(seq, event))]
    return [*lines, *digest.rest()]


def kinds(lines: list[str]) -> list[str]:
    """The event of each line, `…` for a stretch, `──` for a heading."""
    return [line.split()[0] if line.lstrip()[0] in "…─" else line.split()[3] for line in lines]


@pytest.mark.parametrize(
    ("event", "routine"),
    [
        (answer("ls"), True),
        (requested("ls"), True),
        (completed(), True),
        (answer(), False),
        (answer("ls", decisions=[SAID]), False),
        (completed(decisions=[SAID]), False),
        (completed(unknown=True), False),
        (ToolCompleted(call_id="c", message={**RESULT, "status": "error"}), False),
        (failed(1), False),
        (ContextCompacted(summary={}, kept=[]), False),
        (ApprovalRequested(approval="a", call_id="c", tool="bash", args={}, digest="d"), False),
        (RunSteered(message={}), False),
        (RunCompleted(), False),
        (Opaque("memory.dreamt"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_routine(event: Event | Opaque, routine: bool) -> None:
    assert is_routine(event) is routine


def test_a_stretch_is_one_line_between_what_is_told() -> None:
    steps = [event for n in range(1000) for event in step("ls" if n % 4 else "bash", tokens=11)]
    assert told(RunRequested(), *steps, answer(), RunCompleted()) == [
        "── run r ──",
        "     1  23:00:00.250  lead      run.requested        go on",
        "      … 1 000 model calls, 1 000 tool calls (ls 750, bash 250), 12 000 tokens, 750.0 s",
        "  3002  23:12:30.500  lead      model.completed      [0 ms] “So.”",
        "  3003  23:12:30.750  lead      run.completed        done",
    ]


@pytest.mark.parametrize(
    ("events", "line"),
    [
        (step("ls"), "1 model call, 1 tool call (ls 1), 750 ms"),
        (step("ls", tokens=1), "1 model call, 1 tool call (ls 1), 2 tokens, 750 ms"),
        ([answer("ls")], "1 model call, 250 ms"),
        ([requested("ls")], "1 tool call (ls 1), 250 ms"),
        ([completed(), completed()], "2 outcomes, 500 ms"),
        (
            [requested(name) for name in "bcdefgba"],
            "8 tool calls (b 2, a 1, c 1, d 1, e 1, f 1, …), 2.0 s",
        ),
        ([requested("\x1b[2Jls")], "1 tool call (ls 1), 250 ms"),
    ],
)
def test_what_is_said_of_a_stretch(events: list[Event], line: str) -> None:
    assert told(RunRequested(), *events)[2:] == [f"      … {line}"]


def test_notable_steps_split_stretches() -> None:
    error = ToolCompleted(call_id="c", message={**RESULT, "status": "error"})
    lines = told(
        RunRequested(), *step("ls"), answer("ls"), requested("ls"), error, *step("ls"), RunFailed(error="E", text="t")
    )
    assert kinds(lines) == ["──", "run.requested", "…", "tool.completed", "…", "run.failed"]


def test_tries_of_one_call_that_fail_alike_are_one_line() -> None:
    lines = told(failed(1), failed(2), failed(3), failed(1, model="b"), failed(2, "F", model="b"), *step("ls"))
    assert kinds(lines) == ["──", "model.failed", "model.failed", "model.failed", "…"]
    assert [line.partition("try ")[2][:6] for line in lines if "try" in line] == ["3 of 3", "1 of 3", "2 of 3"]


def test_failures_of_two_calls_are_two_lines_in_order() -> None:
    lines = told(*step("ls"), failed(1), failed(2), *step("ls"), failed(1), RunCompleted())
    assert kinds(lines) == ["──", "model.completed", "…", "model.failed", "…", "model.failed", "run.completed"]


def test_another_run_has_its_heading() -> None:
    digest = Digest(Story())
    lines = [*digest.lines(record(1, RunRequested())), *digest.lines(record(2, answer("ls")))]
    lines += digest.lines(record(3, answer("ls"), "s"))
    assert kinds([*lines, *digest.rest()]) == ["──", "run.requested", "…", "──", "model.completed"]


@pytest.mark.anyio
async def test_a_log_in_brief_ends_with_what_was_held_back(log: EventLog) -> None:
    [first] = await log.append(thread("t"), [ThreadCreated(user="me")], expected=0, actor="http")
    steps = [RunRequested(), *step("ls"), *step("ls")]
    [*_, last] = await log.append(thread("t"), steps, expected=first.seq, actor="lead", run="r")
    lines: list[str] = []
    assert await show(LogSource(log), "t", lines.append, story=Digest(Story())) == last.seq
    assert kinds(lines) == ["thread.created", "──", "run.requested", "…"]


def test_stretches_are_dim() -> None:
    assert told(RunRequested(), *step("ls"), style=Style(True))[-1].startswith("\x1b[2m      … ")
