"""The usage of a thread with a long past: the same as of all its steps, and kept for what is long past."""

from __future__ import annotations

from typing import Any

import pytest

from core.events import Event, ModelCompleted, RunCompleted, RunRequested, RunStarted, ThreadCreated
from core.thread import usage
from core.thread.fold import fold
from core.thread.past import PAGE
from core.thread.state import ThreadState
from core.thread.tokens import Tokens
from tests.support.records import ai, record

USED = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
CALLS = 3 * PAGE
"""Model calls of a run: some of their steps are in pages."""


class Thread:
    """A thread, event by event."""

    def __init__(self) -> None:
        self.state = ThreadState()
        self._count = 0
        self.add(ThreadCreated(user="me"), None)

    def add(self, event: Event, run: str | None) -> None:
        self._count += 1
        self.state = fold([record(self._count, event, run, None)], self.state)

    def begin(self, run: str, model: str) -> None:
        self.add(RunRequested(input={"messages": []}), run)
        self.add(RunStarted(attempt=1, worker="w", lease=1, model=model), run)

    def call(self, run: str, count: int) -> None:
        for _ in range(count):
            self.add(ModelCompleted(message={**ai(f"a{self._count}"), "usage_metadata": USED}), run)


def used(**calls: int) -> dict[str, Tokens]:
    return {name: Tokens(3 * count, 2 * count, 0, count) for name, count in calls.items()}


def test_what_is_long_past_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = Thread()
    for run, model in (("r1", "small"), ("r2", "big")):
        thread.begin(run, model)
        thread.call(run, CALLS)
        thread.add(RunCompleted(), run)
    assert len(thread.state.commits.pages) > 2
    assert usage.tokens_of_thread(thread.state) == used(small=CALLS, big=CALLS)

    class Unread:
        def get(self, page: Any) -> Any:
            raise AssertionError("a page is decoded")

    monkeypatch.setattr(usage, "decoded_commits", Unread())
    thread.begin("r3", "small")
    thread.call("r3", 2)
    assert usage.tokens_of_thread(thread.state) == used(small=CALLS + 2, big=CALLS)


def test_the_usage_of_a_run_that_goes_on_with_another_model_is_of_that() -> None:
    thread = Thread()
    thread.begin("r1", "small")
    thread.call("r1", CALLS)
    assert usage.tokens_of_thread(thread.state) == used(small=CALLS)
    thread.add(RunStarted(attempt=2, worker="w", lease=2, model="big"), "r1")
    assert usage.tokens_of_thread(thread.state) == used(big=CALLS)
