"""Sandboxes that are made before their command is known, because bubblewrap takes half of the time of a short one.

When a call starts, the template is asked for another supervisor that starts the same sandbox, whose shell waits. The
thread's next call is sent to it, if it would have the same sandbox: the same arguments and limits, and the same folders
at its mounts. Each serves one call, so calls share nothing but files, as without it. Before it gets the command, it
enters the control groups of the call. If it has ended when a call comes, the call starts a sandbox itself. One that is
not used ends after `supervisor.SPARE_SECONDS`, with its server, or when there are more than `MOST`.

Rejected: one sandbox for all calls of a thread, which is as fast, but what one call leaves in it, another one finds.
"""

from __future__ import annotations

import marshal
import os
import socket
import threading
from collections import OrderedDict

import msgspec

from adapters.sandboxes.process.job import Job
from adapters.sandboxes.process.supervisor import CALL, SPARE
from adapters.sandboxes.process.template import template

MOST = 16
"""Limit of sandboxes that wait; each takes some 4 MB."""


class _Spare:
    def __init__(self, key: object, connection: int) -> None:
        self.key, self._connection = key, connection

    def send(self, fds: list[int]) -> bool:
        with socket.socket(fileno=os.dup(self._connection)) as connection:
            connection.setblocking(False)
            try:
                socket.send_fds(connection, [CALL], fds)
            except OSError:  # it has ended
                return False
        return True

    def __del__(self) -> None:
        os.close(self._connection)  # it ends, unless it has a call


class Spares:
    """The waiting sandboxes of a server, one for each thread. The methods block; run them in a thread."""

    def __init__(self) -> None:
        self._spares: OrderedDict[str, _Spare] = OrderedDict()
        self._lock = threading.Lock()

    def send(self, job: Job, fds: list[int]) -> bool:
        """Sends a call to the thread's sandbox that waits. Returns False if there is none for this job."""
        with self._lock:
            spare = self._spares.pop(job.thread, None) if job.waiting else None
        return spare is not None and spare.key == _key(job) and spare.send(fds)

    def prepare(self, job: Job) -> None:
        """Has a sandbox made for the thread's next call, if it can be made before its command is known."""
        if not job.waiting:
            return
        try:
            spare = _Spare(_key(job), self._request(job))
        except OSError:  # then the next call starts a sandbox itself
            return
        with self._lock:
            self._spares[job.thread] = spare
            if len(self._spares) > MOST:
                self._spares.popitem(last=False)

    def close(self) -> None:
        """Ends those that wait."""
        with self._lock:
            self._spares.clear()

    def _request(self, job: Job) -> int:
        """Requests a supervisor with its sandbox. Returns the connection to it. Raises `OSError`."""
        connection, other = socket.socketpair()
        orders_read, orders_write = os.pipe()
        with connection, other, open(orders_write, "wb") as pipe:
            try:
                template.request(SPARE, [orders_read, other.fileno()])
            finally:
                os.close(orders_read)
            pipe.write(marshal.dumps(msgspec.structs.asdict(job) | {"argv": job.waiting}))
            return connection.detach()


def _key(job: Job) -> object:
    """Returns what makes two sandboxes of a thread the same."""
    return msgspec.structs.replace(job, argv=[], timeout=0), [_identity(path) for path in job.mounts]


def _identity(path: str) -> tuple[int, int] | None:
    try:
        info = os.stat(path)
    except OSError:
        return None
    return info.st_dev, info.st_ino
