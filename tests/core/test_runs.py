"""Where the thread stood when a run ended, as the thread knows it later."""

from __future__ import annotations

import pytest

from core.events import (
    Event,
    ModelCompleted,
    Record,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunRequested,
    RunRolledBack,
    RunStarted,
    StatePatched,
    ThreadCreated,
)
from core.thread.fold import fold
from core.thread.runs import end_of
from tests.golden.stories import load
from tests.golden.test_golden import LOGS
from tests.support.records import log_of

Facts = list[tuple[Event, str | None]]
STARTED = RunStarted(attempt=1, worker="w", lease=1)


def said(identity: str) -> ModelCompleted:
    return ModelCompleted(message={"type": "ai", "id": identity, "content": identity})


def run(identity: str, *events: Event, base: int | None = None, text: str | None = "hi") -> Facts:
    asked = {"messages": [{"type": "human", "id": f"h-{identity}", "content": text}]} if text else None
    return [(RunRequested(input=asked, base=base), identity), *((event, identity) for event in events)]


CREATED: Facts = [(ThreadCreated(user="ada"), None)]
DONE = run("done", STARTED, said("a"), said("b"), RunCompleted())
UNDONE = run("undone", STARTED, said("c"), RunRolledBack())
STORIES: dict[str, Facts] = {
    "goes on": [*DONE, *run("more", STARTED, said("d"), RunCompleted())],
    "patched": [*DONE, (StatePatched(values={"title": "t"}), None)],
    "forked": [*DONE, (StatePatched(values={"title": "t"}, base=40), None)],
    "rolled back": [*DONE, *UNDONE, *run("more", STARTED, said("d"), RunCompleted())],
    "never started": [*DONE, *UNDONE, *run("waits", RunCancelled()), *run("more", STARTED, said("d"), RunCompleted())],
    "from an older one": [*DONE, *run("again", STARTED, RunFailed(error="E", text="t"), base=40, text=None), *UNDONE],
    "did nothing": [*DONE, *UNDONE, *run("idle", STARTED, RunCompleted(), text=None)],
    "in an empty thread": run("idle", STARTED, RunCompleted(), text=None),
}


def check(records: list[Record]) -> int:
    """Compare with the thread folded up to there; how many runs have ended."""
    state, ended = fold(records), 0
    for one in state.runs.values():
        if one.ended_seq is not None:
            then = fold([record for record in records if record.seq <= one.ended_seq])
            assert state.values_at(end_of(state, one)) == then.values, one.id
            ended += 1
    return ended


@pytest.mark.parametrize("facts", STORIES.values(), ids=STORIES)
def test_the_end_of_a_run(facts: Facts) -> None:
    assert check(log_of(*CREATED, *facts))


def test_the_end_of_recorded_runs() -> None:
    assert sum(check(load(name)) for name in LOGS) > 5
