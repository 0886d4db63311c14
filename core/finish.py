"""Work that a cancellation does not cut off in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import anyio

T = TypeVar("T")


async def finished(work: Coroutine[Any, Any, T], seconds: float | None = None) -> T:
    """Does the work to its end, whatever cancels this task meanwhile; the cancellation is raised afterwards. With
    `seconds`, the work is cancelled if it takes longer than that after the cancellation.
    """
    clock = asyncio.get_running_loop().time
    task, timeout = asyncio.ensure_future(work), None
    cancellation: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait([task], timeout=None if timeout is None else timeout - clock())
                if timeout is not None and not task.done():
                    task.cancel()
                    timeout = None
            except asyncio.CancelledError as error:
                if cancellation is None and seconds is not None:
                    timeout = clock() + seconds
                cancellation = error
    if cancellation is not None:
        if not task.cancelled():
            task.exception()  # seen: nobody else looks
        raise cancellation
    return task.result()
