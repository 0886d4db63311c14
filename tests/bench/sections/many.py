"""Many people at once: how long their answers take, and what a waiting one costs.

All on the defaults. 100 tokens at 10 a second; arrivals are spread evenly, 250 a second. The ideal is the last arrival
and the answer after it. The model servers are several processes, the clients share this one.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple
from uuid import uuid4

from tests.bench import langgraph_dev, processes
from tests.bench.laboratory import Laboratory
from tests.bench.load import Sample, run_once
from tests.bench.measure import Limit, Row, at_most, percentile
from tests.bench.processes import Broken, Sika
from tests.support.model_server import run

_TOKENS, _RATE, _ARRIVALS = 100, 10, 250
_SECONDS = _TOKENS / _RATE
ANSWER = f"tokens-{_TOKENS}-delay-{1000 // _RATE}"
SHORT = "tokens-20-delay-50"
_SIZES = {300: (1.2, 1.0), 600: (1.2, None), 1_000: (1.3, None), 2_000: (2.0, None)}
"""Streams: the most that they may take over the ideal, and the 95th percentile of the first token if it has a limit."""
_QUICK = (30, 60)
_STREAMS_A_SERVER = 500
_WARM = 20
_FOLLOWERS = 5_000


def many(lab: Laboratory) -> Iterator[Row]:
    sizes = dict.fromkeys(_QUICK, (None, None)) if lab.quick else _SIZES
    with ExitStack() as stack:
        servers = max(1, -(-max(sizes) // _STREAMS_A_SERVER))
        urls = [stack.enter_context(processes.models()) for _ in range(servers)]
        config = lab.folder / "many.yaml"
        config.write_text(json.dumps(settings(urls)))
        for size, (most, first) in sizes.items():
            lab.say(f"{size} streams")
            with processes.sika(lab.new_home(), config) as server:
                yield from _ours(server, servers, size, most, first)
            if size == min(sizes):
                yield from _langgraph(lab, urls[0], size)
        with processes.sika(lab.new_home(), config) as server:
            yield from _followers(lab, server)


def settings(urls: Sequence[str], **sections: Any) -> dict[str, Any]:
    """A configuration on the defaults, with each of our models at each server, by `MODEL@PLACE`. Titles and memory are
    off, as they ask models, too.
    """
    entries = [
        {"name": f"{model}@{place}", "model": model, "base_url": url, "api_key": "none"}
        for place, url in enumerate(urls)
        for model in (ANSWER, SHORT)
    ]
    return {"models": entries, "title": {"enabled": False}, "memory": {"enabled": False}, **sections}


class Limits(NamedTuple):
    over_ideal: Limit | None = None
    first_token: Limit | None = None
    failed: Limit | None = None


_NONE = Limits()
Ask = Callable[[str, int], Awaitable[Sample]]
"""Asks for a run with a model, by its number."""


def _ours(server: Sika, servers: int, size: int, most: float | None, first: float | None) -> Iterator[Row]:
    async def ask(model: str, number: int) -> Sample:
        sample = await asked(server, f"{model}@{number % servers}")
        if not sample.error and not sample.ended:
            sample.error = "the stream has no end"
        return sample

    limits = Limits(at_most(most) if most else None, at_most(first) if first else None, at_most(0))
    yield from _streams(server, ask, size, f"{size} streams", limits)


def _langgraph(lab: Laboratory, url: str, size: int) -> Iterator[Row]:
    """The same streams on `langgraph dev`, with as many runs at a time as there are streams."""
    what, command = f"langgraph dev, {size} streams", langgraph_dev.command_of(lab.langgraph)
    if command is None:
        lab.say(f"{what}: not installed")
        return
    lab.say(what)

    def ask(model: str, number: int) -> Awaitable[Sample]:
        body = {**_BODY, "assistant_id": "answer" if model == ANSWER else "short"}
        return run_once(server.host, server.port, f"/threads/{uuid4()}/runs/stream", body)

    models = {"answer": ANSWER, "short": SHORT}
    with langgraph_dev.serving(command, lab.new_home(), url, models, size) as server:
        yield from _streams(server, ask, size, what)


def _streams(server: Sika, ask: Ask, size: int, what: str, limits: Limits = _NONE) -> Iterator[Row]:
    run(_arriving(ask, SHORT, _WARM))
    before, cpu, peak = server.memory(), server.cpu(), 0
    start = time.perf_counter()

    async def measured() -> list[Sample]:
        nonlocal peak
        samples = asyncio.ensure_future(_arriving(ask, ANSWER, size))
        while not samples.done():
            peak = max(peak, server.memory())
            await asyncio.wait([samples], timeout=1)
        return await samples

    samples = run(measured())
    wall, spent = time.perf_counter() - start, server.cpu() - cpu
    failed = [sample.error or f"status {sample.status}" for sample in samples if sample.error or not sample.first_token]
    ideal = _SECONDS + size / _ARRIVALS
    firsts = [sample.first_token for sample in samples if sample.first_token is not None] or [float("nan")]
    yield Row(
        f"{what}, time over the ideal",
        wall / ideal,
        limits.over_ideal,
        "s",
        wall,
        ideal,
        note=f"{1000 * spent / size:.1f} ms of CPU a run, {spent / wall:.2f} processors",
    )
    p95 = percentile(firsts, 95)
    yield Row(
        f"{what}, first token, p95 in s",
        p95,
        limits.first_token,
        note=f"median {percentile(firsts, 50):.2f}",
    )
    yield Row(f"{what}, runs that failed", len(failed), limits.failed, note=failed[0][:80] if failed else "")
    yield Row(f"{what}, kB of memory a run", (peak - before) / size / 1000)


async def _arriving(ask: Ask, model: str, size: int) -> list[Sample]:
    """Streams that arrive evenly, each on a thread of its own."""

    async def one(number: int) -> Sample:
        await asyncio.sleep(number / _ARRIVALS)
        return await ask(model, number)

    return list(await asyncio.gather(*(one(number) for number in range(size))))


_BODY: Mapping[str, Any] = {
    "assistant_id": "lead_agent",
    "input": {"messages": [{"type": "human", "content": "Hello?"}]},
    "stream_mode": ["messages-tuple"],
    "if_not_exists": "create",
}


async def asked(server: Sika, model: str, headers: Mapping[str, str] | None = None) -> Sample:
    body = {**_BODY, "context": {"model_name": model}}
    return await run_once(server.host, server.port, f"/api/threads/{uuid4()}/runs/stream", body, headers=headers)


def _followers(lab: Laboratory, server: Sika) -> Iterator[Row]:
    """Idle followers of threads: memory, CPU, and whether somebody else's run is served meanwhile."""
    count, seconds = (100, 2.0) if lab.quick else (_FOLLOWERS, 10.0)
    lab.say(f"{count} idle followers")

    async def followed() -> tuple[int, float, Sample, int]:
        before, open_ones = server.memory(), []
        failed = 0
        for _ in range(count):
            thread = str(uuid4())
            body = json.dumps({"thread_id": thread}).encode()
            await _request(server, "POST", "/api/threads", body)
            reader, writer = await asyncio.open_connection(server.host, server.port)
            writer.write(f"GET /api/threads/{thread}/stream HTTP/1.1\r\nhost: {_host(server)}\r\n\r\n".encode())
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
            failed += b" 200 " not in head.partition(b"\r\n")[0]
            open_ones.append(writer)
        cpu = server.cpu()
        await asyncio.sleep(seconds)
        spent, used = (server.cpu() - cpu) / seconds, server.memory() - before
        sample = await asked(server, f"{SHORT}@0")
        for writer in open_ones:
            writer.close()
        return used, spent, sample, failed

    used, spent, sample, failed = run(followed())
    yield Row(f"{count} idle followers, kB each", used / count / 1000)
    yield Row(f"{count} idle followers, part of a processor", spent)
    yield Row(f"{count} idle followers, refused", failed + bool(sample.error), at_most(0), note=sample.error[:80])


async def _request(server: Sika, method: str, path: str, body: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(server.host, server.port)
    head = (
        f"{method} {path} HTTP/1.1\r\nhost: {_host(server)}\r\ncontent-type: application/json\r\nconnection: close\r\n"
    )
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    answer = await reader.read()
    writer.close()
    if not answer.startswith(b"HTTP/1.1 2"):
        raise Broken(f"{method} {path}: {answer[:200]!r}")
    return answer


def _host(server: Sika) -> str:
    return f"{server.host}:{server.port}"
