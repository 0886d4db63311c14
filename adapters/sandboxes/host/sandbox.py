"""Host commands without a sandbox: they run on this machine as this user, if allowed. For development."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio
import msgspec
from anyio import to_thread

from adapters.sandboxes.confine import seccomp, toolkit
from adapters.sandboxes.files.operations import Files
from adapters.sandboxes.host.rules import refuse
from adapters.sandboxes.process import listening
from adapters.sandboxes.process.job import Job
from adapters.sandboxes.provider import Threads, environment, limits
from core.errors import Invalid, Unavailable
from core.files.paths import SKILLS, WORKSPACE, Mount, Tree, reopen
from core.ports.sandbox import ExecResult, Listing, Output, Query, SandboxSetup, ShellCommand

_PLAIN_HOME = re.compile(r"[\w@%+=:,./-]+\Z")
_LONGEST_LINE = 8192
PROBE_SECONDS = 30.0
"""Timeout of a look at this machine."""


class HostSandbox(Files):
    """Translates virtual paths in the agent's files, so that its scripts work on the host. Reads translate back, but
    only in files that the agent wrote (`written`)."""

    def __init__(self, root: Path, tree: Tree, provider: Host) -> None:
        super().__init__(root, tree, provider.max_file_mb, provider.quota)
        self._provider = provider
        self._translated = _Translated(root / "written")

    async def exec(self, call_id: str, command: ShellCommand, on_output: Callable[[str], None]) -> ExecResult:
        await to_thread.run_sync(reopen, self.root)
        job = self._provider.job(command, self.tree, self.root)
        lines = _Lines(lambda text: on_output(self.tree.to_virtual(text)))
        result = await self.calls.exec(call_id, command.text, job, lines.put)
        lines.flush()
        stdout, stderr = self.tree.to_virtual(result.stdout), self.tree.to_virtual(result.stderr)
        return msgspec.structs.replace(result, stdout=stdout, stderr=stderr)

    async def start(self, call_id: str, command: ShellCommand) -> None:
        await to_thread.run_sync(reopen, self.root)
        job = self._provider.job(command, self.tree, self.root)
        await self.calls.start(call_id, command.text, job)

    async def output(self, call_id: str, after: int = 0) -> Output:
        output = await self.calls.output(call_id, after)
        return output._replace(text=self.tree.to_virtual(output.text))

    async def ports(self, call_id: str) -> Sequence[int]:
        return await to_thread.run_sync(listening.of_record, self.calls.record(call_id).path)

    async def kill(self, call_id: str) -> None:
        await self.calls.kill(call_id)

    async def grep(self, path: str, query: Query) -> Listing:
        listing = await super().grep(path, query)
        return msgspec.structs.replace(listing, found=[self.tree.to_virtual(line) for line in listing.found])

    def _encoded(self, path: str, content: str) -> bytes:
        translated = self.tree.to_host(content)
        if translated != content:
            self._translated.add(path)
        return translated.encode("utf-8", "surrogateescape")

    def _decoded(self, path: str, content: bytes) -> bytes:
        if not self._translated.has(path):
            return content
        return self.tree.to_virtual(content.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


class Host:
    """Guarantees: file operations like every sandbox. Non-guarantees: commands are not confined, the rules for them
    only catch mistakes; in a folder of the person's they read its secrets, too. Off unless `allow_host_bash`. `network`
    has no effect here."""

    name = "host"

    def __init__(self, setup: SandboxSetup) -> None:
        self.max_file_mb, self.quota = setup.max_file_mb, dict(setup.quota)
        self._home, self._environment, self._allowed = setup.home, setup.environment, setup.allow_host_bash
        self._memory_mb, self._max_processes = setup.memory_mb, setup.max_processes
        self._roots = (SKILLS, *(mount.virtual for mount in setup.mounts))
        self._threads = Threads(setup, lambda root, tree: HostSandbox(root, tree, self))

    async def check(self) -> str | None:
        if not _PLAIN_HOME.match(str(self._home)):
            return f"The data directory {self._home} has characters that a shell would read; choose a plainer path."
        return None

    async def acquire(self, user: str, thread: str) -> HostSandbox:
        return await self._threads.acquire(user, thread)

    async def acquire_in(self, user: str, thread: str, folder: Mount) -> HostSandbox:
        return await self._threads.acquire(user, thread, folder)

    async def probe(self, script: str) -> str:
        env = environment("/", self._path(), self._environment)
        try:
            with anyio.fail_after(PROBE_SECONDS):
                process = await anyio.run_process(["sh", "-c", script], env=env, cwd="/", check=False)
        except (OSError, TimeoutError) as error:
            raise Unavailable(f"this machine cannot be looked at: {error!r}") from None
        return process.stdout.decode(errors="replace")

    async def edition(self) -> str:
        return f"{await to_thread.run_sync(toolkit.edition)} {self._path()}"

    def _path(self) -> str:
        return f"{os.path.dirname(sys.executable)}:{os.environ.get('PATH', os.defpath)}"  # the Python of `toolkit`

    def job(self, command: ShellCommand, tree: Tree, root: Path) -> Job:
        if not self._allowed:
            raise Invalid("bash: is off, because this sandbox runs commands on the host (sandbox.allow_host_bash)")
        if reason := refuse(command.text, (*self._roots, tree.start)):
            raise Invalid(f"command: {reason}")
        workspace = tree.to_host(WORKSPACE)
        shell = shutil.which("bash") or shutil.which("sh") or "/bin/sh"
        return Job(
            program=shell,
            argv=[shell, "-c", tree.to_host(command.text)],
            env=environment(workspace, self._path(), {**self._environment, **command.environment}),
            cwd=tree.to_host(tree.start),
            timeout=command.timeout,
            limits=limits(self._memory_mb, self.max_file_mb),
            max_processes=self._max_processes,
            max_bytes=self._memory_mb << 20,
            thread=str(root),
            quota=self.quota,
            keyctl=seccomp.number("keyctl"),
        )


class _Translated:
    """The files of a thread whose content was translated: a text file with a virtual path per line."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def has(self, path: str) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return _line(path) in self._path.read_text(encoding="utf-8").splitlines()
        return False

    def add(self, path: str) -> None:
        if not self.has(path):
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(_line(path) + "\n")


def _line(path: str) -> str:
    absolute = path if path.startswith("/") else f"{WORKSPACE}/{path}"
    return os.path.normpath(absolute).encode("unicode_escape").decode()


class _Lines:
    """Passes complete lines on, so that no path is cut before it is translated."""

    def __init__(self, sink: Callable[[str], None]) -> None:
        self._sink, self._rest = sink, ""

    def put(self, text: str) -> None:
        complete, newline, self._rest = (self._rest + text).rpartition("\n")
        if newline:
            self._sink(complete + newline)
        if len(self._rest) > _LONGEST_LINE:
            self.flush()

    def flush(self) -> None:
        if self._rest:
            self._sink(self._rest)
        self._rest = ""
