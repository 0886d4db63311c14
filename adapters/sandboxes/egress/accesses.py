"""The record of a call's connections, one entry for each host: it lies beside the call's other records."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from core.errors import SikaError
from core.ports.sandbox import Access

FILE = "network.json"
MOST_HOSTS = 200
"""Entries of a record; connections to further hosts are counted together, as `OTHERS`."""
OTHERS = "(other hosts)"
WRITE_SECONDS = 1.0
"""Time between two writes of a record while connections end."""


class TooMuch(SikaError):
    """The call has transferred as much as it may."""

    code = "too_much"


class Accesses:
    """Counts the connections of a call, and goes on with what an earlier process counted."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._file, self._most = folder / FILE, most_bytes
        self._entries = {(entry.host, entry.port, entry.reason): entry for entry in read(folder)}
        self._bytes = sum(entry.received + entry.sent for entry in self._entries.values())
        self._written = 0.0

    def connected(self, host: str, port: int, refused: str = "") -> Access:
        """Counts a connection, refused or not, and returns its entry, which `count` adds to."""
        key = (host, port, refused)
        if key not in self._entries and len(self._entries) >= MOST_HOSTS:
            key = (OTHERS, 0, "refused" if refused else "")
        entry = self._entries.setdefault(key, Access(host=key[0], port=key[1], reason=key[2]))
        entry.connections += 1
        return entry

    def count(self, entry: Access, *, sent: int = 0, received: int = 0) -> None:
        """Adds bytes. Raises `TooMuch`."""
        entry.sent += sent
        entry.received += received
        self._bytes += sent + received
        if self._most and self._bytes > self._most:
            raise TooMuch(f"the command has transferred {self._most >> 20} MB, which is its limit")

    def write(self, *, now: bool = False) -> None:
        """Writes the record, unless it was just written. Blocks briefly."""
        clock = time.monotonic()
        if not self._entries or (not now and clock - self._written < WRITE_SECONDS):
            return
        self._written = clock
        draft = self._file.with_suffix(".draft")
        draft.write_bytes(msgspec.json.encode(list(self._entries.values())))
        os.replace(draft, self._file)


def read(folder: Path) -> Sequence[Access]:
    """Returns the record in a folder, empty if there is none. Blocks briefly."""
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=list[Access])
    except (OSError, msgspec.MsgspecError):
        return []
