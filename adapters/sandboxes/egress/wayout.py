"""The way out of a provider's sandboxes: what a call sees of the proxy, and how long the proxy is there for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup

from adapters.sandboxes.egress import accesses, forwarder
from adapters.sandboxes.egress.authority import Authority, bundle
from adapters.sandboxes.egress.proxy import SOCKET, Credential, Proxy
from adapters.sandboxes.egress.rules import Place, Rules
from core.config.sandbox import Egress
from core.errors import Unavailable
from core.ports.sandbox import Access, SandboxSetup

INSIDE = "/run/sika"
"""Where a sandbox sees what is here."""
_TRUST = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "PIP_CERT")
"""Variables by which programs find the certificates that they trust: OpenSSL, requests, curl, git, pip."""


def checked(egress: Egress) -> tuple[Rules, Sequence[Credential]]:
    """Returns the rules and the credentials of the settings. Raises `Invalid` for what is no place."""
    credentials = [Credential(Place.of(entry.host), entry.header, entry.value) for entry in egress.credentials]
    return Rules(egress.allow, egress.allow_private), credentials


class WayOut:
    """The network of the calls of a provider. `run` must run for commands in the background to have one."""

    def __init__(self, home: Path, egress: Egress) -> None:
        """Raises `Invalid` for settings that name no place."""
        self._home, self._folder, self._egress = home, home / "sandbox" / "egress", egress
        self._rules, self._credentials = checked(egress)
        self._proxy: Proxy | None = None
        self._preparing = anyio.Lock()
        self._tasks: TaskGroup | None = None
        self._held: set[Path] = set()

    @classmethod
    def of(cls, setup: SandboxSetup) -> WayOut | None:
        """Returns the way out of a setup; None if its commands have no network, or the machine's."""
        return cls(setup.home, setup.egress) if setup.network and not setup.egress.direct else None

    # ── what a sandbox sees ─────────────────────────────────────────────────────────────────────────────────────────

    def mounts(self, record: Path) -> Sequence[tuple[Path, str]]:
        """Returns the files and folders that a call sees, which may not be written: on the host, and inside."""
        pairs = [(Path(forwarder.__file__), f"{INSIDE}/forwarder.py"), (_socket_folder(record), f"{INSIDE}/proxy")]
        return [*pairs, (self._folder, f"{INSIDE}/trust")] if self._credentials else pairs

    def command(self, python: str, inner: Sequence[str], socket: str = f"{INSIDE}/proxy/{SOCKET}") -> list[str]:
        """Returns a command with its proxy. `python` and `socket` are paths inside."""
        return [python, "-I", "-S", f"{INSIDE}/forwarder.py", socket, *inner]

    def variables(self) -> Mapping[str, str]:
        """Returns the variables by which programs trust the proxy where it adds credentials."""
        if not self._credentials:
            return {}
        trusted = dict.fromkeys(_TRUST, f"{INSIDE}/trust/all.pem")
        return trusted | {"NODE_EXTRA_CA_CERTS": f"{INSIDE}/trust/authority.pem"}

    # ── how long ────────────────────────────────────────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def open(self, record: Path) -> AsyncIterator[None]:
        """Serves a call, whose record lies in this folder."""
        proxy = await self._prepared()
        await to_thread.run_sync(lambda: _socket_folder(record).mkdir(parents=True, exist_ok=True))
        async with proxy.serving(_socket_folder(record), record):
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
                await ended()
        finally:
            self._held.discard(record)

    async def run(self) -> None:
        """Owns the proxies of commands in the background, until cancelled."""
        async with anyio.create_task_group() as self._tasks:
            await anyio.sleep_forever()

    async def accesses(self, record: Path) -> Sequence[Access]:
        """Returns the connections of a call."""
        return await to_thread.run_sync(accesses.read, record)

    async def _prepared(self) -> Proxy:
        async with self._preparing:
            if self._proxy is None:
                authority = await to_thread.run_sync(self._authority) if self._credentials else None
                most = self._egress.max_mb << 20
                self._proxy = Proxy(self._rules, self._credentials, authority, most_bytes=most)
        return self._proxy

    def _authority(self) -> Authority:
        authority = Authority(self._home / "secrets")
        self._folder.mkdir(parents=True, exist_ok=True)
        for name, content in (("authority.pem", authority.pem), ("all.pem", bundle(authority.pem))):
            draft = self._folder / f"{name}.draft"
            draft.write_bytes(content)
            draft.replace(self._folder / name)
        return authority


def _socket_folder(record: Path) -> Path:
    return record / "egress"
