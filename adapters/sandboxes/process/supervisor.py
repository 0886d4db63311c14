"""Program that runs the command of a call, ends its whole tree and records the outcome: see `record.py`.

Supervisors are forked from a *template* (`serve`), a process of the server that has imported everything: starting
Python takes 25 ms, a fork takes one. It imports only small modules of the standard library, and those beside it.
A supervisor may start the sandbox before it gets a call (`spare.py`).
"""

from __future__ import annotations

import ctypes
import gc
import marshal
import os
import select
import signal
import socket
import sys
import time

from adapters.sandboxes.process import cgroups, processes
from adapters.sandboxes.process.holder import hold
from adapters.sandboxes.process.launch import PR_SET_CHILD_SUBREAPER, Forks, Waiting, start
from adapters.sandboxes.process.usage import TICK, Disk, Greed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from adapters.sandboxes.process.launch import Orders

HEAD, TAIL = 4 << 20, 256 << 10
"""Bytes stored of each stream: the first and the last. The bytes between are counted and dropped."""
SEGMENT = 4 << 20
"""Bytes of a file of the output of a command in the background."""
LAST_WAIT = 10.0
"""Timeout for killed processes in seconds; a process that hangs in the kernel must not keep the record open."""
CALL, FDS = b".", (4, 5)
"""Request for the supervisor of a call, with descriptors: the record's lock and log, the orders, the pipe for news, and
the lock that says that it uses the thread's machine, if it does.
"""
SPARE, SPARE_FDS = b"+", (2,)
"""Request for a supervisor that waits for its call, with two descriptors: the orders for its sandbox, and the socket by
which the request for the call will come.
"""
HOLD, HOLD_FDS = b"=", (3,)
"""Request for the holder of a thread's machine, with the descriptors of `holder.hold`."""
SPARE_SECONDS = 120.0
"""Time after which a sandbox that nobody needed ends."""
KILLED = "exited", 128 + signal.SIGKILL
"""The outcome of a command that was ended because it exceeded a limit."""
_libc = ctypes.CDLL(None, use_errno=True)
_linux = sys.platform == "linux"


class News:
    """Tells the server that there is output, or the outcome. A server that is gone, or that is slow, loses nothing by
    a byte that is dropped: it reads the record.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        os.set_blocking(fd, False)

    def tell(self) -> None:
        try:
            os.write(self._fd, b".")
        except OSError:
            return

    def close(self) -> None:
        os.close(self._fd)


class Spool:
    """A stream of the command: the head goes to the file as it comes, the tail at the end."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        self._file = -1
        self._space, self._dropped, self._tail = HEAD, 0, bytearray()

    def open(self, path: str) -> None:
        os.close(self.write_end)  # the command has it
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)

    def pump(self) -> bool:
        """Reads the available bytes; returns False if there are none (yet, or any more)."""
        try:
            data = os.read(self.read_end, 1 << 16)
        except BlockingIOError:
            return False
        self.put(data)
        return bool(data)

    def put(self, data: bytes) -> None:
        head, rest = data[: self._space], data[self._space :]
        os.write(self._file, head)
        self._space -= len(head)
        self._tail += rest
        if len(self._tail) > 2 * TAIL:
            self._trim()

    def finish(self) -> None:
        while self.pump():
            pass
        self._trim()
        if self._dropped:
            os.write(self._file, b"\n[... %d bytes skipped ...]\n" % self._dropped)
        os.write(self._file, self._tail)
        os.close(self._file)

    def _trim(self) -> None:
        if len(self._tail) > TAIL:
            self._dropped += len(self._tail) - TAIL
            del self._tail[:-TAIL]


def serve(connection: socket.socket) -> None:
    """Forks a supervisor for each byte with descriptors that comes, until the server is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps supervisors
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    gc.freeze()
    while True:
        data, fds, *_ = socket.recv_fds(connection, 1, max(FDS))
        if not data:
            return
        _keep(fds)
        work, numbers = _WORK[data]
        if len(fds) in numbers and os.fork() == 0:
            connection.close()
            _become(work, fds)
        for fd in fds:
            os.close(fd)


def _keep(fds: list[int]) -> None:
    """Keeps descriptors from the command: it must not keep the record locked."""
    for fd in fds:
        os.set_inheritable(fd, False)


def _become(work: Callable[..., None], fds: list[int]) -> None:
    """Turns the forked process into a supervisor."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the template's setting would lose a child's exit code
        os.setsid()
        if _linux:
            _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        work(*fds)
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def _spare(orders: int, connection: int) -> None:
    """Starts a sandbox, and supervises the call that comes for it, if any."""
    with open(orders, "rb") as file:
        waiting = Waiting(marshal.load(file), Spool(), Spool())
    with socket.socket(fileno=connection) as calls:
        calls.settimeout(SPARE_SECONDS)
        try:
            _, fds, *_ = socket.recv_fds(calls, 1, max(FDS))
        except TimeoutError:
            fds = []
    if len(fds) in FDS:
        _keep(fds)
        _supervise(*fds, waiting=waiting)
    else:
        end_tree(waiting.child)


def _supervise(
    lock: int, log: int, orders: int, news: int, use: int | None = None, *, waiting: Waiting | None = None
) -> None:
    """Supervises a call, in the sandbox that waits for it or a new one. `use` stays locked meanwhile."""
    os.dup2(log, 2)
    os.close(log)
    with open(orders, "rb") as file:
        record, job = marshal.load(file)  # raises if the server died before it had written all
    main(record, lock, job, News(news), waiting)
    if use is not None:
        os.utime(use)


_WORK: dict[bytes, tuple[Callable[..., None], tuple[int, ...]]] = {
    CALL: (_supervise, FDS),
    SPARE: (_spare, SPARE_FDS),
    HOLD: (hold, HOLD_FDS),
}


def main(record: str, lock: int, orders: Orders, news: News, waiting: Waiting | None) -> None:
    os.chdir(record)
    stop = _signal_pipe()
    publish("pid", b"%d" % os.getpid())
    groups = cgroups.make(orders["groups"])
    child, forks, out, err = _started(orders, groups, waiting)
    out.open("stdout")
    err.open("stderr")
    out = Rolling(out) if orders["rolling"] else out
    disk = Disk(orders, lock)
    ended, code = watch(child, orders, (out, err), stop, forks, disk, news, Greed(orders, groups))
    cgroups.kill(groups)
    end_tree(child)
    out.finish()
    err.finish()
    publish("exit", f'{{"ended":"{ended}","exit_code":{"null" if code is None else code}}}'.encode())
    news.close()
    cgroups.remove(groups)
    os.close(lock)
    disk.finish()


def _started(orders: Orders, groups: list[str], waiting: Waiting | None) -> tuple[int, Forks | None, Spool, Spool]:
    """Starts the command, in the sandbox that waits for it unless that has ended. Returns its process and streams."""
    if waiting is not None and reap(waiting.child) is None and waiting.enter(groups):
        waiting.run(orders["command"])
        return waiting.child, None, waiting.out, waiting.err
    if waiting is not None:
        end_tree(waiting.child)
    out, err = Spool(), Spool()
    return *start(orders, out.write_end, err.write_end, groups), out, err


def publish(path: str | os.PathLike[str], content: bytes) -> None:
    """Writes a file atomically and durably: after a power cut it is there completely or not at all."""
    with open(f"{path}.new", "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.new", path)
    directory = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


class Rolling(Spool):
    """The output of a command in the background: a row of files of `SEGMENT` bytes, of which the last two stay."""

    def __init__(self, spool: Spool) -> None:
        self.read_end, self._file, self._number = spool.read_end, spool._file, -1
        self._roll()

    def put(self, data: bytes) -> None:
        while data:
            part, data = data[: self._space], data[self._space :]
            os.write(self._file, part)
            self._space -= len(part)
            if not self._space:
                self._roll()

    def finish(self) -> None:
        while self.pump():
            pass
        os.close(self._file)

    def _roll(self) -> None:
        os.close(self._file)
        if self._number > 0:
            os.unlink(f"stdout.{self._number - 1}")
        self._number, self._space = self._number + 1, SEGMENT
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._file = os.open(f"stdout.{self._number}", flags, 0o600)


def _signal_pipe() -> int:
    """Returns the descriptor on which SIGTERM (a request to end) and SIGCHLD (an ended child) arrive."""
    read_end, write_end = os.pipe()
    for end in (read_end, write_end):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return read_end


# ── watching ────────────────────────────────────────────────────────────────────────────────────────────────────────


def watch(
    child: int,
    orders: Orders,
    spools: tuple[Spool, ...],
    stop: int,
    forks: Forks | None,
    disk: Disk,
    news: News,
    greed: Greed,
) -> tuple[str, int | None]:
    """Waits for the end of the command, its timeout, an exceeded limit or SIGTERM; returns the outcome and the code."""
    deadline = time.monotonic() + orders["timeout"]
    streams = {spool.read_end: spool for spool in spools}
    poll = select.poll()
    for fd in (stop, *streams, *([] if forks is None else [forks.fd])):
        poll.register(fd, select.POLLIN)
    looked = time.monotonic()
    while (now := time.monotonic()) < deadline:
        for fd, event in poll.poll(min(deadline - now, TICK) * 1000):
            if fd == stop:
                if signal.SIGTERM in os.read(stop, 512):
                    return "interrupted", None
            elif forks is not None and fd == forks.fd:
                if event & select.POLLIN:
                    forks.answer()
                else:
                    poll.unregister(fd)
            elif streams[fd].pump():
                news.tell()
            elif event & select.POLLHUP:
                poll.unregister(fd)
        if (code := reap(child)) is not None:
            if (reason := greed.killed()) is not None:
                spools[1].put(_stopped(reason))
                return KILLED
            return "exited", code
        if time.monotonic() - looked > TICK and _linux:
            looked = time.monotonic()
            if not os.path.exists("pid"):  # the record was deleted, with its thread
                return "interrupted", None
            if (reason := greed.look() or disk.look()) is not None:
                spools[1].put(_stopped(reason))
                return KILLED
    return "timeout", None


def _stopped(reason: str) -> bytes:
    return f"\nstopped: {reason}\n".encode()


def reap(child: int) -> int | None:
    """Reaps all ended processes, also adopted orphans. Returns the command's exit code if it was among them."""
    code = None
    try:
        while (result := os.waitpid(-1, os.WNOHANG))[0]:
            if result[0] == child:
                status = os.waitstatus_to_exitcode(result[1])
                code = status if status >= 0 else 128 - status  # as shells report signals
    except ChildProcessError:
        pass
    return code


def end_tree(child: int) -> None:
    """Kills until there are no children: with a subreaper that means no descendants, either."""
    deadline, pause = time.monotonic() + LAST_WAIT, 0.0002
    while _has_children() and time.monotonic() < deadline:
        # Without a subreaper and /proc, the command's process group must do.
        for pid in processes.descendants() if _linux else [-child]:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        time.sleep(pause)
        pause = min(2 * pause, 0.01)


def _has_children() -> bool:
    reap(0)
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
