"""A replay beside its recording: the steps that are the same, the first that is decided otherwise, and what is left."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from core.events import Json, Record
from core.replay import diff as diffs
from core.replay.exports.pins import decision
from core.replay.money import FREE, Prices
from core.replay.queries import ComparedStep, ComparedSteps, Comparison
from core.runs.replay import Report, Verdict


class Replayed(msgspec.Struct, frozen=True):
    """The result of a replay. A step that is decided otherwise has both decisions as outputs."""

    verdict: Verdict
    runs: int
    """The number of runs that were executed again."""
    unfinished: int
    """The number of those that have no recorded end."""
    changed: list[str]
    """What is different around the run: its prompt, the configuration, a model that is not there any more."""
    difference: str
    """The first decision that is another one, in words; empty if there is none."""
    comparison: Comparison
    not_compared: int = 0
    """The number of recorded steps after the difference."""


def replayed(
    report: Report, thread_id: str, records: Sequence[Record], run: str, prices: Prices | None = None
) -> Replayed:
    """Returns the result of a replay of a run. `records`: all of the run."""
    here = report.divergence is not None and report.differing == thread_id
    upto = report.seq if here else None
    steps = diffs.steps(records, run, prices)
    same = [step for step in steps if upto is None or step.seq < upto]
    rows = [ComparedSteps("", ComparedStep(*step), ComparedStep(*step)) for step in same]
    first = _difference(report) if report.divergence is not None else None
    return Replayed(
        report.verdict,
        report.runs,
        report.unfinished,
        report.changed,
        report.divergence or "",
        Comparison(first is None, first, steps=[*rows, first] if first else rows),
        len(steps) - len(same),
    )


def _difference(report: Report) -> ComparedSteps:
    left, right = _decided(report.recorded, report.seq), _decided(report.now, report.seq)
    return ComparedSteps("output" if left and right else "only left" if left else "only right", left, right)


def _decided(step: Json | None, seq: int | None) -> ComparedStep | None:
    decided = decision(step)
    if decided is None:
        return None
    return ComparedStep("decision", str(decided.get("type", "")), seq or 0, None, decided, 0, 0, FREE)
