"""Pipes to other processes, which may end at any time."""

from __future__ import annotations

import asyncio


async def send(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Writes, and returns when the buffer has room. Raises `ConnectionError` if the process at the other end is gone;
    uvloop says so by a `RuntimeError`.
    """
    try:
        writer.write(data)
    except RuntimeError as error:
        raise BrokenPipeError(str(error)) from error
    await writer.drain()
