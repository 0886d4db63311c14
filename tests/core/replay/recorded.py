"""Recorded events in a file of one event a line, with their sequences: a source without a server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from core.events import Aggregate, Record
from core.replay.exports.exporting import Scope, lines, write
from core.replay.exports.format import FORMAT, Header
from core.replay.exports.redact import Redaction
from tests.golden.make_story import NAME, SECTIONS, STORY
from tests.property.test_export import Records


class Story:
    """The events of `tests/golden/debugged/story.jsonl`."""

    def __init__(self, path: Path = STORY) -> None:
        lines = path.read_bytes().splitlines()
        self.records = [Record(int(msgspec.json.decode(line)["seq"]), line) for line in lines]

    async def read(self, aggregate: Aggregate) -> Sequence[Record]:
        return [record for record in self.records if record.aggregate == aggregate]

    async def threads(self) -> AsyncIterator[Aggregate]:
        for aggregate in dict.fromkeys(record.aggregate for record in self.records):
            if aggregate.kind == "thread":
                yield aggregate

    async def events(self) -> AsyncIterator[Record]:
        for record in self.records:
            yield record

    async def last(self) -> Aggregate | None:
        return [aggregate async for aggregate in self.threads()][-1]


def configured(path: Path, **sections: Any) -> Path:
    """Writes the configuration with which the story was recorded; its models are not there. JSON is YAML."""
    models = [{"name": name, "model": name, "api_key": "none"} for name in ("lead", "sub")]
    off = {"title": {"enabled": False}, "memory": {"enabled": False}}
    path.write_text(json.dumps({"models": models, **off, **SECTIONS, **sections}))
    return path


async def exported(path: Path, records: Sequence[Record] = (), redaction: Redaction | None = None) -> Path:
    """Writes the story, or other records of it, as an exported file."""
    header = Header(format=FORMAT, sika="1", thread=NAME, redacted=redaction is not None)
    await write(path, lines(Records(records or Story().records), header, Scope(redaction=redaction)))
    return path
