"""`sika log verify`: whether the log of a thread, or an exported file, is sound."""

from __future__ import annotations

import argparse
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from channels.cli.common import FAILED, OK, options_of
from channels.cli.log.sources import THREAD, file_of, open_file
from channels.cli.verbs import Parser
from core.errors import Invalid
from core.phrases import counted

if TYPE_CHECKING:
    from core.replay.soundness import Verdict


def arguments(parser: Parser) -> None:
    parser.runs(run)
    parser.add_argument("thread", nargs="?", help=THREAD)
    parser.add_argument("--all", action="store_true", help="every thread of the log")
    parser.add_argument("--against", metavar="FILE", help="compare it with an earlier export, too")


async def run(arguments: argparse.Namespace) -> int:
    from actors.wiring import compose
    from core.replay.named import aggregate_of
    from core.replay.soundness import verify, verify_all
    from core.replay.source import LogSource

    if arguments.all == (arguments.thread is not None):
        raise Invalid("log verify: name a thread, or --all")
    if arguments.against or file_of(arguments.thread):
        return await _verify_file(arguments)
    options = options_of(arguments)
    async with compose.attach(options) as system:
        if not arguments.all:
            source = LogSource(system.log, options.home)
            verdict = await verify(system.log, (await aggregate_of(source, arguments.thread)).id)
            print("\n".join(verdict.lines()))
            return FAILED if verdict.problems else OK
        verdicts: list[Verdict] = []
        async for thread_id, verdict in verify_all(system.log):
            verdicts.append(verdict)
            if verdict.problems:
                print(f"thread {thread_id}", *(f"  {line}" for line in verdict.lines()), sep="\n", flush=True)
    unsound = sum(bool(verdict.problems) for verdict in verdicts)
    events, runs = sum(verdict.events for verdict in verdicts), sum(verdict.runs for verdict in verdicts)
    every = f"{counted(len(verdicts), 'thread')}, {counted(events, 'event')}, {counted(runs, 'run')}"
    print(f"{counted(unsound, 'thread')} with problems, of {every}" if unsound else f"ok: {every}")
    return FAILED if unsound else OK


async def _verify_file(arguments: argparse.Namespace) -> int:
    """Checks a file, or a thread's log against a file."""
    from core.replay import soundness

    async with AsyncExitStack() as opened:
        if file := file_of(arguments.thread):
            if arguments.against:
                raise Invalid("--against: compares the log of a thread with a file; two files: sika log diff")
            verdict = await soundness.verify_file(await open_file(file[0], opened))
        else:
            from actors.wiring import compose

            archive = await open_file(Path(arguments.against), opened)
            system = await opened.enter_async_context(compose.attach(options_of(arguments)))
            verdict = await soundness.verify(system.log, arguments.thread)
            verdict.problems.extend(await soundness.compare(system.log, archive))
    print("\n".join(verdict.lines()))
    return FAILED if verdict.problems else OK
