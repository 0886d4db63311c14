"""The commands for operators: `sika actors`, `sika dlq`, `sika projections` and `sika cluster`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from channels.cli.common import FAILED, OK, Add, client_of, count, options_of

if TYPE_CHECKING:
    from core.bus.endpoint import Endpoint


def operate_commands(add: Add) -> None:
    running = add("actors", _actors, "what runs where: position, lag, work, errors and durations of each actor")
    running.add_argument("--json", action="store_true")

    dlq = add("dlq", None, "dead letters: what could not be processed").add_subparsers(required=True, metavar="WHAT")
    add("list", _dlq_list, "the letters and their reasons", dlq)
    again = add("redrive", _dlq_redrive, "wake their actors again, and delete the letters", dlq)
    again.add_argument("letters", nargs="*", type=count, metavar="SEQ", help="only these (default: all)")

    views = add("projections", None, "the read models").add_subparsers(required=True, metavar="WHAT")
    add("rebuild", _projections_rebuild, "let the running server build them again from the log", views)

    cluster = add("cluster", None, "a NATS cluster: what no server lowers by itself")
    settings = cluster.add_subparsers(required=True, metavar="WHAT")
    replicas = add("replicas", _cluster_replicas, "set the copies of all streams, also to fewer", settings)
    replicas.add_argument("count", type=int, choices=range(1, 6), metavar="COUNT")
    lease = add("lease", _cluster_lease, "set the lease of all wake-ups, also to less (runs.lease_seconds)", settings)
    lease.add_argument("seconds", type=int, choices=range(2, 61), metavar="SECONDS")


async def _actors(arguments: argparse.Namespace) -> int:
    import msgspec

    from actors.wiring import compose
    from channels.cli.admin import actors
    from core.runtime.vitals import overview

    async with compose.attach(options_of(arguments)) as system:
        report = await overview(system.bus, await system.log.last())
    print(msgspec.json.encode(report).decode() if arguments.json else "\n".join(actors.lines(report)))
    return OK


async def _dlq_list(arguments: argparse.Namespace) -> int:
    from actors.wiring import compose
    from channels.cli.admin import dlq

    count = 0
    async with compose.attach(options_of(arguments)) as system:
        async for letter in dlq.letters(system.bus):
            count += 1
            print(letter.line())
    print(f"{count} dead letters" if count else "no dead letters", file=sys.stderr)
    return OK


async def _dlq_redrive(arguments: argparse.Namespace) -> int:
    from actors.wiring import compose
    from channels.cli.admin import dlq

    async with compose.attach(options_of(arguments)) as system:
        sent = await dlq.redrive(system.bus, system.queue, arguments.letters)
    for letter in sent:
        print(letter.line())
    print(f"{len(sent)} sent again", file=sys.stderr)
    return FAILED if set(arguments.letters) - {letter.seq for letter in sent} else OK


async def _cluster_replicas(arguments: argparse.Namespace) -> int:
    from channels.cli.admin import cluster

    return _changed(await cluster.set_replicas(_external(arguments), arguments.count))


async def _cluster_lease(arguments: argparse.Namespace) -> int:
    from channels.cli.admin import cluster

    return _changed(await cluster.set_lease(_external(arguments), arguments.seconds))


def _changed(lines: Sequence[str]) -> int:
    print("\n".join(lines) if lines else "nothing to change")
    return OK


def _external(arguments: argparse.Namespace) -> Endpoint:
    """Returns the NATS that the arguments or the configuration name. Raises `Invalid` if none is named."""
    from core.bus.endpoint import configured
    from core.config.load import load
    from core.errors import Invalid

    nats = load(arguments.config).nats
    if (url := arguments.nats or nats.url) is None:
        raise Invalid("no cluster is named; use --nats, or set nats.url")
    return configured(nats, url)


async def _projections_rebuild(arguments: argparse.Namespace) -> int:
    async with client_of(arguments, "without one, its views.db may simply be deleted") as client:
        await client.rebuild_projections()
    print("rebuilding")
    return OK
