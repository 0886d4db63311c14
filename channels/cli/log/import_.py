"""`sika log import`: the events of an exported file, appended to the log."""

from __future__ import annotations

import argparse
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from channels.cli.common import OK, options_of
from channels.cli.log.sources import open_file
from channels.cli.verbs import Parser
from channels.terminal.text import one_line
from core.events import ThreadCreated, ThreadPruned
from core.phrases import counted
from core.replay.exports.archive import Archive
from core.replay.exports.importing import restore as append
from core.replay.exports.importing import restore_files

if TYPE_CHECKING:
    from core.log.store import EventLog

LOCAL = "default"
"""The owner of an imported thread whose owner was redacted: the only user of an installation without accounts."""


def arguments(parser: Parser) -> None:
    parser.runs(run, writes=True)
    parser.add_argument("file", type=Path)
    parser.add_argument("--as", dest="thread", metavar="ID", help="under another id (default: its own)")
    parser.add_argument("--user", metavar="NAME", help="the owner (default: as recorded)")


async def run(arguments: argparse.Namespace) -> int:
    from actors.wiring import compose

    options = options_of(arguments)
    async with AsyncExitStack() as opened:
        archive = await open_file(arguments.file, opened)
        async with compose.attach(options) as system:
            print(await restore(system.log, archive, options.home, arguments.thread, arguments.user))
    return OK


async def restore(log: EventLog, archive: Archive, home: Path, thread: str | None, user: str | None) -> str:
    """Imports a file, and returns a line about it. Raises what `core.replay.exports.importing.restore` raises."""
    if archive.header.redacted:
        user = user or LOCAL
    result = await append(log, archive, thread=thread, user=user)
    owner = user
    async for record in archive.stored(archive.root):
        if owner is None and isinstance(record.event, ThreadCreated | ThreadPruned):
            owner = record.event.user
    written, present = await restore_files(archive, home, owner or LOCAL, result.thread)
    facts = [counted(result.events, "event") if result.events else "was there already"]
    facts += [f"{counted(result.cancelled, 'run')} cancelled that had not ended"] if result.cancelled else []
    facts += [counted(written, "file")] if written else []
    facts += [f"{counted(present, 'file')} there already, unchanged"] if present else []
    return one_line(f"thread {result.thread}: {', '.join(facts)}", 300)
