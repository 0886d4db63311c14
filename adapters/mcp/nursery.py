"""Processes for sessions, forked from one that has imported the SDK: that takes a second and 80 MB, a fork neither."""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from anyio import to_thread

from core.errors import Unavailable

START_SECONDS = 90.0
READ_BYTES = 1 << 20
"""Limit of what is read ahead of a process's output, in bytes."""


@dataclass(frozen=True, slots=True)
class Child:
    """A process, and its pipes."""

    pid: int
    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader
    transports: Sequence[asyncio.BaseTransport]

    def close(self) -> None:
        for transport in self.transports:
            transport.close()

    def kill(self) -> None:
        """Kills the process and its group. What it started dies with it only if it ends by itself."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


class Nursery:
    """Starts the process to fork from on first use, and again if it died. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._owner = 0

    def fork(self) -> tuple[int, int, int, int]:
        """Returns the id of a new process, and our ends of its pipes. Blocks. Raises `Unavailable`."""
        with self._lock:
            for _ in range(2):
                try:
                    return self._fork()
                except OSError as error:
                    reason = error
                    self._stop()
        raise Unavailable(f"no process for an MCP session: {reason}")

    def _fork(self) -> tuple[int, int, int, int]:
        if self._owner != os.getpid() or self._process is None or self._process.poll() is not None:
            self._start()
        assert self._socket is not None
        (stdin, ours_in), (ours_out, stdout), (ours_err, stderr) = os.pipe(), os.pipe(), os.pipe()
        try:
            socket.send_fds(self._socket, [b"f"], [stdin, stdout, stderr])
            answer = self._socket.recv(8)
            if len(answer) < 8:
                raise ConnectionResetError("it ended")
        except OSError:
            for fd in (ours_in, ours_out, ours_err):
                os.close(fd)
            raise
        finally:
            for fd in (stdin, stdout, stderr):
                os.close(fd)
        return int.from_bytes(answer, "big"), ours_in, ours_out, ours_err

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        ours.settimeout(START_SECONDS)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "adapters.mcp", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        self._socket, self._owner = ours, os.getpid()

    def _stop(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._process is not None and self._owner == os.getpid():
            self._process.kill()
            self._process.wait()
        self._process = self._socket = None


_nursery = Nursery()
atexit.register(_nursery._stop)


async def child() -> Child:
    """Returns a new process that waits for its `Setup`. Raises `Unavailable`."""
    pid, *fds = await to_thread.run_sync(_nursery.fork)
    loop = asyncio.get_running_loop()
    pipes = [os.fdopen(fd, mode, buffering=0) for fd, mode in zip(fds, ("wb", "rb", "rb"), strict=True)]
    transports = list[asyncio.BaseTransport]()
    try:
        written, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, pipes[0])
        transports.append(written)
        out, err = asyncio.StreamReader(limit=READ_BYTES), asyncio.StreamReader(limit=READ_BYTES)
        for reader, pipe in zip((out, err), pipes[1:], strict=True):
            read, _ = await loop.connect_read_pipe(partial(asyncio.StreamReaderProtocol, reader), pipe)
            transports.append(read)
    except BaseException:  # the process ends with its input
        for transport in transports:
            transport.close()
        for pipe in pipes[len(transports) + 1 :]:  # asyncio closes the one that it was connecting
            pipe.close()
        raise
    return Child(pid, asyncio.StreamWriter(written, protocol, None, loop), out, err, transports)
