"""The Docker engine: its API in threads, with a deadline for each call and one error for each way of healing.

The package `docker` blocks, and its own timeout does not bound a stream that is silent. So each
call runs in a thread that is left behind at the deadline, and a stream is read and written without it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import anyio
import docker
import requests
from anyio import CapacityLimiter, to_thread
from docker import errors

from adapters.sandboxes.docker import execs
from adapters.sandboxes.docker.address import Address
from core.errors import Unavailable
from core.ports.sandbox import MachineLost

CALL_SECONDS = 30.0
"""Deadline of one call. Creating and starting a container takes 0.2 s."""
REMOVAL_PAUSE = 0.05
"""Seconds between two looks at a container that somebody else removes, which takes 45 ms."""
THREADS = 8
"""Calls at once; the engine serialises much of its work."""
PROGRAMS = 64
"""Programs at once whose output is awaited (`run`); most of them wait for a command."""
LOG_LINES = 20
RUNNING = "running"
"""Status of a container whose processes run: it is neither paused nor about to end."""

T = TypeVar("T")


class EngineAway(Unavailable):
    """The engine does not answer. Its containers may still run."""


class NameTaken(Unavailable):
    """Another worker has created the container at the same moment."""


class Stream:
    """The standard input of a process in a container. What the process writes is not read."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.socket = socket.socket(fileno=os.dup(file.fileno()))
        self.socket.setblocking(False)

    def closed(self) -> bool:
        """True if the process or the engine has ended the connection."""
        try:
            return self.socket.recv(1 << 16) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def __del__(self) -> None:
        self.close()  # the shell ends with its input

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        parts: tuple[Any, ...] = (getattr(self._file, "_response", None), self._file)
        for part in parts:  # the package keeps the connection in both
            with contextlib.suppress(OSError, AttributeError, ValueError):
                part.close()


class _Client(docker.APIClient):  # type: ignore[misc]
    """The package's client. Variables as `REQUESTS_CA_BUNDLE` would replace the authority of the engine's TLS, and
    `HTTP_PROXY` its address.
    """

    trust_env = property(lambda self: False, lambda self, value: None)


class Engine:
    """Guarantees: every method returns or raises within `CALL_SECONDS`, `run` within its own time. Raises `EngineAway`
    if the engine does not answer, and `Unavailable` with its reason if it refuses.
    """

    def __init__(self, host: str) -> None:
        self.address = Address(host)
        self.host = self.address.host
        self._client: Any = None
        self._lock = threading.Lock()
        self._limiter: CapacityLimiter | None = None
        self._programs: CapacityLimiter | None = None

    async def info(self) -> Mapping[str, Any]:
        """Returns what the engine says of itself, and the version of its API."""
        info = await self._call(lambda client: {**client.info(), "ApiVersion": client.version()["ApiVersion"]})
        return info or {}

    async def has_image(self, name: str) -> bool:
        return await self._call(lambda client: bool(client.inspect_image(name))) or False

    async def inspect(self, container: str) -> Mapping[str, Any] | None:
        """Returns a container's description by its id or name, None if there is none."""
        return await self._call(lambda client: client.inspect_container(container))

    async def listed(self, label: str) -> Sequence[Mapping[str, Any]]:
        """Returns the running containers with a label."""
        return await self._call(lambda client: client.containers(filters={"label": label})) or ()

    async def create(self, name: str, host: Mapping[str, Any], **config: Any) -> str:
        """Creates a container and returns its id. Raises `NameTaken`."""

        def create(client: Any) -> str:
            try:
                made = client.create_container(name=name, host_config=client.create_host_config(**host), **config)
            except errors.APIError as error:
                if error.status_code == 409:
                    raise NameTaken(f"docker: {error.explanation}") from error
                raise
            return str(made["Id"])

        container = await self._call(create)
        if container is None:
            raise Unavailable(f"docker: the image {config.get('image')} is not there; see `sika doctor`")
        return container

    async def start(self, container: str) -> None:
        await self._call(lambda client: client.start(container))

    async def cannot_run(self, host: Mapping[str, Any], config: Mapping[str, Any]) -> str | None:
        """Returns why a container like this one cannot start its program, None if it can."""
        name = f"sika-check-{secrets.token_hex(8)}"
        try:
            await self.start(await self.create(name, host, **config))
        except EngineAway:
            raise
        except Unavailable as error:
            return str(error)
        finally:
            await self.remove(name)
        return None

    async def output(self, host: Mapping[str, Any], config: Mapping[str, Any]) -> str:
        """Returns what a container like this one says until its program ends."""
        name = f"sika-check-{secrets.token_hex(8)}"
        try:
            await self.start(await self.create(name, host, **config))
            while ((await self.inspect(name)) or {}).get("State", {}).get("Running"):  # noqa: ASYNC110  # only it knows
                await anyio.sleep(REMOVAL_PAUSE)
            return ((await self._call(lambda client: client.logs(name))) or b"").decode(errors="replace")
        finally:
            with anyio.CancelScope(shield=True):
                await self.remove(name)

    async def image(self, name: str) -> str:
        """Returns the id of an image; empty if there is none."""
        return await self._call(lambda client: str(client.inspect_image(name)["Id"])) or ""

    async def remove(self, container: str) -> None:
        """Ends a container, and returns when it is removed, also by somebody else. Of one that is gone, nothing
        happens.
        """

        def is_under_way(client: Any) -> bool:
            try:
                client.remove_container(container, force=True, v=True)
            except errors.APIError as error:
                if error.status_code != 409:  # of a removal by force: another one is under way
                    raise
                return True
            return False

        try:
            with anyio.fail_after(CALL_SECONDS):
                while await self._call(is_under_way):  # noqa: ASYNC110  # only the engine knows
                    await anyio.sleep(REMOVAL_PAUSE)
        except TimeoutError as error:
            raise Unavailable(f"docker: {container[:12]} was not removed within {CALL_SECONDS:.0f} s") from error

    async def last_lines(self, container: str) -> str:
        """Returns the end of what the container's main process has said."""
        text = await self._call(lambda client: client.logs(container, tail=LOG_LINES))
        return (text or b"").decode(errors="replace").strip()

    async def shell(self, container: str, environment: Mapping[str, str]) -> Stream:
        """Starts a shell that reads its commands from the stream. Raises `MachineLost`."""

        def start(client: Any) -> Stream:
            try:
                made = client.exec_create(container, ["/bin/sh"], stdin=True, environment=dict(environment))
                return Stream(client.exec_start(made["Id"], socket=True))
            except errors.APIError as error:  # 409, or 500 if it ends meanwhile
                _raise_if_lost(client, container, error)
                raise

        stream = await self._call(start)
        if stream is None:
            raise MachineLost("the sandbox's container was removed")
        return stream

    async def run(self, container: str, program: execs.Program, seconds: float) -> tuple[int | None, str]:
        """Runs a program in a container (`execs.run`). Raises `MachineLost`."""

        def run(client: Any) -> tuple[int | None, str]:
            try:
                return execs.run(client, container, program, seconds)
            except errors.APIError as error:
                _raise_if_lost(client, container, error)
                raise

        self._programs = self._programs or CapacityLimiter(PROGRAMS)
        end = await self._call(run, self._programs, seconds)
        if end is None:
            raise MachineLost("the sandbox's container was removed")
        return end

    async def _call(
        self, work: Callable[[Any], T], limiter: CapacityLimiter | None = None, seconds: float = CALL_SECONDS
    ) -> T | None:
        """Returns the result of a call, None if the engine answers that there is no such thing."""
        self._limiter = self._limiter or CapacityLimiter(THREADS)
        try:
            with anyio.fail_after(seconds):
                return await to_thread.run_sync(
                    lambda: work(self._connected()), limiter=limiter or self._limiter, abandon_on_cancel=True
                )
        except errors.NotFound:
            return None
        except TimeoutError as error:
            raise EngineAway(f"docker: {self.host} did not answer within {seconds:.0f} s") from error
        except errors.APIError as error:
            raise Unavailable(f"docker: {error.explanation or error}") from error
        except (errors.DockerException, requests.RequestException, OSError) as error:
            raise EngineAway(f"docker: {self.host} does not answer: {_root(error)}") from error

    def _connected(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = _Client(base_url=self.host, version="auto", timeout=CALL_SECONDS, tls=self.address.tls())
                weakref.finalize(self, self._client.close)
            return self._client


def _raise_if_lost(client: Any, container: str, error: Exception) -> None:
    if client.inspect_container(container)["State"]["Status"] != RUNNING:
        raise MachineLost("the sandbox's container does not run any more") from error


def _root(error: BaseException) -> str:
    """Returns the text of the error at the bottom of a chain of HTTP errors."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
