"""The files of a thread on its machine while a command runs, against the thread's limits."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from anyio import to_thread

from adapters.sandboxes.process import quota
from adapters.sandboxes.process.usage import COUNTING_SHARE
from adapters.sandboxes.remote.link import Link

COUNT_EVERY = 2.0
"""Seconds between two counts. Nothing tells this machine earlier that the disk of another one fills."""


class Usage:
    """Counts now and then. The last count lies beside the machine's records: a command on a machine that is above a
    limit already may run, to delete files, but not add to them.
    """

    def __init__(self, root: Path, records: Path, limits: quota.Quota) -> None:
        self._root, self._records, self._limits = str(root), str(records), limits
        self._next, self._stopped = time.monotonic() + COUNT_EVERY, False

    def pause(self) -> float:
        """Returns the seconds until a count is due, which are at least `COUNT_EVERY`."""
        return max(self._next - time.monotonic(), COUNT_EVERY)

    async def excess(self, link: Link) -> str | None:
        """Returns the exceeded limit, once."""
        if self._stopped or time.monotonic() < self._next or not any(self._limits.values()):
            return None
        begun = time.monotonic()
        reason = await to_thread.run_sync(self._judge, await link.usage())
        self._next = time.monotonic() + max(COUNT_EVERY, COUNTING_SHARE * (time.monotonic() - begun))
        self._stopped = reason is not None
        return reason

    def _judge(self, usage: quota.Usage) -> str | None:
        last = [counted[0] for path in (self._records, self._root) if (counted := quota.recorded(path)) is not None]
        size, number = (max((counted[key] for counted in last), default=0) for key in (0, 1))
        with contextlib.suppress(OSError):  # another command of the thread stores its own
            quota.record(self._records, usage)
        return quota.excess(usage, quota.others(self._root), quota.allowing(self._limits, (size, number)))
