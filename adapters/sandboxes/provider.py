"""Shared code of the local providers: one sandbox object per thread, and the limits of a command."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from anyio import to_thread

from adapters.sandboxes.process.record import Calls
from core.files.paths import Mount, Tree, make_thread, mounts_of, thread_root
from core.ports.sandbox import SandboxSetup

MAX_SANDBOXES = 256
"""Limit of sandbox objects in memory (DeerFlow's); the files are on disk in any case."""
MAX_OPEN_FILES = 4096
_MB = 1024 * 1024


class _HasCalls(Protocol):
    calls: Calls


S = TypeVar("S", bound=_HasCalls)


class Threads(Generic[S]):
    """The cache of sandboxes. Guarantees: one object per thread while it is cached, also under concurrent calls."""

    def __init__(self, setup: SandboxSetup, make: Callable[[Path, Tree], S]) -> None:
        self._home, self._skills, self._mounts, self._make = setup.home, setup.skills, setup.mounts, make
        self._cache: OrderedDict[tuple[str, str, Mount | None], S] = OrderedDict()

    async def acquire(self, user: str, thread: str, folder: Mount | None = None) -> S:
        """Returns the sandbox of a thread, that with the person's `folder` if the thread works on one."""
        key = (user, thread, folder)
        if key not in self._cache:
            sandbox = await to_thread.run_sync(self._prepare, thread_root(self._home, user, thread), folder)
            self._cache.setdefault(key, sandbox)  # a concurrent call may have been faster
        sandbox = self._cache[key]
        self._cache.move_to_end(key)
        if len(self._cache) > MAX_SANDBOXES:
            self._cache.popitem(last=False)
        return sandbox

    def _prepare(self, root: Path, folder: Mount | None) -> S:
        make_thread(root)
        extra = [*self._mounts, folder] if folder else self._mounts
        sandbox = self._make(root, Tree(mounts_of(root, self._skills, extra)))
        sandbox.calls.sweep()
        return sandbox


def limits(memory_mb: int, max_file_mb: int) -> dict[str, int]:
    """Returns the limits per process. Memory is RLIMIT_DATA (allocated memory): RLIMIT_AS would also count the address
    space that node, Go and Java reserve and never use."""
    return {"DATA": memory_mb * _MB, "FSIZE": max_file_mb * _MB, "NOFILE": MAX_OPEN_FILES, "CORE": 0}


def environment(home: str, path: str, extra: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a command: never the server's own, which has the keys."""
    return {"PATH": path, "HOME": home, "LANG": "C.UTF-8", "TERM": "dumb", **extra}
