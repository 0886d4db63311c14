"""Settings of streams and consumers: who makes them, who changes them, and what is never taken back.

Theory of operation
-------------------
All processes of an installation share its streams, and processes differ: in version, in configuration, in purpose. So
the settings of a stream or consumer that is there are changed by rules that do not depend on who comes last:

* Readers make and change nothing (`Upkeep.NONE`). Commands that write, and helper processes, make what is missing
  (`MISSING`). Servers also change what is there (`ALL`).
* Each stream and consumer carries the number of the schema that it was made by, in its metadata. A server changes
  settings only from a lower number to its own, and leaves what it does not name as it is.
* What several processes rely on is only raised: replicas (how much is lost with a machine) and the time after which a
  wake-up is delivered again (processes extend their leases at a third of their own). `sika cluster` lowers them.

Non-guarantee: versions from before the schema number update without looking.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from typing import Any, Protocol

from core.bus.errors import CONSUMER_EXISTS, CONSUMER_NOT_FOUND, STREAM_NAME_IN_USE, STREAM_NOT_FOUND, ApiError
from core.bus.subjects import SECOND, Subjects, stream_configs
from core.errors import NotFound, Unavailable

SCHEMA = 1
"""The number of the settings in `core.bus.subjects.stream_configs` and of consumers. Raise it with each change: a test
compares them with their fingerprint."""
SCHEMA_KEY = "sika-schema"
_ONLY_RAISED = ("num_replicas", "ack_wait")
_TRIES = 5
"""Attempts at a stream or consumer that other processes make and delete meanwhile."""


class JetStream(Protocol):
    """The part of a bus that makes and changes streams; `core.bus.connection.Bus` has it."""

    names: Subjects
    replicas: int

    async def api(self, call: str, request: Mapping[str, Any] | None = None) -> Any: ...


class Upkeep(Enum):
    """The changes that a process makes to streams and consumers."""

    NONE = "none"
    MISSING = "missing"
    ALL = "all"


async def keep_streams(bus: JetStream, upkeep: Upkeep) -> None:
    """Makes and changes the streams of all planes, as far as `upkeep` goes. Raises `NotFound` if there is no log and
    none is made, `Unavailable`.
    """
    if upkeep is not Upkeep.NONE:
        for config in stream_configs(bus.names, bus.replicas).values():
            await keep_stream(bus, config, upkeep)
    try:
        info = await bus.api(f"STREAM.INFO.{bus.names.stream('log')}")
    except ApiError as error:
        if error.err_code != STREAM_NOT_FOUND:
            raise
        raise NotFound(f"no log under the prefix {bus.names.prefix!r}; start a server with `sika serve`") from error
    bus.replicas = info["config"]["num_replicas"]


async def keep_stream(bus: JetStream, config: Mapping[str, Any], upkeep: Upkeep) -> None:
    """Makes a stream, and changes it, as far as `upkeep` goes."""
    name = config["name"]
    await _keep(
        config,
        upkeep,
        read=lambda: bus.api(f"STREAM.INFO.{name}"),
        make=lambda new: bus.api(f"STREAM.CREATE.{name}", new),
        change=lambda new: bus.api(f"STREAM.UPDATE.{name}", new),
    )


async def keep_consumer(bus: JetStream, stream: str, config: Mapping[str, Any]) -> None:
    """Makes a durable consumer, and changes it if its schema is older."""
    name = config["durable_name"]

    def put(action: str) -> Callable[[Mapping[str, Any]], Awaitable[Any]]:
        address = f"CONSUMER.CREATE.{stream}.{name}"
        return lambda new: bus.api(address, {"stream_name": stream, "config": new, "action": action})

    read = f"CONSUMER.INFO.{stream}.{name}"
    await _keep(config, Upkeep.ALL, read=lambda: bus.api(read), make=put("create"), change=put("update"))


async def _keep(
    config: Mapping[str, Any],
    upkeep: Upkeep,
    *,
    read: Callable[[], Awaitable[Any]],
    make: Callable[[Mapping[str, Any]], Awaitable[Any]],
    change: Callable[[Mapping[str, Any]], Awaitable[Any]],
) -> None:
    ours = {**config, "metadata": {SCHEMA_KEY: str(SCHEMA)}}
    for _ in range(_TRIES):
        try:
            there = (await read())["config"]
            if upkeep is Upkeep.ALL and (new := changed(there, ours)) != there:
                await change(new)
            return
        except ApiError as error:
            if error.err_code not in (STREAM_NOT_FOUND, CONSUMER_NOT_FOUND):
                raise
        try:
            await make(ours)
            return
        except ApiError as error:
            if error.err_code not in (STREAM_NAME_IN_USE, CONSUMER_EXISTS):
                raise
    raise Unavailable(f"{config.get('name') or config['durable_name']}: made and deleted by others at the same time")


def changed(there: Mapping[str, Any], ours: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the settings that follow from those that are there and those of this version."""
    metadata = {**there.get("metadata", {}), **ours["metadata"]}
    new = {**there, **ours, "metadata": metadata} if _schema(there) < _schema(ours) else dict(there)
    return {**new, **{name: max(there.get(name, 0), ours[name]) for name in _ONLY_RAISED if name in ours}}


def _schema(config: Mapping[str, Any]) -> int:
    number = (config.get("metadata") or {}).get(SCHEMA_KEY, "0")
    return int(number) if number.isdecimal() else 0


# ── by command ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def set_replicas(bus: JetStream, count: int) -> dict[str, int]:
    """Sets the replicas of the streams on disk, also to fewer. Returns those that they had, by stream.

    Raises `NotFound` if there are no streams, `ApiError` if the cluster has not so many servers, `Unavailable`.
    """
    before: dict[str, int] = {}
    for config in stream_configs(bus.names).values():
        if config["storage"] == "memory":
            continue
        name = config["name"]
        try:
            there = (await bus.api(f"STREAM.INFO.{name}"))["config"]
        except ApiError as error:
            if error.err_code != STREAM_NOT_FOUND:
                raise
            continue
        before[name] = there["num_replicas"]
        if there["num_replicas"] != count:
            await bus.api(f"STREAM.UPDATE.{name}", {**there, "num_replicas": count})
    if not before:
        raise NotFound(f"no streams under the prefix {bus.names.prefix!r}")
    return before


async def set_lease(bus: JetStream, seconds: int) -> dict[str, float]:
    """Sets the time after which wake-ups are delivered again, also to less. Returns what it was, by consumer."""
    stream, before = bus.names.stream("cmd"), dict[str, float]()
    while True:
        page = await bus.api(f"CONSUMER.LIST.{stream}", {"offset": len(before)})
        for consumer in page["consumers"]:
            config = {**consumer["config"], "ack_wait": seconds * SECOND}
            before[consumer["name"]] = consumer["config"]["ack_wait"] / SECOND
            await bus.api(
                f"CONSUMER.CREATE.{stream}.{consumer['name']}",
                {"stream_name": stream, "config": config, "action": "update"},
            )
        if not page["consumers"] or len(before) >= page["total"]:
            return before
