"""The stdio transport: a relay between a server's pipes and the SDK, with bounds that the SDK's own does not have."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCMessage

from core.errors import Invalid
from core.ports.mcp_frames import FIRST_FD, Setup

LINE_BYTES = 8 << 20
JUNK_LINES = 1000
"""Lines in a row that are no messages, after which the session ends."""
STDERR_BYTES = 64 << 10
"""Bytes of the server's stderr that are passed on; the rest is read and dropped."""
CLOSE_SECONDS = 2.0
EXIT_SECONDS = 5.0
"""From the first sign of the server's end to the last: its exit code, and the ends of its output and stderr. They come
at once, unless it only closed its output, or its children keep the pipes open.
"""
INHERITED = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "LANG")

_last: deque[str] = deque(maxlen=5)
_ended: list[str] = []


def last_words() -> str:
    """Returns why the server ended, with its last lines on stderr."""
    return ": ".join([*_ended, *([" / ".join(_last)] if _last else [])])[:1000]


def reserve(files: Sequence[bytes]) -> None:
    """Opens files in memory at the descriptors that the command names. Call it before anything else opens some."""
    for number, content in enumerate(files, FIRST_FD):
        fd = os.memfd_create("setup", 0)
        os.write(fd, content)
        os.lseek(fd, 0, os.SEEK_SET)
        os.dup2(fd, number, inheritable=True)
        os.close(fd)


@asynccontextmanager
async def server(setup: Setup) -> AsyncIterator[tuple[Any, Any]]:
    """Starts the server. Yields the streams of the SDK: what it sends, and what it is sent."""
    env = {name: os.environ[name] for name in INHERITED if name in os.environ} | dict(setup.env)
    try:
        process = await asyncio.create_subprocess_exec(
            *setup.argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=env,
            cwd=setup.cwd,
            pass_fds=range(FIRST_FD, FIRST_FD + len(setup.files)),
            start_new_session=True,
            limit=LINE_BYTES,
        )
    except OSError as error:
        raise Invalid(f"{setup.argv[0]}: {error.strerror}") from None
    incoming, received = anyio.create_memory_object_stream[SessionMessage | Exception](16)
    to_send, outgoing = anyio.create_memory_object_stream[SessionMessage](16)
    end = _End(process)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_read, process, incoming, end)
        tasks.start_soon(_write, process, outgoing)
        tasks.start_soon(_drain, process, end)
        tasks.start_soon(_watch, process, end)
        try:
            yield received, to_send
        finally:
            end.closing = True
            with anyio.CancelScope(shield=True):
                await _close(process)
            tasks.cancel_scope.cancel()


class _End:
    """The end of a server: what ended of it, and why."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.output, self.stderr = asyncio.Event(), asyncio.Event()
        """Set when all of it was read."""
        self.closing = False
        """The session ends by itself: then the server's end is no failure."""
        self._process = process

    async def fail(self) -> None:
        """Raises why the session ends, when all of the end is known or `EXIT_SECONDS` have passed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(EXIT_SECONDS):
                await self._process.wait()
                await self.output.wait()
                await self.stderr.wait()
        if self.closing:
            return
        match self._process.returncode:
            case None:
                _ended[:] = ["the server closed its output"]
            case code if code >= 0:
                _ended[:] = [f"the server ended with exit code {code}"]
            case code:
                _ended[:] = [f"the server ended by signal {-code}"]
        raise Invalid(last_words())


async def _close(process: asyncio.subprocess.Process) -> None:
    """Closes the server's input, by which it ends; what does not is killed with all others."""
    assert process.stdin is not None
    process.stdin.close()
    with suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_SECONDS):
            await process.wait()


def _message(line: str) -> JSONRPCMessage:
    """Returns a message. Halves of characters and what lies deep are read by a decoder that takes them: one tool with
    such a text must not cost the whole list. Raises `ValueError`, `RecursionError`.
    """
    try:
        return JSONRPCMessage.model_validate_json(line)
    except ValueError:
        return JSONRPCMessage.model_validate(json.loads(line))


async def _read(process: asyncio.subprocess.Process, incoming: Any, end: _End) -> None:
    """Passes messages on. `incoming` stays open until the reason of the end is known: calls fail when it closes."""
    assert process.stdout is not None
    junk = 0
    async with incoming:
        while line := await _line(process.stdout):
            if not line.strip():
                continue
            try:
                message = _message(line.decode("utf-8", "replace"))
            except (ValueError, RecursionError):
                junk += 1
                if junk > JUNK_LINES:
                    raise Invalid(f"the server sent {junk} lines in a row that are no messages") from None
                await incoming.send(Invalid(f"a line of {len(line)} bytes that is not JSON-RPC"))
                continue
            junk = 0
            await incoming.send(SessionMessage(message))
        end.output.set()
        await end.fail()


async def _watch(process: asyncio.subprocess.Process, end: _End) -> None:
    """Ends the session when the server ends: its children may keep the pipes open."""
    if not hasattr(os, "pidfd_open"):
        return  # not Linux: the end of its output has to do
    with suppress(ProcessLookupError):
        exited = asyncio.Event()
        loop, fd = asyncio.get_running_loop(), os.pidfd_open(process.pid)
        loop.add_reader(fd, exited.set)
        try:
            await exited.wait()
        finally:
            loop.remove_reader(fd)
            os.close(fd)
    await end.fail()


async def _line(stream: asyncio.StreamReader) -> bytes:
    try:
        return await stream.readline()
    except ValueError:
        raise Invalid(f"the server sent a line of more than {LINE_BYTES >> 20} MB") from None


async def _write(process: asyncio.subprocess.Process, outgoing: Any) -> None:
    assert process.stdin is not None
    async with outgoing:
        async for message in outgoing:
            text = message.message.model_dump_json(by_alias=True, exclude_none=True)
            process.stdin.write(text.encode() + b"\n")
            with suppress(ConnectionError):
                await process.stdin.drain()


async def _drain(process: asyncio.subprocess.Process, end: _End) -> None:
    """Passes the server's stderr on, up to `STDERR_BYTES`."""
    assert process.stderr is not None
    left = STDERR_BYTES
    while chunk := await process.stderr.read(1 << 16):
        text = chunk[:left].decode("utf-8", "replace")
        _last.extend(line[:300] for line in chunk[-2000:].decode("utf-8", "replace").splitlines() if line.strip())
        if left > 0:
            sys.stderr.write(text)
            sys.stderr.flush()
            left -= len(chunk)
            if left <= 0:
                print("\n[more of the server's stderr is dropped]", file=sys.stderr, flush=True)
    end.stderr.set()
