"""Folds of lists that grow for as long as an installation lives: what an event costs does not follow what is there.

Counted are the steps of the interpreter: loops and comprehensions, but not a copy of a dictionary once per slice.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from types import FrameType
from typing import Any, NamedTuple

import pytest

from core.events import Event, Record, encode, written
from core.identity import accounts
from core.log.repository import SLICE_RECORDS
from core.user import schedules, store

FAR = "9000-01-01T00:00:00.000000+00:00"
PLAN = schedules.Plan(timing=schedules.Timing(cron="0 7 * * 1"), job=schedules.Job())


class Case(NamedTuple):
    fold: Callable[[Iterable[Record], Any], Any]
    empty: Any
    event: Callable[[int], Event]


CASES: Mapping[str, Case] = {
    "an account": Case(
        accounts.fold, accounts.EMPTY, lambda n: accounts.AccountCreated(user=f"u{n}", email=f"u{n}@x.example")
    ),
    "a key": Case(accounts.fold, accounts.EMPTY, lambda n: accounts.KeyCreated(key=f"k{n}", user="u", digest="")),
    "a session that ended": Case(
        accounts.fold, accounts.EMPTY, lambda n: accounts.SessionEnded(user="u", session=f"s{n}", expires_at=FAR)
    ),
    "a session that ended and has expired": Case(
        accounts.fold,
        accounts.EMPTY,
        lambda n: accounts.SessionEnded(user="u", session=f"s{n}", expires_at=_time(n + 100)),
    ),
    "an identity": Case(
        accounts.fold, accounts.EMPTY, lambda n: accounts.SubjectLinked(user="u", issuer="i", subject=f"{n}")
    ),
    "a schedule": Case(
        schedules.fold, schedules.Schedules(), lambda n: schedules.ScheduleCreated(schedule=f"s{n}", plan=PLAN)
    ),
    "an item": Case(store.fold, store.Store(), lambda n: store.ItemPut(namespace=["a"], key=f"{n}", value={})),
}


@pytest.mark.parametrize("name", CASES)
def test_an_event_costs_the_same_however_many_there_are(name: str) -> None:
    few, many = (_steps(CASES[name], before) for before in (2 * SLICE_RECORDS, 16 * SLICE_RECORDS))
    assert many <= 1.5 * few


def _steps(case: Case, before: int) -> int:
    """Returns the steps of the interpreter for a slice of events on a state of `before` events."""
    records = [_record(seq, case.event(seq)) for seq in range(1, before + SLICE_RECORDS + 1)]
    for record in records:
        assert record.event is not None  # decoded once
    state = case.empty
    for start in range(0, before, SLICE_RECORDS):
        state = case.fold(records[start : start + SLICE_RECORDS], state)
    return _counted(lambda: case.fold(records[before:], state))


def _counted(work: Callable[[], Any]) -> int:
    steps, outer = 0, sys.gettrace()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal steps
        frame.f_trace_opcodes = True
        steps += event == "opcode"
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(outer)
    return steps


def _record(seq: int, event: Event) -> Record:
    fields = {"kind": "k", "aggregate_id": "a", "actor": "test", "run": None, "cause": None}
    return Record(seq, encode(event, written(event, id=f"e{seq}", at=_time(seq), **fields)))


def _time(second: int) -> str:
    return f"2026-01-01T{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}.000000+00:00"
