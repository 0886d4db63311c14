"""`sika cluster`: what no server lowers by itself; and the checks of a NATS elsewhere, for `sika doctor`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from channels.cli.common import OK
from channels.cli.verbs import Parser
from core.bus import streams, upkeep
from core.bus.connection import Bus
from core.bus.endpoint import Endpoint, configured
from core.config.load import load
from core.errors import Invalid, Unavailable
from core.runtime.readiness import Finding


def arguments(parser: Parser) -> None:
    add = parser.below()
    replicas = add("replicas", _cluster_replicas, "set the copies of all streams, also to fewer")
    replicas.add_argument("count", type=int, choices=range(1, 6), metavar="COUNT")
    lease = add("lease", _cluster_lease, "set the lease of all wake-ups, also to less (runs.lease_seconds)")
    lease.add_argument("seconds", type=int, choices=range(2, 61), metavar="SECONDS")


async def _cluster_replicas(arguments: argparse.Namespace) -> int:
    return _changed(await set_replicas(_external(arguments), arguments.count))


async def _cluster_lease(arguments: argparse.Namespace) -> int:
    return _changed(await set_lease(_external(arguments), arguments.seconds))


def _changed(lines: Sequence[str]) -> int:
    print("\n".join(lines) if lines else "nothing to change")
    return OK


def _external(arguments: argparse.Namespace) -> Endpoint:
    """Returns the NATS that the arguments or the configuration name. Raises `Invalid` if none is named."""
    nats = load(arguments.config).nats
    if (url := arguments.nats or nats.url) is None:
        raise Invalid("no cluster is named; use --nats, or set nats.url")
    return configured(nats, url)


_DURABILITY = (
    "cannot be read from outside: check that nats-server.conf says `jetstream { sync_interval: always }` "
    "(by default it acknowledges up to two minutes before the data is on the disk), or that the log has 3 replicas"
)
PLANES = ("log", "cmd", "timer", "place", "dlq", "blobs")


async def examine(endpoint: Endpoint) -> list[Finding]:
    """Checks version, JetStream, and the replicas of the streams."""
    try:
        async with streams.visit(endpoint, "sika doctor") as (bus, version):
            return [_version(endpoint.url, version), *await _jetstream(bus, endpoint.replicas)]
    except Unavailable as error:
        advice = "check nats.url and the credentials in the configuration"
        return [Finding("NATS", "fail", f"{endpoint.url}: {error}", advice)]


async def _jetstream(bus: Bus, configured: int) -> list[Finding]:
    try:
        await streams.check_jetstream(bus)
        replicas = await streams.replicas(bus, PLANES)
    except Unavailable as error:
        advice = "enable JetStream for this account"
        return [Finding("NATS", "fail", f"JetStream does not answer: {error}", advice)]
    durable = replicas is not None and replicas >= 3
    return [
        _streams(replicas, configured),
        Finding("durability", "ok" if durable else "warn", "3 replicas" if durable else _DURABILITY),
    ]


def _version(url: str, version: tuple[int, int, int]) -> Finding:
    text = ".".join(map(str, version))
    if version < (2, 12):
        return Finding("NATS", "fail", f"{url}: nats-server {text} is too old", "Sika needs 2.12 or newer")
    return Finding("NATS", "ok", f"{url}: nats-server {text}")


def _streams(replicas: int | None, configured: int) -> Finding:
    if replicas is None:
        return Finding("streams", "ok", "none yet; the first server makes them")
    if replicas < configured:
        advice = "start a server: it updates them; or check that the cluster has that many servers"
        return Finding("streams", "warn", f"{replicas} replicas, nats.replicas says {configured}", advice)
    return Finding("streams", "ok", f"{replicas} replicas")


async def set_replicas(endpoint: Endpoint, count: int) -> list[str]:
    """Sets the replicas of the streams, also to fewer. Returns a line for each stream that was changed.

    Raises `NotFound` if there are no streams, `Unavailable`.
    """
    async with streams.visit(endpoint, "sika cluster") as (bus, _):
        before = await upkeep.set_replicas(bus, count)
    return [f"{name}: {old} → {count}" for name, old in before.items() if old != count]


async def set_lease(endpoint: Endpoint, seconds: int) -> list[str]:
    """Sets the time after which wake-ups of dead processes are delivered again. Returns a line for each actor's queue
    that was changed. Raises `Unavailable`.
    """
    async with streams.visit(endpoint, "sika cluster") as (bus, _):
        before = await upkeep.set_lease(bus, seconds)
    return [f"{name}: {old:g} → {seconds} s" for name, old in before.items() if old != seconds]
