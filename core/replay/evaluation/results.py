"""Results of an evaluation: its events folded into cells, with intervals, and compared with the baseline. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from typing import Literal

import msgspec

from core.errors import NotFound
from core.events import Record
from core.phrases import counted
from core.replay.evaluation.facts import EvaluationCompleted, EvaluationSampled, EvaluationStarted
from core.replay.evaluation.gates import SHARES, Condition
from core.replay.whatif.results import wilson

REPLAYED = "replay/replay"
DRAWS = 10_000
"""Draws of the bootstrap."""
FEWEST_THREADS = 6
"""Below this number of threads even equal signs of all differences are no evidence: 2 · 0.5⁵ > 0.05."""
Comparison = Literal["", "better", "worse", "cannot tell"]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The samples of one cell. Errors of the infrastructure count in nothing but `errors`."""

    cell: str
    passed: int
    measured: int
    errors: int
    low: float
    high: float
    """The 95 % interval of the pass rate (Wilson). Samples of one thread count as independent."""
    p50: int | None
    p95: int | None
    """Percentiles of the milliseconds by nearest rank: below 20 samples `p95` is the longest."""
    cost: float | None
    """Mean cost of a sample; None where no model has a price."""
    currency: str | None
    recorded: int = 0
    """Number of samples that an earlier evaluation took."""
    comparison: Comparison = ""
    threads: int = 0
    """Number of the threads that were compared, in pairs."""


class Evaluation(msgspec.Struct, kw_only=True):
    """An evaluation as its events tell it. `completed` is None while it runs, and after a crash."""

    id: str
    at: str
    started: EvaluationStarted
    samples: Sequence[EvaluationSampled]
    completed: EvaluationCompleted | None

    @property
    def rows(self) -> list[Row]:
        return rows(self.samples, self.started.baseline)


def folded(identity: str, records: Sequence[Record]) -> Evaluation:
    """Folds the log of an evaluation. Raises `NotFound` for one that has not begun."""
    if not records or not isinstance(started := records[0].event, EvaluationStarted):
        raise NotFound(f"evaluation {identity}: nothing in the log")
    events = [record.event for record in records]
    samples = [event for event in events if isinstance(event, EvaluationSampled)]
    completed = next((event for event in events if isinstance(event, EvaluationCompleted)), None)
    return Evaluation(id=identity, at=records[0].at, started=started, samples=samples, completed=completed)


def rows(samples: Sequence[EvaluationSampled], baseline: str) -> list[Row]:
    """Returns a row for each cell, in the order of their first samples."""
    cells: dict[str, list[EvaluationSampled]] = {}
    for sample in samples:
        cells.setdefault(f"{sample.model}/{sample.prompt}", []).append(sample)
    return [_row(name, of_cell, baseline, cells.get(baseline, ())) for name, of_cell in cells.items()]


def _row(name: str, samples: Sequence[EvaluationSampled], baseline: str, compared: Sequence[EvaluationSampled]) -> Row:
    measured = [sample for sample in samples if sample.outcome != "error"]
    passed = sum(sample.outcome == "passed" for sample in measured)
    low, high = wilson(passed, len(measured))
    took = [sample.milliseconds for sample in measured]
    costs = [sample.cost for sample in measured if sample.cost is not None]
    comparison, threads = _compared(measured, compared) if baseline not in ("", name) and name != REPLAYED else ("", 0)
    return Row(
        cell=name,
        passed=passed,
        measured=len(measured),
        errors=len(samples) - len(measured),
        low=low,
        high=high,
        p50=percentile(took, 0.5),
        p95=percentile(took, 0.95),
        cost=sum(costs) / len(costs) if costs else None,
        currency=next((sample.currency for sample in measured if sample.currency), None),
        recorded=sum(sample.recorded for sample in samples),
        comparison=comparison,
        threads=threads,
    )


def percentile(values: Sequence[int], share: float) -> int | None:
    """Returns a percentile by nearest rank; None of nothing."""
    return sorted(values)[max(ceil(share * len(values)), 1) - 1] if values else None


def _compared(ours: Sequence[EvaluationSampled], theirs: Sequence[EvaluationSampled]) -> tuple[Comparison, int]:
    left, right = _by_thread(ours), _by_thread([sample for sample in theirs if sample.outcome != "error"])
    differences = [left[thread] - right[thread] for thread in left if thread in right]
    return compared(differences), len(differences)


def _by_thread(samples: Sequence[EvaluationSampled]) -> Mapping[str, float]:
    """Returns the pass rate of each thread."""
    outcomes: dict[str, list[bool]] = {}
    for sample in samples:
        outcomes.setdefault(sample.thread, []).append(sample.outcome == "passed")
    return {thread: sum(passed) / len(passed) for thread, passed in outcomes.items()}


def compared(differences: Sequence[float]) -> Comparison:
    """Compares by the differences of pass rates, one for each thread: 95 % of the means of draws are on one side.

    Threads are drawn, not samples, for samples of one thread are alike.
    """
    if len(differences) < FEWEST_THREADS:
        return "cannot tell"
    draw = random.Random(0)  # the same events have the same result
    means = sorted(sum(draw.choices(differences, k=len(differences))) for _ in range(DRAWS))
    low, high = means[int(DRAWS * 0.025)], means[int(DRAWS * 0.975) - 1]
    return "better" if low > 0 else "worse" if high < 0 else "cannot tell"


def failures(samples: Sequence[EvaluationSampled], baseline: str, fail_if: Sequence[Condition]) -> list[str]:
    """Returns why an evaluation fails. A replay that differs always does: no chance is in it."""
    reasons = [
        f"{sample.case}: {_reason(sample)}"
        for sample in samples
        if f"{sample.model}/{sample.prompt}" == REPLAYED and sample.outcome == "failed"
    ]
    for row in rows(samples, baseline):
        of_row = [s for s in samples if f"{s.model}/{s.prompt}" == row.cell and s.outcome != "error"]
        if row.cell != REPLAYED:
            reasons += [text for condition in fail_if if (text := _wrong(condition, row, of_row))]
    return reasons


def _wrong(condition: Condition, row: Row, samples: Sequence[EvaluationSampled]) -> str:
    match condition.metric:
        case "worse":
            return (
                f"{row.cell}: worse than the baseline ({counted(row.threads, 'thread')})"
                if row.comparison == "worse"
                else ""
            )
        case "pass_rate":
            rate = f"{row.passed}/{row.measured} ({row.low:.2f}–{row.high:.2f})"
            return f"{row.cell}: {condition}: {rate}" if row.measured and row.high < condition.limit else ""
    return _above(condition, row.cell, list(_values(condition.metric, samples)))


def _values(metric: str, samples: Sequence[EvaluationSampled]) -> Iterator[float]:
    for sample in samples:
        if metric == "seconds":
            yield sample.milliseconds / 1000
        elif sample.cost is not None:
            yield sample.cost


def _above(condition: Condition, cell: str, values: Sequence[float]) -> str:
    """Tells whether a percentile is above the limit: significantly more samples than its share lie above."""
    above = sum(value > condition.limit for value in values)
    low, _ = wilson(above, len(values))
    if low <= SHARES[condition.percentile]:
        return ""
    return f"{cell}: {condition}: {above} of {len(values)} samples are above"


def _reason(sample: EvaluationSampled) -> str:
    failed = next((check for check in sample.checks if check.outcome == "failed"), None)
    return f"{failed.check}: {failed.reason}" if failed else sample.outcome
