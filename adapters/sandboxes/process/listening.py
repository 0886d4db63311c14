"""The ports on which the processes of a command listen."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from adapters.sandboxes.egress import forwarder
from adapters.sandboxes.process import processes

LISTEN = b"0A"
"""The state of a listening socket in /proc/net/tcp."""
_SOCKET = re.compile(rb"socket:\[(\d+)\]")
_ADDRESS = re.compile(rb"[0-9A-F]+:[0-9A-F]{4}")
MOST = 20
"""Limit of ports that are named."""
_FORWARDER = os.path.basename(forwarder.__file__).encode()


def of_record(record: Path) -> Sequence[int]:
    """Returns the ports of a command by its record; none of one that has ended, or was never started."""
    try:
        return ports(int((record / "pid").read_bytes()))
    except (OSError, ValueError):  # it was deleted with its thread
        return ()


def ports(supervisor: int) -> Sequence[int]:
    """Returns the TCP ports of the processes below a supervisor, the lowest first, at most `MOST`. Those of the proxy,
    which every command with a network has, are left out. Blocks briefly.
    """
    pids = [pid for pid in processes.descendants(supervisor) if not _forwards(pid)]
    sockets = {inode for pid in pids for inode in _sockets(pid)}
    listening = dict(entry for pid in pids[-1:] for entry in _listening(pid))  # all are in one network
    return sorted({port for inode, port in listening.items() if inode in sockets})[:MOST]


def ports_in(text: bytes) -> Sequence[int]:
    """Returns the TCP ports of a command in a container, by what its agent shows (`docker/agent.sh`, `sockets`): lists
    of open files, then /proc/net/tcp. The lowest first, at most `MOST`. Commands can write the text, so it may be
    anything.
    """
    sockets = set(_SOCKET.findall(text))
    return sorted({port for inode, port in _of_table(text) if inode in sockets})[:MOST]


def _forwards(pid: int) -> bool:
    return any(word.endswith(b"/" + _FORWARDER) for word in processes.read(f"/proc/{pid}/cmdline").split(b"\0")[:4])


def _sockets(pid: int) -> Iterator[bytes]:
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                link = os.readlink(f"/proc/{pid}/fd/{fd}")
                if link.startswith("socket:["):
                    yield link[8:-1].encode()


def _listening(pid: int) -> Iterator[tuple[bytes, int]]:
    """Yields the inode and the port of each listening socket in the network of a process."""
    for name in ("tcp", "tcp6"):
        yield from _of_table(processes.read(f"/proc/{pid}/net/{name}"))


def _of_table(text: bytes) -> Iterator[tuple[bytes, int]]:
    for line in text.splitlines():
        words = line.split()
        if len(words) > 9 and words[3] == LISTEN and _ADDRESS.fullmatch(words[1]):
            yield words[9], int(words[1].rpartition(b":")[2], 16)
