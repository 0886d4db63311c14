"""A command to run, as its supervisor gets it."""

from __future__ import annotations

import msgspec

from adapters.sandboxes.process.quota import Quota


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A command to run: the supervisor's orders."""

    program: str
    argv: list[str]
    """The first word is the program's own name."""
    env: dict[str, str]
    cwd: str
    timeout: float
    limits: dict[str, int]
    """RLIMIT_… names and values."""
    max_processes: int
    max_bytes: int
    """Limit of the memory of all processes together."""
    thread: str
    """The thread's directory, to which the quota applies."""
    quota: Quota
    rolling: bool = False
    """True for a command in the background: its output, of both streams, can be read while it runs."""
    files: list[bytes] = []
    """Contents of the command's descriptors from `launch.FIRST_FD` on."""
    waiting: list[str] = []
    """Another `argv`, for a sandbox whose shell reads its command from the next descriptor; empty if there is none."""
    mounts: list[str] = []
    """The folders that the sandbox shows."""
    machine: bool = False
    """True for a command that uses the thread's machine (`machine.py`)."""
    shares: list[str] = []
    """The namespaces of the machine that the command joins (`holder.NAMESPACES`)."""
    holder: int = 0
    """The process whose namespaces they are."""
    keyctl: int | None = None
    """Number of the system call by which the command gets a session keyring of its own."""
    forks: tuple[int, bytes] | None = None
    """Number of the system call `seccomp`, and the filter by which the kernel notifies of new processes."""
