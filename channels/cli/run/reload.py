"""`sika serve --reload`: a server in a process of its own, ended and started again when a file of its code changes.

Runs survive that as they survive a kill: the next process goes on from the log.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import NamedTuple

import anyio
import structlog
from anyio.abc import ObjectReceiveStream, ObjectSendStream, Process
from watchfiles import awatch

from core.config.settings import Config
from core.plugins import GROUPS

log = structlog.get_logger("sika.reload")

Matters = Callable[[object, str], bool]
"""True if a change of a file matters: what `watchfiles` calls a filter."""

STOP_SECONDS = 20.0
"""Time for a server to drain before it is killed."""
OURS = ("core", "actors", "channels", "adapters")


class Watched(NamedTuple):
    """The sources of a server: folders with all that lies in them, and single files."""

    folders: frozenset[Path]
    files: frozenset[Path]

    def is_code(self, _: object, path: str) -> bool:
        return path.endswith(".py") and any(Path(path).is_relative_to(folder) for folder in self.folders)

    def is_named(self, _: object, path: str) -> bool:
        return Path(path) in self.files


def watched(path: Path, config: Config) -> Watched:
    """Returns the server's own code, that of installed extensions, that which the configuration names, and the files of
    the configuration, `path` and `.env`.
    """
    named = [*config.actors, *(entry.use for entry in config.tools), *(entry.use for entry in config.middlewares)]
    if config.guardrails.provider is not None:
        named.append(config.guardrails.provider.use)
    modules = {*OURS, *(name.partition(":")[0] for name in named if not name.startswith("deerflow."))}
    modules |= {entry.module for group in GROUPS for entry in entry_points(group=group)}
    code = {place for name in {module.partition(".")[0] for module in modules} for place in _places(name)}
    files = {place for place in code if place.is_file()} | {path.absolute(), Path.cwd() / ".env"}
    return Watched(frozenset(code - files), frozenset(files))


def _places(name: str) -> Iterator[Path]:
    """Returns where a top-level module lies: a package's folders, or the file of a module."""
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations:
        yield from (Path(place).resolve() for place in spec.submodule_search_locations)
    elif spec is not None and spec.origin and spec.has_location:
        yield Path(spec.origin).resolve()


async def serve(arguments: Sequence[str], places: Watched) -> None:
    """Runs `sika` with these arguments until it is cancelled. What cannot start is started again at the next change."""
    send, receive = anyio.create_memory_object_stream[list[str]](1)
    async with send, receive, anyio.create_task_group() as tasks:
        tasks.start_soon(_watch, places.folders, places.is_code, True, send)
        tasks.start_soon(_watch, {file.parent for file in places.files}, places.is_named, False, send)
        await _keep(arguments, receive)


async def _watch(
    folders: Collection[Path], matters: Matters, recursive: bool, send: ObjectSendStream[list[str]]
) -> None:
    """Sends the names of files that have changed. Single files are watched by their folders: editors put new files in
    the place of old ones.
    """
    async for changes in awatch(*sorted(folders), watch_filter=matters, recursive=recursive):
        await send.send(sorted({os.path.basename(path) for _, path in changes}))


async def _keep(arguments: Sequence[str], changes: ObjectReceiveStream[list[str]]) -> None:
    """Keeps one server running, and another one after each change."""
    process = await _start(arguments)
    try:
        async for names in changes:
            log.info("files have changed: starting again", files=names)
            await _end(process)
            process = await _start(arguments)
    finally:
        with anyio.CancelScope(shield=True):
            await _end(process)


async def _start(arguments: Sequence[str]) -> Process:
    """Starts a server that Ctrl-C does not reach: it is ended by us."""
    return await anyio.open_process(
        [sys.executable, "-m", "channels.cli", *arguments], stdin=None, stdout=None, stderr=None, start_new_session=True
    )


async def _end(process: Process) -> None:
    """Ends a server: first as an orchestrator would."""
    if process.returncode is None:
        process.terminate()
    with anyio.move_on_after(STOP_SECONDS):
        await process.wait()
    if process.returncode is None:
        process.kill()
        await process.wait()
