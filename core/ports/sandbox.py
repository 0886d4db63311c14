"""The port of a sandbox: where the agent's commands run and its files live."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import msgspec

from core.config.sandbox import Egress
from core.errors import Unavailable
from core.files.paths import WORKSPACE, Mount

RESULTS = f"{WORKSPACE}/.tool-results"
"""Where long results of tools lie."""
UNLIMITED: Mapping[str, int] = {"thread_bytes": 0, "thread_files": 0, "user_bytes": 0, "user_files": 0}
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_-]")


def result_path(tool: str, key: str) -> str:
    """Where the result of a call lies; `key` names the call in its thread."""
    digest = hashlib.blake2b(key.encode("utf-8", "replace"), digest_size=6).hexdigest()
    return f"{RESULTS}/{_NOT_PLAIN.sub('_', tool)[:60]}-{digest}.txt"


class ShellCommand(msgspec.Struct, frozen=True):
    """A command for the sandbox's shell."""

    text: str
    timeout: float
    """Seconds after which it is ended, with all that it started."""
    environment: Mapping[str, str] = {}
    """Variables of this command only."""
    private: bool = False
    """True: it has secrets, and must share nothing with other commands but the mounts, as far as the sandbox can."""


class ExecResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Outcome of one command. `exit_code` is None when it did not end by itself (see `ended`)."""

    stdout: str
    stderr: str
    exit_code: int | None
    ended: str = "exited"
    """`exited`, `timeout` (the whole tree was killed) or `interrupted` (the machine or sandbox died under it)."""
    note: str = ""
    """A note for the model: the things that the sandbox had lost before the command."""


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """A search in files for lines that match a regular expression."""

    pattern: str
    glob: str | None = None
    """Only in files whose path matches; `!` before it: in all others."""
    type: str | None = None
    """Only in files of a type by ripgrep's names: `py`, `ts`."""
    literal: bool = False
    case_sensitive: bool = False
    multiline: bool = False
    """Matches may span lines."""
    before: int = 0
    after: int = 0
    """Lines of context."""
    shows: Literal["lines", "files", "counts"] = "lines"
    everything: bool = False
    """True: also in directories of version control, of dependencies, and caches."""
    limit: int = 100


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a search or a listing of files, and what it leaves out."""

    found: Sequence[str]
    """The first paths, or lines as `path:12: text`."""
    total: int = 0
    """Number of all paths, or of all matching lines."""
    files: int = 0
    """Number of files with matching lines."""
    searched: int = 0
    """Number of files that were searched."""
    stopped: Literal["", "time", "matches"] = ""
    """Why not everything was looked at."""
    directories: Sequence[str] = ()
    """Directories that were not entered."""
    passed: Mapping[str, int] = {}
    """Numbers of files that were not searched, by the reason."""


class Edit(msgspec.Struct, frozen=True, kw_only=True):
    """A text of a file that is replaced: at its only place, or everywhere if `every` is true. An empty `old` makes a
    new file with the text `new`; there must be none, or an empty one.
    """

    path: str
    old: str
    new: str
    every: bool = False


class Output(NamedTuple):
    """New output of a command that was started (`Sandbox.start`), and its outcome, None while it runs."""

    text: str
    """What it said on both streams since the place that was named."""
    place: int
    """Where the next part begins."""
    result: ExecResult | None


class Sandbox(Protocol):
    """One thread's sandbox. Paths are virtual (`/mnt/user-data/…`, `/mnt/skills/…`).

    Guarantees: `exec` with a call id that was seen before never runs the command again: it waits for the running one
    or returns the recorded outcome, also after a crash of this process. File operations never leave the mounts,
    whatever links the agent makes. Every refusal is `Invalid` with a text that is fit for the model and shows virtual
    paths only. Non-guarantees: no isolation between calls of the same thread; no order between concurrent calls.
    """

    async def exec(self, call_id: str, command: ShellCommand, on_output: Callable[[str], None]) -> ExecResult:
        """Runs a command, and passes on what it writes meanwhile."""
        ...

    async def read(self, path: str) -> bytes: ...

    async def version(self, path: str) -> str | None:
        """SHA-256 (hex) of what is stored, None if there is nothing. It tells versions of a file apart; of what `read`
        gives it need not be the digest.
        """
        ...

    async def kill(self, call_id: str) -> None:
        """End a command and everything it started. Cancelling `exec` does not: a server that stops leaves commands
        running.
        """
        ...

    async def write(self, path: str, content: str, *, append: bool = False, call_id: str | None = None) -> None:
        """With a call id: done once, however often it is asked for."""
        ...

    async def edit(self, edits: Sequence[Edit], *, call_id: str | None = None) -> Sequence[Sequence[int]]:
        """Makes all edits, in their order, or none. Returns for each the lines at which the new text stands, an empty
        list if that is not known (any more). Raises `Invalid` for a text that is not there, or at several places. With
        a call id: done once.
        """
        ...

    async def list(self, path: str) -> Listing:
        """Returns the files and directories of two levels. Raises `Invalid` if there is no such directory."""
        ...

    async def glob(self, path: str, pattern: str, *, dirs: bool, limit: int, everything: bool = False) -> Listing:
        """Returns the paths below `path` that match. A path that is a file is matched by its name."""
        ...

    async def grep(self, path: str, query: Query) -> Listing:
        """Returns lines of the files below `path`. A path that is a file is searched, whatever it is."""
        ...


class Access(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Connections of a command to one host. `reason`: why they were refused, empty if they were not."""

    host: str
    port: int
    reason: str = ""
    connections: int = 0
    sent: int = 0
    """Bytes to the host."""
    received: int = 0
    """Bytes from the host."""


@runtime_checkable
class Runs(Protocol):
    """A provider with tasks of its own, which run as long as the server."""

    async def run(self) -> None: ...


@runtime_checkable
class Probes(Protocol):
    """A provider that can look at the machine of its commands without one of a thread."""

    async def probe(self, script: str) -> str:
        """Returns what a script prints (`core.sandbox.probe`) that runs as commands do, without files of a thread, with
        lines for what it cannot find. Raises `Unavailable`.
        """
        ...

    async def edition(self) -> str:
        """Returns what changes when the machine does, so that what a script found can be kept. Raises `Unavailable`."""
        ...


@runtime_checkable
class RecordsNetwork(Protocol):
    """A sandbox that records where its commands connect to."""

    async def accesses(self, call_id: str) -> Sequence[Access]:
        """Returns the connections of a command, one entry for each host."""
        ...


@runtime_checkable
class ListsPorts(Protocol):
    """A sandbox that knows on which ports its commands listen."""

    async def ports(self, call_id: str) -> Sequence[int]:
        """Returns the TCP ports of a command that runs in the background."""
        ...


@runtime_checkable
class RunsInBackground(Protocol):
    """A sandbox whose commands can run on while the agent does something else."""

    async def start(self, call_id: str, command: ShellCommand) -> None:
        """Starts a command that runs on by itself; of a call id that was started before, nothing happens. It ends by
        itself, by `kill`, at its timeout, or with its machine.
        """
        ...

    async def output(self, call_id: str, after: int = 0) -> Output:
        """Returns what a command that was started has said since `after`. Raises `NotFound` for an unknown call id."""
        ...


class Enclosed(NamedTuple):
    """A command that runs in a sandbox: its arguments, and the contents of its descriptors (`Encloses.enclosed`)."""

    argv: Sequence[str]
    files: Sequence[bytes]


@runtime_checkable
class Encloses(Protocol):
    """A provider that can also run a program for long, whose pipes the server reads and writes."""

    def enclosed(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        mounts: Iterable[Mount],
        *,
        directory: str = WORKSPACE,
        network: bool = False,
        fds: Sequence[int] = (100, 101),
    ) -> Enclosed:
        """Returns the command that runs the program in a directory of the sandbox. It sees of the host's files its
        system and the mounts. `fds` are the descriptors that it will inherit with the contents of `Enclosed.files`.
        Raises `Invalid` if the program is not in the sandbox.
        """
        ...


@runtime_checkable
class Explains(Protocol):
    """A provider that says how strong it is here, for `sika doctor` and the log."""

    def strength(self) -> str:
        """Returns which limits are in force, in a few words."""
        ...

    def weaknesses(self) -> Sequence[str]:
        """Returns the gaps of the confinement, on this machine and with these settings."""
        ...


class SandboxProvider(Protocol):
    """Makes sandboxes. `check` returns None when usable, else what is wrong and what to do about it."""

    name: str

    async def check(self) -> str | None: ...

    async def acquire(self, user: str, thread: str) -> Sandbox: ...


@runtime_checkable
class WorksInFolders(Protocol):
    """A provider on the person's machine, whose sandboxes can show a folder of it."""

    async def acquire_in(self, user: str, thread: str, folder: Mount) -> Sandbox:
        """Returns the sandbox of a thread in which commands and relative paths begin in the folder, and what its rules
        hide cannot be read. Raises `Invalid`.
        """
        ...


class Machine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a sandbox runs on, if its provider starts one for each thread: a container, a pod."""

    id: str
    """How its engine calls it."""
    address: str = ""
    """Where it answers, if it does by HTTP."""


class MachineLost(Unavailable):
    """The machine of a sandbox is gone, and what was only on it. Raised by every method of a `Sandbox`."""

    code = "machine_lost"


class Resident(NamedTuple):
    """A machine that its engine lists as one of this installation, and the thread that it serves."""

    machine: Machine
    user: str
    thread: str


@runtime_checkable
class StartsMachines(Protocol):
    """A provider whose sandboxes are machines that somebody starts and ends; its `acquire` is not used.

    Who holds which machine is decided elsewhere (`actors.sandbox`); a provider does as it is told. A machine carries
    the installation's id, the user and the thread as labels, so that it can be listed when nobody remembers it.
    """

    async def start(self, user: str, thread: str) -> Machine:
        """Returns the running machine of a thread, a new one if there is none: its name follows from the thread.
        Raises `Unavailable` with the engine's reason."""
        ...

    async def open(self, machine: Machine, user: str, thread: str) -> Sandbox:
        """Returns the sandbox on a machine that runs. Raises `MachineLost`."""
        ...

    async def end(self, machine: Machine) -> None:
        """Ends a machine; of one that is gone, nothing happens. What it held beside the thread's files is lost."""
        ...

    async def residents(self) -> Sequence[Resident]:
        """Returns the machines of this installation that run."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSetup:
    """The setup of a provider: the section `sandbox` of the configuration, and the folders."""

    home: Path
    """The data directory; the files of a thread lie in `core.files.paths.thread_root` of it."""
    skills: Mapping[str, Path] = field(default_factory=dict)
    """The folders of skills by their names below `core.files.paths.SKILLS`."""
    mounts: Sequence[Mount] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    network: bool = False
    egress: Egress = field(default_factory=Egress)
    memory_mb: int = 2048
    max_processes: int = 256
    max_file_mb: int = 1024
    quota: Mapping[str, int] = field(default_factory=lambda: dict(UNLIMITED))
    """Limits of files: `thread_bytes`, `thread_files`, `user_bytes`, `user_files`; 0 is no limit."""
    idle_seconds: float = 600
    """Time after which what the commands of a thread share ends; 0 is never."""
    allow_host_bash: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The settings of `installed.<name>`."""


MakeProvider = Callable[[SandboxSetup], SandboxProvider]
"""Makes a provider of the configuration. Reads nothing and starts nothing: that is for `check` and `acquire`."""
