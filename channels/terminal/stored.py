"""Messages of a stream as they are stored: one by one from the stream's leader, or in pages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec

from core.bus import ASK_SECONDS, MESSAGE_NOT_FOUND, ApiError, Bus
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
