"""Sandboxes by a provisioner: a service that starts a container of the all-in-one image for each thread.

Its wire is that of DeerFlow's provisioner, so that one serves, too; ours is `adapters/provisioner`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, TypeVar

import aiohttp
import msgspec
from aiohttp import hdrs
from anyio import to_thread

from adapters.bodies import read_whole
from adapters.sandboxes.docker.background import Background
from adapters.sandboxes.remote.api import Image
from adapters.sandboxes.remote.provider import NOT_COPIED, Rooms
from adapters.sandboxes.remote.sandbox import AioSandbox
from core.errors import Unavailable
from core.ports.sandbox import Machine, MachineLost, Resident, SandboxSetup

CREATE_SECONDS, OTHER_SECONDS = 30.0, 15.0
"""Timeouts of requests (DeerFlow's)."""
ANSWER_BYTES = 4 << 20
RUNNING = "Running"


T = TypeVar("T")


class _Sandbox(msgspec.Struct):
    sandbox_id: str
    sandbox_url: str = ""
    status: str = ""
    user_id: str = ""
    thread_id: str = ""


class _Listed(msgspec.Struct):
    sandboxes: list[_Sandbox]


class Provisioner:
    """Guarantees: those of `AioSandbox`; a thread has one sandbox, whose id follows from the installation, the user and
    the thread. Non-guarantees: limits and network are those that the service gives.
    """

    name = "provisioner"

    def __init__(self, setup: SandboxSetup) -> None:
        self._url = str(setup.settings.get("url", "")).rstrip("/")
        key = str(setup.settings.get("api_key", ""))
        self._headers = {hdrs.AUTHORIZATION: f"Bearer {key}"} if key else {}
        self._background = Background()
        self._rooms = Rooms(setup, self._background)
        self._prefix = ""

    async def check(self) -> str | None:
        if not self._url.startswith(("http://", "https://")):
            return "sandbox.provisioner.url is not set: the address of `sika provisioner`, as http://provisioner:8002"
        try:
            await self._list()
        except Unavailable as error:
            return f"{error}. Start `sika provisioner`, or look at sandbox.provisioner.api_key."
        return None

    def strength(self) -> str:
        return "a container of its own for each thread"

    def weaknesses(self) -> Sequence[str]:
        return ("limits and network are those of the provisioner, not of the section sandbox", NOT_COPIED)

    async def acquire(self, user: str, thread: str) -> AioSandbox:
        return await self.open(await self.start(user, thread), user, thread)

    async def run(self) -> None:
        await self._background.run()

    async def start(self, user: str, thread: str) -> Machine:
        name = await self._name(user, thread)
        body = {"sandbox_id": name, "thread_id": thread, "user_id": user}
        data = await self._call(hdrs.METH_POST, "/api/sandboxes", CREATE_SECONDS, json=body)
        sandbox = _converted(data, _Sandbox)
        image = Image(sandbox.sandbox_url)
        await image.ready()
        await self._rooms.claim(image, user, thread)
        return Machine(id=name, address=sandbox.sandbox_url)

    async def open(self, machine: Machine, user: str, thread: str) -> AioSandbox:
        name = machine.id

        async def gone() -> bool:
            try:
                data = await self._call(hdrs.METH_GET, f"/api/sandboxes/{name}", OTHER_SECONDS)
            except _Missing:
                return True
            except Unavailable:
                return False  # it may still run
            return _converted(data, _Sandbox).status != RUNNING

        if await gone():
            raise MachineLost("the sandbox's container does not run any more")
        image = Image(machine.address)
        token = await self._rooms.claim(image, user, thread)  # another one if the container was replaced meanwhile
        return await self._rooms.opened(image, token, user, thread, gone, lambda: self.end(machine))

    async def end(self, machine: Machine) -> None:
        try:
            await self._call(hdrs.METH_DELETE, f"/api/sandboxes/{machine.id}", OTHER_SECONDS)
        except _Missing:
            return

    async def residents(self) -> Sequence[Resident]:
        """Returns the machines of this installation. The service must tell the user and the thread of each, as ours
        does; what it lists without them is left out.
        """
        prefix = await self._own()
        return [
            Resident(Machine(id=entry.sandbox_id, address=entry.sandbox_url), entry.user_id, entry.thread_id)
            for entry in await self._list()
            if entry.sandbox_id.startswith(prefix) and entry.user_id and entry.thread_id
        ]

    async def _list(self) -> list[_Sandbox]:
        return _converted(await self._call(hdrs.METH_GET, "/api/sandboxes", OTHER_SECONDS), _Listed).sandboxes

    async def _name(self, user: str, thread: str) -> str:
        digest = hashlib.sha256(f"{user}\0{thread}".encode()).hexdigest()[:16]
        return f"{await self._own()}{digest}"

    async def _own(self) -> str:
        """Returns the beginning of the ids of this installation's sandboxes."""
        self._prefix = self._prefix or f"{(await to_thread.run_sync(self._rooms.installation))[:8].lower()}-"
        return self._prefix

    async def _call(self, method: str, path: str, seconds: float, **options: Any) -> Any:
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=10.0)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, headers=self._headers) as session,
                session.request(method, self._url + path, allow_redirects=False, **options) as response,
            ):
                text = await read_whole(response, ANSWER_BYTES)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise Unavailable(f"the provisioner at {self._url} does not answer: {reason}") from error
        if response.status == 404:
            raise _Missing("the provisioner has no such sandbox")
        if response.status >= 300:
            reason = text.decode(errors="replace")[:300]
            raise Unavailable(f"the provisioner at {self._url} answers {response.status}: {reason}")
        try:
            return msgspec.json.decode(text) if text else None
        except msgspec.DecodeError as error:
            raise Unavailable(f"the provisioner at {self._url} answers no JSON") from error


class _Missing(Unavailable):
    """The service answers that there is no such sandbox."""


def _converted(data: Any, kind: type[T]) -> T:
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise Unavailable(f"the provisioner answers with something else than a sandbox: {error}") from error
