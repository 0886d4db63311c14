"""Where the power goes off: what outlives a worker, and what somebody does there while it dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from core.bus import embedded
from core.bus.endpoint import Endpoint
from core.runtime.system import System
from core.thread.state import ThreadState
from core.tools import Tool, ToolContext, tool
from tests.support.laws import EXAMPLES
from tests.support.model_server import Answer, ModelServer, Script, Turn
from tests.support.workers import DEADLINE, Client, Power, configure, wait_for, worker

Mode = Literal["unheard", "heard", "later"]
THOROUGH = 100
"""Examples of a law (`SIKA_EXAMPLES`) from which on every point is cut in every way."""


def cuts(points: Iterable[int], *modes: Mode) -> list[tuple[int, Mode]]:
    """Returns each point with one of the modes, in turn; in a thorough run with all of them."""
    if EXAMPLES >= THOROUGH:
        return [(point, mode) for point in points for mode in modes]
    return [(point, modes[point % len(modes)]) for point in points]


@tool(effect="idempotent")
async def ring(ctx: ToolContext, city: str) -> str:
    """Ring."""
    return f"rang {city}"


class Place:
    """The nats-server, the data directory, the models."""

    def __init__(self, endpoint: Endpoint, home: Path, models: ModelServer, sections: Mapping[str, Any]) -> None:
        self.endpoint, self.home, self.models = endpoint, home, models
        self.config = configure(home / "config.yaml", models, **sections)

    def worker(self, power: Power | None = None, *, tools: Sequence[Tool] = ()) -> AbstractAsyncContextManager[System]:
        return worker(self.endpoint, self.home, self.config, tools=tools, power=power)

    async def cut(
        self, power: Power, person: Callable[[System], Awaitable[object]], *, tools: Sequence[Tool] = ()
    ) -> None:
        """A worker dies while somebody does something there, which ends with it."""
        async with self.worker(power, tools=tools) as system:
            asking = asyncio.ensure_future(person(system))
            async with asyncio.timeout(DEADLINE):
                await power.off.wait()
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking


@asynccontextmanager
async def place(
    home: Path, scripts: Mapping[str, Script | Sequence[Turn] | Answer], **sections: Any
) -> AsyncIterator[Place]:
    async with ModelServer(scripts) as models, embedded.start(home) as server:
        yield Place(Endpoint(server.url, token=server.token), home, models, sections)


async def settled(system: System) -> ThreadState:
    """The thread when no wake-up is left and nothing is done in it any more."""
    client = Client(system)
    await client.idle()

    async def over() -> bool:
        return (await client.state("t1")).status == "idle"

    await wait_for(over)
    return await client.state("t1")
