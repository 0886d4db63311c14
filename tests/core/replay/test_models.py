"""The models of runs, told from the newest state: what reading the log from its beginning tells."""

from __future__ import annotations

import pytest

from core.events import (
    Event,
    ModelCompleted,
    RunCompleted,
    RunRequested,
    RunStarted,
    ThreadCreated,
    WebhookDelivered,
    thread,
)
from core.log.store import EventLog
from core.replay.moments.models import RunModels
from core.replay.money import Meter
from core.thread.fold import fold
from tests.support.records import ai

pytestmark = pytest.mark.anyio
T = thread("t")


def started(attempt: int, model: str | None) -> RunStarted:
    return RunStarted(attempt=attempt, worker="w", lease=attempt, model=model)


ANSWERED = ModelCompleted(message=ai("a"))
OTHER = ModelCompleted(message={**ai("b"), "response_metadata": {"answered_by": "stand-in"}})
RUNS: list[list[Event]] = [
    [RunRequested(), started(1, "m"), ANSWERED, OTHER, RunCompleted(), WebhookDelivered(status=200, attempt=1)],
    [RunRequested(), started(1, "m"), ANSWERED, started(2, "n"), ANSWERED, started(3, None), ANSWERED, RunCompleted()],
    [RunRequested(), started(1, None), ANSWERED, started(2, "m"), ANSWERED],
]


async def test_each_event_has_the_model_that_the_log_tells_from_its_beginning(log: EventLog) -> None:
    tip = (await log.append(T, [ThreadCreated(user="me")], expected=0, actor="test"))[-1].seq
    for number, events in enumerate(RUNS):
        tip = (await log.append(T, events, expected=tip, actor="test", run=f"r{number}"))[-1].seq
    records = [record async for record in log.read(T)]
    meter, expected = Meter(), list[str]()
    for record in records:
        expected.append(meter.model_of(record))
        meter.learn(record)
    models, models_back = RunModels(fold(records), log.read), RunModels(fold(records), log.read)
    for known, order in ((models, records), (models_back, records[::-1])):
        names = {}
        for record in order:
            await known.prepare(record)
            names[record.seq] = known.model_of(record)
        assert [names[record.seq] for record in records] == expected
    assert {"", "m", "n", "stand-in"} == set(expected)
