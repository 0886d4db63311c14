"""Sandboxes by an engine that does not see this machine's files: the thread's files are copied in and back.

A container has no mounts of files. Two volumes, which end with it, hold the copy of the files and the records of calls.
Its agent, the copies and the commands are those of the all-in-one image (`api.py`). Where that has an HTTP API, here
each order is a program that the engine runs (`execs.py`). Orders may be repeated, so a lost connection does no harm.
"""

from __future__ import annotations

import io
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec
from anyio import to_thread
from docker.types import Mount as Bind

from adapters.sandboxes.docker.agent import RECORDS
from adapters.sandboxes.docker.engine import RUNNING, Engine, EngineAway
from adapters.sandboxes.docker.execs import Program
from adapters.sandboxes.docker.provider import PATH, RECORD, Docker
from adapters.sandboxes.remote.link import AGENT_ALONE
from adapters.sandboxes.remote.provider import NOT_COPIED, Rooms
from adapters.sandboxes.remote.sandbox import AioSandbox
from core.config.sandbox import Docker as Settings
from core.errors import Unavailable
from core.files.paths import make_thread
from core.ports.sandbox import Machine, SandboxProvider, SandboxSetup

FILES = "/mnt"
ANSWER_BYTES = 1 << 20
"""Limit of an answer; those of our orders are below 30 000 characters."""
ORDER_SECONDS, TRANSFER_SECONDS = 30.0, 600.0
_TAKE = 'head -c "$1" >"$2" && [ "$(wc -c <"$2")" -eq "$1" ]'


def provider(setup: SandboxSetup) -> SandboxProvider:
    """Makes the provider `docker` of the configuration."""
    remote = msgspec.convert(dict(setup.settings), Settings).remote
    return RemoteDocker(setup) if remote else Docker(setup)


class Orders:
    """The API of a container for its agent (`link.Api`)."""

    def __init__(self, engine: Engine, container: str) -> None:
        self._engine, self._container = engine, container

    async def ready(self, seconds: float = ORDER_SECONDS) -> str:
        return RECORDS

    async def order(self, *words: str) -> str:
        output = io.BytesIO()
        await self._run(Program(words, output, ANSWER_BYTES), ORDER_SECONDS)
        return output.getvalue().decode(errors="replace")

    async def upload(self, path: str, file: BinaryIO | bytes) -> None:
        source = io.BytesIO(file) if isinstance(file, bytes) else file
        size = source.seek(0, os.SEEK_END)
        source.seek(0)
        words = ("/bin/sh", "-c", _TAKE, "sh", str(size), path)
        code, notes = await self._run(Program(words, io.BytesIO(), ANSWER_BYTES, source), TRANSFER_SECONDS)
        if code != 0:
            raise Unavailable(f"docker: the container could not store a file of {size} bytes: {notes[-300:]}")

    async def download(self, path: str, target: Path, limit: int) -> None:
        with await to_thread.run_sync(target.open, "wb") as file:
            code, notes = await self._run(Program(("cat", path), file, limit), TRANSFER_SECONDS)
        if code != 0:
            raise Unavailable(f"docker: the container could not read a file of its own: {notes[-300:]}")

    async def prepare(self) -> None:
        """Lets the container's user write to its volumes. Root owns them, here without any capability."""
        program = Program(("chmod", "1777", FILES, RECORDS), io.BytesIO(), ANSWER_BYTES, user="0")
        code, notes = await self._run(program, ORDER_SECONDS)
        if code != 0:
            raise Unavailable(f"docker: {FILES} cannot be opened to the user of the container: {notes[-300:]}")

    async def _run(self, program: Program, seconds: float) -> tuple[int, str]:
        code, notes = await self._engine.run(self._container, program, seconds)
        if code is None:
            raise EngineAway(f"docker: an order in the container did not end by itself: {notes[-300:] or 'no reason'}")
        return code, notes


class RemoteDocker(Docker):
    """Guarantees: those of `Docker`, and of `AioSandbox`. Non-guarantees: the proxy of `network`, which needs sockets
    that both sides see. Changes in skills and in `sandbox.mounts` are not copied back.
    """

    def __init__(self, setup: SandboxSetup) -> None:
        super().__init__(setup)
        self._rooms = Rooms(setup, self._background, PATH)

    def strength(self) -> str:
        return "a container of its own for each thread, on the engine's machine"

    def weaknesses(self) -> Sequence[str]:
        return (NOT_COPIED,)

    async def check(self) -> str | None:
        if self._way_out is not None:
            return (
                "sandbox.network: the proxy of egress does not reach containers of a remote engine. Turn the network "
                "off, or set sandbox.egress.direct: true, with which the engine's machine alone limits them."
            )
        return await super().check()

    async def start(self, user: str, thread: str) -> Machine:
        machine = await super().start(user, thread)
        orders = Orders(self._engine, machine.id)
        await orders.prepare()
        await self._rooms.claim(orders, user, thread, await self._token(machine), AGENT_ALONE)
        return machine

    # Both kinds of sandboxes are of the port, and whoever made this provider knows its own.
    async def open(self, machine: Machine, user: str, thread: str) -> AioSandbox:  # type: ignore[override]
        async def gone() -> bool:
            state = await self._engine.inspect(machine.id)
            return state is None or state["State"]["Status"] != RUNNING

        token = await self._token(machine)
        abandon = self._abandoning(machine)
        return await self._rooms.opened(Orders(self._engine, machine.id), token, user, thread, gone, abandon)

    async def _token(self, machine: Machine) -> str:
        state = await self._running(machine)
        token: str = state["Config"]["Labels"][RECORD]
        return token

    def _prepare(self, root: Path) -> str:
        make_thread(root)
        return self._installation()

    def _binds(self, root: Path) -> list[Bind]:
        return [Bind(path, None, type="volume") for path in (FILES, RECORDS)]

    def _new_records(self, root: Path) -> tuple[Path, list[Bind]]:
        return root / "machines" / secrets.token_hex(8), []
