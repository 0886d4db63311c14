"""The folder of the person that a thread works on: chosen once, and opened for each request."""

from __future__ import annotations

from pathlib import Path

from anyio import to_thread

from actors.sandbox.requests import AnyRequest, Choose, End, Find, Glob, Grep, Kill, List, Output, Read, Version, View
from core.config.load import ConfigSource
from core.errors import Invalid, Refused
from core.events import FolderAttached
from core.files.workspace import Workspace
from core.ports.sandbox import Sandbox, SandboxProvider, WorksInFolders
from core.sandbox.folders import installation
from core.thread.threads import Threads

CANNOT = "sandbox.provider: {} shows no folders of this machine; bubblewrap does (Linux), and host to the file tools"

READS = (List, Read, Glob, Grep, View, Find, Version, Output, End, Kill)
"""Requests that change no file. Before the first other one of a run there must be a snapshot."""


class Folders:
    """The folders of threads, in the sandboxes of a provider."""

    def __init__(
        self, threads: Threads, provider: SandboxProvider, config: ConfigSource, home: Path, workspace: Workspace | None
    ) -> None:
        self._threads, self._provider, self._config, self._home = threads, provider, config, home
        self._workspace = workspace

    async def choose(self, request: Choose) -> str:
        """Returns the path of a folder that a thread may work on, without links. Raises `Invalid` and `Refused`."""
        if not isinstance(self._provider, WorksInFolders):
            raise Refused(CANNOT.format(self._provider.name))
        places = installation(self._home, self._config)

        def choose() -> str:
            return str(places.folder(request.path, writable=request.writable, anywhere=request.anywhere))

        return await to_thread.run_sync(choose)

    async def chosen(self, request: AnyRequest) -> FolderAttached | None:
        """Returns the folder that a thread works on, if it is one of the user's who asks."""
        state = await self._threads.load(request.thread)
        return state.folder if state.user == request.user else None

    async def sandbox(self, request: AnyRequest) -> Sandbox | None:
        """Returns the sandbox of a thread that works on a folder; None for others. Before the first effect of a run
        there is a snapshot of the folder. Raises `Invalid`.
        """
        user, thread = request.user, request.thread
        if (folder := await self.chosen(request)) is None:
            return None
        if not isinstance(self._provider, WorksInFolders):
            raise Invalid(f"{folder.path}: {CANNOT.format(self._provider.name)}")
        mount = await to_thread.run_sync(installation(self._home, self._config).mount, folder)
        run = (await self._threads.load(thread)).active
        if self._workspace is not None and not isinstance(request, READS) and run is not None:
            await self._workspace.before(user, thread, run.id, mount)
        return await self._provider.acquire_in(user, thread, mount)
