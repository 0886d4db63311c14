"""`sika log export`, `import` and `verify FILE`: files of recorded events."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from channels.terminal.text import one_line
from core.errors import Invalid, NotFound
from core.events import Aggregate, ThreadCreated, ThreadPruned
from core.files.paths import thread_root
from core.ids import now
from core.log.kinds import KIND
from core.replay.archive import Archive
from core.replay.exporting import Reader, Scope, lines, write
from core.replay.format import FORMAT, ExchangeLine, Header, Writer
from core.replay.redact import Redaction
from core.runs.prompts import release

if TYPE_CHECKING:
    from core.log.store import EventLog

LOCAL = "default"
"""The owner of an imported thread whose owner was redacted: the only user of an installation without accounts."""


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


async def restore(log: EventLog, archive: Archive, home: Path, thread: str | None, user: str | None) -> str:
    """Imports a file, and returns a line about it. Raises what `core.replay.importing.restore` raises."""
    from core.replay.importing import restore as append
    from core.replay.importing import restore_files

    if archive.header.redacted:
        user = user or LOCAL
    result = await append(log, archive, thread=thread, user=user)
    owner = user
    async for record in archive.stored(archive.root):
        if owner is None and isinstance(record.event, ThreadCreated | ThreadPruned):
            owner = record.event.user
    written, kept = await restore_files(archive, home, owner or LOCAL, result.thread)
    facts = [f"{result.events} events" if result.events else "was there already"]
    facts += [f"{result.cancelled} runs cancelled that had not ended"] if result.cancelled else []
    facts += [f"{written} files"] if written else []
    facts += [f"{kept} files were there and stay"] if kept else []
    return one_line(f"thread {result.thread}: {', '.join(facts)}", 300)


async def recorded(exchanges: AsyncIterable[ExchangeLine]) -> AsyncIterator[bytes]:
    """Yields the lines of a file of exchanges with a model, as they come."""
    writer = Writer()
    yield writer.line(Header(format=FORMAT, sika=release(), thread="recording", at=now()))
    async for exchange in exchanges:
        yield writer.line(exchange)
    yield writer.end()
