"""The commands `sika eval run|list|show`: recorded threads as a suite with checks."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from actors.cli.common import FAILED, OK, Add, count, options_of

if TYPE_CHECKING:
    from core.log.store import EventLog
    from core.replay.evaluation.results import Evaluation

INCOMPLETE = 3
"""Exit code of an evaluation in which samples are missing, and nothing else is wrong."""
LAST = "@last"


def eval_commands(add: Add) -> None:
    """Adds the group `eval`."""
    group = add("eval", None, "evaluate recorded threads: other models and prompts, and checks of the results")
    commands = group.add_subparsers(required=True, metavar="WHAT")
    run = add("run", _run, "run a suite: exits with 1 if its gate fails, with 3 if samples are missing", commands)
    run.set_defaults(writes=True)
    run.add_argument("suite", type=Path, help="a YAML file")
    run.add_argument("--again", action="store_true", help="take recorded samples of the same conditions first")
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
    from channels.terminal.evaluation import sample_line
    from core.replay.evaluation.suite import read

    options, suite = options_of(arguments), await anyio.to_thread.run_sync(read, arguments.suite)
    async with compose.attach(options) as system:
        evaluations = Evaluations(options, system.log, again=arguments.again)
        evaluation = await evaluations.run(suite, lambda sample: print(sample_line(sample), file=sys.stderr))
    _print(evaluation, arguments.json)
    assert evaluation.completed is not None
    return {"passed": OK, "failed": FAILED, "incomplete": INCOMPLETE}[evaluation.completed.outcome]


async def _list(arguments: argparse.Namespace) -> int:
    from actors.wiring import compose
    from channels.terminal.evaluation import list_line

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
    from channels.terminal.evaluation import lines
    from channels.terminal.text import style_of

    print(_json(evaluation) if as_json else "\n".join(lines(evaluation, style_of(sys.stdout))))


def _json(evaluation: Evaluation) -> str:
    import msgspec

    return msgspec.json.encode({**msgspec.to_builtins(evaluation), "rows": evaluation.rows}).decode()
