"""Where the running servers of a data directory are: each writes a file of its own, `server.json`, `server-2.json` …"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import msgspec


class Address(msgspec.Struct, frozen=True):
    """The address of one server."""

    url: str
    pid: int
    nats: str


def announce(home: Path, address: Address, number: int) -> None:
    """Writes down where the `number`th server of a data directory is. Raises `OSError`."""
    path = _file(home, number)
    draft = path.with_suffix(f".{os.getpid()}.part")
    draft.touch(mode=0o600)
    draft.write_bytes(msgspec.json.encode(address))
    draft.replace(path)


def withdraw(home: Path, number: int) -> None:
    """Removes what this process announced."""
    address = _read(_file(home, number))
    if address is not None and address.pid == os.getpid():
        _file(home, number).unlink(missing_ok=True)


def announced(home: Path) -> list[Address]:
    """The servers whose processes live, by number. They may not answer: ask `/health`."""
    paths = sorted(home.glob("server*.json"), key=lambda path: (len(path.name), path.name))
    return [address for path in paths if (address := _read(path)) is not None and _lives(address.pid)]


def _file(home: Path, number: int) -> Path:
    return home / ("server.json" if number == 1 else f"server-{number}.json")


def _read(path: Path) -> Address | None:
    with suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode(path.read_bytes(), type=Address)
    return None


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's
        return True
    return True
