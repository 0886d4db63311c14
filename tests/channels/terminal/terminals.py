"""Commands on a terminal of their own, as a person uses them."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.abc

from tests.support.workers import DEADLINE


class Terminal:
    """A `sika` on a terminal, started by a script that ignores SIGINT."""

    def __init__(self, process: anyio.abc.Process, fd: int, term: str) -> None:
        self.process, self._fd = process, fd
        self._ready = "> " if term == "dumb" else "\x1b[?2004h"
        self._seen = b""

    async def prompt(self) -> None:
        """Waits until a line can be typed: the prompt has turned bracketed paste on, where there is such a thing."""
        await self.until(self._ready)

    def type(self, keys: bytes) -> None:
        os.write(self._fd, keys)

    async def until(self, words: str) -> None:
        await asyncio.to_thread(self._until, words.encode())

    def _until(self, words: bytes) -> None:
        while words not in self._seen:
            self._seen += os.read(self._fd, 4096)
        self._seen = self._seen.partition(words)[2]

    async def ended(self) -> int:
        """The exit code. What it still writes must be read, or it does not end."""
        with anyio.fail_after(DEADLINE), suppress(OSError):
            while await asyncio.to_thread(os.read, self._fd, 4096):
                pass
        return await self.process.wait()


async def on_terminal(
    work: Callable[[Terminal], Awaitable[None]], *arguments: str, term: str = "xterm", cwd: Path | None = None
) -> None:
    ours, theirs = os.openpty()
    process = await anyio.open_process(
        ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-m", "channels.cli", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        cwd=cwd,
        env={**os.environ, "TERM": term, "PROMPT_TOOLKIT_NO_CPR": "1", "PYTHONPATH": os.getcwd()},
    )
    os.close(theirs)
    try:
        with anyio.fail_after(DEADLINE):
            await work(Terminal(process, ours, term))
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        os.close(ours)
