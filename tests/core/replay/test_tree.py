"""The critical path of a run, its lanes and its costs."""

from __future__ import annotations

import msgspec
import pytest

from channels.terminal.log.tree import COLUMNS, tree_lines
from channels.terminal.text import Style
from core.config.settings import Pricing
from core.events import thread
from core.replay.money import together
from core.replay.recorded import read_of
from core.replay.tree import Span, lanes, shares, tree
from tests.core.replay.recorded import Story

pytestmark = pytest.mark.anyio


def span(kind: str, name: str, begin: float, end: float, *children: Span) -> Span:
    at = [f"2026-01-01T00:00:{second:09.6f}+00:00" for second in (begin, end)]
    return Span(kind, name, 1, begin=at[0], end=at[1], children=list(children))  # type: ignore[arg-type]


def test_at_a_join_the_last_outcome_counts() -> None:
    calls = span("call", "bash", 2, 9), span("call", "ls", 2, 3)
    run = span("run", "main", 0, 12, span("answer", "answer", 1, 2, *calls), span("answer", "answer", 9, 12))
    assert shares(run) == {"bash": 7000, "model": 4000, "other": 1000}


def test_waits_retries_and_subagents_have_their_shares() -> None:
    inner = span("run", "sub", 4, 8, span("answer", "answer", 4, 8))
    call = span("call", "task", 3, 8, inner)
    parts = span("retry", "model", 0, 1), span("answer", "answer", 1, 3, call), span("wait", "a person", 8, 10)
    assert shares(span("run", "main", 0, 10, *parts)) == {"model": 6000, "a person": 2000, "retries": 1000}


def test_an_open_run_has_none() -> None:
    run = span("run", "main", 0, 1)
    run.end = None
    assert shares(run) == {}


async def test_lanes_and_money_of_the_recorded_thread() -> None:
    price = Pricing(input_per_million=1000.0, output_per_million=2000.0, currency="USD")
    prices = {"lead": price, "sub": msgspec.structs.replace(price, currency="EUR")}
    first, second = await tree(read_of(Story()), thread("story"), prices)
    names = [lane.name.partition(" ")[0] for lane in lanes(first)]
    assert names == ["lead", "general-purpose", "a"], "the lead, its subagent, and the person"
    own, subagent, person = (lane.spans for lane in lanes(first))
    assert {"answer", "call", "retry", "attempt"} == {span.kind for span in own}
    assert [span.kind for span in subagent] == ["answer", "call", "answer"]
    assert [span.kind for span in person] == ["wait"]
    commands = [span.args.get("command") for span in first.all() if span.kind == "call"]
    assert commands == ["printf 'a\\nb\\nc\\n' > x.txt; wc -l x.txt", "exit 3", None, "echo one", "sleep 4; echo out"]
    sums = {currency: round(amount, 6) for currency, amount in together(span.cost for span in first.all()).items()}
    assert sums == {"USD": 0.148, "EUR": 0.024}
    assert not any(span.cost for run in await tree(read_of(Story()), thread("story")) for span in run.all())
    lines = tree_lines(first, 1, Style())
    assert " · 0.148 USD + 0.024 EUR · " in lines[0]
    bars = [line.partition("▏")[2] for line in lines if "▏" in line]
    assert len(bars) == 3
    assert all(len(bar) == COLUMNS + 1 for bar in bars)
    assert not any("▏" in line for line in tree_lines(second, 2, Style())), "one lane is no picture"
