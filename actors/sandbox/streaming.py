"""Passes the output of a running command on to those who watch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from core.actor import Progress
from core.errors import ungrouped
from core.ports.sandbox import ExecResult

MOST_SHOWN = 1 << 20
"""Limit of characters that wait for a slow receiver; the result of the command has what was left out here."""


class _Shown:
    """Text that waits for its receiver."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._size = 0
        self._more = anyio.Event()
        self._closed = False

    def put(self, text: str) -> None:
        self._texts.append(text)
        self._size += len(text)
        if self._size > MOST_SHOWN:
            self._texts = ["".join(self._texts)[-MOST_SHOWN // 2 :]]
            self._size = len(self._texts[0])
        self._more.set()

    def close(self) -> None:
        self._closed = True
        self._more.set()

    async def take(self) -> str:
        """Returns the text that waits; empty when there will be no more."""
        await self._more.wait()
        text, self._texts, self._size = "".join(self._texts), [], 0
        if not self._closed:
            self._more = anyio.Event()
        return text


async def streamed(progress: Progress, work: Callable[[Callable[[str], None]], Awaitable[ExecResult]]) -> ExecResult:
    """Does the work and passes on its output; the slower the receiver, the larger the chunks."""
    shown = _Shown()

    async def pass_on() -> None:
        while text := await shown.take():
            await progress(text)

    with ungrouped():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pass_on)
            try:
                result = await work(lambda text: shown.put(text) if text else None)
            finally:
                shown.close()
    return result
