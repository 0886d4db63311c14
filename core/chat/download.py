"""A file that a platform sends, written as it arrives."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio

from core.chat.port import Rejected
from core.errors import Unavailable


async def save(chunks: AsyncIterator[bytes], into: Path, limit: int, name: str, announced: int | None = None) -> None:
    """Writes chunks into a file, which is there in full or not at all. `announced`: the length that the platform says.
    Raises `Rejected` if there are more than `limit` bytes, `Unavailable` if the disk does not take them."""
    too_large = f"{name}: over the limit of {limit} bytes"
    if (announced or 0) > limit:
        raise Rejected(too_large)
    size = 0
    try:
        async with await anyio.open_file(into, "wb") as file:
            async for chunk in chunks:
                size += len(chunk)
                if size > limit:
                    raise Rejected(too_large)
                try:
                    await file.write(chunk)
                except OSError as error:  # those of `chunks` are the platform's
                    raise Unavailable(f"{name}: it cannot be written: {error.strerror}") from None
    except BaseException:
        into.unlink(missing_ok=True)
        raise
