"""Sandbox by Docker: a container for each thread, of any image with a POSIX shell."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import stat
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
import msgspec
import structlog
from anyio import to_thread
from docker.types import LogConfig
from docker.types import Mount as Bind

from adapters.sandboxes.docker.agent import RECORDS, Agent
from adapters.sandboxes.docker.background import EGRESS, Background, Egress
from adapters.sandboxes.docker.calls import sweep
from adapters.sandboxes.docker.engine import RUNNING, Engine, EngineAway, NameTaken
from adapters.sandboxes.docker.sandbox import DockerSandbox
from adapters.sandboxes.egress.wayout import FORWARDER, WayOut
from adapters.sandboxes.provider import MAX_OPEN_FILES, MAX_SANDBOXES, environment
from core.config.sandbox import Docker as Settings
from core.errors import Unavailable
from core.files.paths import ROOTS, WORKSPACE, Mount, Tree, make_thread, mounts_of, thread_root
from core.identity.installation import Installation
from core.ports.sandbox import Machine, MachineLost, Resident, SandboxSetup

log = structlog.get_logger("sika.sandbox")

T = TypeVar("T")

OLDEST_API = (1, 41)
"""Of Docker 20.10, the oldest engine that was tried."""
INSTALLATION, USER, THREAD, RECORD, SETUP = (
    f"sika.{name}" for name in ("installation", "user", "thread", "records", "setup")
)
"""Labels of a container."""
UID = 1000
"""The user of commands where the server is root: root's files are given to it."""
PATH = "/python/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""As in the `Dockerfile`; other images have no `/python`."""
OWN_PROCESSES = 64
"""Processes of the agent and of the commands' supervision, beside those of the commands."""
TMP_BYTES, SHARED_BYTES = 512 << 20, 64 << 20
"""Limits of /tmp and /dev/shm, which are memory and count as such."""
ATTEMPTS, ATTEMPT_PAUSE = 50, 0.1
"""For a container that another worker is creating: its name is taken before it can be seen."""
START_SECONDS, OPEN_SECONDS = 30.0, 15.0
"""Time for an engine that was stopped to come back, before a machine is refused, and before one that is there is."""
PYTHON = ("python3", "-I", "-S", "-c", "")
KEEPER = ("/bin/sh", "-c", "while :; do sleep 3600; done")


class Docker:
    """Guarantees: commands see of the host's files the mounts, as an ordinary user without capabilities. The root of
    the files is read-only. Memory, processes and processor time are limited for all commands of a thread together.
    Non-guarantees: the kernel is shared unless `runtime` names one with its own. The engine is trusted, and must see
    the files of this machine (`remote.py` is for one that does not). With `network` commands reach the hosts that
    `egress` allows, by a proxy, and nothing else; with `egress.direct` all that the engine's network `bridge` reaches.
    """

    name = "docker"

    def __init__(self, setup: SandboxSetup) -> None:
        self._setup, self._settings = setup, msgspec.convert(dict(setup.settings), Settings)
        self._engine = Engine(self._settings.host)
        self._agents: OrderedDict[str, Agent] = OrderedDict()
        self._way_out, self._background = WayOut.of(setup, EGRESS), Background()

    async def check(self) -> str | None:
        if problem := self._engine.address.problem(self._settings.remote):
            return problem
        try:
            info = await self._engine.info()
            if problem := self._problem(info):
                return problem
            if not await self._engine.has_image(self._settings.image):
                return (
                    f"The image {self._settings.image} is not there: build it in a checkout of Sika (`docker build -t "
                    f"{self._settings.image} -f adapters/sandboxes/docker/Dockerfile .`), or name another one in "
                    "sandbox.docker.image (any with a POSIX shell)."
                )
            if self._way_out and (why := await self._has_no_python()):
                return (
                    f"sandbox.network needs python3 in the image {self._settings.image}, for the commands' proxy: "
                    f"{why}. Name an image that has it in sandbox.docker.image, or turn the network off."
                )
        except EngineAway as error:
            return f"{error}. Start the engine, or name its socket in sandbox.docker.host."
        except Unavailable as error:
            return str(error)
        if not any("name=userns" in option or "name=rootless" in option for option in info["SecurityOptions"]):
            reason = "docker: the engine has no user namespaces (options userns-remap, or rootless)"
            log.warning("the sandbox is weaker than it could be", reason=reason)
        return None

    async def _has_no_python(self) -> str | None:
        """Returns why the image cannot start Python; its container is confined as those of threads are."""
        host, config = self._plan(os.geteuid() or UID)
        host["init"] = False  # the engine says that a program is not there; its init only ends
        return await self._engine.cannot_run(host, {**config, "entrypoint": list(PYTHON)})

    async def probe(self, script: str) -> str:
        host, config = self._plan(os.geteuid() or UID)
        return await self._engine.output(host, {**config, "entrypoint": ["/bin/sh", "-c", script]})

    async def edition(self) -> str:
        return f"{await self._engine.image(self._settings.image)} {self._settings.runtime} {self._settings.cpus}"

    async def acquire(self, user: str, thread: str) -> DockerSandbox:
        return await self.open(await self.start(user, thread), user, thread)

    async def start(self, user: str, thread: str) -> Machine:
        root = thread_root(self._setup.home, user, thread)
        if self._way_out is not None:
            await self._way_out.prepare()
        installation = await to_thread.run_sync(self._prepare, root)
        return await self._patiently(START_SECONDS, lambda: self._start(user, thread, root, installation))

    async def run(self) -> None:
        await self._background.run()

    async def open(self, machine: Machine, user: str, thread: str) -> DockerSandbox:
        state = await self._running(machine)
        root = thread_root(self._setup.home, user, thread)
        records = root / "machines" / state["Config"]["Labels"][RECORD]
        return await to_thread.run_sync(self._opened, machine, root, records)

    async def _running(self, machine: Machine) -> Mapping[str, Any]:
        """Returns what the engine says of a container that runs. Raises `MachineLost` and `EngineAway`."""
        state = await self._patiently(OPEN_SECONDS, lambda: self._engine.inspect(machine.id))
        if state is None or state["State"]["Status"] != RUNNING:
            raise MachineLost("the sandbox's container does not run any more")
        return state

    async def _patiently(self, seconds: float, call: Callable[[], Awaitable[T]]) -> T:
        """Calls the engine again while it is away, as when somebody restarts it. Raises `EngineAway`."""
        away = EngineAway(f"docker: {self._engine.host} did not answer within {seconds:.0f} s")
        with anyio.move_on_after(seconds):
            while True:
                try:
                    return await call()
                except EngineAway as error:
                    away = error
                await anyio.sleep(0.5)
        raise away

    async def end(self, machine: Machine) -> None:
        if (agent := self._agents.pop(machine.id, None)) is not None:
            agent.close()
        await self._engine.remove(machine.id)

    async def residents(self) -> Sequence[Resident]:
        label = f"{INSTALLATION}={await to_thread.run_sync(self._installation)}"
        return [
            Resident(Machine(id=one["Id"]), one["Labels"][USER], one["Labels"][THREAD])
            for one in await self._engine.listed(label)
        ]

    async def _start(self, user: str, thread: str, root: Path, installation: str) -> Machine:
        name = f"sika-{installation[:8]}-{_digest(user, thread)}"
        labels = {INSTALLATION: installation, USER: user, THREAD: thread}
        for _ in range(ATTEMPTS):
            host, config = self._plan(_owner(root))
            binds = self._binds(root)
            setup = _digest(*sorted(map(repr, [*binds, *host.items(), *config.items()])))
            state = await self._engine.inspect(name)
            if state is not None and state["Config"]["Labels"].get(SETUP) == setup:
                if state["State"]["Status"] == RUNNING:
                    return Machine(id=state["Id"])
                if state["State"]["Status"] == "created":  # by another worker, a moment ago
                    return await self._run(state["Id"])
            if state is not None:
                await self._engine.remove(state["Id"])
            records, further = await to_thread.run_sync(self._new_records, root)
            host["mounts"] = [*binds, *further]
            labels |= {RECORD: records.name, SETUP: setup}
            try:
                container = await self._engine.create(name, host, labels=labels, **config)
            except NameTaken:
                await to_thread.run_sync(partial(shutil.rmtree, records, ignore_errors=True))
                await anyio.sleep(ATTEMPT_PAUSE)
                continue
            return await self._run(container)
        raise Unavailable(f"docker: the container {name} could not be created: its name is taken")

    async def _run(self, container: str) -> Machine:
        """Starts a container. Raises `Unavailable` with its last words if it ends at once."""
        await self._engine.start(container)
        state = await self._engine.inspect(container)
        if state is None or state["State"]["Status"] != RUNNING:
            words = await self._engine.last_lines(container)
            reason = words or (state or {}).get("State", {}).get("Error") or "it was removed"
            raise Unavailable(f"docker: the sandbox's container does not run: {reason}")
        return Machine(id=container)

    def _plan(self, owner: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns how the engine runs the container, and what runs in it."""
        setup, memory = self._setup, self._setup.memory_mb << 20
        tmp = min(TMP_BYTES, memory)
        host: dict[str, Any] = {
            "read_only": True,
            "tmpfs": {"/tmp": f"size={tmp},mode=1777,nosuid,nodev"},
            "shm_size": min(SHARED_BYTES, memory),
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges"],
            "ipc_mode": "private",
            "network_mode": "bridge" if setup.network and self._way_out is None else "none",
            "pids_limit": setup.max_processes + OWN_PROCESSES,
            "mem_limit": memory,
            "memswap_limit": memory,
            "nano_cpus": round(self._settings.cpus * 1e9),
            "oom_score_adj": 1000,
            "init": True,
            "ulimits": [
                {"Name": "nofile", "Soft": MAX_OPEN_FILES, "Hard": MAX_OPEN_FILES},
                {"Name": "core", "Soft": 0, "Hard": 0},
            ],
            "log_config": LogConfig(type="json-file", config={"max-size": "1m", "max-file": "1"}),
        }
        if self._settings.runtime:
            host["runtime"] = self._settings.runtime
        config = {
            "image": self._settings.image,
            "entrypoint": list(KEEPER),
            "command": [],
            "user": f"{owner}:{owner}",
            "hostname": "sandbox",
            "working_dir": "/",
            "environment": {"SIKA_PART": "keeper", "PATH": PATH},
        }
        return host, config

    def _binds(self, root: Path) -> list[Bind]:
        mounts = list(mounts_of(root, self._setup.skills, self._setup.mounts))
        if self._way_out is not None:
            mounts.append(Mount(root / "egress", EGRESS))
            mounts += [Mount(self._way_out.trust, f"{EGRESS}/trust")] if self._way_out.trust else []
        return [
            Bind(mount.virtual, self._outside(mount.host), type="bind", read_only=not mount.writable)
            for mount in mounts
        ]

    def _new_records(self, root: Path) -> tuple[Path, list[Bind]]:
        """Makes the folder of a new machine's records. Returns it, and how the container sees it."""
        records = root / "machines" / secrets.token_hex(8)
        records.mkdir(mode=0o700)
        if os.geteuid() == 0:
            os.chown(records, _owner(root), _owner(root))
        return records, [Bind(RECORDS, self._outside(records), type="bind")]

    def _outside(self, path: Path) -> str:
        """Returns a path as the engine sees it."""
        base = self._settings.host_base_dir or os.environ.get("DEER_FLOW_HOST_BASE_DIR", "")
        home = self._setup.home.resolve()
        return f"{base}/{path.relative_to(home)}" if base and path.is_relative_to(home) else str(path)

    def _opened(self, machine: Machine, root: Path, records: Path) -> DockerSandbox:
        sweep(records.parent, records.name)
        sweep(root / "egress", "trust")
        agent = self._agents.setdefault(machine.id, Agent(self._engine, machine.id, records))
        self._agents.move_to_end(machine.id)
        if len(self._agents) > MAX_SANDBOXES:
            self._agents.popitem(last=False)[1].close()
        trusted = self._way_out.variables() if self._way_out else {}
        return DockerSandbox(
            root,
            Tree(mounts_of(root, self._setup.skills, self._setup.mounts)),
            records,
            agent,
            self._setup.max_file_mb,
            dict(self._setup.quota),
            environment(WORKSPACE, PATH, {**trusted, **self._setup.environment}),
            self._abandoning(machine),
            Egress(self._way_out, root / "egress", _owner(root)),
            self._background,
        )

    def _abandoning(self, machine: Machine) -> Callable[[], Awaitable[None]]:
        async def abandon() -> None:
            """Ends a machine: with its first process the kernel ends all."""
            log.warning("a sandbox is ended: a command in it cannot be stopped", container=machine.id[:12])
            await self.end(machine)

        return abandon

    def _prepare(self, root: Path) -> str:
        """Makes a thread's folders, and lets the container's user in. Returns the id of the installation."""
        make_thread(root)
        (root / "acp-workspace").mkdir(mode=0o755, exist_ok=True)
        (root / "machines").mkdir(mode=0o700, exist_ok=True)
        if self._way_out is not None:
            _offer_forwarder(root / "egress")
        if os.geteuid() == 0 and (owner := _owner(root)):
            (root.parent.parent / "skills").chmod(0o755)  # below the data directory, which is closed to others
            for name in ROOTS:
                _hand_over(root / "user-data" / name, owner)
        return self._installation()

    def _installation(self) -> str:
        return Installation(self._setup.home).derived("sandbox machines").reveal()[:16]

    def _problem(self, info: Mapping[str, Any]) -> str | None:
        runtime, api = self._settings.runtime, str(info.get("ApiVersion", ""))
        if tuple(int(part) for part in api.split(".") if part.isdigit()) < OLDEST_API:
            return f"The Docker engine is too old: its API is {api or 'unknown'}, needed is 1.41 (Docker 20.10)."
        if info.get("OSType", "linux") != "linux":
            return "The Docker engine runs no Linux containers."
        if runtime and runtime not in info.get("Runtimes", {}):
            names = ", ".join(sorted(info.get("Runtimes", {})))
            return f"sandbox.docker.runtime: the engine has no runtime {runtime}; it has: {names}."
        return None


def _owner(root: Path) -> int:
    return root.stat().st_uid or UID


def _offer_forwarder(folder: Path) -> None:
    """Copies the forwarder into a folder that the engine sees, which may not see the server's own files."""
    (folder / "trust").mkdir(parents=True, exist_ok=True)
    content, place = FORWARDER.read_bytes(), folder / FORWARDER.name
    if not place.exists() or place.read_bytes() != content:
        draft = folder / f"{secrets.token_hex(8)}.draft"
        draft.write_bytes(content)
        draft.replace(place)
    for path, mode in ((folder, 0o755), (folder / "trust", 0o755), (place, 0o644)):
        path.chmod(mode)


def _hand_over(folder: Path, owner: int) -> None:
    """Gives root's files in a folder to another user. Links are not followed, files of several names are left."""
    for _, folders, files, fd in os.fwalk(folder, follow_symlinks=False):
        for name in (".", *folders, *files):
            info = os.stat(name, dir_fd=fd, follow_symlinks=False)
            if info.st_uid == 0 and (stat.S_ISDIR(info.st_mode) or info.st_nlink == 1):
                os.chown(name, owner, owner, dir_fd=fd, follow_symlinks=False)


def _digest(*words: str) -> str:
    return hashlib.blake2b("\0".join(words).encode(), digest_size=8).hexdigest()
