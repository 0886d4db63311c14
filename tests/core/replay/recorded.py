"""Recorded events in a file of one event a line, with their sequences: a source without a server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec

from core.events import Aggregate, Record
from tests.golden.make_story import STORY


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
