"""`sika dlq`: lists, retries and discards wake-ups that could not be processed."""

from __future__ import annotations

import argparse
import sys

from channels.cli.common import FAILED, OK, count, options_of
from channels.cli.verbs import Parser
from channels.terminal.text import one_line
from core.runtime.letters import Letter, discard, letters, redrive

BY = "cli"


def arguments(parser: Parser) -> None:
    add = parser.below()
    add("list", _dlq_list, "the letters and their reasons")
    again = add("redrive", _dlq_redrive, "wake their actors again, and delete the letters")
    again.add_argument("letters", nargs="*", type=count, metavar="SEQ", help="only these (default: all)")
    gone = add("discard", _dlq_discard, "delete letters, and do nothing about what they say")
    gone.add_argument("letters", nargs="+", type=count, metavar="SEQ")


async def _dlq_list(arguments: argparse.Namespace) -> int:
    from actors.wiring import compose

    total = 0
    async with compose.attach(options_of(arguments)) as system:
        async for letter in letters(system.bus):
            total += 1
            print(line_of(letter))
    print(f"{total} dead letters" if total else "no dead letters", file=sys.stderr)
    return OK


async def _dlq_redrive(arguments: argparse.Namespace) -> int:
    from actors.wiring import compose

    async with compose.attach(options_of(arguments)) as system:
        sent = await redrive(system.log, system.queue, arguments.letters, by=BY, actor=BY)
    for letter in sent:
        print(line_of(letter))
    print(f"{len(sent)} sent again", file=sys.stderr)
    return FAILED if set(arguments.letters) - {letter.seq for letter in sent} else OK


async def _dlq_discard(arguments: argparse.Namespace) -> int:
    from actors.wiring import compose

    async with compose.attach(options_of(arguments)) as system:
        gone = await discard(system.log, arguments.letters, by=BY, actor=BY)
    for letter in gone:
        print(line_of(letter))
    print(f"{len(gone)} discarded", file=sys.stderr)
    return FAILED if set(arguments.letters) - {letter.seq for letter in gone} else OK


def line_of(letter: Letter) -> str:
    """Returns a dead letter as a line."""
    what = f"{letter.actor} on {letter.aggregate}" + (f" ({letter.body.hint.type})" if letter.body.hint.type else "")
    when = letter.body.at[:19].replace("T", " ")
    return f"{letter.seq:>5}  {when}  {one_line(what, 90)}: {one_line(letter.body.reason, 160)}"
