"""Two servers are as good as one: the cases of the Python client that depend on what a server remembers or hears, each
request to the other server than the last.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.conformance.clients import Once, check, chosen, python
from tests.conformance.python.every import CASES
from tests.conformance.python.lab import AGENT, Lab, lab
from tests.conformance.releases import NEWEST
from tests.conformance.site import Site, site

pytestmark = pytest.mark.long(keep=10)

SHARED = [name for name in CASES if name.startswith(("interrupts.", "multitask.", "states.", "streams."))]
"""The other cases ask nothing that a second server could answer otherwise."""


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("replicas"), servers=2) as started:
        yield started


@pytest.fixture(scope="module")
def done(request: pytest.FixtureRequest, two: Site) -> Once:
    return Once(lambda release: python(two, release, chosen(request, "alternating")))


@pytest.mark.parametrize("alternating", SHARED)
def test_alternating(done: Once, alternating: str) -> None:
    check(done[NEWEST], alternating)


async def test_clients_that_vanish_are_noticed(two: Site) -> None:
    """Connections that are reset in the middle of a burst of text that comes from the other server: each of the runs is
    cancelled all the same.
    """
    async with lab(two.urls[:1], two.models) as there:
        for _ in range(4):
            vanished = await asyncio.gather(*(_vanishing(there, number) for number in range(20)))
            assert {await there.ended(thread, run) for thread, run in vanished} == {"interrupted"}


async def _vanishing(there: Lab, number: int) -> tuple[str, str]:
    """The thread and the run of a client that has gone without a farewell: what was not sent is dropped."""
    hard = struct.pack("ii", 1, 0)
    thread, raw = await there.thread(), b""
    body = {
        **there.asked("tokens-8000-delay-0.1", stream_mode=["messages-tuple"], on_disconnect="cancel"),
        "assistant_id": AGENT,
    }
    reader, writer = await _posted(there, f"/threads/{thread}/runs/stream", body)
    while b"event: messages" not in raw:
        raw += await reader.read(65536)
    await asyncio.sleep(number / 400)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, hard)
    writer.transport.abort()
    [run] = await there.client.runs.list(thread)
    return thread, run["run_id"]


async def _posted(given: Lab, path: str, body: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A request on a connection of its own."""
    where, raw = urlsplit(given.urls[0]), json.dumps(body).encode()
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    fields = f"Host: {where.netloc}\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}"
    writer.write(f"POST /api{path} HTTP/1.1\r\n{fields}\r\n\r\n".encode() + raw)
    return reader, writer
