"""The commands `sika log replay|whatif|fork`: recorded runs executed again, or otherwise, or gone on with."""

from __future__ import annotations

import argparse
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from channels.cli.common import FAILED, OK, options_of
from channels.cli.log.sources import source_of
from channels.cli.verbs import Below

if TYPE_CHECKING:
    from core.replay.source import Source
    from core.replay.whatif import Changes
    from core.runs.replay import Look, Report


def replay_commands(add: Below) -> None:
    """Adds the commands to the group `log`."""
    replay = add("replay", _replay, "execute the recorded runs again on their outcomes, and compare")
    replay.add_argument("thread", nargs="?")
    replay.add_argument("--until", metavar="EVENT", help="only events up to this one")
    replay.add_argument(
        "--break", action="append", default=[], dest="breakpoints", metavar="'TYPE FIELD=VALUE …'",
        help="stop at such steps, as 'tool.requested name=bash'; 'step' stops at each",
    )  # fmt: skip
    replay.add_argument("--all", action="store_true", help="every recorded thread")
    replay.add_argument(
        "--since", type=_period, metavar="7d", help="with --all: threads with events since (min, h, d, w)"
    )
    replay.add_argument("--processes", type=int, metavar="N", help="with --all: processes (default: one per core)")
    _add_whatif(add)
    fork = add("fork", _fork, "make a thread of its own of a thread as it was at a moment", writes=True)
    fork.add_argument("thread", help="a thread, or an exported file")
    fork.add_argument("--at", required=True, metavar="EVENT", help="the last event that is kept")
    fork.add_argument("--id", metavar="ID", help="the id of the new thread (default: a new one)")


def _period(text: str) -> timedelta:
    from channels.terminal.text import period

    if length := period(text):
        return length
    raise argparse.ArgumentTypeError(f"a period is a number and a unit, such as 90min, 12h, 7d, 8w; got {text!r}")


async def _replay(arguments: argparse.Namespace) -> int:
    from core.errors import Invalid

    if arguments.all == (arguments.thread is not None):
        raise Invalid("log replay: name a thread, or --all")
    if arguments.all:
        if arguments.breakpoints or arguments.until:
            raise Invalid("log replay: --break and --until are for one thread")
        return await _replay_all(arguments)
    if arguments.since or arguments.processes:
        raise Invalid("log replay: --since and --processes are for --all")
    async with source_of(arguments) as (source, _):
        return await _replay_one(arguments, source)


async def _replay_one(arguments: argparse.Namespace, source: Source) -> int:
    import anyio

    from actors.debugging import rehearsal
    from channels.cli.log.debugger import Prompt
    from channels.cli.log.replay import replayed
    from channels.terminal.text import style_of
    from core.replay.breakpoints import Breakpoint
    from core.replay.causes import find
    from core.replay.debugger import Debugger
    from core.replay.source import aggregate_of, records_of

    aggregate = await aggregate_of(source, arguments.thread)
    until = arguments.until and find(await records_of(source, aggregate), arguments.until, aggregate).seq
    report: Report | None = None
    with anyio.CancelScope() as scope:
        look: Look | None = None
        if arguments.breakpoints:
            stops = [Breakpoint.of(text) for text in arguments.breakpoints if text != "step"]
            look = Debugger(stops, Prompt(scope, style_of(sys.stdout)).ask).look
        report = await rehearsal.replay(source, aggregate.id, until, options_of(arguments), look=look)
    if report is None:
        print("the replay was ended at a breakpoint")
        return OK
    text, code = replayed(report, aggregate.id)
    print(text)
    return code


async def _replay_all(arguments: argparse.Namespace) -> int:
    from actors.debugging import rehearsal_all
    from actors.wiring import compose
    from channels.cli.log.replay import Progress, summary

    options, since = options_of(arguments), arguments.since
    progress = Progress(sys.stderr)
    async with compose.nearest(options) as place:
        reports = await rehearsal_all.replay_all(options, place, since, arguments.processes, progress.show)
    progress.end()
    lines, differing = summary(reports)
    print("\n".join(lines))
    return FAILED if differing else OK


# ── what-if and fork ────────────────────────────────────────────────────────────────────────────────────────────────


def _add_whatif(add: Below) -> None:
    parser = add("whatif", _whatif, "go on from a moment under other conditions, live, in a copy of the sandbox")
    parser.add_argument("thread", help="a thread, or an exported file, which needs no server")
    parser.add_argument("--at", required=True, metavar="EVENT", help="the last event that is kept as recorded")
    parser.add_argument("--model", metavar="NAME", help="a model of the configuration")
    parser.add_argument("--prompt", metavar="FILE", help="the system prompt")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a value of the configuration")
    parser.add_argument(
        "--tool-result", action="append", default=[], metavar="CALL=FILE", help="another result of a call"
    )
    parser.add_argument("--message", metavar="TEXT", help="a message of the person at that moment")
    parser.add_argument("--samples", type=int, default=1, metavar="N", help="how often (default: 1)")
    parser.add_argument("--allow-effects", action="store_true", help="make calls that act outside the sandbox, too")
    parser.add_argument("--yes", action="store_true", help="do not ask, however much it may cost")
    parser.add_argument("--json", action="store_true")


async def _whatif(arguments: argparse.Namespace) -> int:
    import anyio.to_thread
    import msgspec

    from actors.debugging.whatif import WhatIf
    from channels.cli.log import whatif as text
    from channels.terminal.text import style_of
    from core.replay.causes import find
    from core.replay.source import aggregate_of, records_of
    from core.replay.whatif_results import dear

    options, changes = options_of(arguments), await anyio.to_thread.run_sync(_changes, arguments)
    async with source_of(arguments, server=arguments.allow_effects) as (source, system):
        aggregate = await aggregate_of(source, arguments.thread)
        records = await records_of(source, aggregate)
        at = find(records, arguments.at, aggregate).seq
        log, call = (system.log, system.call) if system else (None, None)
        whatif = WhatIf(source, options, changes, log=log, allow_effects=arguments.allow_effects, call=call)
        point = await whatif.point(aggregate.id, at)
        estimate = whatif.estimate(point)
        line = text.estimate_line(estimate, arguments.samples)
        print(line, file=sys.stderr)
        if dear(estimate, arguments.samples) and not (arguments.yes or await _agreed(line)):
            return FAILED
        result = await whatif.run(point, arguments.samples)
    if arguments.json:
        print(msgspec.json.encode(result).decode())
    else:
        print("\n".join(text.result_lines(result, records, style_of(sys.stdout))))
    return OK


async def _agreed(line: str) -> bool:
    """Asks the person whether to go on. Raises `Refused` with the figure where nobody can be asked."""
    import anyio.to_thread

    from core.errors import Refused

    if sys.stdin is None or not sys.stdin.isatty():
        raise Refused(f"{line}: not without --yes")
    print("Go on? [y/N] ", end="", flush=True, file=sys.stderr)
    answer = await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
    return answer.strip().lower() in ("y", "yes")


def _changes(arguments: argparse.Namespace) -> Changes:
    """Reads the changes of a what-if. Blocks."""
    from core.replay.whatif import Changes

    results = dict(_pair("--tool-result", text) for text in arguments.tool_result)
    return Changes(
        model=arguments.model,
        prompt=None if arguments.prompt is None else _text("--prompt", arguments.prompt),
        settings=dict(_pair("--set", text) for text in arguments.set),
        results={call: _text("--tool-result", path) for call, path in results.items()},
        message=arguments.message,
    )


def _pair(option: str, text: str) -> tuple[str, str]:
    from core.errors import Invalid

    name, sign, value = text.partition("=")
    if not sign or not name:
        raise Invalid(f"{option}: NAME=VALUE is expected, got {text!r}")
    return name, value


def _text(option: str, path: str) -> str:
    from core import reasons
    from core.errors import Invalid

    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"{option} {path}: {reasons.of_file(error)}") from None


async def _fork(arguments: argparse.Namespace) -> int:
    from actors.debugging.forks import fork_thread
    from core.ids import uuid7
    from core.replay.causes import find
    from core.replay.source import aggregate_of, records_of

    options = options_of(arguments)
    async with source_of(arguments, server=True) as (source, system):
        assert system is not None
        aggregate = await aggregate_of(source, arguments.thread)
        at = find(await records_of(source, aggregate), arguments.at, aggregate).seq
        forked = await fork_thread(system.threads, source, options.home, aggregate, at, arguments.id or uuid7())
    print(f"thread {forked.thread}" if forked.new else f"thread {forked.thread} is there already")
    for text in forked.not_restored:
        print(f"  not restored  {text}")
    return OK
