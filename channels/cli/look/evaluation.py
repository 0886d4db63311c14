"""`sika eval`: lines of evaluations, and the table of one. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from channels.terminal.text import Style, one_line, seconds
from core.replay.evaluation.facts import EvaluationSampled
from core.replay.evaluation.results import Evaluation, Row

MOST = 160
MOST_FAILURES = 20
"""Limit of the samples that are shown with their reasons; `--json` has all."""
_COLUMNS = ("cell", "pass rate (95 %)", "p50", "p95", "cost", "errors", "against the baseline")
_TASK_COLUMNS = ("task", "cell", "outcome", "tokens", "cost", "time", "model calls", "refusals")


def sample_line(sample: EvaluationSampled) -> str:
    """Returns the progress after a sample."""
    cell = f"{sample.model}/{sample.prompt}"
    return one_line(f"{sample.outcome:<6}  {sample.case}  {cell}  sample {sample.sample}  {reason(sample)}", MOST)


def list_line(evaluation: Evaluation) -> str:
    """Returns one evaluation on a line."""
    started = evaluation.started
    rates = ", ".join(f"{row.cell} {row.passed}/{row.measured}" for row in evaluation.rows)
    when = evaluation.at[:19].replace("T", " ")
    return one_line(f"{evaluation.id}  {when}  {outcome(evaluation):<10}  {started.suite}  {rates}", MOST)


def outcome(evaluation: Evaluation) -> str:
    """Returns the outcome in a word."""
    return evaluation.completed.outcome if evaluation.completed else "unfinished"


def lines(evaluation: Evaluation, style: Style) -> list[str]:
    """Returns the table of an evaluation, what failed, and what it comes to."""
    started = evaluation.started
    cases = f"{len(started.cases)} cases × {started.samples} samples"
    result = [style.bold(f"evaluation {evaluation.id}  {one_line(started.suite, MOST)}  {cases}")]
    result += _table([_COLUMNS, *(_cells(row) for row in evaluation.rows)])
    if any(sample.steps for sample in evaluation.samples):
        result += _table([_TASK_COLUMNS, *(_task_cells(sample) for sample in evaluation.samples)])
    result += _failures(evaluation.samples, style)
    if recorded := sum(sample.recorded for sample in evaluation.samples):
        result.append(f"{recorded} samples are recorded ones of earlier evaluations, with their times")
    if (completed := evaluation.completed) is None:
        return [*result, style.yellow("unfinished: it runs, or its process has ended")]
    if completed.left_out:
        result.append(style.yellow(f"the budget left {completed.left_out} samples out"))
    result += [style.red(f"failed  {one_line(text, MOST)}") for text in completed.reasons]
    return [*result, style.bold(completed.outcome)]


def _table(cells: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    return ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in cells]


def _cells(row: Row) -> tuple[str, ...]:
    rate = f"{row.passed}/{row.measured} ({row.low:.2f}–{row.high:.2f})" if row.measured else "not measured"
    times = ["-" if value is None else seconds(value) for value in (row.p50, row.p95)]
    cost = "-" if row.cost is None else f"{row.cost:.6g} {row.currency or ''}".rstrip()
    compared = f"{row.comparison} ({row.threads} threads)" if row.comparison else "-"
    return one_line(row.cell, 60), rate, *times, cost, str(row.errors), compared


def _task_cells(sample: EvaluationSampled) -> tuple[str, ...]:
    cost = "-" if sample.cost is None else f"{sample.cost:.6g} {sample.currency or ''}".rstrip()
    numbers = str(sample.tokens), cost, seconds(sample.milliseconds), str(sample.steps), str(sample.refusals)
    return one_line(sample.case, 60), one_line(f"{sample.model}/{sample.prompt}", 60), sample.outcome, *numbers


def _failures(samples: Sequence[EvaluationSampled], style: Style) -> Iterator[str]:
    wrong = [sample for sample in samples if sample.outcome != "passed"]
    for sample in wrong[:MOST_FAILURES]:
        yield (style.red if sample.outcome == "failed" else style.yellow)(f"  {sample_line(sample)}")
    if len(wrong) > MOST_FAILURES:
        yield f"  … and {len(wrong) - MOST_FAILURES} more: --json"


def reason(sample: EvaluationSampled) -> str:
    """Returns why a sample did not pass."""
    if sample.error:
        return sample.error
    failed = next((check for check in sample.checks if check.outcome != "passed"), None)
    return f"{failed.check}: {failed.reason}" if failed else ""
