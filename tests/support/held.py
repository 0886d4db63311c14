"""An actor of runs that take as long as a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from core.runs.owned import OwnedRun
from core.runs.run import Prepared, RunActor
from tests.support.nats import eventually


class Held(RunActor):
    """Begins runs, and ends each when it is told to."""

    name = "lead"

    def __init__(self) -> None:
        self.begun: list[str] = []
        """Threads, in the order in which their runs began."""
        self._ends: dict[str, asyncio.Event] = {}

    async def perform(self, run: OwnedRun, prepared: Prepared[Any]) -> None:
        self.begun.append(run.thread_id)
        await self._ends.setdefault(run.thread_id, asyncio.Event()).wait()

    def end(self, thread_id: str) -> None:
        self._ends.setdefault(thread_id, asyncio.Event()).set()

    async def until(self, number: int) -> Sequence[str]:
        """Returns the threads of the runs that have begun, when there are so many."""

        async def there() -> bool:
            return len(self.begun) >= number

        await eventually(there)
        return self.begun
