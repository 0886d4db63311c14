"""Flushing of libraries before the process ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

import structlog

log = structlog.get_logger("sika.tracing")


async def flush(calls: Sequence[Callable[[], object]], seconds: float) -> None:
    """Makes blocking calls, and waits for them up to a deadline. In daemon threads: a library may never return."""
    loop = asyncio.get_running_loop()
    futures = [loop.create_future() for _ in calls]
    for call, future in zip(calls, futures, strict=True):
        threading.Thread(target=_call, args=(call, loop, future), daemon=True).start()
    if futures:
        _, late = await asyncio.wait(futures, timeout=seconds)
        if late:
            log.warning("traces dropped: not taken in time", seconds=seconds)


def _call(call: Callable[[], object], loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
    try:
        call()
    except Exception as error:
        log.warning("traces dropped", error=f"{type(error).__name__}: {error}")
    with suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(future.cancel)
