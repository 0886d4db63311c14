"""Server-sent events: decodes bytes to frames."""

from __future__ import annotations

import codecs
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from typing import Any, NamedTuple

import msgspec


class Frame(NamedTuple):
    """A server-sent event."""

    event: str
    data: Any
    id: str = ""


class Parser:
    """Incremental parser of an event stream, cut anywhere. It yields complete frames only."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._fields: dict[str, str] = {}

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        *lines, self._rest = (self._rest + self._decoder.decode(chunk)).split("\n")
        for line in lines:
            line = line.removesuffix("\r")
            if line:
                self._field(line)
            elif self._fields:
                fields, self._fields = self._fields, {}
                if "data" in fields:
                    yield Frame(fields.get("event", "message"), value_of(fields["data"]), fields.get("id", ""))

    def _field(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data" and name in self._fields:
            value = f"{self._fields[name]}\n{value}"
        if name:
            self._fields[name] = value


async def frames_of(chunks: AsyncIterable[bytes]) -> AsyncIterator[Frame]:
    parser = Parser()
    async for chunk in chunks:
        for frame in parser.feed(chunk):
            yield frame


def value_of(text: str) -> Any:
    """Decodes JSON; returns other text unchanged."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError):
        return text
