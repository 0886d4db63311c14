"""The process of a chat account (`sika channel <platform>`): holds the account's lease, and its one connection.

It takes messages into the log, and hosts the actors that deliver. It decides nothing else. A second process of the same
account stands by, and takes over when the lease is free. One that has lost the lease ends: whatever it was about to do
is no longer its business.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.to_thread
import msgspec
import structlog
from structlog.contextvars import bind_contextvars

from actors import delivery
from actors.chat.access import Gate
from core.bus import rpc
from core.bus.endpoint import Endpoint, configured
from core.bus.upkeep import Upkeep
from core.chat import platforms
from core.chat.account import AGGREGATE, Account, Accounts
from core.chat.facts import ACCOUNT
from core.chat.held import LeasedPlatform, Meter
from core.chat.inbox import Inbox
from core.chat.lease import Lease
from core.chat.links import Links
from core.chat.port import CredentialsDead, Platform, Resuming
from core.chat.status import service
from core.config.channels import ALIASES
from core.config.load import ConfigSource
from core.config.settings import Config
from core.errors import Invalid, Refused, SikaError, Unavailable, contained, is_defect, ungrouped
from core.identity.seal import Seal
from core.runtime import system
from core.runtime.servers import announced
from core.runtime.system import System

log = structlog.get_logger("sika.accounts")

PAUSES = (1.0, 5.0, 15.0, 60.0)
"""Seconds before a connection that ended is made again, by failures without a steady minute between them."""
STEADY_SECONDS = 60.0
AGAIN_SECONDS = 300.0
"""Time after which dead credentials and settings that do not work are tried again, if nobody changes them before."""
CLOSE_SECONDS = 2.0
"""Timeout of closing a connection; with `core.chat.lease.RELEASE_SECONDS` less than the five seconds of a stop."""
LOOK_SECONDS = 0.5
"""Interval at which the configuration is looked at."""
SLOTS = 64
"""Most events that an actor of the account handles at once."""

STOP_SECONDS = 5.0
"""Time after which a process that was asked to end is ended."""


class Link(msgspec.Struct, frozen=True):
    """The NATS that a supervised process uses. `token`: of an embedded one, else empty."""

    url: str
    token: str = ""


async def serve(name: str, home: Path, source: ConfigSource, endpoint: Endpoint, holder: str = "") -> None:
    """Serves an account, standing by for as long as another process does. Runs until cancelled. `holder`:
    the name under which the server that started this process knows it.

    Raises `Invalid` if the account is not configured, `Refused` if it is not enabled, `OwnershipLost` if another
    process has taken it.
    """
    bind_contextvars(account=name)
    seconds = source.current().runs.lease_seconds
    with ungrouped():
        async with (
            source.watched(),
            system.start(
                endpoint,
                home / "views.db",
                lease_seconds=seconds,
                slots=SLOTS,
                keep_views=False,
                name=service(name),
                upkeep=Upkeep.MISSING,
            ) as running,
        ):
            accounts = Accounts(running.log, source.current, Seal(home))
            account = await enabled(accounts, name)
            # As the first: while the lease is held, nobody serves the account, and nothing renews it during an import.
            await anyio.to_thread.run_sync(platforms.prepare, account.platform, source.current())
            lease = Lease(running.bus, name, holder or running.name, seconds)
            await lease.take()
            log.info("account is served by this process")
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(lease.keep)
                    await Process(name, running, accounts, source, home, lease).run()
            finally:
                await lease.give_back()


def named(platform: str, account: str | None) -> str:
    """Returns the name of an account, by its platform and its own name."""
    platform = ALIASES.get(platform, platform)
    name = f"{platform}-{account}" if account else platform
    if not ACCOUNT.fullmatch(name):
        raise Invalid(f"{name!r} cannot be the name of an account")
    return name


def endpoint(home: Path, config: Config, nats: str | None) -> Endpoint:
    """Returns the NATS of an installation: as configured, or that of the data directory's running server. Raises
    `Unavailable` if there is none."""
    if url := nats or config.nats.url:
        return replace(configured(config.nats, url), patience=config.nats.start_seconds)
    for address in announced(home):
        token = (home / "secrets" / "nats_token").read_text().strip()
        return Endpoint(address.nats, token=token, prefix=config.nats.prefix)
    raise Unavailable(f"no server is running in {home}; start one with `sika serve`, or set nats.url")


async def linked(config: Config, on_end: Callable[[], None]) -> Endpoint:
    """Returns the NATS that the supervising server names on standard input. Calls `on_end` when that server is gone."""
    loop, lines = asyncio.get_running_loop(), sys.stdin.buffer
    line = await anyio.to_thread.run_sync(lines.readline, abandon_on_cancel=True)
    try:
        link = msgspec.json.decode(line, type=Link)
    except msgspec.DecodeError as error:
        raise Invalid(f"--supervised: expected the address of NATS on standard input: {error}") from None

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 4096):  # unbuffered: at its exit, Python waits for the lock of a buffer
            pass
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(on_end)

    threading.Thread(target=wait, name="server", daemon=True).start()
    place = replace(configured(config.nats, link.url), patience=config.nats.start_seconds)
    return replace(place, token=link.token) if link.token else place


async def existing(accounts: Accounts, name: str) -> Account:
    """Returns an account. Raises `Invalid` if there is none of this name."""
    if (account := await accounts.get(name)) is None:
        there = ", ".join(await accounts.all()) or "none"
        raise Invalid(f"there is no account {name} in channels of the configuration; there are: {there}")
    return account


async def enabled(accounts: Accounts, name: str) -> Account:
    """Returns an account. Raises `Invalid` if there is none of this name, `Refused` if it is not enabled."""
    account = await existing(accounts, name)
    if not account.settings.enabled:
        raise Refused(f"the account {name} is not enabled: set enabled: true in its section of channels")
    return account


class Process:
    """An account in the process that holds it."""

    def __init__(
        self,
        name: str,
        running: System,
        accounts: Accounts,
        source: ConfigSource,
        home: Path,
        lease: Lease,
    ) -> None:
        self._name = name
        self._system = running
        self._accounts = accounts
        self._source = source
        self._home = home
        self._lease = lease
        self._meter = Meter(name, f"{running.name} (pid {os.getpid()})")
        self._again = anyio.Event()
        """Set when the connection is to be made anew."""

    async def run(self) -> None:
        """Runs until cancelled. Raises `Refused` when the account is no longer enabled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._answer)
            while True:
                account = await enabled(self._accounts, self._name)
                self._again = anyio.Event()
                async with anyio.create_task_group() as session:
                    session.start_soon(self._watch_file, account)
                    session.start_soon(self._watch_log, account)
                    session.start_soon(self._connected, account)
                    await self._again.wait()
                    session.cancel_scope.cancel()
                log.info("the connection is made anew")

    async def _connected(self, account: Account) -> None:
        """Keeps the connection until its credentials are dead, then sets `_again` after a while."""
        self._meter.enter("starting")
        try:
            platform = platforms.connect(account, self._source.current())
        except Exception as error:
            problem = str(error) if isinstance(error, SikaError) else f"{type(error).__name__}: {error}"
            log.error("account cannot be connected", problem=problem, again_in=AGAIN_SECONDS, exc_info=is_defect(error))
            self._meter.enter("failed", problem)
        else:
            if platform.traits.resumes:
                cast(Resuming, platform).resume(self._home / "channels" / f"{self._name}.json")
            try:
                await self._serve(LeasedPlatform(platform, self._lease, self._meter))
            finally:
                await _close(platform)
        await anyio.sleep(AGAIN_SECONDS)
        self._again.set()

    async def _serve(self, platform: Platform) -> None:
        """Takes messages and delivers, until the credentials are dead."""
        inbox = Inbox(self._name, self._system.chats, replies_are_topics=platform.traits.replies_are_topics)
        links, gate = (
            Links(self._home, self._source.current),
            Gate(self._name, self._source, self._system.log, self._system.standing),
        )
        hosted = delivery.actors(self._name, platform, self._system, self._home, gate.admits, links.link, gate.awaits)
        async with anyio.create_task_group() as tasks:
            # Only the holder of the lease has these actors: what an earlier connection had begun is taken up at once.
            await tasks.start(partial(self._system.serve, hosted, alone=True))
            failures = 0
            while True:
                began = anyio.current_time()
                reason = "the connection has ended"
                try:
                    with contained(), ungrouped():
                        await platform.listen(inbox.receive, self._meter)
                except CredentialsDead as error:
                    log.error("the platform refuses the credentials", reason=str(error), again_in=AGAIN_SECONDS)
                    self._meter.enter("credentials dead", str(error))
                    tasks.cancel_scope.cancel()
                    return
                except Unavailable as error:
                    reason = str(error)
                except Exception as error:
                    reason = f"{type(error).__name__}: {error}"
                    log.exception("listening failed")
                failures = 1 if anyio.current_time() - began > STEADY_SECONDS else failures + 1
                pause = PAUSES[min(failures, len(PAUSES)) - 1]
                log.warning("connection ended", reason=reason, again_in=pause)
                self._meter.disconnected(reason)
                await anyio.sleep(pause)

    # ── from outside ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _answer(self) -> None:
        """Answers requests over the bus: `status`, and `restart`, which makes the connection anew."""

        async def answer(request: Any, _: Any) -> Any:
            match request.get("op"):
                case "status":
                    return self._meter.status()
                case "restart":
                    self._again.set()
                    return {}
            raise Invalid(f"{service(self._name)}: op: status or restart, got {request.get('op')!r}")

        while True:
            try:
                await rpc.serve(self._system.bus, service(self._name), answer)
            except Unavailable as error:
                log.warning("requests are answered later", error=str(error))
            await anyio.sleep(PAUSES[0])

    async def _watch_file(self, account: Account) -> None:
        """Sets `_again` when the configuration of the account has changed."""
        config = None
        while True:
            if self._source.current() is not config:
                config = self._source.current()
                await self._compare(account)
            await anyio.sleep(LOOK_SECONDS)

    async def _watch_log(self, account: Account) -> None:
        """Sets `_again` when credentials of the account were entered, or are void."""
        while True:
            try:
                async for _ in self._system.log.follow(AGGREGATE):
                    await self._compare(account)
            except Unavailable as error:
                log.warning("entered credentials are looked at later", error=str(error))
            await anyio.sleep(PAUSES[0])

    async def _compare(self, account: Account) -> None:
        """Sets `_again` if the account is to be connected otherwise than it was."""
        while True:
            try:
                if _connection(await self._accounts.get(self._name)) != _connection(account):
                    self._again.set()
                return
            except Unavailable as error:
                log.warning("settings are looked at later", error=str(error))
            await anyio.sleep(PAUSES[0])


def _connection(account: Account | None) -> Any:
    """Returns what a connection depends on. Who may talk is not part of it."""
    return account and (account.settings.enabled, account.values, account.problem)


async def _close(platform: Platform) -> None:
    """Closes a connection, in bounded time."""
    with anyio.move_on_after(CLOSE_SECONDS, shield=True) as closing:
        try:
            await platform.close()
        except Exception:
            log.exception("connection not closed")
    if closing.cancelled_caught:
        log.warning("connection not closed in time", seconds=CLOSE_SECONDS)
