"""An event loop in a thread of its own, for callers that have none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from channels.client.errors import closed

T = TypeVar("T")


class Background:
    """Runs until `stop`, and calls `last` at its end. `daemon`: the interpreter may end before it."""

    def __init__(self, name: str, last: Callable[[], Awaitable[None]], *, daemon: bool) -> None:
        self._last = last
        self._ready: Future[BlockingPortal] = Future()
        self._ended: Future[None] = Future()
        self._settling: set[asyncio.Future[Any]] = set()
        self._thread = threading.Thread(target=self._run, name=name, daemon=daemon)
        self._thread.start()
        self.portal = self._ready.result()

    def call(self, work: Callable[[], Awaitable[T]]) -> T:
        """Does the work in the loop, and waits. If the wait is interrupted (Ctrl-C), the work is cancelled."""
        try:
            future = self.portal.start_task_soon(work)
        except RuntimeError:
            raise closed() from None
        try:
            return future.result()
        except CancelledError:
            raise closed() from None
        except BaseException:
            future.cancel()
            raise

    def settle(self, work: Callable[[], Awaitable[Any]]) -> None:
        """Like `call`, for finalizers. The garbage collector may run them in the thread of a loop, perhaps the one that
        the work needs: there it does not wait.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self.call(work)
        else:
            with suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._begin, work)

    def _begin(self, work: Callable[[], Awaitable[Any]]) -> None:
        task = asyncio.ensure_future(work())
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    def stop(self) -> None:
        """Cancels the tasks, and waits for the end. May be repeated."""
        with suppress(RuntimeError):  # it has ended
            self.portal.start_task_soon(self.portal.stop, True)
        self._thread.join()
        self._ended.result()

    def _run(self) -> None:
        options: dict[str, Any] = {"use_uvloop": find_spec("uvloop") is not None}
        try:
            anyio.run(self._main, backend="asyncio", backend_options=options)
            self._ended.set_result(None)
        except BaseException as error:
            (self._ended if self._ready.done() else self._ready).set_exception(error)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with BlockingPortal() as portal:
            self._ready.set_result(portal)
            await portal.sleep_until_stopped()
        await self._last()
