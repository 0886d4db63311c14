"""The commands `sika eval run|list|show`: recorded threads as a suite with checks, and the tasks of `work`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from channels.cli.common import FAILED, OK, Add, count, options_of

if TYPE_CHECKING:
    from core.log.store import EventLog
    from core.replay.evaluation.results import Evaluation

INCOMPLETE = 3
"""Exit code of an evaluation in which samples are missing, and nothing else is wrong."""
LAST = "@last"
WORK = "work"
_WITHOUT = "a section, a rule or a sentence to leave out of the prompt, compared with the whole one (repeatable)"
_PROMPT = "a file with a whole system prompt, compared with the present one (repeatable)"


def eval_commands(add: Add) -> None:
    """Adds the group `eval`."""
    group = add("eval", None, "evaluate recorded threads: other models and prompts, and checks of the results")
    commands = group.add_subparsers(required=True, metavar="WHAT")
    run = add("run", _run, "run a suite: exits with 1 if its gate fails, with 3 if samples are missing", commands)
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
    listed = add("list", _list, "the latest evaluations", commands)
    listed.add_argument("--limit", type=count, default=20, metavar="N", help="default: 20")
    listed.add_argument("--json", action="store_true")
    show = add("show", _show, "the table of an evaluation", commands)
    show.add_argument("evaluation", help=f"its id, the beginning of it, or {LAST}")
    show.add_argument("--json", action="store_true")


async def _run(arguments: argparse.Namespace) -> int:
    import anyio.to_thread

    from actors.debugging.evaluations import Evaluations
    from actors.wiring import compose
    from channels.cli.look.evaluation import sample_line
    from core.replay.evaluation.suite import read

    if str(arguments.suite) == WORK:
        return await _work(arguments)
    options, suite = options_of(arguments), await anyio.to_thread.run_sync(read, arguments.suite)
    async with compose.attach(options) as system:
        evaluations = Evaluations(options, system.log, again=arguments.again)
        evaluation = await evaluations.run(suite, lambda sample: print(sample_line(sample), file=sys.stderr))
    return _ended(evaluation, arguments)


async def _work(arguments: argparse.Namespace) -> int:
    from actors.debugging.work.runner import Choice, Work
    from actors.wiring import compose
    from channels.cli.look.evaluation import sample_line

    names = ("without", "samples", "seconds", "at_once", "fail_if")
    chosen = {name: getattr(arguments, name) for name in names}
    choice = Choice(arguments.model, arguments.prompt, arguments.task, **chosen)
    options = options_of(arguments)
    async with compose.attach(options) as system:
        work = Work(options, system.log, choice)
        evaluation = await work.run(lambda sample: print(sample_line(sample), file=sys.stderr))
    return _ended(evaluation, arguments)


def _ended(evaluation: Evaluation, arguments: argparse.Namespace) -> int:
    """Prints an evaluation that has ended, and returns the exit code."""
    _print(evaluation, arguments.json)
    assert evaluation.completed is not None
    return {"passed": OK, "failed": FAILED, "incomplete": INCOMPLETE}[evaluation.completed.outcome]


async def _list(arguments: argparse.Namespace) -> int:
    from actors.wiring import compose
    from channels.cli.look.evaluation import list_line

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
    from core.bus.streams import counts
    from core.events import Aggregate
    from core.replay.evaluation.facts import KIND

    names = log.bus.names
    subjects = await counts(log.bus, "log", names.log(Aggregate(KIND, "*")))
    return sorted((names.aggregate(subject).id for subject in subjects), reverse=True)


async def _id(log: EventLog, name: str) -> str:
    """Returns the id that a name stands for. Raises `NotFound`, and `Invalid` for an ambiguous one."""
    from core.errors import Invalid, NotFound

    hits = await _ids(log)
    hits = hits[:1] if name == LAST else [identity for identity in hits if identity.startswith(name)]
    if not hits:
        raise NotFound(f"evaluation {name}: nothing in the log")
    if len(hits) > 1:
        raise Invalid(f"evaluation {name}: {len(hits)} ids begin so: {', '.join(hits[:5])}")
    return hits[0]


async def _read(log: EventLog, identity: str) -> Evaluation:
    from core.events import Aggregate
    from core.replay.evaluation.facts import KIND
    from core.replay.evaluation.results import folded

    return folded(identity, [record async for record in log.read(Aggregate(KIND, identity))])


def _print(evaluation: Evaluation, as_json: bool) -> None:
    from channels.cli.look.evaluation import lines
    from channels.terminal.text import style_of

    print(_json(evaluation) if as_json else "\n".join(lines(evaluation, style_of(sys.stdout))))


def _json(evaluation: Evaluation) -> str:
    import msgspec

    return msgspec.json.encode({**msgspec.to_builtins(evaluation), "rows": evaluation.rows}).decode()
