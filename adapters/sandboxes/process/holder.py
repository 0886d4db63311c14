"""Program that keeps the network of a thread between its commands: see `machine.py`.

Forked from the template of supervisors (`supervisor.serve`). Standard library only, and little of it.
"""

from __future__ import annotations

import ctypes
import fcntl
import marshal
import os
import signal
import socket
import struct
import time

LOOK = 5.0
"""Seconds between two looks at whether the network is used, and whether its thread is still there."""
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000  # linux/sched.h
NAMESPACES = {"user": CLONE_NEWUSER, "net": CLONE_NEWNET}
"""The namespaces that commands share, in the order in which they are joined."""
PR_SET_NAME, NAME = 15, b"sika-network"
"""The name in lists of processes."""
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
_libc = ctypes.CDLL(None, use_errno=True)


def hold(life: int, orders: int, ready: int) -> None:
    """Makes the namespaces, says so by the pipe `ready`, and ends when no command has used them for some time. After
    SIGTERM it ends as soon as none uses them: the supervisor of a command ends a little after its outcome is known.
    `life` is the lock that this process has while it lives, `orders` a pipe.
    """
    _libc.prctl(PR_SET_NAME, NAME, 0, 0, 0)
    with open(orders, "rb") as pipe:
        folder, linger = marshal.load(pipe)
    os.chdir(folder)
    try:
        isolate()
        write("pid", b"%d" % os.getpid())
    except OSError as error:
        os.write(ready, f"!{error}".encode())
        return
    os.write(ready, b".")
    os.close(ready)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    early = False
    while os.path.exists("pid"):
        early = signal.sigtimedwait([signal.SIGTERM], min(LOOK, linger)) is not None or early
        if (early or _unused_for(linger)) and _ended(life):
            return


def isolate() -> None:
    """Moves this process into a network of its own, with loopback only, that later commands can join. Raises `OSError`
    where that is not allowed.
    """
    user, group = os.geteuid(), os.getegid()
    if _libc.unshare(CLONE_NEWUSER | CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"unshare: {os.strerror(ctypes.get_errno())}")
    for name, content in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        write(f"/proc/self/{name}", content.encode(), atomic=False)
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", IFF_UP))


def join(pid: int, names: list[str]) -> None:
    """Moves this process into namespaces of another. Raises `OSError`: a command must not run in other ones."""
    for name in names:
        fd = os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
        if _libc.setns(fd, NAMESPACES[name]):
            raise OSError(ctypes.get_errno(), f"setns {name}: {os.strerror(ctypes.get_errno())}")
        os.close(fd)


def locked(path: str) -> int | None:
    """Returns the descriptor of a file that this process has locked; None if another one has."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def _unused_for(seconds: float) -> bool:
    try:
        return time.time() - os.stat("use").st_mtime >= seconds
    except FileNotFoundError:
        return False  # its thread was erased: the next look sees it


def _ended(life: int) -> bool:
    """Ends the network. Returns False if a command uses it, or a server looks at it."""
    try:
        door = locked("door")
        use = None if door is None else locked("use")
        if use is not None:
            os.unlink("pid")
            os.close(life)
    except FileNotFoundError:
        return False
    for fd in (use, door):
        if fd is not None:
            os.close(fd)
    return use is not None


def write(path: str, content: bytes, *, atomic: bool = True) -> None:
    draft = f"{path}.new" if atomic else path
    fd = os.open(draft, os.O_WRONLY | (os.O_CREAT | os.O_TRUNC if atomic else 0) | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, content)
    finally:
        os.close(fd)
    if atomic:
        os.replace(draft, path)
