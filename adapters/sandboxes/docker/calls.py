"""The record of a call in a container: it makes a command run once, whichever process or machine dies meanwhile.

Theory of operation
===================

A call has two directories. The server's (`<thread>/calls/<call id>`, `record.Record`) is never seen by the container.
The machine's (`<thread>/machines/<machine>/call-<call id>`) is mounted into it. The agent (`agent.sh`) makes it, which
is the claim that it starts the command, and writes the output and the outcome there. So both survive the server's end
and the engine's. `sent.json` in the server's directory names the machine, and is written before the machine hears of
the call. The state is read under the lock of the server's directory:

    exit in the server's                    ended: that is the outcome, for ever
    exit in the machine's                   ended: copy it into the server's
    no sent.json                            never started: send it
    sent.json, no directory on this machine never started: send it, as often as needed
    sent.json, a directory, this machine    running
    sent.json, a directory, another machine that machine is gone, and the command with it: `interrupted`

What the machine writes is hostile: a command can write there, too. The server opens it part by part, follows no link,
reads regular files only, and of these a bounded part. A command that forges its own outcome fools its own agent only.
The empty directory of an ended call stays for `record.KEEP`, so that a repeated order cannot start it again.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import shutil
import stat
import time
from pathlib import Path
from typing import Literal

import msgspec

from adapters.sandboxes.process.record import KEEP, MAX_COMMAND, Exit, Record
from adapters.sandboxes.process.supervisor import HEAD, TAIL, publish
from adapters.sandboxes.process.tail import LIMIT
from core.errors import Invalid, NotFound
from core.ports.sandbox import ExecResult, Output

STREAMS = ("stdout", "stderr")
PART = 64 << 10
"""Bytes of a stream in one answer of `output`."""
_PLACES = 1 << 24
"""More than the bytes stored of a stream: a place in both streams fits one number."""
_EXIT = re.compile(rb"(exited|timeout|interrupted|stopped) (\d{1,3}|-)\n\Z")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Sent(msgspec.Struct, frozen=True):
    """`sent.json`: the command, and the machine that hears of it."""

    command: str
    machine: str
    at: float


class Box:
    """The directory of a call on its machine, which a command may have changed in any way."""

    def __init__(self, machine: Path, name: str) -> None:
        self._machine, self._name = machine, name

    def exists(self) -> bool:
        with contextlib.suppress(OSError):
            return stat.S_ISDIR(os.stat(self._machine / self._name, follow_symlinks=False).st_mode)
        return False

    def exit(self) -> re.Match[bytes] | None:
        return _EXIT.match(self.read("exit", 100))

    def read(self, name: str, limit: int) -> bytes:
        """Returns the beginning of a file; empty if there is none."""
        if (fd := self.open(name)) is None:
            return b""
        with open(fd, "rb") as file:
            return file.read(limit)

    def open(self, name: str) -> int | None:
        """Returns the descriptor of a regular file."""
        with contextlib.suppress(OSError):
            directory = os.open(self._machine / self._name, _DIRECTORY)
            try:
                fd = os.open(name, _FILE, dir_fd=directory)
            finally:
                os.close(directory)
            if stat.S_ISREG(os.fstat(fd).st_mode):
                return fd
            os.close(fd)
        return None

    def stream(self, name: str) -> bytes:
        """Returns the head and the tail of a stream, with the length of the gap."""
        head, tail = self.read(name, HEAD), self.read(f"{name}.tail", TAIL)
        digits = self.read(f"{name}.bytes", 32).strip()
        rest = int(digits) - len(head) if digits.isdigit() else 0
        if rest <= 0:
            return head
        if rest <= len(tail):
            return head + tail[-rest:]
        return head + b"\n[... %d bytes skipped ...]\n" % (rest - len(tail)) + tail

    def note(self) -> bytes:
        """Returns why the command was ended, if not by itself."""
        text = b""
        if reason := self.read("reason", 1000).strip():
            text += b"\nstopped: %s\n" % reason
        if (ooms := self.read("ooms", 20).strip()).isdigit():
            text += b"\nstopped: %s processes, because the sandbox had no memory left (sandbox.memory_mb)\n" % ooms
        return text

    def remove(self, name: str) -> None:
        """Removes a file, if it is there."""
        with contextlib.suppress(OSError):
            directory = os.open(self._machine / self._name, _DIRECTORY)
            try:
                os.unlink(name, dir_fd=directory)
            finally:
                os.close(directory)

    def clear(self) -> None:
        """Deletes the files. The directory stays as the claim."""
        with contextlib.suppress(OSError):
            directory = os.open(self._machine / self._name, _DIRECTORY)
            try:
                for name in os.listdir(directory):
                    with contextlib.suppress(OSError):
                        os.unlink(name, dir_fd=directory)
            finally:
                os.close(directory)


class Call:
    """A call of a thread, as seen from one machine. The methods block; run them in a thread."""

    def __init__(self, record: Record, machine: Path) -> None:
        self.record, self._machine = record, machine
        self.name = f"call-{record.path.name}"
        self._tails = [_Tail(self, name) for name in STREAMS]

    def admit(self, command: str) -> None:
        """Refuses an impossible command, and one under the call id of another."""
        if "\0" in command or len(command.encode("utf-8", "surrogateescape")) > MAX_COMMAND:
            raise Invalid(f"command: contains a NUL byte or is longer than {MAX_COMMAND} bytes")
        self.record.path.mkdir(parents=True, exist_ok=True)
        sent = self._sent()
        if sent is not None and sent.command != command:
            raise Invalid("call_id: was used for another command before")

    def advance(self, command: str | None = None) -> ExecResult | Literal["unsent", "running"]:
        """Returns the outcome, or whether the machine has the call. With a command, `sent.json` is there afterwards."""
        if (result := self.record.outcome()) is not None:
            return result
        with self.record.locked(wait=True):
            if (result := self.record.outcome()) is not None:
                return result
            sent = self._sent()
            if sent is not None:
                box = Box(self._machine.parent / sent.machine, self.name)
                if (end := box.exit()) is not None:
                    return self._collect(box, end)
                if box.exists():
                    return "running" if sent.machine == self._machine.name else self._collect(box, None)
            if command is not None and (sent is None or sent.machine != self._machine.name):
                sent = Sent(command, self._machine.name, time.time())
                publish(self.record.path / "sent.json", msgspec.json.encode(sent))
            return "unsent"

    def settle(self) -> ExecResult:
        """Records that the command ended with its machine, unless its outcome is known."""
        self.record.path.mkdir(parents=True, exist_ok=True)
        with self.record.locked(wait=True):
            if (result := self.record.outcome()) is not None:
                return result
            sent = self._sent()
            box = Box(self._machine.parent / sent.machine if sent else self._machine, self.name)
            return self._collect(box, box.exit())

    def is_sent(self) -> bool:
        return self._sent() is not None

    def more(self) -> str:
        """Returns the text of both streams since the last call: of each at most `tail.LIMIT` bytes in all."""
        return "".join(tail.more() for tail in self._tails)

    def close(self) -> None:
        for tail in self._tails:
            tail.close()

    def output(self, after: int) -> Output:
        """Returns a part of both streams from a place on. Raises `NotFound`."""
        if not self.is_sent() and self.record.outcome() is None:
            raise NotFound("there is no such command in the background")
        result = self.advance()
        places, text = [after % _PLACES, after // _PLACES], ""
        for number, name in enumerate(STREAMS):
            part = self._part(name, places[number])
            places[number] += len(part)
            text += part.decode(errors="replace")
        ended = isinstance(result, ExecResult) and not self._rest(places)
        return Output(text, places[0] + places[1] * _PLACES, result if ended else None)  # type: ignore[arg-type]

    def _part(self, name: str, place: int) -> bytes:
        """Returns bytes of a stream that end with a whole character."""
        fd = self.opened(name)
        if fd is None:
            return b""
        try:
            part = os.pread(fd, PART, place)
        finally:
            os.close(fd)
        whole = codecs.utf_8_decode(part, "replace", False)[1]
        return part[:whole] or part

    def _rest(self, places: list[int]) -> bool:
        return any(self._part(name, place) for name, place in zip(STREAMS, places, strict=True))

    def opened(self, name: str) -> int | None:
        """Returns the descriptor of a stream: the machine's while it runs, then the server's."""
        with contextlib.suppress(OSError):
            return os.open(self.record.path / name, _FILE)
        sent = self._sent()
        return Box(self._machine.parent / sent.machine, self.name).open(name) if sent else None

    def _sent(self) -> Sent | None:
        try:
            return msgspec.json.decode((self.record.path / "sent.json").read_bytes(), type=Sent)
        except FileNotFoundError:
            return None

    def _collect(self, box: Box, end: re.Match[bytes] | None) -> ExecResult:
        verdict, code = (end[1].decode(), end[2]) if end else ("interrupted", b"-")
        for name in STREAMS:
            note = box.note() if name == "stderr" else b""
            (self.record.path / f"{name}.new").write_bytes(box.stream(name) + note)
            os.replace(self.record.path / f"{name}.new", self.record.path / name)
        match verdict:
            case "exited":
                exit = Exit("exited", int(code) if code.isdigit() else None)
            case "stopped":
                exit = Exit("exited", 137)
            case _:
                exit = Exit(verdict)
        publish(self.record.path / "exit", msgspec.json.encode(exit))
        box.clear()
        result = self.record.outcome()
        assert result is not None
        return result


class _Tail:
    """Follows a stream as text. Its open file outlives the removal by another server."""

    def __init__(self, call: Call, name: str) -> None:
        self._call, self._name = call, name
        self._fd: int | None = None
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def more(self) -> str:
        if self._fd is None:
            self._fd = self._call.opened(self._name)
        if self._fd is None:
            return ""
        data = os.pread(self._fd, LIMIT - self._offset, self._offset)
        self._offset += len(data)
        return self._decoder.decode(data)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
        self._fd = None


def sweep(machines: Path, keep: str) -> None:
    """Deletes old machines' directories but one, and of that one the claims of old calls."""
    for folder in (machines, machines / keep):
        for entry in os.scandir(folder) if folder.is_dir() else ():
            with contextlib.suppress(OSError):
                old = entry.stat(follow_symlinks=False).st_mtime < time.time() - KEEP
                if old and entry.name != keep and entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
