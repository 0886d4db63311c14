"""Child processes of tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def killed_at_the_end(child: asyncio.subprocess.Process) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that may end before the block does."""
    try:
        yield child
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
