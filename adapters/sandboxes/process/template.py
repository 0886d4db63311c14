"""The server's side of the template process, from which supervisors are forked (`supervisor.serve`)."""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

from adapters.sandboxes.process import supervisor

SEND_SECONDS = 30.0
"""Timeout of a request: a byte, which waits only if the process takes none."""
_CODE = str(Path(supervisor.__file__).parents[3])
_BOOT = """import sys; sys.path.append(sys.argv[1])
import socket; from adapters.sandboxes.process.supervisor import serve; serve(socket.socket(fileno=int(sys.argv[2])))"""


class Template:
    """A process of this server that forks supervisors. Guarantees: it ends when the server has ended, and the
    supervisors do not; it has no variable and no descriptor of the server but its socket. If it died, the next request
    starts another one.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._connection: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the process if it does not run, so that the first command need not wait for it. Blocks."""
        with self._mutex:
            if self._process is None or self._process.poll() is not None:
                self._spawn()

    def request(self, kind: bytes, fds: list[int]) -> None:
        """Requests a supervisor; blocks. Raises `OSError` if there is no template, and none can be started."""
        self.start()
        with self._mutex:
            try:
                self._send(kind, fds)
            except OSError:  # it died meanwhile
                self._spawn()
                self._send(kind, fds)

    def end(self) -> None:
        """Kills the process; the next request starts another one. Blocks."""
        with self._mutex:
            if self._process is not None:
                self._process.kill()
                self._process.wait()

    @property
    def pid(self) -> int:
        """The process; 0 before the first."""
        return self._process.pid if self._process is not None else 0

    def detach(self) -> None:
        """Keeps Python from warning of a process that still runs: it ends after the server, by itself."""
        if self._process is not None:
            self._process.returncode = self._process.poll() or 0

    def _send(self, kind: bytes, fds: list[int]) -> None:
        assert self._connection is not None
        socket.send_fds(self._connection, [kind], fds)

    def _spawn(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._connection, other = socket.socketpair()
        self._connection.settimeout(SEND_SECONDS)
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _BOOT, _CODE, str(other.fileno())],
                env={},  # not the server's, which has its keys
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                pass_fds=[other.fileno()],
                start_new_session=True,
            )


template = Template()
atexit.register(template.detach)
os.register_at_fork(after_in_child=template.__init__)  # type: ignore[misc]  # the parent's socket is not for two
