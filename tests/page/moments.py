"""What the server shows of every moment of many logs, for the page's own fold of files: golden logs and odd ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec
from hypothesis import HealthCheck, Phase, given, settings

from core.events import (
    Aggregate,
    ArtifactReplaced,
    Event,
    FileConverted,
    FileRemoved,
    FileUploaded,
    ModelCompleted,
    ModelFailed,
    Record,
    ThreadCreated,
    encode,
    written,
)
from core.files.workspace import KIND as SCANS
from core.files.workspace import Entry, WorkspaceForgotten, WorkspaceScanned
from core.replay import diff
from core.replay.exports.format import FORMAT, Header, Writer
from core.replay.moments import files, requests
from core.replay.queries import moment_of
from core.replay.recorded import read_of
from core.thread.fold import fold
from core.thread.state import ThreadState
from tests.core.replay.recorded import Story
from tests.golden.stories import FOLDER, load
from tests.golden.streams.scripts import SCRIPTS
from tests.property.test_fold import logs
from tests.support.records import AT, log_of

ODD = 150
"""Logs with anything in them."""


async def expected() -> bytes:
    """Returns, for each log, the lines of its exported file, and by sequence what the server shows of its moments."""
    named = [(path.stem, load(path.stem)) for path in sorted(FOLDER.glob("*.jsonl"))]
    named += [(name, script().records) for name, script in SCRIPTS.items()]
    named += [("story", Story().records), ("files", _files())]
    recorded = [await _moments(name, records, calls=True) for name, records in named]
    odd = [await _moments(f"odd {number}", records, calls=False) for number, records in enumerate(_odd())]
    return json.dumps([*recorded, *odd]).encode()


async def _moments(name: str, records: Sequence[Record], *, calls: bool) -> dict[str, Any]:
    """`calls`: also what models got in each call, and the files."""
    source = _Source(records)
    thread = next(record.aggregate for record in records if record.aggregate.kind == "thread")
    own = await source.read(thread)

    states = {record.seq: fold(own[:count]) for count, record in enumerate(own, 1)}

    async def at(seq: int) -> ThreadState:
        return fold(record for record in own if record.seq <= seq)

    read = read_of(source)
    ends = [record for record in own if calls and isinstance(record.event, ModelCompleted | ModelFailed)]
    return {
        "name": name,
        "file": b"".join(_lines(thread, records)).decode(),
        "states": {seq: _state(thread, state) for seq, state in states.items()},
        "compared": [_compared(states, *pair) for pair in _pairs([*states])],
        "prompts": {end.seq: msgspec.to_builtins(await requests.sent_at(read, read, at, end)) for end in ends},
        "files": {
            record.seq: msgspec.to_builtins(await files.known_at(read, thread, record.seq)) for record in own if calls
        },
    }


def _state(thread: Aggregate, state: ThreadState) -> dict[str, Any]:
    moment = msgspec.to_builtins(moment_of(thread.id, state))
    return {part: moment[part] for part in ("seq", "status", "checkpoint", "values", "messages")}


def _pairs(seqs: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yields each sequence with the one before it, and with the first."""
    for before, after in pairwise(seqs):
        yield before, after
        yield seqs[0], after


def _compared(states: Mapping[int, ThreadState], left: int, right: int) -> dict[str, Any]:
    """Returns what the server finds different in the states after two events."""
    moments = [moment_of("t", states[seq], runs=0) for seq in (left, right)]
    sides = [msgspec.to_builtins({**moment.values, "status": moment.status}) for moment in moments]
    changes = [{"path": path, "before": before, "after": after} for path, before, after in diff.changes(*sides)]
    known = [{name: value for name, value in change.items() if value is not msgspec.UNSET} for change in changes]
    return {"left": left, "right": right, "values": known}


def _lines(thread: Aggregate, records: Sequence[Record]) -> Iterator[bytes]:
    """Yields an exported file: the thread's own log comes first, its scans next."""
    writer = Writer()
    yield writer.line(Header(format=FORMAT, sika="1", thread=thread.id))
    for record in sorted(records, key=lambda record: (record.aggregate != thread, record.aggregate.kind != SCANS)):
        yield writer.event(record)
    yield writer.end()


class _Source(Story):
    """Any records."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = list(records)


def _files() -> list[Record]:
    """Returns a thread whose files people and runs change, with its scans."""

    def scan(seq: int, event: Event) -> Record:
        head = written(event, id=f"s{seq}", kind=SCANS, aggregate_id="t", actor="workspace", at=AT)
        return Record(seq, encode(event, head))

    people = log_of(
        ThreadCreated(user="ada"),
        FileUploaded(name="a.pdf", size=3, sha256="a"),
        FileConverted(name="a.pdf", markdown="a.md", source_sha256="a"),
        FileRemoved(name="a.pdf"),
        ArtifactReplaced(path="/mnt/user-data/outputs/b", size=4, sha256="b", before="c"),
        FileUploaded(name="ö.txt", size=5, sha256="d"),
        ThreadCreated(user="ada"),
    )
    seen = {"/mnt/user-data/outputs/b": Entry(9, "c"), "/mnt/user-data/uploads/a.md": Entry(2, "e"), "/l": Entry(-1)}
    scans = [
        scan(33, WorkspaceScanned(upto=30, seen=seen)),
        scan(56, WorkspaceScanned(upto=50, seen={"/n": Entry(1)}, gone=["/l"], truncated=True)),
        scan(65, WorkspaceForgotten()),
    ]
    return [*people, *scans]


def _odd() -> list[list[Record]]:
    found: list[list[Record]] = []

    @settings(
        max_examples=ODD,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        deadline=None,
    )
    @given(logs())
    def collect(records: list[Record]) -> None:
        found.append(records)

    collect()
    return [records for records in found if records]
