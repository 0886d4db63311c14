"""What commands need of the server while they run: their network, and in the background the watch over their files."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path

import anyio
import structlog
from anyio.abc import TaskGroup, TaskStatus

from adapters.sandboxes.docker.calls import Call
from adapters.sandboxes.egress.wayout import WayOut
from core.errors import Unavailable
from core.ports.sandbox import Access

log = structlog.get_logger("sika.sandbox")

EGRESS = "/run/sika-egress"
"""Where a container sees the sockets of its calls. It may not write there."""
MOST_HELD = 1024
"""Commands in the background of a server at a time."""


class Egress:
    """The network of a thread's calls. `way_out` is None where commands have none of this kind. Commands of a thread
    run in one container, so that one may use the socket of another.
    """

    def __init__(self, way_out: WayOut | None, folder: Path, owner: int) -> None:
        self._way_out, self._folder, self._owner = way_out, folder, owner

    @property
    def there(self) -> bool:
        return self._way_out is not None

    def prefix(self, call: Call) -> Sequence[str]:
        """Returns the words before a command's shell, by which it gets its proxy."""
        return self._way_out.command("python3", [], _name(call)) if self._way_out else []

    def open(self, call: Call) -> AbstractAsyncContextManager[None]:
        """Serves a call."""
        if self._way_out is None:
            return nullcontext()
        return self._way_out.open(call.record.path, self._folder / _name(call), self._owner)

    async def accesses(self, call: Call) -> Sequence[Access]:
        return await self._way_out.accesses(call.record.path) if self._way_out else ()


class Background:
    """The commands in the background that this server looks after, from when they start or somebody asks for them."""

    def __init__(self) -> None:
        self._tasks: TaskGroup | None = None
        self._held: set[Path] = set()

    async def run(self) -> None:
        """Owns their tasks, until cancelled."""
        async with anyio.create_task_group() as self._tasks:
            await anyio.sleep_forever()

    async def hold(self, call: Call, egress: Egress, watch: Callable[[], Awaitable[None]]) -> None:
        """Serves a call and runs its watch; once, however often it is asked for. Raises `Unavailable` for a call with
        a network in a process that runs no commands in the background.
        """
        if self._tasks is None and egress.there:
            raise Unavailable("this process has no network for commands in the background")
        if self._tasks is None or call.record.path in self._held:
            return
        if len(self._held) >= MOST_HELD:
            raise Unavailable(f"{MOST_HELD} commands run in the background of this server; wait until some have ended")
        self._held.add(call.record.path)
        await self._tasks.start(self._hold, call, egress, watch)

    async def _hold(
        self, call: Call, egress: Egress, watch: Callable[[], Awaitable[None]], *, task_status: TaskStatus[None]
    ) -> None:
        try:
            async with egress.open(call):
                task_status.started()
                try:
                    await watch()
                except Exception as error:  # it must not end the server
                    log.error("a command in the background is not watched any more", call=call.name, error=repr(error))
        finally:
            self._held.discard(call.record.path)


def _name(call: Call) -> str:
    """Returns the name of a call's folder: short, because the path of a socket is limited (unix(7): 107 bytes)."""
    return hashlib.blake2b(call.name.encode(), digest_size=8).hexdigest()
