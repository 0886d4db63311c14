"""A lean load client for the server's streaming endpoint: raw sockets, no HTTP library, as little parsing as possible.

It shares two cores with the server it measures, so it decodes JSON only until the first token of a run has been seen.
Each run has its own connection, as a browser tab would.

    python -m tests.bench.load --url http://127.0.0.1:2026 --runs 200 --concurrency 10 --json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import resource
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import msgspec

from tests.support.model_server import run

_READ = 1 << 18
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)


class _Chunk(msgspec.Struct):
    content: str | list[Any] = ""
    type: str = ""


_decode_message = msgspec.json.Decoder(tuple[_Chunk, msgspec.Raw]).decode


@dataclass(slots=True)
class Sample:
    """One run as its client saw it; times in seconds since the connection was opened."""

    status: int = 0
    first_token: float | None = None
    total: float = 0.0
    bytes: int = 0
    frames: int = 0
    ended: bool = False
    """Whether an `end` event came."""
    error: str = ""
    text: str = ""
    """Only if asked for: the text of all `messages` events of the assistant."""


@dataclass
class Load:
    """What one process measured; `cpu` is the client's own."""

    concurrency: int
    wall: float = 0.0
    cpu: float = 0.0
    samples: list[Sample] = field(default_factory=list)


class _Frames:
    """Takes the bytes of a response body, counts its events, and notes what a sample wants to know."""

    def __init__(self, sample: Sample, start: float, *, text: bool) -> None:
        self._sample = sample
        self._start = start
        self._text = text
        self._rest = b""

    def feed(self, data: bytes) -> None:
        *frames, self._rest = (self._rest + data.replace(b"\r", b"")).split(b"\n\n")
        for frame in frames:
            self._take(frame)

    def _take(self, frame: bytes) -> None:
        if not frame.startswith(b"event: "):
            return  # a heartbeat
        sample = self._sample
        sample.frames += 1
        name, _, rest = frame[7:].partition(b"\n")
        if name == b"messages":
            if sample.first_token is None or self._text:
                self._take_message(_data(rest))
        elif name == b"end":
            sample.ended, sample.total = True, time.perf_counter() - self._start
        elif name == b"error":
            sample.error = _data(rest).decode(errors="replace")

    def _take_message(self, data: bytes) -> None:
        chunk = _decode_message(data)[0]
        if not chunk.content or not chunk.type.lower().startswith("ai"):
            return
        if self._sample.first_token is None:
            self._sample.first_token = time.perf_counter() - self._start
        if self._text:
            self._sample.text += _plain(chunk.content)


class _Dechunker:
    """Undoes `Transfer-Encoding: chunked`, for chunks cut anywhere."""

    def __init__(self) -> None:
        self._rest = b""
        self.finished = False

    def feed(self, data: bytes) -> bytes:
        data, position, parts = self._rest + data, 0, []
        while not self.finished:
            line = data.find(b"\r\n", position)
            if line < 0:
                break
            size = int(data[position:line].partition(b";")[0], 16)
            stop = line + 2 + size
            if size == 0:
                self.finished = True
            elif len(data) < stop + 2:
                break
            parts.append(data[line + 2 : stop])
            position = stop + 2
        self._rest = data[position:]
        return b"".join(parts)


async def run_once(
    host: str, port: int, path: str, body: Any, *, headers: Mapping[str, str] | None = None, text: bool = False
) -> Sample:
    """Post JSON and consume the event stream. The run's time is that of its `end` event, else of the end of the stream.

    The rest of the response is read too: to leave early would look like a client that hangs up.
    Never raises for what the server does: a refusal, a broken stream or a lost connection is in `Sample.error`.
    """
    start, sample = time.perf_counter(), Sample()
    try:
        reader, writer = await asyncio.open_connection(host, port, limit=_READ)
    except OSError as error:
        sample.error = str(error)
        return sample
    try:
        writer.write(_request(host, port, path, msgspec.json.encode(body), headers or {}))
        await _consume(reader, sample, _Frames(sample, start, text=text))
    except (OSError, asyncio.IncompleteReadError, ValueError) as error:
        sample.error = f"{type(error).__name__}: {error}"
    finally:
        sample.total = sample.total or time.perf_counter() - start
        writer.transport.abort()
    return sample


async def _consume(reader: asyncio.StreamReader, sample: Sample, frames: _Frames) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    if not (match := _STATUS.match(head)):
        raise ValueError(f"not HTTP: {head[:50]!r}")
    sample.status = int(match[1])
    chunks = _Dechunker() if _CHUNKED.search(head) else None
    refusal = b""
    while not (chunks and chunks.finished) and (data := await reader.read(_READ)):
        sample.bytes += len(data)
        body = chunks.feed(data) if chunks else data
        if sample.status == 200:
            frames.feed(body)
        else:
            refusal += body
    if sample.status != 200:
        sample.error = f"HTTP {sample.status}: {refusal[:500].decode(errors='replace')}"
    elif chunks and not chunks.finished and not sample.ended:
        raise ValueError("the stream broke off")


def _request(host: str, port: int, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
    lines = {
        "host": f"{host}:{port}",
        "content-type": "application/json",
        "content-length": str(len(body)),
        "connection": "close",
        **headers,
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + body


def _data(fields: bytes) -> bytes:
    return b"\n".join(line[6:] for line in fields.split(b"\n") if line.startswith(b"data: "))


def _plain(content: str | list[Any]) -> str:
    if isinstance(content, str):
        return content
    return "".join(block.get("text", "") if isinstance(block, dict) else str(block) for block in content)


async def drive(
    host: str,
    port: int,
    *,
    runs: int,
    concurrency: int,
    prefix: str = "/api",
    question: str = "Hello?",
    headers: Mapping[str, str] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Load:
    """Do `runs` runs, each on a fresh thread, `concurrency` at a time. `extra` is added to each body (`context`, …)."""
    body = {
        "assistant_id": "lead_agent",
        "input": {"messages": [{"type": "human", "content": question}]},
        "stream_mode": ["messages-tuple"],
        "if_not_exists": "create",
        **(extra or {}),
    }
    load = Load(concurrency)
    paths = (f"{prefix}/threads/{uuid4()}/runs/stream" for _ in range(runs))

    async def user(paths: Iterator[str]) -> None:
        for path in paths:
            load.samples.append(await run_once(host, port, path, body, headers=headers))

    cpu, start = _cpu(), time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, runs)):
            group.create_task(user(paths))
    load.wall, load.cpu = time.perf_counter() - start, _cpu() - cpu
    return load


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _summary(load: Load) -> str:
    firsts = sorted(s.first_token for s in load.samples if s.first_token is not None) or [0.0]
    totals = sorted(s.total for s in load.samples) or [0.0]
    errors = [s.error for s in load.samples if s.error]
    return (
        f"c={load.concurrency}: {len(totals) / load.wall:.1f} runs/s, "
        f"first token p50 {1000 * firsts[len(firsts) // 2]:.2f} ms, "
        f"run p50 {1000 * totals[len(totals) // 2]:.2f} p99 {1000 * totals[int(len(totals) * 0.99)]:.2f} ms, "
        f"client cpu {1000 * load.cpu / len(totals):.2f} ms/run, {len(errors)} errors{': ' if errors else ''}"
        f"{errors[0] if errors else ''}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Load a Sika server with runs on fresh threads.")
    parser.add_argument("--url", default="http://127.0.0.1:2026")
    parser.add_argument("--prefix", default="/api")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--header", action="append", default=[], metavar="NAME:VALUE")
    parser.add_argument("--extra", type=json.loads, default={}, metavar="JSON", help="added to the body of each run")
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of a summary")
    options = parser.parse_args()
    place = urlsplit(options.url)
    load = run(
        drive(
            place.hostname or "127.0.0.1",
            place.port or 80,
            runs=options.runs,
            concurrency=options.concurrency,
            prefix=options.prefix,
            headers=dict(header.split(":", 1) for header in options.header),
            extra=options.extra,
        )
    )
    print(json.dumps(asdict(load)) if options.json else _summary(load))


if __name__ == "__main__":
    main()
