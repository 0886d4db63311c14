"""Spans on their way to a real receiver: as OTLP has them, each once, and dropped rather than waited for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from aiohttp import web

from adapters.tracing import encoding, otlp
from adapters.tracing.measures import Measures
from adapters.tracing.otlp import Exporter
from adapters.tracing.spans import Kind, Moment, Span, Value, spans
from core.errors import Unavailable
from core.events import Event, RunCompleted, thread
from core.log import EventLog
from core.settings import Otlp, Secret, Tracing
from tests.adapters.tracing.conftest import Receiver
from tests.adapters.tracing.story import WORKER, requested, said, started, whole
from tests.support.nats import eventually, fresh, running_tasks
from tests.support.ports import free_port


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "GATHER_SECONDS", 0.02)
    monkeypatch.setattr(otlp, "PAUSE_SECONDS", 0.01)
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


def received(receiver: Receiver) -> list[Any]:
    found = []
    for request in receiver.requests:
        if request.path.endswith("/v1/metrics"):
            continue
        [resource] = msgspec.json.decode(request.body)["resourceSpans"]
        [scope] = resource["scopeSpans"]
        found += scope["spans"]
    return found


def runs(receiver: Receiver) -> list[str]:
    """The runs whose ends were told."""
    return [
        one["value"]["stringValue"]
        for span in received(receiver)
        for one in span["attributes"]
        if one["key"] == "sika.run.id"
    ]


async def told_of(told: Exporter, receiver: Receiver, names: set[str]) -> bool:
    """Whether these runs arrive, each once, and their sender knows: what it does not know is sent again at its end."""

    async def there() -> bool:
        return sorted(runs(receiver)) == sorted(names) and told.sent == len(received(receiver))

    return await eventually(there)


# ── the encoding ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_encoded() -> None:
    attributes: dict[str, Value] = {"a": "x", "b": 2**53 + 1, "c": 0.5, "d": True, "e": ["x", "y"]}
    moments = (Moment("happened", 10**18 + 1, {"f": 1}),)
    ids = "0" * 31 + "1", "0" * 15 + "2", "0" * 15 + "3"
    one = Span(*ids, "n", Kind.CLIENT, 10**18 + 1, 10**18 + 2, attributes, "no", moments)
    two = Span("0" * 31 + "1", "0" * 15 + "4", None, "m", Kind.INTERNAL, 1, 2, {})
    assert msgspec.json.decode(encoding.spans([one, two], {"service.name": "sika"})) == {
        "resourceSpans": [
            {
                "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "sika"}}]},
                "scopeSpans": [
                    {
                        "scope": {"name": "sika"},
                        "spans": [
                            {
                                "traceId": "00000000000000000000000000000001",
                                "spanId": "0000000000000002",
                                "parentSpanId": "0000000000000003",
                                "name": "n",
                                "kind": 3,
                                "startTimeUnixNano": "1000000000000000001",
                                "endTimeUnixNano": "1000000000000000002",
                                "attributes": [
                                    {"key": "a", "value": {"stringValue": "x"}},
                                    {"key": "b", "value": {"intValue": "9007199254740993"}},
                                    {"key": "c", "value": {"doubleValue": 0.5}},
                                    {"key": "d", "value": {"boolValue": True}},
                                    {
                                        "key": "e",
                                        "value": {
                                            "arrayValue": {"values": [{"stringValue": "x"}, {"stringValue": "y"}]}
                                        },
                                    },
                                ],
                                "events": [
                                    {
                                        "timeUnixNano": "1000000000000000001",
                                        "name": "happened",
                                        "attributes": [{"key": "f", "value": {"intValue": "1"}}],
                                    }
                                ],
                                "status": {"code": 2, "message": "no"},
                            },
                            {
                                "traceId": "00000000000000000000000000000001",
                                "spanId": "0000000000000004",
                                "name": "m",
                                "kind": 1,
                                "startTimeUnixNano": "1",
                                "endTimeUnixNano": "2",
                                "attributes": [],
                                "status": {},
                            },
                        ],
                    }
                ],
            }
        ]
    }


async def test_measures_encoded() -> None:
    found = Measures(5)
    for one in spans(whole())[:3]:
        found.add(one)
    [resource] = msgspec.json.decode(encoding.measures(found, {"service.name": "sika"}, 7))["resourceMetrics"]
    assert resource["resource"] == {"attributes": [{"key": "service.name", "value": {"stringValue": "sika"}}]}
    [scope] = resource["scopeMetrics"]
    consumed, duration, tokens = scope["metrics"]
    assert consumed == {
        "name": "messaging.client.consumed.messages",
        "unit": "{message}",
        "description": "Number of messages taken up.",
        "sum": {
            "aggregationTemporality": 2,
            "isMonotonic": True,
            "dataPoints": [
                {
                    "attributes": [
                        {"key": "messaging.system", "value": {"stringValue": "nats"}},
                        {"key": "messaging.operation.name", "value": {"stringValue": "receive"}},
                        {"key": "messaging.destination.name", "value": {"stringValue": "lead"}},
                    ],
                    "startTimeUnixNano": "5",
                    "timeUnixNano": "7",
                    "asInt": "1",
                }
            ],
        },
    }
    assert (duration["unit"], tokens["unit"]) == ("s", "{token}")
    read = tokens["histogram"]["dataPoints"][0]
    assert (read["count"], read["sum"], len(read["bucketCounts"])) == ("1", 100, len(read["explicitBounds"]) + 1)
    assert read["attributes"][-1] == {"key": "gen_ai.token.type", "value": {"stringValue": "input"}}
    assert read["explicitBounds"][read["bucketCounts"].index("1")] == 256
    assert [point["sum"] for point in duration["histogram"]["dataPoints"]] == [1, 1]


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
    assert otlp._urls(endpoint) == (url, url.replace("/v1/traces", "/v1/metrics"))


# ── on their way ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_run_reaches_the_collector(log: EventLog, receiver: Receiver) -> None:
    told = exporter(log, receiver.url)
    async with running_tasks(told.run):
        run = await a_run(log)

        assert await told_of(told, receiver, {run})
    assert sorted(span["name"] for span in received(receiver)) == [
        "chat main",
        "invoke_agent lead_agent",
        "receive lead",
    ]
    assert len({span["traceId"] for span in received(receiver)}) == 1
    request = receiver.requests[0]
    assert request.path == "/v1/traces"
    assert (request.headers["Content-Type"], request.headers["X-Key"]) == ("application/json", "hidden")
    resource = msgspec.json.decode(request.body)["resourceSpans"][0]["resource"]["attributes"]
    assert {one["key"]: one["value"]["stringValue"] for one in resource} == {
        "service.name": "sika",
        "service.version": "1.2.3",
        "service.instance.id": WORKER,
        "deployment.environment.name": "test",
    }
    assert (told.sent, told.dropped) == (3, 0)


async def test_what_was_measured_is_told_again_and_again(
    log: EventLog, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the end of the process, which tells it once more; whether or not it was taken the time before."""
    monkeypatch.setattr(otlp, "MEASURE_SECONDS", 0.05)
    receiver.otherwise = 404
    async with running_tasks(exporter(log, receiver.url).run):
        await a_run(log)

        async def twice() -> bool:
            return len(points(receiver)) >= 2

        assert await eventually(twice)
    told = points(receiver)
    assert told[-1] == {("chat", "main"): "1", ("invoke_agent", "main"): "1"}
    headers = next(one.headers for one in receiver.requests if one.path == "/v1/metrics")
    assert headers["X-Key"] == "hidden"


def points(receiver: Receiver) -> list[dict[tuple[str, ...], str]]:
    """Of each time: how many operations there were, by name and model."""
    found = []
    for request in receiver.requests:
        if request.path == "/v1/metrics":
            [resource] = msgspec.json.decode(request.body)["resourceMetrics"]
            [duration] = [one for one in resource["scopeMetrics"][0]["metrics"] if one["unit"] == "s"]
            found.append({labels(point): point["count"] for point in duration["histogram"]["dataPoints"]})
    return found


def labels(point: Any) -> tuple[str, ...]:
    named = {one["key"]: one["value"]["stringValue"] for one in point["attributes"]}
    return named["gen_ai.operation.name"], named["gen_ai.request.model"]


async def test_only_the_worker_tells(log: EventLog, receiver: Receiver) -> None:
    told = exporter(log, receiver.url)
    async with running_tasks(told.run):
        name = fresh().id
        await tell(log, requested(), started(worker="another"), RunCompleted(), run=name, thread_id=name)
        run = await a_run(log)
        assert await told_of(told, receiver, {run})


async def test_a_run_taken_over_keeps_its_trace(log: EventLog, receiver: Receiver) -> None:
    """What it was asked with, long before this process began, is read from the log."""
    name, parent = fresh().id, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    last = await tell(log, requested(traceparent=parent), started(worker="dead"), said(), run=name, thread_id=name)
    told = exporter(log, receiver.url)
    async with running_tasks(told.run):
        await tell(log, started(2), RunCompleted(), run=name, thread_id=name, expected=last)
        assert await told_of(told, receiver, {name})
    found = received(receiver)
    assert [span["name"] for span in found] == ["receive lead", "invoke_agent lead_agent"]
    assert {span["traceId"] for span in found} == {"0af7651916cd43dd8448eb211c80319c"}
    assert found[-1]["parentSpanId"] == "b7ad6b7169203331"


async def test_who_falls_behind_reads_the_log(
    log: EventLog, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("core.log.BUFFERED", 3)
    monkeypatch.setattr(otlp, "GATHER_SECONDS", 0.3)
    told = exporter(log, receiver.url)
    async with running_tasks(told.run):
        names = {await a_run(log) for _ in range(10)}
        assert await told_of(told, receiver, names)
    assert len(runs(receiver)) == len(names)


async def test_the_end_of_the_process_sends_what_is_left(log: EventLog, receiver: Receiver) -> None:
    """Also what waits for another try."""
    receiver.answers = [web.Response(status=503, headers={"Retry-After": "30"})]
    told = exporter(log, receiver.url)
    async with running_tasks(told.run):
        told._waiting.extend(spans(whole()))
        told._some.set()

        async def tried() -> bool:
            return bool(receiver.requests)

        assert await eventually(tried)
    assert [request.body for request in receiver.requests] == [receiver.requests[0].body] * 2
    assert (told.sent, told.dropped) == (6, 0)


# ── a collector that does not take them ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_tried_again(log: EventLog, receiver: Receiver, status: int) -> None:
    receiver.answers = [web.Response(status=status), web.Response(status=status)]
    told = exporter(log, receiver.url)
    async with running_tasks(told.run):
        await a_run(log)

        async def sent() -> bool:
            return told.sent >= 3

        assert await eventually(sent)
    assert told.dropped == 0
    assert receiver.requests[0].body == receiver.requests[2].body


@pytest.mark.parametrize("status", [301, 400, 401, 404, 500])
async def test_dropped_at_once(log: EventLog, receiver: Receiver, status: int) -> None:
    receiver.otherwise = status
    told = exporter(log, receiver.url)
    async with running_tasks(told.run):
        told._waiting.extend(spans(whole()))
        told._some.set()

        async def dropped() -> bool:
            return told.dropped == 6

        assert await eventually(dropped)
    assert (len(receiver.requests), told.sent) == (1, 0)


async def test_dropped_when_it_is_down(log: EventLog) -> None:
    told = exporter(log, f"http://127.0.0.1:{free_port()}")
    async with running_tasks(told.run):
        await a_run(log)

        async def dropped() -> bool:
            return told.dropped == 3

        assert await eventually(dropped)
    assert told.sent == 0


async def test_what_it_takes_in_part(log: EventLog, receiver: Receiver) -> None:
    receiver.answers = [web.json_response({"partialSuccess": {"rejectedSpans": "2", "errorMessage": "too old"}})]
    told = exporter(log, receiver.url)
    told._waiting.extend(spans(whole()))
    told._some.set()
    async with running_tasks(told.run):

        async def done() -> bool:
            return told.sent + told.dropped == 6

        assert await eventually(done)
    assert (told.sent, told.dropped) == (4, 2)


@pytest.mark.parametrize("answer", ["", "no JSON", "[]", "null", '{"partialSuccess": null}', '{"partialSuccess": 5}'])
async def test_odd_answers_are_good_ones(answer: str) -> None:
    assert otlp._rejected(answer)[0] == 0


async def test_no_more_wait_than_there_is_room(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "QUEUED", 4)
    told = exporter(log, "http://127.0.0.1:1")
    for record in whole():
        told._spans._worker = None
        told._seq = 0
        told._put(record)
    assert (len(told._waiting), told.dropped) == (4, 2)


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
        assert await told_of(told, receiver, {run})
