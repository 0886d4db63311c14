"""Many clients of one stream in a process of their own: `python -m tests.conformance.crowd <url> <count>`.

Prints `ready` when each has the head of the answer, the first event and a heartbeat; then, when every stream has ended,
a line of JSON: how many clients saw which frames.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections import Counter
from typing import Any, cast
from urllib.parse import urlsplit

AT_ONCE = 100
HEARTBEAT = b": heartbeat\n\n"
_CHUNK = re.compile(rb"([0-9a-f]+)\r\n")


class Client(asyncio.Protocol):
    """Reads, and keeps what it has read."""

    def __init__(self, request: bytes) -> None:
        self.raw = bytearray()
        self.settled = asyncio.Event()
        self.ended = asyncio.Event()
        self._request = request

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        self.raw += data
        if not self.settled.is_set() and b"event: metadata" in self.raw and HEARTBEAT in self.raw:
            self.settled.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.settled.set()
        self.ended.set()


def frames(raw: bytes) -> list[tuple[str, Any]]:
    """The events of an answer; the pieces of a message as one."""
    head, _, rest = raw.partition(b"\r\n\r\n")
    body = bytearray()
    while (size := _CHUNK.match(rest)) and (length := int(size[1], 16)):
        body += rest[size.end() : size.end() + length]
        rest = rest[size.end() + length + 2 :]
    found: list[tuple[str, Any]] = [("status", head.split(b" ", 2)[1].decode())]
    for block in body.replace(HEARTBEAT, b"").decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if line)
        if not fields:
            continue
        event, data = fields["event"], json.loads(fields["data"])
        if event != "messages":
            found.append((event, data))
        elif found[-1][0] == "text":
            found[-1] = ("text", found[-1][1] + data[0]["content"])
        else:
            found.append(("text", data[0]["content"]))
    return found


async def main(url: str, count: int) -> None:
    where = urlsplit(url)
    fields = f"Host: {where.netloc}\r\nLast-Event-ID: -1\r\nConnection: close"
    request = f"GET {where.path}?{where.query} HTTP/1.1\r\n{fields}\r\n\r\n".encode()
    clients = [Client(request) for _ in range(count)]
    places = asyncio.Semaphore(AT_ONCE)

    async def come(client: Client) -> None:
        async with places:
            await asyncio.get_running_loop().create_connection(lambda: client, str(where.hostname), where.port or 80)

    await asyncio.gather(*(come(client) for client in clients))
    await asyncio.gather(*(client.settled.wait() for client in clients))
    print("ready", flush=True)
    await asyncio.gather(*(client.ended.wait() for client in clients))
    seen = Counter(json.dumps(frames(bytes(client.raw))) for client in clients)
    print(json.dumps([[number, json.loads(told)] for told, number in seen.items()]), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
