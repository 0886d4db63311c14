"""A run that a person watches: Ctrl-C cancels it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager

import anyio
from anyio import to_thread
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from channels.client.aio import AsyncSikaClient
from channels.client.errors import ClientError, NotFound, Refused
from channels.client.events import StreamEvent
from channels.terminal.chat.attachments import names_files
from channels.terminal.console.interrupts import Interrupts
from channels.terminal.console.lines import Lines
from channels.terminal.console.screen import Screen
from channels.terminal.text import one_line

STEER_SECONDS = 10.0
"""Timeout of a message to a run."""
MOST_WAITING = 16
"""Messages that wait to be sent to a run."""


class ShownRun:
    """The run whose events are shown. `id` is empty until the run has one."""

    def __init__(self, client: AsyncSikaClient, interrupts: Interrupts, screen: Screen) -> None:
        self.id = ""
        self.lines: Lines | None = None
        """Where the person types; what is entered during a run steers it."""
        self._client, self._interrupts, self._screen = client, interrupts, screen

    async def watch(
        self, thread: str, events: AsyncGenerator[StreamEvent, None], feed: Callable[[StreamEvent], None]
    ) -> bool:
        """Feeds the events to a view; returns True at their end, False after Ctrl-C. Raises `ClientError`."""
        ended = False
        problem: ClientError | None = None
        send, entered = anyio.create_memory_object_stream[str](MOST_WAITING)
        async with send, entered, anyio.create_task_group() as tasks:
            tasks.start_soon(self._cancel_at_interrupt, thread, tasks.cancel_scope)
            tasks.start_soon(self._steer, thread, entered)
            try:
                with self._typing(send):
                    async with aclosing(events):
                        async for event in events:
                            self.id = event.run_id
                            feed(event)
                ended = True
            except ClientError as error:  # a task group would wrap it
                problem = error
            while entered.statistics().current_buffer_used:
                self._keep(entered.receive_nowait())
            tasks.cancel_scope.cancel()
        self._screen.conclude()
        if problem is not None:
            raise problem
        return ended

    @contextmanager
    def _typing(self, send: MemoryObjectSendStream[str]) -> Iterator[None]:
        """Reads what the person types during the block, if the terminal can show it."""
        if self.lines is None or not self._screen.live:
            yield
            return

        def enter(text: str) -> None:
            try:
                send.send_nowait(text)
            except anyio.WouldBlock:
                self._keep(text)

        with self.lines.while_working(self._screen.typed, enter, self._interrupts.press):
            yield
        self._screen.typed("")

    async def _steer(self, thread: str, entered: MemoryObjectReceiveStream[str]) -> None:
        """Sends what the person enters to the run."""
        async for text in entered:
            self._screen.notice(f"> {one_line(text, 200)}")
            if not self.id:
                self._keep(text)
                continue
            if await to_thread.run_sync(names_files, text):
                self._keep(text, "files go with a message of their own")
                continue
            try:
                with anyio.CancelScope(shield=True), anyio.fail_after(STEER_SECONDS):
                    await self._client.steer(thread, self.id, text)
            except (ClientError, TimeoutError):  # the run has just ended, or the server is away
                self._keep(text)

    def _keep(self, text: str, reason: str = "too late for this run") -> None:
        """Begins the next message with what cannot reach the run."""
        self._screen.notice(f"({reason}: it begins your next message)")
        if self.lines is not None:
            self.lines.begin(text)

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
