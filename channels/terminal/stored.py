"""Messages of a stream as they are stored, one by one, from the stream's leader."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from core.bus import MESSAGE_NOT_FOUND, ApiError, Bus
from core.errors import Unavailable


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
