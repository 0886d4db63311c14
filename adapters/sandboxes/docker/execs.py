"""A program that the engine runs in a container, with what it reads and writes on one connection.

The methods block, and are called in threads. The connection carries the program's input as it is, and its output in
frames: a header of eight bytes names the stream and the length (Docker's API, `attach`). TLS has no half-closed
connections, so that a program must know where its input ends.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from core.errors import Unavailable

SILENCE_SECONDS = 30.0
"""Timeout of a connection that stands still. The longest order of the agent waits for a second (`remote.link`)."""
NOTES = 4000
"""Bytes of the standard error that are kept."""
BLOCK = 1 << 18
_HEADER = struct.Struct(">BxxxI")
_STDOUT = 1
_WITH_CODE = ("/bin/sh", "-c", '"$@"; printf "\\n%s\\n" "$?" >&2', "sh")
"""Runs the words that follow. The last line of the standard error is the exit code; without it the end is unknown."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program, and both ends of its pipes. It ends by itself: nothing else ends it."""

    words: Sequence[str]
    output: BinaryIO
    limit: int
    """Bytes of the output, above which the rest is refused."""
    input: BinaryIO | None = None
    user: str = ""
    """Empty: the user of the container."""


def run(client: Any, container: str, program: Program, seconds: float) -> tuple[int | None, str]:
    """Returns the exit code, None if the program did not end by itself, and the end of its standard error. Raises
    `Unavailable` for too much output, `TimeoutError`, `OSError`, and the errors of the package `docker`.
    """
    words = [*_WITH_CODE, *program.words]
    created = client.exec_create(container, words, stdin=program.input is not None, user=program.user)
    with contextlib.closing(_Connection(client.exec_start(created["Id"], socket=True), seconds)) as connection:
        if program.input is not None:
            connection.send(program.input)
        notes = connection.receive(program.output, program.limit)
    text, _, code = notes.rstrip(b"\n").rpartition(b"\n")
    shown = text.decode(errors="replace").strip()
    return (int(code), shown) if notes.endswith(b"\n") and code.isdigit() else (None, notes.decode(errors="replace"))


class _Connection:
    def __init__(self, raw: Any, seconds: float) -> None:
        # The package returns the socket below its reader, which may hold the first bytes already.
        self._response = raw._response
        self._reader = self._response.raw._fp.fp
        self._socket = getattr(raw, "_sock", raw)
        self._socket.settimeout(SILENCE_SECONDS)
        self._deadline = time.monotonic() + seconds

    def send(self, file: BinaryIO) -> None:
        while block := file.read(BLOCK):
            self._in_time()
            self._socket.sendall(block)

    def receive(self, output: BinaryIO, limit: int) -> bytes:
        """Writes the standard output to a file. Returns the end of the standard error."""
        notes, size = b"", 0
        for stream, block in self._blocks():
            if stream != _STDOUT:
                notes = (notes + block)[-NOTES:]
                continue
            size += len(block)
            if size > limit:
                raise Unavailable(f"docker: the container sends more than {limit} bytes")
            output.write(block)
        return notes

    def _blocks(self) -> Iterator[tuple[int, bytes]]:
        while len(header := self._reader.read(_HEADER.size)) == _HEADER.size:
            stream, left = _HEADER.unpack(header)
            while left and (block := self._reader.read(min(left, BLOCK))):
                self._in_time()
                left -= len(block)
                yield stream, block

    def _in_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise TimeoutError

    def close(self) -> None:
        for part in (self._response, self._reader, self._socket):
            with contextlib.suppress(OSError, AttributeError, ValueError):
                part.close()
