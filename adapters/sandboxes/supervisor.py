"""Program that runs the command of a call, ends its whole tree and records the outcome: see `record.py`.

Supervisors are forked from a *template* (`serve`), a process of the server that has imported everything: starting
Python takes 25 ms, a fork takes one. It imports only small modules of the standard library, and those beside it.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import marshal
import os
import resource
import select
import signal
import socket
import sys
import time

from adapters.sandboxes import cgroups, processes, quota

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    Orders = Mapping[str, Any]
    """A `record.Job`."""

HEAD, TAIL = 4 << 20, 256 << 10
"""Bytes stored of each stream: the first and the last. The bytes between are counted and dropped."""
SEGMENT = 4 << 20
"""Bytes of a file of the output of a command in the background."""
TICK = 0.25
"""Seconds between two checks of the command's usage."""
NEWS = 2.0
"""Seconds after which its memory is summed up, also if the machine's has hardly changed."""
COUNTING_SHARE = 20
"""Counting files takes at most a COUNTING_SHARE-th of the time."""
COUNT_EVERY = 10.0
"""Seconds after which files are counted, also if the disk has hardly changed."""
MUCH_BYTES, MUCH_FILES = 64 << 20, 2000
"""Change of the disk's free space that triggers a count."""
LAST_WAIT = 10.0
"""Timeout for killed processes in seconds; a process that hangs in the kernel must not keep the record open."""
FIRST_FD = 100
"""The first descriptor of the command's files (`Job.files`)."""
FDS = 4
"""Descriptors of a request to the template: the record's lock and log, the orders, and the pipe for news."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 36, 38  # linux/prctl.h
KEYCTL_JOIN_SESSION_KEYRING = 1
SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER = 1, 8
SECCOMP_IOCTL_NOTIF_RECV, SECCOMP_IOCTL_NOTIF_SEND, SECCOMP_USER_NOTIF_FLAG_CONTINUE = 0xC0502100, 0xC0182101, 1
PIDFD_GETFD = 438
"""The same on every architecture, as all system calls since 2019."""
EAGAIN = 11

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

    def __init__(self, path: str) -> None:
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._space, self._dropped, self._tail = HEAD, 0, bytearray()

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
        data, fds, *_ = socket.recv_fds(connection, 1, FDS)
        if not data:
            return
        for fd in fds:
            os.set_inheritable(fd, False)  # the command must not keep the record locked
        if len(fds) == FDS and os.fork() == 0:
            connection.close()
            _become(*fds)
        for fd in fds:
            os.close(fd)


def _become(lock: int, log: int, orders: int, news: int) -> None:
    """Turns the forked process into the supervisor of a call."""
    code = 1
    try:
        os.setsid()
        os.dup2(log, 2)
        os.close(log)
        with open(orders, "rb") as file:
            record, job = marshal.load(file)  # raises if the server died before it had written all
        main(record, lock, job, News(news))
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


class Rolling(Spool):
    """The output of a command in the background: a row of files of `SEGMENT` bytes, of which the last two stay."""

    def __init__(self, path: str) -> None:
        self._path, self._number = path, 0
        super().__init__(f"{path}.0")
        self._space = SEGMENT

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
        if self._number:
            os.unlink(f"{self._path}.{self._number - 1}")
        self._number, self._space = self._number + 1, SEGMENT
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._file = os.open(f"{self._path}.{self._number}", flags, 0o600)


def main(record: str, lock: int, orders: Orders, news: News) -> None:
    os.chdir(record)
    if _linux:
        _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    stop = _signal_pipe()
    publish("pid", b"%d" % os.getpid())
    rolling = orders["rolling"]
    out, err = (Rolling if rolling else Spool)("stdout"), Spool("stderr")
    groups = cgroups.make(orders["groups"])
    child, forks = start(orders, out.write_end, (out if rolling else err).write_end, groups)
    os.close(out.write_end)
    os.close(err.write_end)
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


# ── starting ────────────────────────────────────────────────────────────────────────────────────────────────────────


def start(orders: Orders, stdout: int, stderr: int, groups: list[str]) -> tuple[int, Forks | None]:
    """Starts the command. Returns its process, and the listener for new processes if the kernel does not limit them."""
    supervisor = os.getpid()
    listener_read, listener_write = os.pipe()
    ack_read, ack_write = os.pipe()
    child = os.fork()
    if child:
        os.close(listener_write)
        os.close(ack_read)
        message = os.read(listener_read, 16)
        forks = Forks(_duplicate(child, int(message)), orders["max_processes"]) if message else None
        os.close(listener_read)
        os.close(ack_write)
        return child, forks
    try:
        os.close(ack_write)
        os.setsid()
        if _linux:
            _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != supervisor:
                os._exit(1)
            _prefer_for_oom_kill()
            if orders["keyctl"]:  # else it has the keys of the session that the server was started in
                _libc.syscall(orders["keyctl"], KEYCTL_JOIN_SESSION_KEYRING, None)
        for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        _open_files(orders["files"])
        limit(orders["limits"])
        cgroups.enter(groups)
        os.chdir(orders["cwd"])
        if orders["forks"]:
            number, program = orders["forks"]
            if (listener := _filter(number, program)) >= 0:
                os.write(listener_write, b"%d" % listener)
                os.close(listener_write)
                os.read(ack_read, 1)  # the descriptor closes when the command starts: wait until it is duplicated
        os.execve(orders["program"], orders["argv"], orders["env"])
    except BaseException as error:
        os.write(2, f"cannot start: {error}\n".encode())
    finally:
        os._exit(126)


def limit(limits: Mapping[str, int]) -> None:
    for name, value in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def _open_files(files: list[bytes]) -> None:
    """Opens the command's files at the descriptors from `FIRST_FD` on, which are free."""
    for number, content in enumerate(files, FIRST_FD):
        fd = os.memfd_create("given")
        os.write(fd, content)
        os.lseek(fd, 0, os.SEEK_SET)
        os.dup2(fd, number)
        os.close(fd)


def _prefer_for_oom_kill() -> None:
    """Makes the kernel kill the command before the server if the machine runs out of memory."""
    try:
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(fd, b"1000")
        os.close(fd)
    except OSError:
        pass


def _filter(number: int, program: bytes) -> int:
    """Makes the kernel notify of new processes. Returns the listener's descriptor; negative on failure."""

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]

    _libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    filter_program = Program(len(program) // 8, program)
    listener: int = _libc.syscall(
        number, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, ctypes.byref(filter_program)
    )
    return listener


def _duplicate(child: int, fd: int) -> int:
    """Duplicates a descriptor of the child into this process."""
    process = os.pidfd_open(child)
    try:
        own: int = _libc.syscall(PIDFD_GETFD, process, fd, 0)
        return own
    finally:
        os.close(process)


class Forks:
    """Allows or refuses new processes up to a limit, for a root server, which the kernel exempts from RLIMIT_NPROC."""

    def __init__(self, listener: int, limit: int) -> None:
        self.fd, self._limit, self._space = listener, limit, 0

    def answer(self) -> None:
        notification = bytearray(80)
        try:
            fcntl.ioctl(self.fd, SECCOMP_IOCTL_NOTIF_RECV, notification)
        except OSError:  # it died meanwhile
            return
        if self._space <= 0:
            self._space = self._limit - len(processes.descendants())
        allowed = self._space > 0
        self._space -= 1
        flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE if allowed else 0
        error = (0 if allowed else -EAGAIN).to_bytes(4, sys.byteorder, signed=True)
        response = bytes(notification[:8]) + bytes(8) + error
        try:
            fcntl.ioctl(self.fd, SECCOMP_IOCTL_NOTIF_SEND, response + flags.to_bytes(4, sys.byteorder))
        except OSError:
            return


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
    poll = select.poll()
    poll.register(stop, select.POLLIN)
    streams = {spool.read_end: spool for spool in spools}
    for fd in streams:
        poll.register(fd, select.POLLIN)
    if forks is not None:
        poll.register(forks.fd, select.POLLIN)
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
                code = 128 + signal.SIGKILL
            return "exited", code
        if time.monotonic() - looked > TICK and _linux:
            looked = time.monotonic()
            if not os.path.exists("pid"):  # the record was deleted, with its thread
                return "interrupted", None
            if (reason := greed.look() or disk.look()) is not None:
                spools[1].put(_stopped(reason))
                return "exited", 128 + signal.SIGKILL
    return "timeout", None


def _stopped(reason: str) -> bytes:
    return f"\nstopped: {reason}\n".encode()


class Greed:
    """Processes and memory of the command. Samples what the kernel does not limit by a control group."""

    def __init__(self, orders: Orders, groups: list[str]) -> None:
        self._most_processes, self._most_bytes = orders["max_processes"], orders["max_bytes"]
        self._groups = groups
        self._memory_is_limited, self._processes_are_limited = cgroups.limited(groups)
        self._summed, self._bytes, self._machine = time.monotonic(), 0, processes.machine()

    def look(self) -> str | None:
        """Returns the exceeded limit. Lists the command's own processes only if a limit may be exceeded."""
        if (reason := self.killed()) is not None:
            return reason
        if self._memory_is_limited and self._processes_are_limited:
            return None
        crowded = os.stat("/proc").st_nlink > self._most_processes  # all of the machine's processes, and some more
        grown = self._bytes + processes.machine() - self._machine > self._most_bytes
        if not crowded and not grown and time.monotonic() - self._summed < NEWS:
            return None
        pids = processes.descendants()
        if len(pids) > self._most_processes:
            return f"more than {self._most_processes} processes"
        self._summed, self._machine = time.monotonic(), processes.machine()
        self._bytes = processes.memory(pids, self._most_bytes)
        return self._too_much() if self._bytes > self._most_bytes else None

    def killed(self) -> str | None:
        """Returns the reason if the kernel has killed a process of the command for its memory."""
        return f"out of memory: {self._too_much()}" if cgroups.out_of_memory(self._groups) else None

    def _too_much(self) -> str:
        return f"more than {self._most_bytes >> 20} MB of memory in all (sandbox.memory_mb)"


class Disk:
    """Files of the thread. A separate process counts them, because it may take seconds."""

    def __init__(self, orders: Orders, lock: int) -> None:
        self._root, self._lock = orders["thread"], lock
        last = quota.recorded(self._root)
        self._usage: quota.Usage = last[0] if last else (0, 0)
        size, number = self._usage
        limits: quota.Quota = orders["quota"]
        # Above the limit already: it may run, to delete files, but not grow.
        self._quota: quota.Quota = {
            **limits,
            "thread_bytes": limits["thread_bytes"] and max(limits["thread_bytes"], size),
            "thread_files": limits["thread_files"] and max(limits["thread_files"], number),
        }
        self._thresholds = (_part(limits["thread_bytes"], MUCH_BYTES), _part(limits["thread_files"], MUCH_FILES))
        self._free = self._space()
        self._counter = self._answer = 0
        self._counted, self._cost = float("-inf"), 0.0
        self._since = time.monotonic()

    def look(self) -> str | None:
        """Returns the exceeded limit, once a count has ended."""
        now = time.monotonic()
        if self._counter:
            return self._read(now)
        changed = self._changed(1)
        pause = max(COUNT_EVERY if not changed else 2 * TICK, COUNTING_SHARE * self._cost)
        if now - max(self._counted, self._since if not changed else self._counted) >= pause:
            self._begin(now)
        return None

    def finish(self) -> None:
        """Counts the files after the command, if they have changed enough."""
        if self._counter or self._changed(8) or quota.stale(self._root):
            os.nice(19)
            quota.record(self._root, quota.count(self._root))

    def _begin(self, now: float) -> None:
        self._free, self._counted = self._space(), now
        self._answer, write_end = os.pipe()
        self._counter = os.fork()
        if self._counter:
            os.close(write_end)
            os.set_blocking(self._answer, False)
            return
        try:
            started = time.process_time()
            signal.set_wakeup_fd(-1)
            os.close(self._lock)
            os.nice(19)
            usage = quota.count(self._root)
            quota.record(self._root, usage)
            text = quota.excess(usage, quota.others(self._root), self._quota)
            os.write(write_end, f"{time.process_time() - started} {text or ''}".encode())
        finally:
            os._exit(0)

    def _read(self, now: float) -> str | None:
        try:
            cost, _, text = os.read(self._answer, 4096).decode().partition(" ")
        except BlockingIOError:
            return None
        os.close(self._answer)
        self._counter, self._cost = 0, float(cost or now - self._counted)
        return text or None

    def _changed(self, part: int) -> bool:
        changes = zip(self._space(), self._free, self._thresholds, strict=True)
        return any(abs(now - then) * part >= threshold for now, then, threshold in changes)

    def _space(self) -> tuple[int, int]:
        try:
            info = os.statvfs(self._root)
        except OSError:
            return 0, 0
        return info.f_bfree * info.f_frsize, info.f_ffree


def _part(limit: int, most: int) -> int:
    return min(most, limit // 8) if limit else most


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
