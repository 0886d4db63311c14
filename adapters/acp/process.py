"""The process of another agent: its messages with limits, its standard error in the log, its end with all children."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
from collections.abc import Mapping, Sequence
from typing import Any

import structlog
from anyio import to_thread

from adapters.sandboxes.confine.confinement import in_memory
from adapters.sandboxes.process.processes import end_marked
from core import pipes
from core.config.acp import AcpAgent
from core.config.redaction import redactor
from core.errors import Invalid
from core.files.paths import Mount
from core.ports.sandbox import Encloses

log = structlog.get_logger("sika.acp")

LINE_BYTES = 8 << 20
"""Limit of a message."""
ALL_BYTES = 256 << 20
"""Limit of all messages of a session."""
CHUNK = 1 << 16
LARGE = 1 << 16
"""Messages from this size on are parsed in a thread."""
STDERR_BYTES = 64 << 10
"""Bytes of standard error that are logged, and of lines that are no messages; more is read and dropped."""
STDERR_LINE = 2000
END_SECONDS = 5.0
"""Time to end after a signal, and for the last message to be taken."""
EXIT_SECONDS = 1.0
INHERITED = ("HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "USER")
"""Variables of the server that a trusted agent gets."""


class TooMuch(Exception):
    """The agent sent more than a session may have."""


class AgentProcess:
    """A running agent, as a transport of the SDK. Guarantees: no message is larger than `LINE_BYTES`, and all together
    than `ALL_BYTES`; the agent can always write to its standard error; after `end`, none of its processes lives.
    Non-guarantees: a trusted agent's child that cleared its environment and left the session may survive.
    """

    def __init__(self, process: asyncio.subprocess.Process, name: str, mark: str) -> None:
        self._process, self._name, self._mark = process, name, mark
        self._buffer, self._bytes, self._odd = bytearray(), 0, 0
        self._stderr = asyncio.create_task(self._drain())
        self.problem = ""
        """The reason why no more messages are read."""

    @classmethod
    async def start(cls, name: str, settings: AcpAgent, directory: Mount, provider: object) -> AgentProcess:
        """Starts an agent. Raises `Invalid` if its program is not there, or cannot be confined."""
        variables = {key: value.reveal() for key, value in settings.env.items()}
        mark = secrets.token_hex(16)
        command = [settings.command, *settings.args]
        if settings.trusted:
            if shutil.which(settings.command, path=variables.get("PATH")) is None:
                raise Invalid(missing(name, settings.command))
            own = {key: os.environ[key] for key in INHERITED if key in os.environ}
            return cls(await _spawn(command, {**own, **variables}, mark, str(directory.host)), name, mark)
        if not isinstance(provider, Encloses):
            raise Invalid(
                f"acp_agents.{name}: this server's sandbox cannot confine it. An administrator can use the sandbox "
                f"bubblewrap, or set acp_agents.{name}.trusted to let it run as the server does."
            )
        fds = [in_memory(b"") for _ in range(2)]
        try:
            try:
                words = await to_thread.run_sync(
                    lambda: _enclosed(provider, command, directory, variables, settings.network, fds)
                )
            except Invalid as error:
                if shutil.which(settings.command) is None:
                    raise Invalid(missing(name, settings.command)) from error
                text = f"acp_agents.{name}: {error}. Set acp_agents.{name}.trusted to run it outside of the sandbox."
                raise Invalid(text) from error
            return cls(await _spawn(words, {}, mark, "/", fds), name, mark)
        finally:
            for fd in fds:
                os.close(fd)

    # ── the SDK's transport ─────────────────────────────────────────────────────────────────────────────────────────

    async def send(self, message: dict[str, Any]) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        try:
            async with asyncio.timeout(END_SECONDS):
                await pipes.send(stdin, json.dumps(message, separators=(",", ":")).encode() + b"\n")
        except TimeoutError as error:
            raise ConnectionError(f"{self._name} does not read its messages") from error

    async def receive(self) -> dict[str, Any] | None:
        """Returns the next message; None at the end. What is no JSON object is skipped, the first of it is logged."""
        while True:
            try:
                line = await self._line()
            except TooMuch as error:
                self.problem = str(error)
                return None
            if line is None:
                return None
            try:
                message = await to_thread.run_sync(json.loads, line) if len(line) > LARGE else json.loads(line)
            except (ValueError, RecursionError):
                message = None
            if isinstance(message, dict):
                return message
            if line.strip() and self._odd < STDERR_BYTES:
                self._odd += len(line) + 1
                log.warning("not a message", agent=self._name, line=_printable(line))

    async def close(self) -> None:
        """Does nothing: `end` does."""

    # ── the process ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def end(self) -> None:
        """Ends the agent and its children: its input is closed, then its processes are killed."""
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        self._signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await self._process.wait()
        self._signal(signal.SIGKILL)
        await to_thread.run_sync(end_marked, self._mark)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await self._process.wait()
        self._stderr.cancel()
        await asyncio.wait([self._stderr])
        transport = getattr(self._process, "_transport", None)
        if transport is not None:
            transport.close()

    async def settled(self) -> None:
        """Waits for the exit code of a process whose output has ended."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EXIT_SECONDS):
                await self._process.wait()

    @property
    def code(self) -> int | None:
        """The exit code, None while it runs."""
        return self._process.returncode

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    async def _line(self) -> bytes | None:
        assert self._process.stdout is not None
        scanned = 0
        while (end := self._buffer.find(b"\n", scanned)) < 0:
            scanned = len(self._buffer)
            if scanned > LINE_BYTES:
                raise TooMuch(f"it sent a message of more than {LINE_BYTES >> 20} MB")
            chunk = await self._process.stdout.read(CHUNK)
            if not chunk:
                return None
            self._bytes += len(chunk)
            if self._bytes > ALL_BYTES:
                raise TooMuch(f"it sent more than {ALL_BYTES >> 20} MB")
            self._buffer += chunk
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    async def _drain(self) -> None:
        """Reads standard error to its end: an agent whose pipe is full would hang."""
        assert self._process.stderr is not None
        logged, rest = 0, b""
        while chunk := await self._process.stderr.read(CHUNK):
            if logged >= STDERR_BYTES:
                continue
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines + ([rest] if len(rest) > STDERR_LINE else []):
                logged += len(line) + 1
                if line.strip() and logged < STDERR_BYTES:
                    log.info("an agent says", agent=self._name, line=_printable(line))
            rest = b"" if len(rest) > STDERR_LINE else rest
            if logged >= STDERR_BYTES:
                log.warning("the rest of what an agent says is left out", agent=self._name, after=STDERR_BYTES)


def missing(name: str, command: str) -> str:
    """Returns what to do about a program that is not there."""
    text = f"the program {command!r} of acp_agents.{name} is not installed on the server, or not in its PATH."
    if "codex" in command or name == "codex":
        return f"{text} Codex speaks ACP through an adapter: install `@zed-industries/codex-acp`, and set its command."
    return f"{text} An administrator has to install it, or to correct acp_agents.{name}.command."


def _enclosed(
    provider: Encloses,
    command: Sequence[str],
    directory: Mount,
    variables: Mapping[str, str],
    network: bool,
    fds: Sequence[int],
) -> Sequence[str]:
    """Returns the command in the sandbox, and writes what it inherits to the descriptors."""
    enclosed = provider.enclosed(command, variables, [directory], directory=directory.virtual, network=network, fds=fds)
    for fd, content in zip(fds, enclosed.files, strict=False):  # no filter on an unknown machine
        os.write(fd, content)
        os.lseek(fd, 0, os.SEEK_SET)
    return enclosed.argv


async def _spawn(
    words: Sequence[str], variables: Mapping[str, str], mark: str, directory: str, fds: Sequence[int] = ()
) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        *words,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        env={**variables, "SIKA_CALL": mark},
        cwd=directory,
        pass_fds=tuple(fds),
        start_new_session=True,
        limit=CHUNK,
    )


def _printable(line: bytes) -> str:
    return redactor.text(line[:STDERR_LINE].decode(errors="replace"))
