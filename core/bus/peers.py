"""Work that one process holds, reached from the others: each piece has a name, under which its holder answers."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from core.bus import rpc
from core.bus.connection import Bus
from core.errors import Unavailable

TRIES = 3
PAUSE_SECONDS = 0.5
"""Time for a subscription to be known everywhere, after which its holder is asked again."""


class Peers:
    """Guarantees: a request reaches the process that serves the name, wherever it arrives. Non-guarantees: nothing
    survives that process.
    """

    def __init__(self, bus: Bus, pause: float = PAUSE_SECONDS) -> None:
        self._bus, self._pause = bus, pause

    async def serve(self, name: str, answer: rpc.Answer, until: Callable[[], Awaitable[object]]) -> None:
        """Answers the requests for a name. When `until` returns, it takes no more, and ends after the last answer."""
        await rpc.serve(self._bus, name, answer, until)

    async def ask(
        self, name: str, request: Mapping[str, Any], progress: Callable[[str], Awaitable[None]] | None = None
    ) -> Any:
        """Returns the holder's answer. Raises `Unavailable` if no process holds the name, and the holder's errors."""
        for attempt in range(1, TRIES + 1):
            try:
                return await rpc.call(self._bus, name, request, progress)
            except (rpc.Declined, rpc.Silent):
                raise
            except Unavailable:
                if attempt == TRIES:
                    raise
                await asyncio.sleep(self._pause)
        raise AssertionError


def name_of(actor: str, *about: str) -> str:
    """Returns the name of a piece of an actor's work."""
    return f"{actor}-{hashlib.blake2b('/'.join(about).encode(), digest_size=16).hexdigest()}"
