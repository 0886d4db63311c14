"""One thread of a very long past: turns with a tool call, summarised from time to time, as in years of use."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from core.events import (
    ContextCompacted,
    Event,
    ModelCompleted,
    Record,
    RunCompleted,
    RunRequested,
    RunStarted,
    ThreadCreated,
    ToolCompleted,
    ToolRequested,
    encode,
    written,
)
from core.identity.principal import LOCAL
from core.ids import stamp
from tests.support.model_server import words

NAME = "giant"
SUMMARISED = 100
"""Turns from one summary to the next."""
_KEPT = 20
_USED = {"input_tokens": 100, "output_tokens": 50, "total_tokens": 150}


def run_id(turn: int) -> str:
    return f"giant-run-{turn:07}"


def turns(count: int) -> int:
    """Whole turns in so many events."""
    return int((count - 1) / (7 + 1 / SUMMARISED))


def records(count: int, *, seq: int = 0, name: str = NAME) -> Iterator[Record]:
    """About so many events, whole turns; their sequences follow `seq`."""
    at = datetime.now(UTC) - timedelta(milliseconds=count)
    for number, (event, run) in enumerate(_events(count), seq + 1):
        envelope = written(
            event,
            id=f"{name}-{number}",
            at=stamp(at + timedelta(milliseconds=number - seq)),
            kind="thread",
            aggregate_id=name,
            actor="lead",
            run=run,
            cause=None,
        )
        yield Record(number, encode(event, envelope))


def _events(count: int) -> Iterator[tuple[Event, str | None]]:
    yield ThreadCreated(user=LOCAL.user), None
    events, turn, kept = 1, 0, list[str]()
    while events < count:
        for event in _turn(turn, kept):
            yield event, run_id(turn)
            events += 1
        turn += 1


def _turn(turn: int, kept: list[str]) -> Iterator[Event]:
    run = run_id(turn)
    question, asking, result, answer = (f"{run}-{part}" for part in "hatm")
    call_id = f"{run}-c"
    call = {"id": call_id, "name": "read_file", "args": {"path": f"/mnt/user-data/workspace/{turn}"}}
    yield RunRequested(input={"messages": [{"type": "human", "id": question, "content": f"Question {turn}?"}]})
    yield RunStarted(attempt=1, worker="bench", lease=1, model="tokens-50")
    if turn % SUMMARISED == SUMMARISED - 1:
        summary = {"type": "human", "name": "summary", "id": f"summary-{turn}", "content": words(200)}
        yield ContextCompacted(summary=summary, kept=kept[-_KEPT:], model="tokens-50")
        kept.clear()
    yield ModelCompleted(message={"type": "ai", "id": asking, "content": "", "tool_calls": [call]})
    yield ToolRequested(call_id=call_id, name="read_file", effect="pure")
    yield ToolCompleted(
        call_id=call_id,
        message={"type": "tool", "id": result, "tool_call_id": call_id, "content": words(50)},
    )
    yield ModelCompleted(message={"type": "ai", "id": answer, "content": words(50), "usage_metadata": _USED})
    yield RunCompleted()
    kept += [question, asking, result, answer]
