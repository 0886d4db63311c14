"""The recorded events that the arguments of a command name: those of exported files, or of the data directory's log."""

from __future__ import annotations

import argparse
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from channels.cli.common import count, options_of
from channels.cli.verbs import Parser
from core.errors import Invalid, NotFound

if TYPE_CHECKING:
    from core.replay.exports.archive import Archive
    from core.replay.exports.archives import Archives
    from core.replay.source import Source
    from core.runtime.system import System

THREAD = "a thread's id, the beginning of one, @last, @last-failed, or subagent/ID; or an exported file"


@asynccontextmanager
async def source_of(
    arguments: argparse.Namespace, *, server: bool = False
) -> AsyncIterator[tuple[Source, System | None]]:
    """Yields the source of the events, and the server of the data directory; None if files suffice.

    `server`: the command needs one in any case.
    """
    async with files_of(arguments) as files:
        if files and files.complete and not server:
            yield files, None
            return
        from actors.wiring import compose
        from core.replay.source import LogSource

        options = options_of(arguments)
        async with compose.attach(options) as system:
            files.beside = LogSource(system.log, options.home)
            yield files if files else files.beside, system


def file_of(name: str | None) -> tuple[Path, str] | None:
    """Returns the file that an argument names, and the rest of it: `FILE`, `FILE#2`, `FILE@17`; None for a thread."""
    for end in ("", "#", "@"):
        path, mark, rest = name.rpartition(end) if name and end else (name or "", "", "")
        if path and os.path.isfile(path):
            return Path(path), mark + rest
    return None


@asynccontextmanager
async def files_of(arguments: argparse.Namespace) -> AsyncIterator[Archives]:
    """Yields the files that the arguments `thread` and `other` name; empty if they name none.

    In place of a file's name, the arguments get the name under which its thread is read.
    """
    from core.replay.exports.archives import Archives

    archives = Archives()
    async with AsyncExitStack() as opened:
        if path := getattr(arguments, "file", None):
            archives.name(await open_file(Path(path), opened))
        for name in ("thread", "other"):
            if file := file_of(getattr(arguments, name, None)):
                archive = archives.opened(file[0]) or await open_file(file[0], opened)
                setattr(arguments, name, archives.name(archive) + file[1])
            elif getattr(arguments, name, None):
                archives.complete = False
        yield archives


async def open_file(path: Path, opened: AsyncExitStack) -> Archive:
    """Opens an exported file until `opened` ends. Raises `NotFound`, `Invalid`."""
    from core.replay.exports.archive import Archive

    if not path.is_file():
        raise NotFound(f"{path}: no such file")
    archive = await Archive.open(path)
    opened.callback(archive.close)
    return archive


def moment_of(text: str, now: datetime) -> str:
    """Returns a time as events have it, of an ISO time or an age. Raises `Invalid`."""
    from channels.terminal.text import period

    if not text:
        return ""
    try:
        if age := period(text):
            return (now - age).isoformat()
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise Invalid(f"{text!r}: a time is ISO 8601, or an age such as 90min, 12h, 7d") from error
    return time.replace(tzinfo=time.tzinfo or UTC).astimezone(UTC).isoformat()


def over_threads(parser: Parser, errors: str) -> None:
    """Adds the arguments of a verb that looks at all threads. `errors`: what `--errors` means to it."""
    parser.add_argument("--user", default="")
    parser.add_argument("--model", default="")
    parser.add_argument("--errors", action="store_true", help=errors)
    parser.add_argument("--since", default="", metavar="TIME", help="ISO 8601, or an age: 90min, 12h, 7d")
    parser.add_argument("--limit", type=count, default=100)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--in", dest="file", metavar="FILE", help="of an exported file, without a server")
