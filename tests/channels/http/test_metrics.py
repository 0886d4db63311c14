"""`/metrics`: what is counted while the server runs, as Prometheus' own parser reads it; and who may read it."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from channels.http.debug import metrics
from channels.http.server import exposition
from channels.http.server.live import LIVE, Live, Services
from core.actor import Actor
from core.config.redaction import redactor
from core.config.settings import Metrics
from core.events import FileUploaded, RunRequested, ToolCompleted, thread
from core.log import feed as event_feed
from core.observe.metrics import Family, Histogram
from core.runtime.system import System
from tests.channels.http.conftest import Api, Worker
from tests.channels.http.gateway import Changeable
from tests.channels.http.story import answer
from tests.support.nats import append, eventually, fresh


def parsed(text: str) -> dict[str, Metric]:
    """The families by name; Prometheus' parser calls a counter without its `_total`."""
    metrics = list(text_string_to_metric_families(text))
    found = {f"{metric.name}_total" if metric.type == "counter" else metric.name: metric for metric in metrics}
    assert len(found) == len(metrics), "each family is there once"
    for metric in metrics:
        assert metric.samples
        assert metric.type != "unknown", metric.name
        series = [(sample.name, *sorted(sample.labels.items())) for sample in metric.samples]
        assert len(set(series)) == len(series), metric.name
    return found


async def scrape(url: str) -> dict[str, Metric]:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as response:
        assert response.status == 200, await response.text()
        assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return parsed(await response.text())


def values(told: dict[str, Metric], name: str) -> dict[str, float]:
    """By their labels' values, joined."""
    found = told.get(name)
    return {" ".join(one.labels.values()): one.value for one in found.samples} if found else {}


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

    async def counted() -> dict[str, Metric]:
        told = await scrape(url)
        return told if values(told, "sika_runs_total") else {}

    told = await eventually(counted)
    assert values(told, "sika_runs_total") == {"success": 1}
    assert values(told, "sika_runs_requested_total") == {"": 1}
    assert values(told, "sika_tool_calls_total") == {"success ls": 1}
    assert values(told, "sika_model_calls_total") == {"m": 1}
    assert values(told, "sika_upload_bytes_total") == {"": 3}
    assert values(told, "sika_events_total")["run.completed"] == 1
    [total] = [one for one in told["sika_run_duration_seconds"].samples if one.name.endswith("_count")]
    assert (total.labels, total.value) == ({"status": "success"}, 1)
    assert told["sika_run_queue_seconds"].type == "histogram"
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
    if Path("/proc").exists():
        assert values(told, "process_cpu_seconds_total")[""] > 0
        assert values(told, "process_start_time_seconds")[""] > 1_700_000_000
        assert values(told, "process_resident_memory_bytes")[""] >= 2**24
        assert values(told, "process_open_fds")[""] > 0
    assert values(told, "python_gc_collections_total").keys() == {"0", "1", "2"}
    assert values(told, "sika_event_loop_lag_seconds")[""] >= 0

    async def closed() -> bool:
        return values(await scrape(url), "sika_http_open_streams") == {"": 0}

    assert await eventually(closed)


async def test_who_falls_behind_reads_the_log(system: System, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    await scrape(url)
    monkeypatch.setattr(event_feed, "BUFFERED", 4)
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
            return b"sika_runs_requested_total 1.0\n" in await metrics._meter(live).text(0)

        assert await eventually(counted)
    finally:
        await runner.cleanup()


class Noted(Actor[FileUploaded]):
    name = "noted"


async def test_the_work_of_actors(system: System, url: str) -> None:
    work = system.vitals.watch(Noted(), 4, lambda: 0)
    with work.measured():
        assert values(await scrape(url), "sika_actor_in_flight") == {"noted": 1}
    work.fail("no")
    told = await scrape(url)
    for name, value in (("in_flight", 0), ("handled", 1), ("failed", 1), ("restarts", 0)):
        assert values(told, f"sika_actor_{name}") == {"noted": value}
    assert values(told, "sika_actor_lag_events") == {"noted": system.log.position}
    assert values(told, "sika_actor_duration_seconds").keys() == {"noted 0.5", "noted 0.95"}


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


async def test_labels_of_any_text() -> None:
    odd = 'back\\slash "quoted"\nnew line'
    family = Family("odd_total", "counter", "a \\ and\nmore", ("one", "two"))
    told = parsed(exposition.text({family: {(odd, "x"): 1.5, ("", "é"): 2}}, {}).decode())["odd_total"]
    assert told.documentation == family.help
    assert [(one.labels, one.value) for one in told.samples] == [
        ({"one": odd, "two": "x"}, 1.5),
        ({"one": "", "two": "é"}, 2),
    ]


async def test_labels_hold_no_secrets() -> None:
    redactor.add("hush-hush-hush")
    family = Family("odd_total", "counter", "odd", ("one",))
    assert b"hush" not in exposition.text({family: {("a hush-hush-hush",): 1}}, {})


async def test_buckets_add_up() -> None:
    family = Family("x_seconds", "histogram", "x", ("a",), (0.5, 1.0))
    histogram = Histogram(2)
    histogram.counts, histogram.sum = [2, 0, 3], 12.25
    told = parsed(exposition.text({}, {family: {("v",): histogram}}).decode())["x_seconds"]
    assert [(one.name, one.labels.get("le"), one.value) for one in told.samples] == [
        ("x_seconds_bucket", "0.5", 2),
        ("x_seconds_bucket", "1", 2),
        ("x_seconds_bucket", "+Inf", 5),
        ("x_seconds_count", None, 5),
        ("x_seconds_sum", None, 12.25),
    ]
