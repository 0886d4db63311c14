"""The latency of the first run of a conversation that gets its title meanwhile, beside one that gets none."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from actors.title import Title
from adapters.models.configured import Configured
from core.bus import embedded
from core.bus.endpoint import Endpoint
from core.events import ThreadTitled
from tests.bench.laboratory import Laboratory
from tests.bench.measure import Row, at_most, median, ratio
from tests.support.workers import Client, worker

_MODEL, _TITLE = "tokens-50-delay-10", "tokens-5-delay-10"
_PAIRS = 40
_LIMIT = 1.1


def titles(lab: Laboratory) -> Iterator[Row]:
    """Milliseconds from the request of a run to its end."""
    ours, bare = asyncio.run(_measured(_PAIRS // (4 if lab.quick else 1)))
    yield Row(
        "a title beside the first run, answers of 0.5 s",
        ratio(ours, bare),
        at_most(_LIMIT),
        "ms/run",
        ours=median(ours),
        bare=median(bare),
        note="bare: titles are off",
    )


async def _measured(pairs: int) -> tuple[list[float], list[float]]:
    command = [sys.executable, "-m", "tests.support.model_server", "--count-only"]
    models = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert models.stdout is not None
    try:
        url = (await models.stdout.readline()).decode().strip()
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(_place(url, titled=titled)) for titled in (True, False)]
            return await _alternating(clients[0], clients[1], pairs)
    finally:
        models.terminate()
        await models.wait()


async def _alternating(on: Client, off: Client, pairs: int) -> tuple[list[float], list[float]]:
    ours, bare = list[float](), list[float]()
    for number in range(pairs + 1):  # the first pair warms up
        for client, seconds in [(on, ours), (off, bare)][:: 1 if number % 2 else -1]:
            seconds.append(1000 * await _run(client, f"t{number}"))
        await on.until(f"t{number}", lambda _, record: isinstance(record.event, ThreadTitled))
    return ours[1:], bare[1:]


async def _run(client: Client, thread: str) -> float:
    await client.thread(thread)
    begun = time.monotonic()
    await client.said(thread, "Where do otters live?", _MODEL)
    return time.monotonic() - begun


@asynccontextmanager
async def _place(url: str, *, titled: bool) -> AsyncIterator[Client]:
    """A worker with a bus of its own; it has nothing to do while the other one is measured."""
    with TemporaryDirectory() as folder:
        home = Path(folder)
        entries = [{"name": name, "model": name, "base_url": url, "api_key": "none"} for name in (_MODEL, _TITLE)]
        title = {"enabled": titled, "model_name": _TITLE}
        config = home / "config.yaml"
        config.write_text(json.dumps({"models": entries, "title": title, "memory": {"enabled": False}}))
        async with (
            embedded.start(home) as server,
            worker(
                Endpoint(server.url, token=server.token),
                home,
                config,
                others=[lambda _, source: Title(source, Configured(source))],
            ) as system,
        ):
            yield Client(system)
