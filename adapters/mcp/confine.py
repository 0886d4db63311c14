"""The sandbox of stdio servers: that of the agent's commands, with the files of the conversation that they serve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from anyio import to_thread

from core.errors import Invalid
from core.files.paths import make_thread, mounts_of, thread_root
from core.ports.mcp import Place
from core.ports.sandbox import Enclosed, Encloses, SandboxProvider


async def confine(
    provider: SandboxProvider, home: Path, argv: Sequence[str], env: Mapping[str, str], place: Place
) -> Enclosed:
    """Returns the command of a server as it runs in the sandbox. Raises `Invalid` where there is none."""
    if not isinstance(provider, Encloses):
        name = provider.name
        raise Invalid(f"the sandbox {name} cannot isolate a server; `trusted: true` runs it without isolation")
    return await to_thread.run_sync(partial(_confined, provider, home, argv, env, place))


def _confined(provider: Encloses, home: Path, argv: Sequence[str], env: Mapping[str, str], place: Place) -> Enclosed:
    if not place.thread:
        return provider.enclosed(argv, env, ())
    root = thread_root(home, place.user, place.thread)
    make_thread(root)
    return provider.enclosed(argv, env, mounts_of(root, {}, ()))
