"""A run that a person watches: Ctrl-C cancels it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import anyio

from channels.client.aio import AsyncSikaClient
from channels.client.errors import ClientError, NotFound, Refused
from channels.client.events import StreamEvent
from channels.terminal.interrupts import Interrupts
from channels.terminal.screen import Screen


class ShownRun:
    """The run whose events are shown. `id` is empty until the run has one."""

    def __init__(self, client: AsyncSikaClient, interrupts: Interrupts, screen: Screen) -> None:
        self.id = ""
        self._client, self._interrupts, self._screen = client, interrupts, screen

    async def watch(
        self, thread: str, events: AsyncGenerator[StreamEvent, None], feed: Callable[[StreamEvent], None]
    ) -> bool:
        """Feeds the events to a view; returns True at their end, False after Ctrl-C. Raises `ClientError`."""
        ended = False
        problem: ClientError | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._cancel_at_interrupt, thread, tasks.cancel_scope)
            try:
                async with aclosing(events):
                    async for event in events:
                        self.id = event.run_id
                        feed(event)
                ended = True
            except ClientError as error:  # a task group would wrap it
                problem = error
            tasks.cancel_scope.cancel()
        self._screen.settle()
        if problem is not None:
            raise problem
        return ended

    async def _cancel_at_interrupt(self, thread: str, scope: anyio.CancelScope) -> None:
        """Cancels the run at the first Ctrl-C, and stops waiting for its end at the second."""
        await self._interrupts.wait()
        self._screen.notice("stopping the run …")
        if not self.id:  # the end of the stream cancels a run that may have begun
            scope.cancel()
            return
        async with anyio.create_task_group() as tasks:

            async def leave() -> None:
                await self._interrupts.wait()
                scope.cancel()

            tasks.start_soon(leave)
            try:
                await self._client.cancel(thread, self.id)
            except (NotFound, Refused):
                return  # it has ended by itself
            except ClientError as error:
                self._screen.error(str(error))
