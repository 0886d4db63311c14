"""The way out of a provider's sandboxes: what a call sees of the proxy, and how long the proxy is there for it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import structlog
from anyio import to_thread
from anyio.abc import TaskGroup

from adapters.sandboxes.egress import accesses, forwarder
from adapters.sandboxes.egress.proxy import SOCKET, Credential, Proxy
from adapters.sandboxes.egress.rules import Place, Rules
from core.config.sandbox import Egress
from core.errors import Unavailable
from core.ports.sandbox import Access, SandboxSetup

if TYPE_CHECKING:
    from adapters.sandboxes.egress.authority import Authority

log = structlog.get_logger("sika.sandbox")

INSIDE = "/run/sika"
"""Where a sandbox sees what is here."""
FORWARDER = Path(forwarder.__file__)
_TRUST = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "PIP_CERT")
"""Variables by which programs find the certificates that they trust: OpenSSL, requests, curl, git, pip."""


def rules_and_credentials(egress: Egress) -> tuple[Rules, Sequence[Credential]]:
    """Returns the rules and the credentials of the settings. Raises `Invalid` for what is no place."""
    credentials = [Credential(Place.of(entry.host), entry.header, entry.value) for entry in egress.credentials]
    return Rules(egress.allow, egress.allow_private), credentials


class WayOut:
    """The network of the calls of a provider. `run` must run for commands in the background to have one."""

    def __init__(self, home: Path, egress: Egress, inside: str = INSIDE) -> None:
        """`inside` is where a sandbox sees the proxy. Raises `Invalid` for settings that name no place."""
        self._home, self._folder, self._egress, self.inside = home, home / "sandbox" / "egress", egress, inside
        self._rules, self._credentials = rules_and_credentials(egress)
        self._proxy: Proxy | None = None
        self._preparing = anyio.Lock()
        self._tasks: TaskGroup | None = None
        self._held: set[Path] = set()

    @classmethod
    def of(cls, setup: SandboxSetup, inside: str = INSIDE) -> WayOut | None:
        """Returns the way out of a setup; None if its commands have no network, or the machine's."""
        return cls(setup.home, setup.egress, inside) if setup.network and not setup.egress.direct else None

    # ── what a sandbox sees ─────────────────────────────────────────────────────────────────────────────────────────

    def mounts(self, record: Path) -> Sequence[tuple[Path, str]]:
        """Returns the files and folders that a call sees, which may not be written: on the host, and inside."""
        pairs = [(FORWARDER, f"{self.inside}/forwarder.py"), (socket_folder(record), f"{self.inside}/proxy")]
        return [*pairs, (self.trust, f"{self.inside}/trust")] if self.trust else pairs

    @property
    def trust(self) -> Path | None:
        """The folder of the certificates that commands trust, once it is prepared. None if they trust the system's."""
        return self._folder if self._credentials else None

    def command(self, python: str, inner: Sequence[str], folder: str = "proxy") -> list[str]:
        """Returns a command with its proxy. `python` is a program inside, `folder` the name of the socket's folder."""
        return [python, "-I", "-S", f"{self.inside}/forwarder.py", f"{self.inside}/{folder}/{SOCKET}", *inner]

    def variables(self) -> Mapping[str, str]:
        """Returns the variables by which programs trust the proxy where it adds credentials."""
        if not self._credentials:
            return {}
        trusted = dict.fromkeys(_TRUST, f"{self.inside}/trust/all.pem")
        return trusted | {"NODE_EXTRA_CA_CERTS": f"{self.inside}/trust/authority.pem"}

    # ── how long ────────────────────────────────────────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def open(self, record: Path, folder: Path | None = None, owner: int | None = None) -> AsyncIterator[None]:
        """Serves a call, whose record lies in this folder. `folder` is where the socket lies, by default beside the
        record, and `owner` the user that may connect to it, by default the server's.
        """
        place = folder or socket_folder(record)
        proxy = await self._prepared()
        for path in (record, place):
            await to_thread.run_sync(partial(path.mkdir, parents=True, exist_ok=True))
        async with proxy.serving(place, record):
            if owner not in (None, os.geteuid()):
                await to_thread.run_sync(os.chown, place / SOCKET, owner, owner)
            yield

    async def hold(self, record: Path, ended: Callable[[], Awaitable[None]]) -> None:
        """Serves a call in the background until it has ended; once, however often it is asked for. Raises `Unavailable`
        in a process that runs no commands in the background.
        """
        if self._tasks is None:
            raise Unavailable("this process has no network for commands in the background")
        if record not in self._held:
            self._held.add(record)
            await self._tasks.start(self._hold, record, ended)

    async def _hold(
        self, record: Path, ended: Callable[[], Awaitable[None]], *, task_status: anyio.abc.TaskStatus[None]
    ) -> None:
        try:
            async with self.open(record):
                task_status.started()
                try:
                    await ended()
                except Exception as error:  # it must not end the server
                    log.error("a command in the background has no network any more", error=repr(error))
        finally:
            self._held.discard(record)

    async def run(self) -> None:
        """Owns the proxies of commands in the background, until cancelled."""
        async with anyio.create_task_group() as self._tasks:
            await anyio.sleep_forever()

    async def prepare(self) -> None:
        """Writes the files that sandboxes see of the authority, if there are credentials."""
        await self._prepared()

    async def accesses(self, record: Path) -> Sequence[Access]:
        """Returns the connections of a call."""
        return await to_thread.run_sync(accesses.read, record)

    async def _prepared(self) -> Proxy:
        async with self._preparing:
            if self._proxy is None:
                authority = await to_thread.run_sync(self.authority) if self._credentials else None
                most = self._egress.max_mb << 20
                self._proxy = Proxy(self._rules, self._credentials, authority, most_bytes=most)
        return self._proxy

    def authority(self) -> Authority:
        """Returns the authority. Its certificate lies in `trust` afterwards. Blocks."""
        from adapters.sandboxes.egress.authority import Authority, bundle  # imports cryptography's X.509

        authority = Authority(self._home / "secrets")
        self._folder.mkdir(parents=True, exist_ok=True)
        for name, content in (("authority.pem", authority.pem), ("all.pem", bundle(authority.pem))):
            draft = self._folder / f"{name}.draft"
            draft.write_bytes(content)
            draft.replace(self._folder / name)
        return authority


def socket_folder(record: Path) -> Path:
    """Returns where the socket of a call lies, unless it is named."""
    return record / "egress"
