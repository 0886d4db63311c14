"""`sika log export`: a thread, with all that it called, as a file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

from channels.cli.common import OK, options_of
from channels.cli.log.sources import files_of
from channels.cli.verbs import Parser
from core.errors import Invalid, NotFound
from core.events import Aggregate, ThreadCreated, ThreadPruned
from core.files.paths import thread_root
from core.ids import now
from core.log.kinds import KIND
from core.replay.exports.exporting import LogReader, Reader, Scope, lines, write
from core.replay.exports.format import FORMAT, Header
from core.replay.exports.redact import Redaction
from core.replay.named import aggregate_of
from core.replay.source import LogSource
from core.runs.prompts import release


def arguments(parser: Parser) -> None:
    parser.runs(run)
    parser.add_argument("thread")
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: THREAD.jsonl")
    parser.add_argument("--redact", action="store_true", help="replace secrets, users and addresses by placeholders")
    parser.add_argument("--blobs", action="store_true", help="the bodies that are too big for the log, too")
    parser.add_argument("--files", action="store_true", help="the files of the thread, too")


async def run(arguments: argparse.Namespace) -> int:
    from actors.wiring import compose

    terms = Terms(arguments.redact, arguments.blobs, arguments.files)
    options = options_of(arguments)
    async with files_of(arguments) as files:
        if files:
            file = files.first
            line = await export(file, file.root, arguments.out, terms, file.header.log)
        else:
            async with compose.attach(options) as system:
                aggregate = await aggregate_of(LogSource(system.log, options.home), arguments.thread)
                identity = await system.log.identity()
                home, out = options.home, arguments.out
                line = await export(LogReader(system.log), aggregate, out, terms, identity, home)
    print(line)
    return OK


class Terms(NamedTuple):
    """The parts of a thread that an export holds besides its events, and their form."""

    redact: bool = False
    blobs: bool = False
    files: bool = False


async def export(
    reader: Reader,
    root: Aggregate,
    out: Path | None,
    terms: Terms,
    log: str,
    home: Path | None = None,
) -> str:
    """Writes a file, and returns a line about it. `log` identifies the log; `home` has the files of threads.

    Raises `NotFound` and `Invalid`.
    """
    path = out or Path(f"{root.id}.jsonl")
    if terms.files and home is None:
        raise Invalid("--files: the files of a thread are with its server; this is an exported file")
    folder = await _folder(reader, root, home) if terms.files and home else None
    redaction = Redaction() if terms.redact else None
    scope = Scope(blobs=terms.blobs, files=folder, redaction=redaction)
    header = Header(
        format=FORMAT, sika=release(), thread=root.id, kind=root.kind, log=log, at=now(), redacted=redaction is not None
    )
    size = await write(path, lines(reader, header, scope))
    counts = ", ".join(f"{count} {kind}" for kind, count in redaction.counts.items()) if redaction else ""
    return f"{path}: {size} bytes" + (f"; redacted: {counts or 'nothing'}" if redaction else "")


async def _folder(reader: Reader, root: Aggregate, home: Path) -> Path:
    async for record in reader.stored(root):
        if root.kind == KIND and isinstance(record.event, ThreadCreated | ThreadPruned):
            return thread_root(home, record.event.user, root.id) / "user-data"
    raise NotFound(f"{root.kind} {root.id}: has no files of its own")
