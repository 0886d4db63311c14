"""A file that a platform sends, written as it arrives."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio

from core.chat.sizes import too_large
from core.errors import Unavailable


async def save(chunks: AsyncIterator[bytes], into: Path, limit: int, name: str, announced: int | None = None) -> None:
    """Writes chunks into a file, which is there in full or not at all. `announced`: the length that the platform says.
    Raises `Rejected` if there are more than `limit` bytes, `Unavailable` if the disk does not take them."""
    if (announced or 0) > limit:
        raise too_large(name, announced or 0, limit)
    size = 0
    try:
        async with await anyio.open_file(into, "wb") as file:
            async for chunk in chunks:
                size += len(chunk)
                if size > limit:
                    raise too_large(name, 0, limit)
                try:
                    await file.write(chunk)
                except OSError as error:  # those of `chunks` are the platform's
                    raise Unavailable(f"{name}: it cannot be written: {error.strerror}") from None
    except BaseException:
        into.unlink(missing_ok=True)
        raise
