"""Spans on their way to a real receiver: as OTLP has them, each once, and dropped rather than waited for."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from adapters.tracing import otlp, pipeline
from adapters.tracing.flush import flush
from adapters.tracing.otlp import Exporter
from adapters.tracing.pipeline import Pipeline
from adapters.tracing.spans import Kind, Moment, Span, Value
from core.config.settings import Otlp, Secret, Tracing
from core.errors import Unavailable
from core.events import Event, RunCompleted, thread
from core.log.store import EventLog
from tests.adapters.tracing.conftest import Receiver
from tests.adapters.tracing.story import WORKER, requested, said, spans, started, whole
from tests.support.nats import eventually, fresh, running_tasks


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (otlp, pipeline):
        monkeypatch.setattr(module, "GATHER_SECONDS", 0.02)
    monkeypatch.setattr(pipeline, "REPEAT_SECONDS", 0.0)
    for name in ("DEER_FLOW_ENV", "ENVIRONMENT"):
        monkeypatch.delenv(name, raising=False)


def exporter(log: EventLog, url: str, **more: Any) -> Exporter:
    settings = Tracing(otlp=Otlp(endpoint=url, headers={"X-Key": Secret("hidden")}, **more), environment="test")
    return Exporter(log, WORKER, settings, "1.2.3")


async def tell(log: EventLog, *events: Event, run: str, thread_id: str, expected: int = 0) -> int:
    for event in events:
        [record] = await log.append(thread(thread_id), [event], expected=expected, actor="lead", run=run)
        expected = record.seq
    return expected


async def a_run(log: EventLog) -> str:
    name = fresh().id
    await tell(log, requested(), started(), said(), RunCompleted(), run=name, thread_id=name)
    return name


def requests(receiver: Receiver, path: str = "/v1/traces") -> list[bytes]:
    return [request.body for request in receiver.requests if request.path == path]


def received(receiver: Receiver) -> list[Any]:
    """The spans, in the protocol's own type."""
    found = [ExportTraceServiceRequest.FromString(body) for body in requests(receiver)]
    return [span for one in found for span in one.resource_spans[0].scope_spans[0].spans]


def attributes(values: Any) -> dict[str, Any]:
    return {one.key: plain(one.value) for one in values}


def plain(value: Any) -> Any:
    if value.WhichOneof("value") == "array_value":
        return [plain(one) for one in value.array_value.values]
    return getattr(value, value.WhichOneof("value"))


def runs(receiver: Receiver) -> list[str]:
    """The runs whose ends were sent."""
    found = [attributes(span.attributes).get("sika.run.id") for span in received(receiver)]
    return [run for run in found if run]


async def told_of(receiver: Receiver, names: set[str]) -> bool:
    """Whether these runs arrive, each once."""

    async def there() -> bool:
        return sorted(runs(receiver)) == sorted(names)

    return await eventually(there)


# ── as OpenTelemetry has it ──────────────────────────────────────────────────────────────────────────────────────────


async def sent(receiver: Receiver, *found: Span) -> None:
    way = Pipeline(receiver.url, {}, {"service.name": "sika"})
    for span in found:
        way.add(span)
    await flush(way.ends, 10)


async def test_a_span(receiver: Receiver) -> None:
    about: dict[str, Value] = {"a": "x", "b": 2**53 + 1, "c": 0.5, "d": True, "e": ["x", "y"]}
    moments = (Moment("happened", 10**18 + 1, {"f": 1}),)
    ids = "0" * 31 + "1", "0" * 15 + "2", "0" * 15 + "3"
    one = Span(*ids, "n", Kind.CLIENT, 10**18 + 1, 10**18 + 2, about, "no", moments)
    two = Span("0" * 31 + "1", "0" * 15 + "4", None, "m", Kind.INTERNAL, 1, 2, {})
    await sent(receiver, one, two)
    [request] = [ExportTraceServiceRequest.FromString(body) for body in requests(receiver)]
    assert attributes(request.resource_spans[0].resource.attributes) == {"service.name": "sika"}
    assert request.resource_spans[0].scope_spans[0].scope.name == "sika"
    first, second = received(receiver)
    assert (first.trace_id.hex(), first.span_id.hex(), first.parent_span_id.hex()) == ids
    assert (first.name, first.kind) == ("n", 3)
    assert (first.start_time_unix_nano, first.end_time_unix_nano) == (10**18 + 1, 10**18 + 2)
    assert attributes(first.attributes) == about
    [event] = first.events
    assert (event.name, event.time_unix_nano, attributes(event.attributes)) == ("happened", 10**18 + 1, {"f": 1})
    assert (first.status.code, first.status.message) == (2, "no")
    assert (second.parent_span_id, second.name, second.kind, second.status.code) == (b"", "m", 1, 0)


async def test_measures(receiver: Receiver) -> None:
    await sent(receiver, *spans(whole())[:3])
    [request] = [ExportMetricsServiceRequest.FromString(body) for body in requests(receiver, "/v1/metrics")]
    [scope] = request.resource_metrics[0].scope_metrics
    measures = {metric.name: metric for metric in scope.metrics}
    consumed = measures["messaging.client.consumed.messages"]
    assert (consumed.unit, consumed.sum.aggregation_temporality, consumed.sum.is_monotonic) == ("{message}", 2, True)
    [point] = consumed.sum.data_points
    assert point.as_int == 1
    assert attributes(point.attributes) == {
        "messaging.system": "nats",
        "messaging.operation.name": "receive",
        "messaging.destination.name": "lead",
    }
    duration, tokens = measures["gen_ai.client.operation.duration"], measures["gen_ai.client.token.usage"]
    assert (duration.unit, tokens.unit) == ("s", "{token}")
    read = tokens.histogram.data_points[0]
    assert (read.count, read.sum, len(read.bucket_counts)) == (1, 100, len(read.explicit_bounds) + 1)
    assert attributes(read.attributes)["gen_ai.token.type"] == "input"
    assert read.explicit_bounds[list(read.bucket_counts).index(1)] == 256
    assert [point.sum for point in duration.histogram.data_points] == [1, 1]


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://c:4318", "http://c:4318/v1/traces"),
        ("http://c:4318/", "http://c:4318/v1/traces"),
        ("https://c/otlp", "https://c/otlp/v1/traces"),
        ("https://c/v1/traces", "https://c/v1/traces"),
    ],
)
async def test_where_to(endpoint: str, url: str) -> None:
    assert pipeline.urls(endpoint) == (url, url.replace("/v1/traces", "/v1/metrics"))


# ── on their way ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_run_reaches_the_collector(log: EventLog, receiver: Receiver) -> None:
    async with running_tasks(exporter(log, receiver.url).run):
        run = await a_run(log)

        assert await told_of(receiver, {run})
    assert sorted(span.name for span in received(receiver)) == [
        "chat main",
        "invoke_agent lead_agent",
        "receive lead",
    ]
    assert len({span.trace_id for span in received(receiver)}) == 1
    request = receiver.requests[0]
    assert request.path == "/v1/traces"
    assert (request.headers["Content-Type"], request.headers["x-key"]) == ("application/x-protobuf", "hidden")
    assert attributes(ExportTraceServiceRequest.FromString(request.body).resource_spans[0].resource.attributes) == {
        "service.name": "sika",
        "service.version": "1.2.3",
        "service.instance.id": WORKER,
        "deployment.environment.name": "test",
    }


async def test_what_was_measured_is_told_again_and_again(
    log: EventLog, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the end of the process, which tells it once more; whether or not it was taken the time before."""
    monkeypatch.setattr(pipeline, "MEASURE_SECONDS", 0.05)
    receiver.otherwise = 404
    async with running_tasks(exporter(log, receiver.url).run):
        await a_run(log)

        async def twice() -> bool:
            return len(points(receiver)) >= 2

        assert await eventually(twice)
    assert points(receiver)[-1] == {("chat", "main"): 1, ("invoke_agent", "main"): 1}
    headers = next(one.headers for one in receiver.requests if one.path == "/v1/metrics")
    assert headers["x-key"] == "hidden"


def points(receiver: Receiver) -> list[dict[tuple[str, ...], int]]:
    """Of each time: how many operations there were, by name and model."""
    found = []
    for body in requests(receiver, "/v1/metrics"):
        [scope] = ExportMetricsServiceRequest.FromString(body).resource_metrics[0].scope_metrics
        durations = [one for one in scope.metrics if one.unit == "s"]
        found.append({labels(point): point.count for one in durations for point in one.histogram.data_points})
    return found


def labels(point: Any) -> tuple[str, ...]:
    named = attributes(point.attributes)
    return named["gen_ai.operation.name"], named["gen_ai.request.model"]


async def test_only_the_worker_tells(log: EventLog, receiver: Receiver) -> None:
    async with running_tasks(exporter(log, receiver.url).run):
        name = fresh().id
        await tell(log, requested(), started(worker="another"), RunCompleted(), run=name, thread_id=name)
        run = await a_run(log)
        assert await told_of(receiver, {run})


async def test_a_run_taken_over_keeps_its_trace(log: EventLog, receiver: Receiver) -> None:
    """What it was asked with, long before this process began, is read from the log."""
    name, parent = fresh().id, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    last = await tell(log, requested(traceparent=parent), started(worker="dead"), said(), run=name, thread_id=name)
    async with running_tasks(exporter(log, receiver.url).run):
        await tell(log, started(2), RunCompleted(), run=name, thread_id=name, expected=last)
        assert await told_of(receiver, {name})
    found = received(receiver)
    assert [span.name for span in found] == ["receive lead", "invoke_agent lead_agent"]
    assert {span.trace_id.hex() for span in found} == {"0af7651916cd43dd8448eb211c80319c"}
    assert found[-1].parent_span_id.hex() == "b7ad6b7169203331"


async def test_who_falls_behind_reads_the_log(
    log: EventLog, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("core.log.feed.BUFFERED", 3)
    monkeypatch.setattr(otlp, "GATHER_SECONDS", 0.3)
    async with running_tasks(exporter(log, receiver.url).run):
        names = {await a_run(log) for _ in range(10)}
        assert await told_of(receiver, names)
    assert len(runs(receiver)) == len(names)


async def test_the_end_of_the_process_sends_what_is_left(
    log: EventLog, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "GATHER_SECONDS", 600.0)
    told = exporter(log, receiver.url)
    async with running_tasks(told.run):
        run = await a_run(log)

        async def added() -> bool:
            return told._seq >= log.position > 0

        assert await eventually(added)
        assert requests(receiver) == []
    assert runs(receiver) == [run]


# ── a collector that does not take them ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("status", [429, 503])
async def test_tried_again(log: EventLog, receiver: Receiver, status: int) -> None:
    receiver.answers = [web.Response(status=status, headers={"Retry-After": "0"}) for _ in range(2)]
    async with running_tasks(exporter(log, receiver.url).run):
        run = await a_run(log)

        async def taken() -> bool:
            return run in runs(receiver) and len(requests(receiver)) >= 3

        assert await eventually(taken)
    assert requests(receiver)[0] == requests(receiver)[2]


@pytest.mark.parametrize("status", [400, 401, 404])
async def test_dropped_at_once(receiver: Receiver, status: int, caplog: pytest.LogCaptureFixture) -> None:
    receiver.otherwise = status
    await sent(receiver, *spans(whole()))
    assert len(requests(receiver)) == 1
    assert "Failed to export spans batch" in caplog.text


async def test_the_end_does_not_wait_for_a_collector_that_hangs(
    log: EventLog, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp, "FLUSH_SECONDS", 0.05)
    receiver.answers = [web.Response(status=503, headers={"Retry-After": "9"}) for _ in range(9)]
    async with running_tasks(exporter(log, receiver.url).run):
        await a_run(log)

        async def tried() -> bool:
            return bool(requests(receiver))

        assert await eventually(tried)
    assert len(requests(receiver)) == 1


async def test_a_problem_is_not_logged_each_time(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pipeline, "REPEAT_SECONDS", 600.0)
    monkeypatch.setattr(pipeline._RARELY, "_next", {})
    receiver.otherwise = 404
    for _ in range(2):
        await sent(receiver, *spans(whole()))
    assert caplog.text.count("Failed to export spans batch") == 1
    assert len(requests(receiver)) == 2


async def test_a_log_out_of_reach_is_asked_again(
    log: EventLog, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    last, asked = log.last, 0

    async def sometimes() -> int:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise Unavailable("not now")
        return await last()

    monkeypatch.setattr(log, "last", sometimes)
    told = exporter(log, receiver.url)
    run = await a_run(log)
    async with running_tasks(told.run):
        assert await told_of(receiver, {run})
