"""`sika log whatif`: go on from a moment under other conditions."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from channels.cli.common import FAILED, OK, options_of
from channels.cli.log.sources import source_of
from channels.cli.verbs import Parser

if TYPE_CHECKING:
    from core.replay.whatif.running import Changes


def arguments(parser: Parser) -> None:
    parser.runs(run)
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


async def run(arguments: argparse.Namespace) -> int:
    import anyio.to_thread
    import msgspec

    from actors.debugging.whatif import WhatIf
    from actors.wiring.added import with_added
    from channels.cli.log import futures as text
    from channels.terminal.text import style_of
    from core.replay.causes import find
    from core.replay.named import aggregate_of
    from core.replay.source import records_of
    from core.replay.whatif.results import dear

    options, changes = options_of(arguments), await anyio.to_thread.run_sync(_changes, arguments)
    async with source_of(arguments, server=arguments.allow_effects) as (source, system):
        aggregate = await aggregate_of(source, arguments.thread)
        records = await records_of(source, aggregate)
        at = find(records, arguments.at, aggregate).seq
        log, call = (system.log, system.call) if system else (None, None)
        options = await with_added(options, system.log) if system else options
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
    from core.replay.whatif.running import Changes

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
