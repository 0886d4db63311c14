"""The server of the platform `bell`: counts connections, hands out messages, and collects acknowledgements."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

DEADLINE = 120.0
"""Seconds: on a busy machine a whole server takes half a minute to start."""


class Tower:
    """`open`: the tokens of the connections that are open now, by connection. `most`: the most at any time."""

    def __init__(self) -> None:
        self.url = ""
        self.open: dict[int, str] = {}
        self.most = 0
        self.connections = 0
        self.acked: list[str] = []
        self.refused = 0
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._changed = asyncio.Condition()

    async def ring(self, message: str, chat: str = "room", connection: int | None = None) -> None:
        """Sends a message to a connection, by default to the newest."""
        writer = self._writers[max(self._writers) if connection is None else connection]
        writer.write(json.dumps({"id": message, "chat": chat}).encode() + b"\n")
        await writer.drain()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for a condition on this tower."""
        async with asyncio.timeout(DEADLINE), self._changed:
            await self._changed.wait_for(condition)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        try:
            token = json.loads(await reader.readline())["token"]
            if not token.startswith("good"):
                self.refused += 1
                writer.write(b'"refused"\n')
                return
            self.open[number], self._writers[number] = token, writer
            self.most = max(self.most, len(self.open))
            writer.write(b'"welcome"\n')
            await self._tell()
            while line := await reader.readline():
                self.acked.append(json.loads(line)["ack"])
                await self._tell()
        except (ConnectionError, ValueError):
            pass
        finally:
            writer.close()
            self.open.pop(number, None)
            self._writers.pop(number, None)
            await self._tell()

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()


@asynccontextmanager
async def tower() -> AsyncIterator[Tower]:
    """A tower that listens."""
    there = Tower()
    server = await asyncio.start_server(there._serve, "127.0.0.1", 0)
    there.url = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield there
    finally:
        server.close()
        for writer in list(there._writers.values()):
            writer.close()
