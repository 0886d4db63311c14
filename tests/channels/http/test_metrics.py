"""`/metrics`: what is counted while the server runs, in a format that is checked rule by rule; and who may read it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import NamedTuple

import aiohttp
import pytest
from aiohttp import web

from channels.http import metrics
from channels.http.live import LIVE, Live, Services
from core import log as event_log
from core.events import FileUploaded, RunRequested, ToolCompleted, thread
from core.metrics import Family, Histogram
from core.settings import Metrics
from core.system import System
from tests.channels.http.conftest import Api, Worker
from tests.channels.http.gateway import Changeable
from tests.channels.http.story import answer
from tests.support.nats import append, eventually, fresh

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
HELP = re.compile(rf"# HELP ({NAME}) ((?:[^\\\n]|\\\\|\\n)*)")
TYPE = re.compile(rf"# TYPE ({NAME}) (counter|gauge|histogram)")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\\\|\\"|\\n)*)"')
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL.pattern}(?:,{LABEL.pattern})*)\}})? ([+-]?(?:[0-9.e+-]+|Inf|NaN))")


class Sample(NamedTuple):
    name: str
    labels: tuple[tuple[str, str], ...]
    value: float

    def label(self, name: str) -> str:
        return dict(self.labels)[name]


@dataclass
class Told:
    """A family as it is written."""

    kind: str
    help: str
    samples: list[Sample] = field(default_factory=list)


def parsed(text: str) -> dict[str, Told]:
    """Text format 0.0.4; fails on whatever is not in it, or not in its order."""
    assert text.endswith("\n")
    found: dict[str, Told] = {}
    described: tuple[str, str] | None = None
    current = ""
    for line in text.removesuffix("\n").split("\n"):
        if described:
            kind = TYPE.fullmatch(line)
            assert kind, line
            current, _ = described
            assert kind[1] == current
            assert current not in found, f"{current} is told twice"
            found[current], described = Told(kind[2], described[1]), None
        elif helped := HELP.fullmatch(line):
            described = helped[1], unescaped(helped[2])
        else:
            sample = SAMPLE.fullmatch(line)
            assert sample, line
            labels = tuple((name, unescaped(value)) for name, value in LABEL.findall(sample[2] or ""))
            found[current].samples.append(Sample(sample[1], labels, float(line.rpartition(" ")[2])))
    for name, told in found.items():
        check(name, told)
    return found


def unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: {"n": "\n"}.get(found[1], found[1]), text)


def check(name: str, told: Told) -> None:
    assert told.samples
    assert len({(one.name, one.labels) for one in told.samples}) == len(told.samples)
    assert len({tuple(label for label, _ in one.labels if label != "le") for one in told.samples}) == 1
    if told.kind != "histogram":
        assert {one.name for one in told.samples} == {name}
        assert told.kind != "counter" or name.endswith("_total")
        return
    series: dict[tuple[tuple[str, str], ...], dict[str, list[Sample]]] = {}
    for one in told.samples:
        own = tuple(pair for pair in one.labels if pair[0] != "le")
        series.setdefault(own, {}).setdefault(one.name.removeprefix(f"{name}_"), []).append(one)
    for parts in series.values():
        assert parts.keys() == {"bucket", "sum", "count"}
        bounds = [float(one.label("le")) for one in parts["bucket"]]
        assert bounds == sorted(set(bounds))
        assert math.isinf(bounds[-1])
        assert parts["bucket"][-1].label("le") == "+Inf"
        below = [one.value for one in parts["bucket"]]
        assert below == sorted(below)
        assert [below[-1]] == [one.value for one in parts["count"]]


async def scrape(url: str) -> dict[str, Told]:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as response:
        assert response.status == 200, await response.text()
        assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return parsed(await response.text())


def values(told: dict[str, Told], name: str) -> dict[str, float]:
    """By their labels' values, joined."""
    found = told.get(name)
    return {" ".join(value for _, value in one.labels): one.value for one in found.samples} if found else {}


@pytest.fixture
def config() -> Changeable:
    return Changeable()


# ── while it runs ────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_run_is_counted(api: Api, worker: Worker, url: str) -> None:
    await scrape(url)
    thread_id = await api.thread()
    run = await api.run(thread_id)
    await worker.start(thread_id, run)
    done = ToolCompleted(call_id="c", message=answer("c", "ls", "a"), duration_ms=30)
    await worker.write(thread_id, run, done, FileUploaded(name="a", size=3, sha256=""))
    await worker.finish(thread_id, run)

    async def counted() -> dict[str, Told]:
        told = await scrape(url)
        return told if values(told, "sika_runs_total") else {}

    told = await eventually(counted)
    assert values(told, "sika_runs_total") == {"success": 1}
    assert values(told, "sika_runs_requested_total") == {"": 1}
    assert values(told, "sika_tool_calls_total") == {"ls success": 1}
    assert values(told, "sika_model_calls_total") == {"m": 1}
    assert values(told, "sika_upload_bytes_total") == {"": 3}
    assert values(told, "sika_events_total")["run.completed"] == 1
    [total] = [one for one in told["sika_run_duration_seconds"].samples if one.name.endswith("_count")]
    assert (total.labels, total.value) == ((("status", "success"),), 1)
    assert told["sika_run_queue_seconds"].kind == "histogram"
    assert thread_id not in str(told)
    assert run not in str(told)


async def test_open_runs_streams_and_the_process(api: Api, worker: Worker, url: str, system: System) -> None:
    thread_id = await api.thread()
    run = await api.run(thread_id)
    await worker.start(thread_id, run)
    await system.views.current()
    async with api.stream("GET", f"/threads/{thread_id}/runs/{run}/stream"):
        told = await scrape(url)
        assert values(told, "sika_runs_open") == {"pending": 0, "running": 1}
        assert values(told, "sika_http_open_streams") == {"": 1}
    assert values(told, "sika_dead_letters") == {"": 0}
    assert values(told, "sika_log_position")[""] == await system.log.last()
    assert values(told, "process_cpu_seconds_total")[""] > 0
    assert values(told, "process_start_time_seconds")[""] > 1_700_000_000
    assert values(told, "process_resident_memory_bytes").get("", 2**24) >= 2**24
    assert values(told, "sika_event_loop_lag_seconds")[""] >= 0

    async def closed() -> bool:
        return values(await scrape(url), "sika_http_open_streams") == {"": 0}

    assert await eventually(closed)


async def test_who_falls_behind_reads_the_log(system: System, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    await scrape(url)
    monkeypatch.setattr(event_log, "BUFFERED", 4)
    for _ in range(6):  # each batch more than the buffer holds
        await append(system.log, fresh(), *(RunRequested() for _ in range(5)))

    async def all_counted() -> bool:
        return values(await scrape(url), "sika_runs_requested_total") == {"": 30}

    assert await eventually(all_counted)


async def test_counts_from_the_start_if_it_runs_with_the_application(services: Services, system: System) -> None:
    """As `Application.cleanup_ctx` runs it."""
    app = web.Application()
    live = app[LIVE] = Live(services)
    app.cleanup_ctx.extend((live.running, metrics.running))
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await append(system.log, thread("t-before"), RunRequested())

        async def counted() -> bool:
            return "sika_runs_requested_total 1\n" in await metrics._meter(live).text(0)

        assert await eventually(counted)
    finally:
        await runner.cleanup()


async def test_parts_that_do_not_answer_are_left_out(
    services: Services, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "ASK_SECONDS", 0)
    told = await scrape(url)
    assert "sika_dead_letters" not in told
    assert "sika_runs_open" not in told
    assert "sika_log_position" in told


# ── who may ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_off(url: str, config: Changeable) -> None:
    config.sections["metrics"] = Metrics(enabled=False)
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as response:
        assert (response.status, (await response.json())["code"]) == (404, "not_found")


# ── the format ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_escapes() -> None:
    odd = 'back\\slash "quoted"\nnew line'
    family = Family("odd_total", "counter", "a \\ and\nmore", ("one", "two"))
    text = "".join(f"{line}\n" for line in metrics._lines({family: {(odd, "x"): 1.5, ("", "é"): 2}}, {}))
    told = parsed(text)["odd_total"]
    assert told.help == family.help
    assert [(dict(one.labels), one.value) for one in told.samples] == [
        ({"one": odd, "two": "x"}, 1.5),
        ({"one": "", "two": "é"}, 2),
    ]


async def test_buckets_add_up() -> None:
    family = Family("x_seconds", "histogram", "x", ("a",), (0.5, 1.0))
    histogram = Histogram(2)
    histogram.counts, histogram.sum = [2, 0, 3], 12.25
    lines = list(metrics._lines({}, {family: {("v",): histogram}}))
    assert lines == [
        "# HELP x_seconds x",
        "# TYPE x_seconds histogram",
        'x_seconds_bucket{a="v",le="0.5"} 2',
        'x_seconds_bucket{a="v",le="1"} 2',
        'x_seconds_bucket{a="v",le="+Inf"} 5',
        'x_seconds_sum{a="v"} 12.25',
        'x_seconds_count{a="v"} 5',
    ]
