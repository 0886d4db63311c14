"""Messages on standard input and output. Output belongs to the protocol: what else is printed goes to stderr."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import structlog

from channels.client.standard_input import standard_input

log = structlog.get_logger("sika.acp")

LINE_BYTES = 64 << 20
"""Limit of a message: a prompt with pictures."""
CHUNK = 1 << 16


class Stdio:
    """A transport of the SDK. A message that is too large or no JSON object is skipped and logged."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._buffer, self._skipping = bytearray(), False

    @classmethod
    async def open(cls) -> Stdio:
        """Takes the process's standard input and output over."""
        loop = asyncio.get_running_loop()
        out = os.fdopen(os.dup(1), "wb", buffering=0)
        os.dup2(2, 1)
        reader = await standard_input(CHUNK)
        transport, protocol = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader(), loop=loop), out
        )
        return cls(reader, asyncio.StreamWriter(transport, protocol, None, loop))

    async def send(self, message: dict[str, Any]) -> None:
        self._writer.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        await self._writer.drain()

    async def receive(self) -> dict[str, Any] | None:
        """Returns the next message; None at the end of the input."""
        while (line := await self._line()) is not None:
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                message = None
            if isinstance(message, dict):
                return message
            if line.strip():
                log.warning("not a message", bytes=len(line))
        return None

    async def close(self) -> None:
        self._writer.close()

    async def _line(self) -> bytes | None:
        scanned = 0
        while (end := self._buffer.find(b"\n", scanned)) < 0:
            scanned = len(self._buffer)
            if scanned > LINE_BYTES:
                log.warning("a message is too large, and is left out", limit=LINE_BYTES)
                self._skipping, scanned = True, 0
            if self._skipping:
                self._buffer.clear()
            chunk = await self._reader.read(CHUNK)
            if not chunk:
                return None
            self._buffer += chunk
        line = b"" if self._skipping else bytes(self._buffer[:end])
        self._skipping = False
        del self._buffer[: end + 1]
        return line
