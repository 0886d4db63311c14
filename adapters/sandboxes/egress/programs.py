"""The way out of programs that run for long: servers of tools (MCP) and agents (ACP), which belong to no call."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import anyio
import msgspec
from anyio import to_thread

from adapters.sandboxes.egress.proxy import SOCKET
from adapters.sandboxes.egress.wayout import WayOut, socket_folder
from core.ports.sandbox import SandboxSetup


class Programs:
    """One socket of the proxy for all programs of this server, while `run` runs. Their connections are recorded beside
    it until the server ends. The bytes are not limited, because programs run for days.
    """

    def __init__(self, setup: SandboxSetup) -> None:
        """Raises `Invalid` for settings that name no place."""
        unlimited = msgspec.structs.replace(setup.egress, max_mb=0)
        self.way_out = None if setup.egress.direct else WayOut(setup.home, unlimited)
        self._parent = setup.home / "sandbox" / "programs"
        self._folder = self._parent / secrets.token_hex(8)

    def folder(self) -> Path:
        """Returns the record's folder. The socket's folder is there afterwards, and stays the same one. Blocks."""
        if self.way_out is not None and self.way_out.trust is not None:
            self.way_out.authority()
        socket_folder(self._folder).mkdir(parents=True, exist_ok=True)
        return self._folder

    async def run(self) -> None:
        """Serves them until cancelled."""
        if self.way_out is None:
            return
        await to_thread.run_sync(self._sweep)
        try:
            async with self.way_out.open(self._folder):
                await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(_remove, self._folder)

    def _sweep(self) -> None:
        """Deletes the folders of servers that were killed."""
        for folder in _folders(self._parent):
            if folder != self._folder and not _answers(socket_folder(folder) / SOCKET):
                _remove(folder)


def _folders(parent: Path) -> Iterator[Path]:
    with suppress(FileNotFoundError):
        yield from parent.iterdir()


def _answers(path: Path) -> bool:
    """Tells whether a process listens on a socket, or will: the folder of one that starts has none yet."""
    if not path.exists():
        return path.parent.exists()
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)  # the path of a socket is limited
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(f"/proc/self/fd/{folder}/{path.name}")
    except ConnectionRefusedError:
        return False
    except OSError:
        return True
    finally:
        os.close(folder)
    return True


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
