"""The critical path of a run: what its time was spent on."""

from __future__ import annotations

from core.replay.tree import Span, shares


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
