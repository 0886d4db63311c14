"""What a person does at the terminal: lines, and Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


class Keyboard:
    """Lines of the standard input, read by a thread of its own.

    A blocked `input()` cannot be cancelled, only left behind: so one read at a time, which a later `line` takes up
    again, and `close` puts the terminal back as it was, in case one is left behind.
    """

    def __init__(self) -> None:
        self._interactive = sys.stdin.isatty()
        self._pending: asyncio.Future[str | None] | None = None
        self._modes: list[Any] | None = None
        # Not `sys.stdin`: a thread that is blocked in it at the end of the process makes Python abort.
        self._lines = None if self._interactive else os.fdopen(os.dup(0), encoding="utf-8", errors="replace")
        if self._interactive:
            import termios

            with suppress(ImportError):
                import readline  # noqa: F401  # editing and history in input()
            self._modes = termios.tcgetattr(0)

    async def line(self, prompt: str) -> str | None:
        """The next line, None at the end of the input."""
        if self._pending is None:
            loop = asyncio.get_running_loop()
            self._pending = loop.create_future()
            threading.Thread(target=self._read, args=(prompt, loop, self._pending), daemon=True).start()
        elif self._interactive:
            print(prompt, end="", flush=True)
        line = await asyncio.shield(self._pending)
        self._pending = None
        return line

    def forget(self) -> None:
        """Drop what was typed at the terminal and not read yet: a question must not be answered before it is seen."""
        if self._interactive and self._pending is None:
            import termios

            termios.tcflush(0, termios.TCIFLUSH)

    def _read(self, prompt: str, loop: asyncio.AbstractEventLoop, answer: asyncio.Future[str | None]) -> None:
        try:
            line = input(prompt) if self._lines is None else self._lines.readline() or None
        except (EOFError, OSError, ValueError):
            line = None

        def deliver() -> None:
            if not answer.done():
                answer.set_result(line)

        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(deliver)

    def close(self) -> None:
        if self._modes is not None:
            import termios

            termios.tcsetattr(0, termios.TCSADRAIN, self._modes)
        if self._lines is not None and self._pending is None:
            self._lines.close()


class Interrupts:
    """Ctrl-C as something to wait for, by one task at a time. A press while nobody waits is kept for the next wait."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def press(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        """Waits for Ctrl-C, and takes it."""
        await self._event.wait()
        self._event.clear()


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Ctrl-C raises nothing inside this block."""
    found = Interrupts()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, found.press)
    try:
        yield found
    finally:
        loop.remove_signal_handler(signal.SIGINT)
