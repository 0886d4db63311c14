"""The streams as JetStream shows them, for operators: their messages as stored, how many there are, their replicas.

`EventLog` and `WorkQueue` do without: this is for what examines a system or repairs it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec
import nats.errors
from nats.aio.client import Client

from core.bus.connection import ASK_SECONDS, MESSAGE_NOT_FOUND, STREAM_NOT_FOUND, ApiError, Bus, Endpoint, reach
from core.errors import Unavailable

PAGE = 500
"""Messages of one request."""


class Stored(msgspec.Struct):
    """A message as the server returns it; `data` and `hdrs` are base64 on the wire."""

    seq: int
    subject: str
    data: bytes = b""
    hdrs: bytes = b""

    def header(self, name: str) -> str | None:
        for line in self.hdrs.decode(errors="replace").split("\r\n"):
            key, _, value = line.partition(":")
            if key.lower() == name.lower():
                return value.strip()
        return None


async def messages(bus: Bus, plane: str, subject: str) -> AsyncIterator[Stored]:
    """All messages of a plane's stream whose subject matches, oldest first."""
    seq = 0
    while True:
        request = {"seq": seq + 1, "next_by_subj": subject}
        try:
            reply = await bus.api(f"STREAM.MSG.GET.{bus.names.stream(plane)}", request)
        except ApiError as error:
            if error.code == MESSAGE_NOT_FOUND:
                return
            raise Unavailable(str(error)) from error
        message = msgspec.convert(reply["message"], Stored, strict=False)
        yield message
        seq = message.seq


async def counts(bus: Bus, plane: str, subject: str) -> dict[str, int]:
    """The subjects of a plane's stream that match, and how many messages each of them has."""
    found: dict[str, int] = {}
    total = 1
    while len(found) < total:
        request = {"subjects_filter": subject, "offset": len(found)}
        try:
            reply = await bus.api(f"STREAM.INFO.{bus.names.stream(plane)}", request)
        except ApiError as error:
            raise Unavailable(str(error)) from error
        subjects = reply["state"].get("subjects")
        if not subjects:
            break
        found |= subjects
        total = reply.get("total", len(found))
    return found


async def message_count(bus: Bus, plane: str) -> int:
    """Returns how many messages a plane's stream has."""
    try:
        return int((await bus.api(f"STREAM.INFO.{bus.names.stream(plane)}"))["state"]["messages"])
    except ApiError as error:
        raise Unavailable(str(error)) from error


async def delete(bus: Bus, plane: str, seq: int) -> None:
    """Deletes one message of a plane's stream."""
    try:
        await bus.api(f"STREAM.MSG.DELETE.{bus.names.stream(plane)}", {"seq": seq, "no_erase": True})
    except ApiError as error:
        raise Unavailable(str(error)) from error


async def replicas(bus: Bus, planes: Iterable[str]) -> int | None:
    """Returns the fewest replicas of any of these planes' streams; None if there are no streams yet."""
    counts = []
    for plane in planes:
        try:
            info: dict[str, Any] = await bus.api(f"STREAM.INFO.{bus.names.stream(plane)}")
            counts.append(int(info["config"]["num_replicas"]))
        except ApiError as error:
            if error.code != STREAM_NOT_FOUND:
                raise Unavailable(str(error)) from error
    return min(counts) if counts else None


async def check_jetstream(bus: Bus) -> None:
    """Raises `Unavailable` unless JetStream answers for this account."""
    try:
        await bus.api("INFO")
    except ApiError as error:
        raise Unavailable(str(error)) from error


class Visit(NamedTuple):
    """A connection to a NATS that is not ours, and the version of its server."""

    bus: Bus
    version: tuple[int, int, int]


@asynccontextmanager
async def visit(endpoint: Endpoint, name: str) -> AsyncIterator[Visit]:
    """Connects once, without creating streams. Raises `Unavailable` with the reason."""
    nc = Client()
    try:
        try:
            await _connect_once(nc, endpoint, name)
            bus = Bus(nc, endpoint)
            await bus.start()
        except (nats.errors.Error, OSError, TimeoutError) as error:
            raise Unavailable(str(error) or type(error).__name__) from error
        server = nc.connected_server_version
        yield Visit(bus, (server.major, server.minor, server.patch))
    finally:
        await nc.close()


async def _connect_once(nc: Client, endpoint: Endpoint, name: str) -> None:
    async def silent(_: Exception) -> None:
        """The error is raised as well."""

    async with asyncio.timeout(ASK_SECONDS):
        await nc.connect(
            **reach(endpoint),
            name=name,
            allow_reconnect=False,
            max_reconnect_attempts=0,
            inbox_prefix=b"_INBOX",
            error_cb=silent,
        )


async def page(bus: Bus, plane: str, subject: str, start: int) -> tuple[list[Stored], bool]:
    """Up to `PAGE` messages from a sequence on, and whether there are more. A replica that is behind may answer."""
    request = msgspec.json.encode({"seq": start, "batch": PAGE, "next_by_subj": subject})
    found: list[Stored] = []
    async with bus.ask_many(f"$JS.API.DIRECT.GET.{bus.names.stream(plane)}", request) as replies:
        while True:
            try:
                async with asyncio.timeout(ASK_SECONDS):
                    reply = await replies.get()
            except TimeoutError as error:
                raise Unavailable("the log does not answer") from error
            headers = reply.headers or {}
            status = headers.get("Status")
            if status == "503":
                raise Unavailable("the log is not available")
            if status is not None:
                return found, status == "204" and int(headers.get("Nats-Num-Pending", "0")) > 0
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            found.append(Stored(int(headers["Nats-Sequence"]), headers["Nats-Subject"], reply.data, lines.encode()))
