"""A terminal with an emulator behind it: what a person sees of a command, as text."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import struct
import sys
import termios
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import anyio.abc
import pyte

from tests.support.workers import DEADLINE

COLUMNS, ROWS = 120, 150
"""Rows enough that nothing scrolls away."""
ENTER, TAB, CTRL_C, CTRL_D = "\r", "\t", "\x03", "\x04"
_VARYING = (
    (re.compile(r"http://127\.0\.0\.1:\d+"), "URL"),
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "ID"),
    (re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?( UTC|\+00:00)?"), "TIME"),
)


class Emulated:
    """A process on a terminal of `COLUMNS` by `ROWS`."""

    def __init__(self, process: anyio.abc.Process, fd: int) -> None:
        self._process, self._fd = process, fd
        self._screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self._screen)
        self._changed = asyncio.Event()

    def type(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    async def until(self, words: str) -> None:
        """Waits until the screen shows the words."""
        await self._until(lambda: words in self.shown())

    async def prompt(self) -> None:
        """Waits until a message can be typed: the cursor stands in an empty line of the prompt."""
        await self._until(lambda: self._screen.display[self._screen.cursor.y].rstrip() == ">")

    async def asks(self, words: str) -> None:
        """Waits until the line that begins so is a question's, with the cursor behind it: what is typed before a
        question stands there is no answer to it, and the terminal drops it.
        """

        def asked() -> bool:
            line = self._screen.display[self._screen.cursor.y].rstrip()
            return line.startswith(words) and line.endswith(":")

        await self._until(asked)

    async def say(self, line: str) -> None:
        """Types a message at the prompt."""
        await self.prompt()
        self.type(line)
        await self._until(lambda: self._screen.display[self._screen.cursor.y].rstrip() == f"> {line}")
        self.type(ENTER)

    async def ended(self) -> int:
        """Returns the exit code."""
        with anyio.fail_after(DEADLINE):
            return await self._process.wait()

    def shown(self) -> str:
        """Returns the lines that are seen, without what differs from run to run."""
        text = "\n".join(line.rstrip() for line in self._screen.display).rstrip() + "\n"
        for pattern, name in _VARYING:
            text = pattern.sub(name, text)
        return text

    def read(self) -> None:
        """Shows what the process has written."""
        try:
            self._stream.feed(os.read(self._fd, 65536))
        except OSError:  # it has ended
            asyncio.get_running_loop().remove_reader(self._fd)
        self._changed.set()

    async def _until(self, seen: Callable[[], bool]) -> None:
        try:
            with anyio.fail_after(DEADLINE):
                while not seen():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"not seen on this screen:\n{self.shown()}") from None


@asynccontextmanager
async def emulated(*arguments: str, cwd: Path, environment: Mapping[str, str] | None = None) -> AsyncIterator[Emulated]:
    """Runs a `sika` on an emulated terminal."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    process = await anyio.open_process(
        [sys.executable, "-m", "channels.cli", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        cwd=cwd,
        env={
            **os.environ,
            "TERM": "xterm",
            "PROMPT_TOOLKIT_NO_CPR": "1",
            "PYTHONPATH": os.getcwd(),
            **(environment or {}),
        },
    )
    os.close(theirs)
    terminal, loop = Emulated(process, ours), asyncio.get_running_loop()
    loop.add_reader(ours, terminal.read)
    try:
        yield terminal
    finally:
        loop.remove_reader(ours)
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        os.close(ours)
