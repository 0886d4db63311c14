"""Work that a cancellation does not cut off in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import anyio

T = TypeVar("T")


async def finished(work: Coroutine[Any, Any, T], seconds: float | None = None) -> T:
    """Does the work to its end, whatever cancels this task meanwhile; the cancellation is raised afterwards. With
    `seconds`, the work is cancelled if it takes longer than that after the cancellation.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        with anyio.CancelScope(shield=True):
            await _end(task, seconds)
        raise


async def _end(task: asyncio.Future[Any], seconds: float | None) -> None:
    """Waits for the end of a task, which is cancelled after `seconds`. More cancellations, of which anyio sends one in
    each turn of the event loop, are passed over: the caller raises the first one.
    """
    clock = asyncio.get_running_loop().time
    timeout = None if seconds is None else clock() + seconds
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([task], timeout=None if timeout is None else max(0.0, timeout - clock()))
        if timeout is not None and clock() >= timeout:
            task.cancel()
            timeout = None
