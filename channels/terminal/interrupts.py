"""Ctrl-C as an event to wait for."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager


class Stopped(Exception):
    """Ctrl-C ended a wait."""


class Interrupts:
    """Presses of Ctrl-C, waited for by one task at a time. A press without a waiter counts for the next wait."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def press(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        """Waits for Ctrl-C, and consumes it."""
        await self._event.wait()
        self._event.clear()


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Handles Ctrl-C inside this block: it raises nothing, and works also if the parent process ignores it."""
    presses = Interrupts()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, presses.press)
    try:
        yield presses
    finally:
        loop.remove_signal_handler(signal.SIGINT)
