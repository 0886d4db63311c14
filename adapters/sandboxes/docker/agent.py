"""The connection to the agent of a container: a shell (`agent.sh`) that starts and ends commands.

The server only writes: what the agent does shows in the machine's records, which survive the connection, the server
and the engine. So every order may be sent again.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import anyio
from anyio import to_thread

from adapters.sandboxes.docker.calls import Box
from adapters.sandboxes.docker.engine import RUNNING, Engine, EngineAway, Stream
from adapters.sandboxes.process.supervisor import HEAD, TAIL
from core.errors import Unavailable
from core.files.paths import WORKSPACE
from core.ports.sandbox import MachineLost

RECORDS = "/run/sika"
"""Where the container sees its machine's records."""
READY_SECONDS = 20.0
SEND_SECONDS = 10.0
DYING_SECONDS = 1.0
"""Time in which a container that ends is still called running."""
BLOCK = 512
"""Bytes of a unit of `ulimit -f` (POSIX)."""
_SCRIPTS = [Path(__file__).with_name(name) for name in ("agent.sh", "container.sh")]


class AgentEnded(Unavailable):
    """The agent ended before it was ready, and its container runs on."""


class Agent:
    """Connects when it is needed, and again when the connection was lost. One per machine."""

    def __init__(self, engine: Engine, container: str, records: Path) -> None:
        self._engine, self._container, self._records = engine, container, records
        self._lock = anyio.Lock()
        self._stream: Stream | None = None

    def lost(self) -> bool:
        """True if there was a connection and it has ended."""
        return self._stream is not None and self._stream.closed()

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
        self._stream = None

    async def run(
        self,
        name: str,
        seconds: float,
        max_file_mb: int,
        prefix: Sequence[str],
        command: str,
        environment: Mapping[str, str],
    ) -> None:
        """Starts a command. `prefix`: words without spaces, a program that runs the shell."""
        variables = [f"{key}={value}" for key, value in environment.items()]
        blocks = (max_file_mb << 20) // BLOCK
        await self._send("run", name, str(math.ceil(seconds)), str(blocks), " ".join(prefix), command, *variables)

    async def end(self, name: str, verdict: str, reason: str = "") -> None:
        await self._send("end", name, verdict, reason)

    async def listen(self, name: str, file: str) -> None:
        """Lets the agent write the sockets of a command into a file of its record (`listening.ports_in`)."""
        await self._send("listen", name, file)

    async def probe(self, name: str) -> None:
        """Lets the agent settle a call whose supervising shell is gone."""
        await self._send("probe", name)

    async def _send(self, *words: str) -> None:
        """Raises `MachineLost`, `EngineAway`, or `Unavailable` for an image that has no shell."""
        line = shlex.join(words).encode("utf-8", "surrogateescape") + b"\n"
        async with self._lock:
            if self._stream is None or self._stream.closed():
                self.close()
                try:
                    await self._connect()
                except AgentEnded:  # an engine under load starts some that end at once; an image without a shell, all
                    await self._connect()
            await self._write(line)

    async def _write(self, data: bytes) -> None:
        assert self._stream is not None
        done = False
        try:
            with anyio.fail_after(SEND_SECONDS):
                await asyncio.get_running_loop().sock_sendall(self._stream.socket, data)
            done = True
        except (OSError, TimeoutError) as error:
            raise EngineAway("docker: the connection to the container was lost") from error
        finally:
            if not done:  # half of an order may have been written
                self.close()

    async def _connect(self) -> None:
        token = secrets.token_hex(8)
        script = await to_thread.run_sync(lambda: b"".join(path.read_bytes() for path in _SCRIPTS))
        variables = {"SIKA_PART": token, "SIKA_RECORDS": RECORDS, "SIKA_WORKSPACE": WORKSPACE}
        limits = {"SIKA_HEAD": str(HEAD // BLOCK), "SIKA_TAIL": str(TAIL)}
        self._stream = await self._engine.shell(self._container, variables | limits)
        await self._write(script)
        try:
            await self._ready(token)
        except BaseException:
            self.close()
            raise

    async def _ready(self, token: str) -> None:
        deadline, pause = time.monotonic() + READY_SECONDS, 0.002
        while not (text := await to_thread.run_sync(self._take, token)):
            if self.lost() or time.monotonic() > deadline:
                await self._explain()
            await anyio.sleep(pause)
            pause = min(pause * 1.5, 0.1)
        if missing := text.decode(errors="replace").removeprefix("missing:").strip():
            raise Unavailable(f"docker: the image lacks programs that a sandbox needs: {missing}")

    async def _explain(self) -> NoReturn:
        """Raises `MachineLost` if the container ends, else what keeps the agent from its work."""
        for _ in range(10):
            state = await self._engine.inspect(self._container)
            if state is None or state["State"]["Status"] != RUNNING:
                raise MachineLost("the sandbox's container ended")
            await anyio.sleep(DYING_SECONDS / 10)
        raise AgentEnded(
            "docker: the agent in the container ended at once, or does not see the thread's records. For an engine on "
            "another machine set sandbox.docker.remote; if the server is in a container, sandbox.docker.host_base_dir"
        )

    def _take(self, token: str) -> bytes:
        text = Box(self._records.parent, self._records.name).read(f"ready.{token}", 1000)
        if not text.endswith(b"\n"):
            return b""
        (self._records / f"ready.{token}").unlink(missing_ok=True)
        return text
