"""The streams as JetStream shows them: their messages as stored, their counts, their replicas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from core.bus.connection import ASK_SECONDS, Bus
from core.bus.endpoint import Endpoint, reach
from core.bus.errors import DELETION_FAILED, MESSAGE_NOT_FOUND, SEQUENCE_NOT_FOUND, STREAM_NOT_FOUND, ApiError
from core.errors import Unavailable

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

PAGE = 500
"""Limit of messages in a request."""
BATCH_BYTES = 2 << 20
"""Limit of the messages that the server sends at once: more than one message, and with `Bus.batches` less than the
64 MiB for which it takes a connection for dead.
"""


class Stored(msgspec.Struct):
    """A message as the server returns it; `data` and `hdrs` are base64 on the wire."""

    seq: int
    subject: str
    data: bytes = b""
    hdrs: bytes = b""
    time: datetime | None = None
    """When it was stored."""

    def header(self, name: str) -> str | None:
        for line in self.hdrs.decode(errors="replace").split("\r\n"):
            key, _, value = line.partition(":")
            if key.lower() == name.lower():
                return value.strip()
        return None


async def find(bus: Bus, plane: str, request: Mapping[str, Any]) -> Stored | None:
    """Returns a message from the leader of a plane's stream; None if there is no such message."""
    try:
        reply = await bus.api(f"STREAM.MSG.GET.{bus.names.stream(plane)}", request)
    except ApiError as error:
        if error.err_code == MESSAGE_NOT_FOUND:
            return None
        raise
    return msgspec.convert(reply["message"], Stored, strict=False)


async def messages(bus: Bus, plane: str, subject: str, *, after: int = 0) -> AsyncIterator[Stored]:
    """Yields the messages of a plane's stream whose subject matches, after a sequence, oldest first."""
    seq = after
    while message := await find(bus, plane, {"seq": seq + 1, "next_by_subj": subject}):
        yield message
        seq = message.seq


async def counts(bus: Bus, plane: str, subject: str) -> dict[str, int]:
    """Returns the subjects of a plane's stream that match, with the number of their messages."""
    by_subject: dict[str, int] = {}
    total = 1
    while len(by_subject) < total:
        request = {"subjects_filter": subject, "offset": len(by_subject)}
        reply = await bus.api(f"STREAM.INFO.{bus.names.stream(plane)}", request)
        subjects = reply["state"].get("subjects")
        if not subjects:
            break
        by_subject |= subjects
        total = reply.get("total", len(by_subject))
    return by_subject


async def message_count(bus: Bus, plane: str) -> int:
    """Returns the number of messages in a plane's stream."""
    return int((await bus.api(f"STREAM.INFO.{bus.names.stream(plane)}"))["state"]["messages"])


async def delete(bus: Bus, plane: str, seq: int) -> None:
    """Deletes a message of a plane's stream."""
    await bus.api(f"STREAM.MSG.DELETE.{bus.names.stream(plane)}", {"seq": seq, "no_erase": True})


async def erase(bus: Bus, plane: str, seq: int) -> None:
    """Overwrites a message of a plane's stream on the disk and deletes it. A missing one is no error."""
    try:
        await bus.api(f"STREAM.MSG.DELETE.{bus.names.stream(plane)}", {"seq": seq})
    except ApiError as error:
        if error.err_code not in (MESSAGE_NOT_FOUND, SEQUENCE_NOT_FOUND) and not _is_gone(error):
            raise


def _is_gone(error: ApiError) -> bool:
    """True if a deletion failed because another one was first."""
    return error.err_code == DELETION_FAILED and "no message found" in str(error)


async def erase_all(bus: Bus, plane: str, subject: str) -> None:
    """Erases the messages of a plane's stream whose subject matches."""
    async for message in messages(bus, plane, subject):
        await erase(bus, plane, message.seq)


async def purge(bus: Bus, plane: str, subject: str, *, before: int | None = None) -> None:
    """Deletes the messages whose subject matches (those before a sequence). Their bytes stay on the disk."""
    bound = {} if before is None else {"seq": before}
    await bus.api(f"STREAM.PURGE.{bus.names.stream(plane)}", {"filter": subject, **bound})


async def replicas(bus: Bus, planes: Iterable[str]) -> int | None:
    """Returns the fewest replicas of any of these planes' streams; None if there are no streams yet."""
    counts = []
    for plane in planes:
        if (info := await _info(bus, plane)) is not None:
            counts.append(int(info["config"]["num_replicas"]))
    return min(counts) if counts else None


async def is_empty(bus: Bus, plane: str) -> bool:
    """Tells whether a plane's stream has never had a message, or is not there."""
    info = await _info(bus, plane)
    return info is None or not info["state"]["last_seq"]


async def _info(bus: Bus, plane: str) -> Mapping[str, Any] | None:
    """Returns the configuration and the state of a plane's stream; None if there is no such stream."""
    try:
        info: Mapping[str, Any] = await bus.api(f"STREAM.INFO.{bus.names.stream(plane)}")
    except ApiError as error:
        if error.err_code != STREAM_NOT_FOUND:
            raise
        return None
    return info


async def check_jetstream(bus: Bus) -> None:
    """Raises `Unavailable` unless JetStream answers for this account."""
    await bus.api("INFO")


class Visit(NamedTuple):
    """A connection to an external NATS, and the version of its server."""

    bus: Bus
    version: tuple[int, int, int]


@asynccontextmanager
async def visit(endpoint: Endpoint, name: str) -> AsyncIterator[Visit]:
    """Connects once, without creating streams. Raises `Unavailable` with the reason."""
    import nats.errors
    from nats.aio.client import Client

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


async def direct_get(bus: Bus, plane: str, subject: str, start: int, limit: int) -> tuple[list[Msg], bool]:
    """Returns up to `limit` messages from a sequence on, and whether there are more: fewer if they are big. A replica
    that lags behind the leader may answer. Raises `Unavailable` if its turn does not come within `ASK_SECONDS`, or
    then no message.
    """
    request = {"seq": start, "batch": limit, "max_bytes": BATCH_BYTES, "next_by_subj": subject}
    batch: list[Msg] = []
    call = f"$JS.API.DIRECT.GET.{bus.names.stream(plane)}"
    async with _turn(bus, plane), bus.ask_many(call, msgspec.json.encode(request)) as replies:
        while True:
            try:
                async with asyncio.timeout(ASK_SECONDS if replies.empty() else None):
                    msg = await replies.get()
            except TimeoutError as error:
                raise bus.unavailable(f"the {plane} does not answer") from error
            headers = msg.headers or {}
            status = headers.get("Status")
            if status == "503":
                raise bus.unavailable(f"the {plane} is not available")
            if status is not None:
                return batch, status == "204" and int(headers.get("Nats-Num-Pending", "0")) > 0
            batch.append(msg)


@asynccontextmanager
async def _turn(bus: Bus, plane: str) -> AsyncIterator[None]:
    """Waits for one of the batches that are read at once. Raises `Unavailable`."""
    try:
        async with asyncio.timeout(ASK_SECONDS):
            await bus.batches.acquire()
    except TimeoutError as error:
        raise bus.unavailable(f"the {plane} does not answer: the reads before this one have not ended") from error
    try:
        yield
    finally:
        bus.batches.release()


async def page(bus: Bus, plane: str, subject: str, start: int) -> tuple[list[Stored], bool]:
    """Returns up to `PAGE` messages from a sequence on, and whether there are more; see `direct_get`."""
    messages, more = await direct_get(bus, plane, subject, start, PAGE)
    return [_stored(msg) for msg in messages], more


def _stored(msg: Msg) -> Stored:
    headers = msg.headers or {}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return Stored(int(headers["Nats-Sequence"]), headers["Nats-Subject"], msg.data, lines.encode())
