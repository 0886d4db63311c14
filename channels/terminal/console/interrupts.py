"""Ctrl-C as an event to wait for."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import anyio

T = TypeVar("T")


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

    async def unless_pressed(self, request: Awaitable[T]) -> T:
        """Returns the result of a request or a prompt. Raises `Stopped` at Ctrl-C, also during retries."""
        results: list[T] = []
        problem: Exception | None = None
        async with anyio.create_task_group() as tasks:

            async def stop() -> None:
                await self.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(stop)
            try:
                results.append(await request)
            except Exception as error:  # a task group would wrap it
                problem = error
            tasks.cancel_scope.cancel()
        if problem is not None:
            raise problem
        if not results:
            raise Stopped
        return results[0]


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
