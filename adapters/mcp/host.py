"""The process that keeps one session with an MCP server: nothing of the SDK and the adapters is imported elsewhere.

Theory of operation
-------------------
The server sends frames (`core.ports.mcp_frames`) to standard input, first the `Setup`, and reads replies from standard
output. One task owns the session. Each command has a task of its own: where the transport fails, the SDK cancels tasks
that nobody cancelled, and that is the loss of the session. The session is never repaired here. The process ends, and
the server starts another one. All processes below this one die with it: it adopts their orphans, and kills until there
are none.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import suppress

import msgspec
from mcp import McpError

from adapters.mcp import stdio
from adapters.mcp.executor import Executor
from adapters.mcp.results import described
from adapters.sandboxes.process import processes
from core import collector
from core.errors import Invalid
from core.ports.mcp_frames import Command, Reply, Setup, framed, length_of

WATCH_SECONDS = 1.0
_SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of linux/prctl.h."""


async def watch_memory(most: int) -> None:
    """Ends when the processes below this one use more memory than they may."""
    while True:
        await asyncio.sleep(WATCH_SECONDS)
        used = await asyncio.to_thread(lambda: processes.memory(processes.descendants(), most))
        if used > most:
            raise Invalid(f"the server used {used >> 20} MB of memory, more than {most >> 20}")


def kill_all(*, reap: bool = True) -> None:
    """Kills the processes below this one, until there are none. Without `reap` once."""
    for _ in range(50 if reap else 1):
        if not (pids := processes.descendants()):
            return
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            while reap and os.waitpid(-1, os.WNOHANG)[0]:
                pass


async def commands_of(fd: int) -> AsyncIterator[Command]:
    reader = asyncio.StreamReader(limit=1 << 20)
    with os.fdopen(fd, "rb", buffering=0, closefd=False) as file:
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
        while True:
            try:
                body = await reader.readexactly(length_of(await reader.readexactly(4)))
            except asyncio.IncompleteReadError:
                return
            yield msgspec.msgpack.decode(body, type=Command)


async def serve(setup: Setup, out: int) -> None:
    def send(reply: Reply) -> None:
        try:
            frame = framed(reply)
        except Invalid as error:
            frame = framed(Reply(id=reply.id, kind="error", text=f"the result is too large: {error}"))
        with suppress(BrokenPipeError), os.fdopen(out, "wb", closefd=False) as file:
            file.write(frame)

    try:
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(watch_memory(setup.memory_bytes)) if setup.transport == "stdio" else None
            await Executor(setup, send).run(commands_of(0))
            if watching:
                watching.cancel()
    except BaseException as error:
        send(Reply(kind="ended", text=_reason(error, setup)))
    kill_all(reap=False)


def _reason(error: BaseException, setup: Setup) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, TimeoutError):
        return f"it did not answer within {setup.start_seconds:g} s"
    if isinstance(error, McpError):
        return stdio.last_words() or str(error)
    if isinstance(error, asyncio.CancelledError):
        return stdio.last_words() or "the connection was lost"
    return str(error) if isinstance(error, Invalid) else described(error)


def main() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    os.nice(5)
    out = os.dup(1)
    os.dup2(2, 1)  # what libraries print is no frame
    setup = msgspec.msgpack.decode(_first(0), type=Setup)
    stdio.reserve(setup.files)
    try:
        asyncio.run(serve(setup, out))
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        kill_all()
        os._exit(0)  # threads of libraries must not keep the process


def _first(fd: int) -> bytes:
    return _exactly(fd, length_of(_exactly(fd, 4)))


def _exactly(fd: int, count: int) -> bytes:
    body = b""
    while len(body) < count:
        if not (chunk := os.read(fd, count - len(body))):
            sys.exit(0)
        body += chunk
    return body


def nurse(fd: int) -> None:
    """Forks a process for each request that arrives with its pipes, until there is nobody to ask."""
    collector.settle()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=fd) as requests:
        while True:
            word, pipes, *_ = socket.recv_fds(requests, 1, 3)
            if not word:
                return
            if (pid := os.fork()) == 0:
                requests.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.setsid()
                for number, pipe in enumerate(pipes):
                    os.dup2(pipe, number)
                os.closerange(3, max(pipes) + 1)
                main()
            for pipe in pipes:
                os.close(pipe)
            requests.sendall(pid.to_bytes(8, "big"))
