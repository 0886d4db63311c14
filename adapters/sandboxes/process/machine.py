"""The machine of a thread: what its commands share beside the files, though each has a sandbox of its own.

Theory of operation
===================

Commands of one thread reach each other's ports by localhost, and share /tmp. Both would end with a command, as its
namespaces and its mounts do. So a thread has a folder (`<thread>/machines/local-…/`) and a small process, the *holder*
(`holder.py`), whose namespaces of users and of network each command joins before bubblewrap makes the rest:

    tmp    what commands see as /tmp: it counts to the disk quota
    life   flock(LOCK_EX) of the holder: it lives exactly while the lock is held
    pid    the holder's
    use    flock(LOCK_SH) of each supervisor; its time is that of the last use
    door   flock(LOCK_EX) of who changes any of this, for milliseconds
    news   words for the next command about what was lost

A server that starts a command goes through the door, makes the holder if `life` is free, and passes its lock on `use`
to the supervisor. A holder ends `LINGER` seconds after its last use: a network without processes holds nothing that
anybody could miss. It needs no server for that, and no server needs to remember it, so both may be killed at any time.
If a holder was killed, the next command gets another one; if commands of the first still run, it is told that their
ports are lost.

/tmp is emptied when no command ran for `sandbox.idle_seconds`, as a machine of the other providers ends then: by the
next command, or by a sweep of any server. `<home>/sandbox/machines` lists the folders for that, and a sweep costs
nothing for other threads.

A command that gets secrets joins no machine (`private`): what the agent wrote or serves must not reach it.

Workers on other computers, or in other containers, cannot join a process here. The folder's name tells the computers
apart: such workers have a machine of their own for the thread.

Rejected: one sandbox for all commands of a thread (what one leaves running or mounted, another one finds; limits and
output are no longer a command's); keeping the namespaces by descriptors in the server (they end with it, and other
servers cannot find them); a tmpfs for /tmp (memory that idle threads would hold, outside of every command's limit).
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import marshal
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from adapters.sandboxes.confine.confinement import binary
from adapters.sandboxes.process import holder
from adapters.sandboxes.process.supervisor import HOLD
from adapters.sandboxes.process.template import template
from core.errors import Unavailable

LINGER = 120.0
"""Seconds for which a network without a command stays, as long as the sandbox that waits for the next one."""
SWEEP_SECONDS = 60.0
"""Pause between two sweeps."""
CACHES = frozenset(("cache", "matplotlib"))
"""Names that programs put into /tmp by themselves: nobody misses them."""
EMPTIED = "no command ran for a while, so /tmp was emptied."
DOOR_SECONDS, HOLDER_SECONDS = 30.0, 30.0
"""Timeouts of the door, and of making a holder."""
PAUSE = 0.002
LOST = (
    "the network that commands share was lost: servers in the background that were started before cannot be reached "
    "any more. Start them again."
)
_CODE = str(Path(holder.__file__).parents[3])
_TRY = """import sys; sys.path.append(sys.argv[1])
import os; from adapters.sandboxes.process.holder import NAMESPACES, isolate, join
ready, is_ready = os.pipe()
if child := os.fork():
    isolate(); os.write(is_ready, b"."); sys.exit(os.waitpid(child, 0)[1] != 0)
os.close(is_ready)
if os.read(ready, 1): join(os.getppid(), list(NAMESPACES)); os.execv(sys.argv[2], sys.argv[2:])"""
"""A process isolates itself, and its child joins it there and makes a sandbox."""
_TRY_SECONDS = 15.0


class Use(NamedTuple):
    """A machine in use. `fd`: the lock that says so, for the supervisor. `holder`: the process to join, if any."""

    fd: int
    holder: int
    news: str


class Machine:
    """The machine of one thread. The methods block; run them in a thread."""

    def __init__(self, root: Path, home: Path, idle_seconds: float, *, network: bool) -> None:
        """`network`: commands share a network of their own, which needs `is_joinable`."""
        self.folder = root / "machines" / f"local-{_computer()}"
        self.shares = list(holder.NAMESPACES) if network else []
        self._idle_seconds = idle_seconds
        self._entry = _entries(home) / hashlib.sha256(os.fsencode(self.folder)).hexdigest()[:32]

    @property
    def tmp(self) -> Path:
        """The folder that commands see as /tmp."""
        return self.folder / "tmp"

    @contextlib.contextmanager
    def used(self) -> Iterator[Use]:
        """Yields the machine, which does not end while the descriptor is open. Raises `Unavailable`."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _door(self.folder):
            fd = os.open(self.folder / "use", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                self._make()
                fcntl.flock(fd, fcntl.LOCK_SH)
                os.utime(fd)
            except BaseException:
                os.close(fd)
                raise
        try:
            pid = int((self.folder / "pid").read_bytes()) if self.shares else 0
            yield Use(fd, pid, _read(self.folder / "news"))
        finally:
            os.close(fd)

    def forget_news(self) -> None:
        """Notes that the words about what was lost reached a command."""
        (self.folder / "news").unlink(missing_ok=True)

    def _make(self) -> None:
        """Makes what is not there: /tmp and the holder."""
        _empty_if_idle(self.folder, self._idle_seconds)
        if not self.tmp.exists():
            self._entry.parent.mkdir(parents=True, exist_ok=True)
            self._entry.write_text(str(self.folder))
            self.tmp.mkdir()
        self.tmp.chmod(0o1777)  # each time: commands can close it
        if not self.shares or (life := holder.locked(f"{self.folder}/life")) is None:
            return
        try:
            if _is_used(self.folder):
                holder.write(f"{self.folder}/news", LOST.encode())
            self._begin(life)
        finally:
            os.close(life)

    def _begin(self, life: int) -> None:
        orders_read, orders_write = os.pipe()
        ready, ready_write = os.pipe()
        try:
            try:
                os.write(orders_write, marshal.dumps((str(self.folder), LINGER)))
                template.request(HOLD, [life, orders_read, ready_write])
            finally:
                for fd in (orders_read, orders_write, ready_write):
                    os.close(fd)
            poll = select.poll()  # descriptors of a server may be too large for `select`
            poll.register(ready, select.POLLIN)
            answer = os.read(ready, 4096) if poll.poll(HOLDER_SECONDS * 1000) else b""
        finally:
            os.close(ready)
        if answer != b".":
            raise Unavailable(f"the sandbox of the thread cannot be started: {answer[1:].decode() or 'no answer'}")


def sweep(home: Path, idle_seconds: float) -> None:
    """Empties /tmp of threads that are idle, and forgets those that were erased."""
    for entry in _folders(home):
        with contextlib.suppress(OSError, Unavailable):
            folder = Path(entry.read_text())
            if not folder.is_dir():
                entry.unlink()
                continue
            with _door(folder):
                _empty_if_idle(folder, idle_seconds)
                if not (folder / "tmp").exists():
                    entry.unlink()
            _discard(folder)


def end_unused(home: Path) -> None:
    """Ends the networks as the server stops. One that a command uses ends after it."""
    for entry in _folders(home):
        with contextlib.suppress(OSError, ValueError, Unavailable):
            folder = Path(entry.read_text())
            with _door(folder):
                if _is_locked(folder / "life"):
                    os.kill(int((folder / "pid").read_text()), signal.SIGTERM)


@functools.cache
def is_joinable() -> bool:
    """Tells whether a sandbox can be made within namespaces of another process, as commands that share them are."""
    words = [binary() or "bwrap", "--unshare-user", "--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    command = [sys.executable, "-I", "-S", "-c", _TRY, _CODE, *words]
    try:
        process = subprocess.run(command, capture_output=True, env={}, timeout=_TRY_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return process.returncode == 0


def _entries(home: Path) -> Path:
    return home / "sandbox" / "machines"


def _folders(home: Path) -> list[Path]:
    with contextlib.suppress(FileNotFoundError):
        return sorted(_entries(home).iterdir())
    return []


def _is_used(folder: Path) -> bool:
    return _is_locked(folder / "use")


def _is_locked(path: Path) -> bool:
    """Tells whether another process has a lock. Only within the door: it has the lock itself meanwhile."""
    if (fd := holder.locked(str(path))) is None:
        return True
    os.close(fd)
    return False


def _empty_if_idle(folder: Path, idle_seconds: float) -> None:
    """Removes what commands left in /tmp, and leaves a note if somebody may miss it. Only within the door."""
    temporary = folder / "tmp"
    if not idle_seconds or not temporary.exists() or _is_used(folder):
        return
    if time.time() - (folder / "use").stat().st_mtime < idle_seconds:
        return
    if {*os.listdir(temporary)} - CACHES:
        holder.write(f"{folder}/news", EMPTIED.encode())
    temporary.rename(folder / f"old-{time.time_ns()}")


def _discard(folder: Path) -> None:
    """Deletes what was removed. What cannot be deleted is tried again at the next sweep."""
    for old in folder.glob("old-*"):
        with contextlib.suppress(OSError, RecursionError):
            for place, names, _ in os.walk(old):
                for name in names:
                    if not os.path.islink(f"{place}/{name}"):
                        os.chmod(f"{place}/{name}", 0o700)  # commands may have closed it
            shutil.rmtree(old)


@contextlib.contextmanager
def _door(folder: Path) -> Iterator[None]:
    """Keeps everybody else from changing the machine. Raises `Unavailable`."""
    until = time.monotonic() + DOOR_SECONDS
    while (fd := holder.locked(f"{folder}/door")) is None:
        if time.monotonic() > until:
            raise Unavailable("the sandbox of the thread is being started or ended by another process for too long")
        time.sleep(PAUSE)
    try:
        yield
    finally:
        os.close(fd)


@functools.cache
def _computer() -> str:
    """Returns what tells the computers and containers apart whose processes do not see each other."""
    try:
        processes = os.readlink("/proc/self/ns/pid")
    except OSError:
        processes = ""
    return hashlib.sha256(f"{os.uname().nodename} {processes}".encode()).hexdigest()[:12]


def _read(path: Path) -> str:
    with contextlib.suppress(FileNotFoundError):
        return path.read_text()
    return ""
