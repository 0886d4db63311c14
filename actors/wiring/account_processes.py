"""The processes of chat accounts, as children of a server: started, restarted, ended with it.

Each enabled account has one child (`sika channel … --supervised <holder>`). The address of NATS and its token go
through the child's standard input, which stays open: its end tells the child that the server is gone, also after
`kill -9`. What the child writes is logged. When a child is dead, its lease is freed for the next one.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import msgspec
import structlog

from actors.wiring.accounts import Link
from core import pipes
from core.bus.endpoint import Endpoint
from core.chat import lease, platforms
from core.chat.account import AGGREGATE, Accounts
from core.config.load import ConfigSource
from core.errors import Invalid, Unavailable
from core.runtime.system import worker_name

log = structlog.get_logger("sika.accounts")

PAUSES = (0.2, 1.0, 2.0, 5.0)
"""Seconds before a child that ended is started again, by its ends without a steady time between them. What a person
must mend (credentials, settings) does not end a child."""
STEADY_SECONDS = 20.0
STOP_SECONDS = 6.0
"""Time that a child has to end: it closes its connection within five seconds."""
LOOK_SECONDS = 1.0
"""Interval at which the configuration is looked at."""
LINE_BYTES = 8192
"""Limit of a line of a child that is logged."""
FREE_SECONDS = 2.0
"""Timeout of freeing a dead child's lease; then the next child waits until it has run out."""
LEVELS = ("debug", "info", "warning", "error", "critical")


class Supervisor:
    """The children of one server."""

    def __init__(
        self,
        accounts: Accounts,
        source: ConfigSource,
        home: Path,
        config: Path | None,
        endpoint: Endpoint,
        embedded: bool,
    ) -> None:
        self._accounts = accounts
        self._source = source
        self._options = ["--home", str(home), *(["--config", str(config)] if config else [])]
        self._link = Link(endpoint.url, (endpoint.token or "") if embedded else "")
        self._running: dict[str, anyio.CancelScope] = {}
        self._entered = anyio.Event()
        """Set when entered credentials have changed."""

    async def run(self) -> None:
        """Runs until cancelled: there is a child for each enabled account, and no other."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch_log)
            while True:
                self._entered, config = anyio.Event(), self._source.current()
                try:
                    names = await self._enabled()
                except Unavailable as error:
                    log.warning("accounts are looked at later", error=str(error))
                    await anyio.sleep(LOOK_SECONDS)
                    continue
                for name in self._running.keys() - names:
                    self._running.pop(name).cancel()
                for name in sorted(names - self._running.keys()):
                    scope = self._running[name] = anyio.CancelScope()
                    tasks.start_soon(self._keep, name, scope)
                while self._source.current() is config and not self._entered.is_set():
                    with anyio.move_on_after(LOOK_SECONDS):
                        await self._entered.wait()

    async def _enabled(self) -> set[str]:
        """Returns the accounts that have a child. Raises `Unavailable`."""
        config = self._source.current()
        if config.channels.processes == "external":
            return set()
        names = set()
        for name, account in (await self._accounts.all()).items():
            if account.settings.enabled:
                try:
                    platforms.traits(account.platform, config)
                    names.add(name)
                except Invalid as error:
                    log.error("account has no process", account=name, problem=str(error))
        return names

    async def _watch_log(self) -> None:
        """Notices that credentials were entered, or are void."""
        while True:
            with suppress(Unavailable):
                async for _ in self._accounts.log.follow(AGGREGATE):
                    self._entered.set()
            await anyio.sleep(LOOK_SECONDS)

    async def _keep(self, name: str, scope: anyio.CancelScope) -> None:
        """Keeps the child of an account, until cancelled."""
        failures = 0
        with scope:
            while True:
                began = anyio.current_time()
                try:
                    reason = f"ended with code {await self._child(name)}"
                except OSError as error:
                    reason = f"cannot be started: {error.strerror}"
                failures = 1 if anyio.current_time() - began > STEADY_SECONDS else failures + 1
                pause = PAUSES[min(failures, len(PAUSES)) - 1]
                log.warning("process of an account ended", account=name, reason=reason, again_in=pause)
                await anyio.sleep(pause)

    async def _child(self, name: str) -> int:
        """Runs one child to its end. Returns its exit code."""
        platform, _, account = name.partition("-")
        holder = f"{worker_name()}-{secrets.token_hex(6)}"
        command = ["channel", platform, *(["--account", account] if account else []), *self._options]
        child = await asyncio.create_subprocess_exec(
            # -P: nothing of the working directory is imported for ours
            *(sys.executable, "-P", "-m", "channels.cli", *command, "--supervised", holder),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=_environment(),
            start_new_session=True,  # Ctrl-C in a terminal is for the server, which ends its children
        )
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            log.info("process of an account started", account=name, pid=child.pid)
            with suppress(ConnectionError):
                await pipes.send(child.stdin, msgspec.json.encode(self._link) + b"\n")
            async for line in _lines(child.stdout):
                _pass_on(line, name)
            return await child.wait()
        finally:
            child.stdin.close()
            with anyio.CancelScope(shield=True):
                with anyio.move_on_after(STOP_SECONDS):
                    await child.wait()
                if child.returncode is None:
                    log.warning("process of an account killed: it did not end in time", account=name, pid=child.pid)
                    child.kill()
                    await child.wait()
                await self._free(name, holder)

    async def _free(self, name: str, holder: str) -> None:
        """Frees the lease of a child that is dead."""
        with anyio.move_on_after(FREE_SECONDS):
            try:
                if await lease.free(self._accounts.log.bus, name, holder):
                    log.info("lease of a dead process freed", account=name)
            except Unavailable as error:
                log.info("lease of a dead process left to run out", account=name, reason=str(error))


def _pass_on(line: str, account: str) -> None:
    """Logs what a child wrote: its own log as it is, other lines as text."""
    try:
        fields = msgspec.json.decode(line, type=dict[str, Any])
        event, level = fields.pop("event"), fields.pop("level")
    except (msgspec.DecodeError, KeyError):
        log.info(line, account=account)
        return
    fields.pop("timestamp", None)
    write = getattr(log, level) if level in LEVELS else log.info
    write(str(event), **{**fields, "account": account})


def _environment() -> Mapping[str, str]:
    """Returns the environment of children: where Python finds packages is as here."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return {**os.environ, "PYTHONPATH": path}


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """Yields the lines of a stream; long ones are cut."""
    rest = b""
    while chunk := await stream.read(1 << 16):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line[:LINE_BYTES].decode(errors="replace").rstrip()
        rest = rest[:LINE_BYTES]
    if rest:
        yield rest.decode(errors="replace")
