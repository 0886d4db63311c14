"""Servers in this process: one for each data directory, shared by its clients, until the last client is closed.

A server has a thread of its own, so that it is independent of the caller's blocking code and event loops. It ends with
its last client, or when the main thread ends: a script need not close its client.
"""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from pathlib import Path

import anyio
import structlog
from anyio.abc import TaskStatus

from actors.wiring import compose
from channels.client.background import Background
from channels.client.errors import ClientError, Invalid, Unavailable, of_core
from channels.client.servers import announced, answers
from channels.client.wire import Target
from core.config import load as configuration
from core.config.load import ConfigSource
from core.errors import Refused, SikaError
from core.identity.installation import Installation
from core.observe import logs

LOOK_SECONDS = 0.25
"""Interval in which a server checks whether the main thread has ended."""
USER = "default"
"""The user of clients without one, where there are accounts."""

_lock = threading.Lock()
_servers: dict[Path, Server] = {}


class Server:
    """A server of this process. `clients` counts those that use it."""

    def __init__(self, home: Path, config: Path | None) -> None:
        self.home = home
        self.config = config
        self.clients = 0
        self._background = Background("sika-server", _nothing, daemon=False)
        self._stopping = anyio.Event()
        try:
            started = self._background.portal.start_task(self._serve)
        except BaseException:
            self._background.stop()
            raise
        self._served: Future[None] = started[0]
        self.url: str = started[1]

    def ended(self) -> ClientError | None:
        """Returns the reason why the server will not answer any more; None while it runs."""
        if not self._served.done():
            return None
        error = None if self._served.cancelled() else self._served.exception()
        client_error = of_core(error) if isinstance(error, SikaError) else None
        if client_error is None or isinstance(client_error, Unavailable):  # which would mean a retry
            return ClientError(f"the server in this process has ended: {error or 'it was stopped'}", "ended")
        return client_error

    def stop(self) -> None:
        """Drains the server, and waits for its end."""
        with suppress(RuntimeError, CancelledError):  # it has ended with the main thread
            self._background.portal.start_task_soon(self._stopping.set)
            self._served.exception()
        self._background.stop()

    async def _serve(self, *, task_status: TaskStatus[str]) -> None:
        options = compose.Options(home=self.home, config=self.config, host="127.0.0.1", port=0)
        try:
            async with compose.serve(options) as url:
                task_status.started(url)
                while not self._stopping.is_set() and threading.main_thread().is_alive():
                    with anyio.move_on_after(LOOK_SECONDS):
                        await self._stopping.wait()
        finally:
            if not threading.main_thread().is_alive():
                await self._background.portal.stop()


class Lease:
    """A client's use of the server of a data directory: in this process, or in another one that runs already."""

    def __init__(self, server: Server | None, target: Target) -> None:
        self.target = target
        self._server = server

    def release(self) -> None:
        """Releases the server. Blocks until it has ended, if this was its last client."""
        if self._server is not None:
            _release(self._server)
            self._server = None


def lease(home: Path | None, config: Path | None, user: str | None) -> Lease:
    """Starts the server if none runs. Blocks; raises the error that keeps it from starting."""
    _log_to_logging()
    try:
        home, config = configuration.home(home).resolve(), configuration.find(config)
        config = config.resolve() if config is not None else None
        accounts = ConfigSource(config).current().auth.enabled or user is not None
        token = Installation(home).internal.reveal() if accounts else ""
        server, url = _acquire(home, config)
    except SikaError as error:
        raise of_core(error) from error
    headers = {"X-Sika-Internal-Token": token, "X-Sika-User": user or USER} if accounts else {}
    target = Target(url, headers)
    return Lease(server, target._replace(ended=server.ended) if server else target)


def _acquire(home: Path, config: Path | None) -> tuple[Server | None, str]:
    """Returns the server in this process and its URL; without a server, the URL of another process's."""
    with _lock:
        server = _servers.get(home)
        if server is not None and server.ended() is not None:
            del _servers[home]
            server = None
        if server is None:
            if (url := _running(home)) is not None:
                return None, url
            try:
                server = Server(home, config)
            except Refused:
                if (url := _running(home)) is not None:  # another process was faster
                    return None, url
                raise
            _servers[home] = server
        elif server.config != config:
            raise Invalid(f"{home}: its server in this process has another configuration: {server.config}")
        server.clients += 1
        return server, server.url


def _release(server: Server) -> None:
    with _lock:
        server.clients -= 1
        if server.clients:
            return
        if _servers.get(server.home) is server:
            del _servers[server.home]
        server.stop()


def _running(home: Path) -> str | None:
    """Returns the URL of the data directory's server, if it answers."""
    url = announced(home)
    return url if url is not None and answers(url) else None


async def _nothing() -> None:
    """Does nothing: the server has ended by then."""


def _log_to_logging() -> None:
    """Makes a server in another program log through `logging`, unless the program uses structlog."""
    if structlog.is_configured():
        return
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.processors.format_exc_info,
            logs.covered,
            structlog.processors.KeyValueRenderer(key_order=["event"]),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
