"""Runs the command of one call, ends its whole tree and records how it ended. A program of its own: see `record.py`.

Only the standard library and nothing of ours: it starts with `python -I -S` in a few milliseconds and imports no user
code.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import sys
import time
from typing import Any

HEAD = TAIL = 256 * 1024
"""Kept of each stream: the first and the last bytes. What lies between is counted and dropped, so a record stays
small."""
TICK = 0.25
"""Seconds between two counts of the processes."""
LAST_WAIT = 10.0
"""Seconds to wait for killed processes; one that hangs in the kernel must not keep the record open for ever."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h

_libc = ctypes.CDLL(None, use_errno=True)


class Spool:
    """One stream of the command: the head goes to the file as it comes, the tail at the end."""

    def __init__(self, path: str) -> None:
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._room, self._dropped, self._tail = HEAD, 0, bytearray()

    def pump(self) -> bool:
        """Take what is there; False when there is nothing (yet, or any more)."""
        try:
            data = os.read(self.read_end, 1 << 16)
        except BlockingIOError:
            return False
        self.put(data)
        return bool(data)

    def put(self, data: bytes) -> None:
        head, rest = data[: self._room], data[self._room :]
        os.write(self._file, head)
        self._room -= len(head)
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


def main(record: str, lock: int) -> None:
    os.set_inheritable(lock, False)  # the command must not keep the record locked
    spec = json.load(sys.stdin)  # raises if the server died before it had written all: then nothing was started
    os.chdir(record)
    if sys.platform == "linux":
        _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    stop = _listen()
    publish("pid", str(os.getpid()))
    out, err = Spool("stdout"), Spool("stderr")
    child = start(spec, out.write_end, err.write_end)
    os.close(out.write_end)
    os.close(err.write_end)
    outcome = watch(child, spec, (out, err), stop)
    end_tree(child)
    out.finish()
    err.finish()
    publish("exit", json.dumps(outcome))


def publish(name: str, text: str) -> None:
    """Write a file all at once and durably: after a power cut it is there completely or not at all."""
    with open(f"{name}.new", "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{name}.new", name)
    directory = os.open(".", os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


def _listen() -> int:
    """SIGTERM asks for the end, SIGCHLD tells of one; both arrive on the descriptor that is returned."""
    read_end, write_end = os.pipe()
    for end in (read_end, write_end):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return read_end


def start(spec: dict[str, Any], stdout: int, stderr: int) -> int:
    supervisor = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        os.setsid()
        if sys.platform == "linux":
            _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != supervisor:
                os._exit(1)
        for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        limit(spec["limits"])
        os.chdir(spec["cwd"])
        os.execve(spec["argv"][0], spec["argv"], spec["env"])
    except BaseException as error:
        os.write(2, f"cannot start: {error}\n".encode())
    finally:
        os._exit(126)


def limit(limits: dict[str, int]) -> None:
    for name, value in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def watch(child: int, spec: dict[str, Any], spools: tuple[Spool, ...], stop: int) -> dict[str, Any]:
    """Wait for the end of the command, its time or its welcome; how it ended."""
    deadline = time.monotonic() + spec["timeout"]
    poll = select.poll()
    poll.register(stop, select.POLLIN)
    streams = {spool.read_end: spool for spool in spools}
    for fd in streams:
        poll.register(fd, select.POLLIN)
    counted = time.monotonic()
    while (now := time.monotonic()) < deadline:
        for fd, event in poll.poll(min(deadline - now, TICK) * 1000):
            if fd == stop:
                if signal.SIGTERM in os.read(stop, 512):
                    return {"ended": "interrupted"}
            elif not streams[fd].pump() and event & select.POLLHUP:
                poll.unregister(fd)
        if (code := reap(child)) is not None:
            return {"ended": "exited", "exit_code": code}
        if time.monotonic() - counted > TICK:
            counted = time.monotonic()
            if crowded(spec["max_processes"]):
                spools[1].put(b"\nstopped: more than %d processes\n" % spec["max_processes"])
                return {"ended": "exited", "exit_code": 128 + signal.SIGKILL}
    return {"ended": "timeout"}


def reap(child: int) -> int | None:
    """Bury everybody who died, also the orphans that came to us; the command's exit code if it was among them."""
    code = None
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            if found[0] == child:
                status = os.waitstatus_to_exitcode(found[1])
                code = status if status >= 0 else 128 - status  # as shells report signals
    return code


def descendants() -> list[int]:
    """All processes below this one. Orphans are ours (subreaper), so nobody is missed by forking twice."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else []):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            parent = int(file.read().rpartition(b")")[2].split()[1])
            children.setdefault(parent, []).append(int(name))
    found, queue = [], [os.getpid()]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def crowded(limit: int) -> bool:
    """Counting everybody is cheap and an upper bound; only when it is exceeded do we look who is ours."""
    if sys.platform != "linux" or sum(map(str.isdigit, os.listdir("/proc"))) <= limit:
        return False
    return len(descendants()) > limit


def end_tree(child: int) -> None:
    """Kill until there are no children: with a subreaper that means no descendants either."""
    deadline = time.monotonic() + LAST_WAIT
    while time.monotonic() < deadline:
        if sys.platform != "linux":  # no subreaper and no /proc: the command's process group must do
            with contextlib.suppress(OSError):
                os.killpg(child, signal.SIGKILL)
        for pid in descendants():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        reap(0)
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        time.sleep(0.002)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
