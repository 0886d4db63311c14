"""The commands for operators: `sika actors`, `sika dlq` and `sika projections`."""

from __future__ import annotations

import argparse
import sys

from actors.cli.common import FAILED, OK, Add, client_of, count, options_of


def operate_commands(add: Add) -> None:
    running = add("actors", _actors, "what runs where: position, lag, work, errors and durations of each actor")
    running.add_argument("--json", action="store_true")

    dlq = add("dlq", None, "dead letters: what could not be processed").add_subparsers(required=True, metavar="WHAT")
    add("list", _dlq_list, "the letters and their reasons", dlq)
    again = add("redrive", _dlq_redrive, "wake their actors again, and delete the letters", dlq)
    again.add_argument("letters", nargs="*", type=count, metavar="SEQ", help="only these (default: all)")

    views = add("projections", None, "the read models").add_subparsers(required=True, metavar="WHAT")
    add("rebuild", _projections_rebuild, "let the running server build them again from the log", views)


async def _actors(arguments: argparse.Namespace) -> int:
    import msgspec

    from actors.wiring import compose
    from channels.terminal import actors
    from core.runtime.vitals import overview

    async with compose.attach(options_of(arguments)) as system:
        report = await overview(system.bus, await system.log.last())
    print(msgspec.json.encode(report).decode() if arguments.json else "\n".join(actors.lines(report)))
    return OK


async def _dlq_list(arguments: argparse.Namespace) -> int:
    from actors.wiring import compose
    from channels.terminal import dlq

    count = 0
    async with compose.attach(options_of(arguments)) as system:
        async for letter in dlq.letters(system.bus):
            count += 1
            print(letter.line())
    print(f"{count} dead letters" if count else "no dead letters", file=sys.stderr)
    return OK


async def _dlq_redrive(arguments: argparse.Namespace) -> int:
    from actors.wiring import compose
    from channels.terminal import dlq

    async with compose.attach(options_of(arguments)) as system:
        sent = await dlq.redrive(system.bus, system.queue, arguments.letters)
    for letter in sent:
        print(letter.line())
    print(f"{len(sent)} sent again", file=sys.stderr)
    return FAILED if set(arguments.letters) - {letter.seq for letter in sent} else OK


async def _projections_rebuild(arguments: argparse.Namespace) -> int:
    async with client_of(arguments, "without one, its views.db may simply be deleted") as client:
        await client.rebuild_projections()
    print("rebuilding")
    return OK
