"""The folder of the person that a thread works on: chosen once, and opened for each request."""

from __future__ import annotations

from pathlib import Path

from anyio import to_thread

from actors.sandbox.requests import Choose
from core.config.load import ConfigSource
from core.errors import Invalid, Refused
from core.ports.sandbox import Sandbox, SandboxProvider, WorksInFolders
from core.sandbox.folders import Installation
from core.thread.state import ThreadState
from core.thread.threads import Threads

CANNOT = "sandbox.provider: {} shows no folders of this machine; bubblewrap does (Linux), and host to the file tools"


class Folders:
    """The folders of threads, in the sandboxes of a provider."""

    def __init__(self, threads: Threads, provider: SandboxProvider, config: ConfigSource, home: Path) -> None:
        self._threads, self._provider, self._config, self._home = threads, provider, config, home

    async def choose(self, request: Choose) -> str:
        """Returns the path of a folder that a thread may work on, without links. Raises `Invalid` and `Refused`."""
        if not isinstance(self._provider, WorksInFolders):
            raise Refused(CANNOT.format(self._provider.name))
        installation = self._installation()

        def choose() -> str:
            return str(installation.folder(request.path, writable=request.writable, anywhere=request.anywhere))

        return await to_thread.run_sync(choose)

    async def sandbox(self, state: ThreadState, user: str, thread: str) -> Sandbox | None:
        """Returns the sandbox of a thread that works on a folder; None for others. Raises `Invalid`."""
        if state.folder is None or state.user != user:
            return None
        if not isinstance(self._provider, WorksInFolders):
            raise Invalid(f"{state.folder.path}: {CANNOT.format(self._provider.name)}")
        mount = await to_thread.run_sync(self._installation().mount, state.folder)
        return await self._provider.acquire_in(user, thread, mount)

    def _installation(self) -> Installation:
        return Installation(self._home, self._config.files, self._config.places, self._config.current().sandbox.folders)
