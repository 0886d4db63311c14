"""The doctor's look at a NATS that is not ours. Connects and reads; creates nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import nats
import nats.errors
from nats.aio.client import Client

from channels.terminal.doctor import Finding
from core.bus import ASK_SECONDS, STREAM_NOT_FOUND, ApiError, Bus, Endpoint, tls_context
from core.errors import Unavailable

_DURABILITY = (
    "cannot be read from outside: check that nats-server.conf says `jetstream { sync_interval: always }` "
    "(by default it acknowledges up to two minutes before the data is on the disk), or that the log has 3 replicas"
)
PLANES = ("log", "cmd", "timer", "dlq")


async def examine(endpoint: Endpoint) -> list[Finding]:
    """Version, JetStream, replicas of the streams."""
    nc = Client()
    try:
        await _connect(nc, endpoint)
        bus = Bus(nc, endpoint)
        await bus.start()
        version = nc.connected_server_version
        found = [
            _version(endpoint.url, f"{version.major}.{version.minor}.{version.patch}", (version.major, version.minor))
        ]
        try:
            await bus.api("INFO")
        except (ApiError, Unavailable) as error:
            advice = "enable JetStream for this account"
            return [*found, Finding("NATS", "fail", f"JetStream does not answer: {error}", advice)]
        replicas = await _replicas(bus)
        durable = replicas is not None and replicas >= 3
        return [
            *found,
            _streams(replicas, endpoint.replicas),
            Finding("durability", "ok" if durable else "warn", "3 replicas" if durable else _DURABILITY),
        ]
    except (nats.errors.Error, OSError, TimeoutError) as error:
        advice = "check nats.url and the credentials in the configuration"
        return [Finding("NATS", "fail", f"{endpoint.url}: {str(error) or type(error).__name__}", advice)]
    finally:
        await nc.close()


async def _connect(nc: Client, endpoint: Endpoint) -> None:
    async def silent(_: Exception) -> None:
        """The error is raised as well."""

    async with asyncio.timeout(ASK_SECONDS):
        await nc.connect(
            servers=endpoint.url.split(","),
            name="sika doctor",
            user=endpoint.user,
            password=endpoint.password,
            token=endpoint.token,
            user_credentials=Path(endpoint.credentials) if endpoint.credentials else None,
            tls=tls_context(endpoint),
            allow_reconnect=False,
            max_reconnect_attempts=0,
            inbox_prefix=b"_INBOX",
            error_cb=silent,
        )


def _version(url: str, text: str, version: tuple[int, int]) -> Finding:
    if version < (2, 12):
        return Finding("NATS", "fail", f"{url}: nats-server {text} is too old", "Sika needs 2.12 or newer")
    return Finding("NATS", "ok", f"{url}: nats-server {text}")


async def _replicas(bus: Bus) -> int | None:
    """The fewest replicas of any of our streams; None if there are no streams yet."""
    counts = []
    for plane in PLANES:
        try:
            info: dict[str, Any] = await bus.api(f"STREAM.INFO.{bus.names.stream(plane)}")
            counts.append(int(info["config"]["num_replicas"]))
        except ApiError as error:
            if error.code != STREAM_NOT_FOUND:
                raise Unavailable(str(error)) from error
    return min(counts) if counts else None


def _streams(replicas: int | None, wanted: int) -> Finding:
    if replicas is None:
        return Finding("streams", "ok", "none yet; the first server makes them")
    if replicas < wanted:
        advice = "start a server: it updates them; or check that the cluster has that many servers"
        return Finding("streams", "warn", f"{replicas} replicas, nats.replicas says {wanted}", advice)
    return Finding("streams", "ok", f"{replicas} replicas")
