"""`sika eval`: recorded threads as a suite with checks, and the tasks of `work`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import anyio.to_thread
import msgspec

from channels.cli.common import FAILED, OK, count, options_of
from channels.cli.verbs import Parser
from channels.terminal.table import table
from channels.terminal.text import Style, one_line, seconds, style_of
from core.bus.streams import counts
from core.errors import Invalid, NotFound
from core.events import Aggregate
from core.log.store import EventLog
from core.phrases import counted
from core.replay.evaluation.facts import KIND, EvaluationSampled
from core.replay.evaluation.results import Evaluation, Row, folded
from core.replay.evaluation.suite import read

INCOMPLETE = 3
"""Exit code of an evaluation in which samples are missing, and nothing else is wrong."""
LAST = "@last"
WORK = "work"
_WITHOUT = "a section, a rule or a sentence to leave out of the prompt, compared with the whole one (repeatable)"
_PROMPT = "a file with a whole system prompt, compared with the present one (repeatable)"


def arguments(parser: Parser) -> None:
    add = parser.below()
    run = add("run", _run, "run a suite: exits with 1 if its gate fails, with 3 if samples are missing")
    run.set_defaults(writes=True)
    run.add_argument("suite", type=Path, help="a YAML file; or `work`: tasks that are shipped, with checkers")
    run.add_argument("--again", action="store_true", help="take recorded samples of the same conditions first")
    tasks = run.add_argument_group("of the tasks of `work`")
    tasks.add_argument("--model", action="append", default=[], metavar="NAME", help="a configured model (repeatable)")
    tasks.add_argument("--prompt", action="append", default=[], type=Path, metavar="FILE", help=_PROMPT)
    tasks.add_argument("--without", action="append", default=[], metavar="PART", help=_WITHOUT)
    tasks.add_argument("--task", action="append", default=[], metavar="NAME", help="a task, a pattern, or a kind")
    tasks.add_argument("--samples", type=count, default=1, metavar="N", help="how often each is done; default: 1")
    tasks.add_argument("--seconds", type=float, default=1800.0, metavar="N", help="time for each; default: 1800")
    tasks.add_argument("--at-once", type=count, default=2, metavar="N", help="tasks at the same time; default: 2")
    tasks.add_argument("--fail-if", default="", metavar="CONDITION", help="as `pass_rate.upper < 0.8`")
    run.add_argument("--json", action="store_true")
    listed = add("list", _list, "the latest evaluations")
    listed.add_argument("--limit", type=count, default=20, metavar="N", help="default: 20")
    listed.add_argument("--json", action="store_true")
    show = add("show", _show, "the table of an evaluation")
    show.add_argument("evaluation", help=f"its id, the beginning of it, or {LAST}")
    show.add_argument("--json", action="store_true")


async def _run(arguments: argparse.Namespace) -> int:
    from actors.debugging.evaluations import Evaluations
    from actors.wiring import compose
    from actors.wiring.added import with_added

    if str(arguments.suite) == WORK:
        return await _work(arguments)
    options, suite = options_of(arguments), await anyio.to_thread.run_sync(read, arguments.suite)
    async with compose.attach(options) as system:
        evaluations = Evaluations(await with_added(options, system.log), system.log, again=arguments.again)
        evaluation = await evaluations.run(suite, lambda sample: print(sample_line(sample), file=sys.stderr))
    return _ended(evaluation, arguments)


async def _work(arguments: argparse.Namespace) -> int:
    from actors.debugging.work.runner import Choice, Work
    from actors.wiring import compose
    from actors.wiring.added import with_added

    names = ("without", "samples", "seconds", "at_once", "fail_if")
    chosen = {name: getattr(arguments, name) for name in names}
    choice = Choice(arguments.model, arguments.prompt, arguments.task, **chosen)
    options = options_of(arguments)
    async with compose.attach(options) as system:
        work = Work(await with_added(options, system.log), system.log, choice)
        evaluation = await work.run(lambda sample: print(sample_line(sample), file=sys.stderr))
    return _ended(evaluation, arguments)


def _ended(evaluation: Evaluation, arguments: argparse.Namespace) -> int:
    """Prints an evaluation that has ended, and returns the exit code."""
    _print(evaluation, arguments.json)
    assert evaluation.completed is not None
    return {"passed": OK, "failed": FAILED, "incomplete": INCOMPLETE}[evaluation.completed.outcome]


async def _list(arguments: argparse.Namespace) -> int:
    from actors.wiring import compose

    async with compose.attach(options_of(arguments)) as system:
        for identity in (await _ids(system.log))[: arguments.limit]:
            evaluation = await _read(system.log, identity)
            print(_json(evaluation) if arguments.json else list_line(evaluation))
    return OK


async def _show(arguments: argparse.Namespace) -> int:
    from actors.wiring import compose

    async with compose.attach(options_of(arguments)) as system:
        _print(await _read(system.log, await _id(system.log, arguments.evaluation)), arguments.json)
    return OK


async def _ids(log: EventLog) -> list[str]:
    """Returns the ids of all evaluations, the newest first: they are ordered by time."""
    names = log.bus.names
    subjects = await counts(log.bus, "log", names.log(Aggregate(KIND, "*")))
    return sorted((names.aggregate(subject).id for subject in subjects), reverse=True)


async def _id(log: EventLog, name: str) -> str:
    """Returns the id that a name stands for. Raises `NotFound`, and `Invalid` for an ambiguous one."""
    hits = await _ids(log)
    hits = hits[:1] if name == LAST else [identity for identity in hits if identity.startswith(name)]
    if not hits:
        raise NotFound(f"evaluation {name}: nothing in the log")
    if len(hits) > 1:
        raise Invalid(f"evaluation {name}: {len(hits)} ids begin so: {', '.join(hits[:5])}")
    return hits[0]


async def _read(log: EventLog, identity: str) -> Evaluation:
    return folded(identity, [record async for record in log.read(Aggregate(KIND, identity))])


def _print(evaluation: Evaluation, as_json: bool) -> None:
    print(_json(evaluation) if as_json else "\n".join(lines(evaluation, style_of(sys.stdout))))


def _json(evaluation: Evaluation) -> str:
    return msgspec.json.encode({**msgspec.to_builtins(evaluation), "rows": evaluation.rows}).decode()


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
    """Returns the table of an evaluation, what failed, and the verdict."""
    started = evaluation.started
    cases = f"{counted(len(started.cases), 'case')} × {counted(started.samples, 'sample')}"
    result = [style.bold(f"evaluation {evaluation.id}  {one_line(started.suite, MOST)}  {cases}")]
    result += table(map(_cells, evaluation.rows), _COLUMNS)
    if any(sample.steps for sample in evaluation.samples):
        result += table(map(_task_cells, evaluation.samples), _TASK_COLUMNS)
    result += _failures(evaluation.samples, style)
    if recorded := sum(sample.recorded for sample in evaluation.samples):
        result.append(f"{recorded} samples are recorded ones of earlier evaluations, with their times")
    if (completed := evaluation.completed) is None:
        return [*result, style.yellow("unfinished: it runs, or its process has ended")]
    if completed.left_out:
        result.append(style.yellow(f"the budget left {counted(completed.left_out, 'sample')} out"))
    result += [style.red(f"failed  {one_line(text, MOST)}") for text in completed.reasons]
    return [*result, style.bold(completed.outcome)]


def _cells(row: Row) -> tuple[str, ...]:
    rate = f"{row.passed}/{row.measured} ({row.low:.2f}–{row.high:.2f})" if row.measured else "not measured"
    times = ["-" if value is None else seconds(value) for value in (row.p50, row.p95)]
    cost = "-" if row.cost is None else f"{row.cost:.6g} {row.currency or ''}".rstrip()
    compared = f"{row.comparison} ({counted(row.threads, 'thread')})" if row.comparison else "-"
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
