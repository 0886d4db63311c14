"""Starts the process of a command, with its limits. For the supervisor: few imports."""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import signal
import sys

from adapters.sandboxes.process import cgroups, holder, processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    Orders = Mapping[str, Any]
    """A `job.Job`."""

FIRST_FD = 100
"""The first descriptor of the command's files (`Job.files`)."""
COMMAND_BYTES = 1 << 17
"""Size of the pipe for a command: more than `record.MAX_COMMAND`."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 36, 38  # linux/prctl.h
KEYCTL_JOIN_SESSION_KEYRING = 1
SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER = 1, 8
SECCOMP_IOCTL_NOTIF_RECV, SECCOMP_IOCTL_NOTIF_SEND, SECCOMP_USER_NOTIF_FLAG_CONTINUE = 0xC0502100, 0xC0182101, 1
PIDFD_GETFD = 438
"""The same on every architecture, as all system calls since 2019."""
EAGAIN = 11

_libc = ctypes.CDLL(None, use_errno=True)
_linux = sys.platform == "linux"


class Waiting:
    """A sandbox whose shell waits for its command, which comes by a pipe. `out`, `err`: its streams (`Spool`)."""

    def __init__(self, orders: Orders, out: Any, err: Any) -> None:
        self.out, self.err = out, err
        command, self._command = os.pipe()
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            fcntl.fcntl(self._command, fcntl.F_SETPIPE_SZ, COMMAND_BYTES)  # so that `run` does not wait for the shell
        self.child, _ = start(orders, out.write_end, err.write_end, [], command)
        os.close(command)

    def enter(self, groups: list[str]) -> bool:
        """Moves the sandbox into control groups. Returns False if that fails."""
        entered: set[int] = set()
        try:
            # Again until there are no others: a process may have been born of one that was not in the groups yet.
            while born := set(processes.descendants()) - entered:
                for pid in born:
                    cgroups.enter(groups, pid)
                entered |= born
        except OSError:
            return False
        return True

    def run(self, command: str) -> None:
        try:
            os.write(self._command, command.encode("utf-8", "surrogateescape") + b"\0")
        except BrokenPipeError:  # the sandbox has ended, and says why on its stream
            return
        os.close(self._command)


def start(
    orders: Orders, stdout: int, stderr: int, groups: list[str], command: int | None = None
) -> tuple[int, Forks | None]:
    """Starts the command. Returns its process, and the listener for new processes if the kernel does not limit them.
    `command`: a descriptor that it gets after its files.
    """
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
        _detach(supervisor, orders["keyctl"])
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(stdout, 1)
        os.dup2(stdout if orders["rolling"] else stderr, 2)
        _open_files(orders["files"])
        if command is not None:
            os.dup2(command, FIRST_FD + len(orders["files"]))
        limit(orders["limits"])
        cgroups.enter(groups)
        holder.join(orders["holder"], orders["shares"])
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


def _detach(supervisor: int, keyctl: int | None) -> None:
    """Makes this process one of a session of its own, which ends with the supervisor and has its signals reset.

    `keyctl`: the number of the system call by which it gets keys of its own, not those of the server's session.
    """
    os.setsid()
    if _linux:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != supervisor:
            os._exit(1)
        _prefer_for_oom_kill()
        if keyctl:
            _libc.syscall(keyctl, KEYCTL_JOIN_SESSION_KEYRING, None)
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)


def limit(limits: Mapping[str, int]) -> None:
    for name, value in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def _open_files(files: list[bytes]) -> None:
    """Opens the command's files at the descriptors from `FIRST_FD` on, which are free."""
    for number, content in enumerate(files, FIRST_FD):
        fd = os.memfd_create("file")
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
