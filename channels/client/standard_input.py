"""Standard input of commands that speak a protocol on it."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import sys
import threading
from typing import IO


async def standard_input(limit: int) -> asyncio.StreamReader:
    """Returns a reader of standard input, whatever it is. `limit`: most bytes of a line."""
    reader = asyncio.StreamReader(limit=limit)
    source = sys.stdin if _can_be_waited_for() else _copied()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), source)
    return reader


def _can_be_waited_for() -> bool:
    """Tells whether the event loop can wait for it: files and devices like /dev/null are always readable."""
    mode = os.fstat(0).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(0)


def _copied() -> IO[bytes]:
    """Returns a pipe that gets all of standard input. The thread that writes ends with the reader, or the process."""
    read, write = os.pipe()

    def copy() -> None:
        try:
            with open(write, "wb") as pipe:
                shutil.copyfileobj(sys.stdin.buffer, pipe)
        except BrokenPipeError:
            pass

    threading.Thread(target=copy, name="standard input", daemon=True).start()
    return open(read, "rb", buffering=0)
