"""Identities of processes, by which one tells of another one on the same machine that it is dead.

An identity names the machine since its last start, the space of process numbers (a container has its own), the number,
and the time of the process's start, as numbers are given again. Other machines than Linux's have none.
"""

from __future__ import annotations

import os
from pathlib import Path


def own() -> str:
    """Returns the identity of this process; empty if it has none."""
    try:
        return f"{_space()} {os.getpid()} {_started(os.getpid())}"
    except OSError:
        return ""


def is_near(identity: str) -> bool:
    """Tells whether a process is one of this machine, and of this container."""
    try:
        return bool(identity) and identity.rsplit(" ", 2)[0] == _space()
    except OSError:
        return False


def is_dead(identity: str) -> bool:
    """Tells whether a process is certainly dead. Those of other machines may live."""
    if not is_near(identity):
        return False
    number, started = identity.rsplit(" ", 2)[1:]
    try:
        os.kill(int(number), 0)  # finds it also where `/proc` hides those of others
        return _started(int(number)) != started
    except ProcessLookupError:
        return True
    except (OSError, ValueError):
        return False


def _space() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"


def _started(number: int) -> str:
    """Returns the time of a process's start, as the system counts it; `dead` once it only waits to be noticed."""
    state, *fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    return "dead" if state in "ZX" else fields[18]
