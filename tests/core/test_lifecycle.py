"""The life of a run: what follows in which status, what is named as a problem, the ends and their labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import msgspec
import pytest

from core import lifecycle
from core.events import (
    Event,
    FeedbackGiven,
    GoalPaused,
    GoalSet,
    MessageAdded,
    ModelCompleted,
    ModelFailed,
    ModelSampled,
    RunCancelled,
    RunCancelRequested,
    RunCompleted,
    RunFailed,
    RunPaused,
    RunRemoved,
    RunRequested,
    RunRolledBack,
    RunStarted,
    RunSteered,
    RunSuspended,
    ThreadCreated,
    ThreadTitled,
    ToolCompleted,
    ToolRequested,
    WebhookDelivered,
    WebhookFailed,
)
from core.lifecycle import ENDS, FOLLOWS, RunEnded, Status
from core.thread.fold import fold
from core.thread.fold_runs import OF_RUN
from core.thread.state import Problem, labels_of
from tests.support.records import ai, human, log_of

REQUESTED, STARTED = RunRequested(), RunStarted(attempt=1, worker="w", lease=1)
EVENTS: Sequence[Event] = (
    REQUESTED,
    STARTED,
    RunSuspended(reason="no log"),
    RunSteered(message=human("s")),
    RunCancelRequested(),
    MessageAdded(messages=[human("s")]),
    ModelCompleted(message=ai("a")),
    ModelFailed(error="E", text="t", attempt=1, max_attempts=2),
    ModelSampled(call_id="c", model="m", text="t"),
    ToolRequested(call_id="c", name="bash", effect="once"),
    ToolCompleted(call_id="c", message={"type": "tool", "id": "t", "tool_call_id": "c"}),
    RunCompleted(),
    RunPaused(next=["tools"]),
    RunFailed(error="E", text="t", message=ai("e")),
    RunCancelled(),
    RunRolledBack(),
    RunRemoved(),
    WebhookDelivered(status=200, attempt=1),
    WebhookFailed(reason="r", attempt=1),
)
"""One of each type of the table."""
LIVES: dict[Status | None, Sequence[Event]] = {
    None: (),
    "pending": (REQUESTED,),
    "running": (REQUESTED, STARTED),
    "success": (REQUESTED, STARTED, RunCompleted()),
    "error": (REQUESTED, STARTED, RunFailed(error="E", text="t")),
    "interrupted": (REQUESTED, STARTED, RunCancelled()),
    "rolled_back": (REQUESTED, STARTED, RunRolledBack()),
}
"""Events that bring a run into a status."""


def log(*events: Event) -> list[Any]:
    return log_of(ThreadCreated(user="ada"), *((event, "r") for event in events))


def test_the_table_is_complete() -> None:
    assert FOLLOWS.keys() == LIVES.keys() == {None, *get_args(Status)}
    assert {type(event) for event in EVENTS} == lifecycle.EVENTS
    assert set(ENDS) == set(get_args(RunEnded))
    assert {RunRequested, *OF_RUN, *ENDS} == lifecycle.EVENTS
    assert len({end.name for end in ENDS.values()}) == len(ENDS)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("status", LIVES)
def test_an_event_follows_or_is_a_problem(status: Status | None, event: Event) -> None:
    """What may not follow changes nothing but the thread's problems."""
    records = log(*LIVES[status], event)
    before, after = fold(records[:-1]), fold(records)
    if type(event) in FOLLOWS[status]:
        assert (after.problems, before.runs == after.runs) == ((), False)
        return
    why = "which was not requested" if status is None else f"whose status is {status}"
    assert after.problems == (Problem(records[-1].seq, f"{records[-1].type} of run r, {why}"),)
    after.problems, after.seq, after.size = (), before.seq, before.size
    assert after == before


@pytest.mark.parametrize("end", [event for event in EVENTS if type(event) in ENDS], ids=lambda end: type(end).__name__)
def test_an_end_sets_the_status(end: Event) -> None:
    records = log(REQUESTED, STARTED, end)
    run = fold(records).runs["r"]
    assert (run.status, run.ended_seq, run.open) == (ENDS[type(end)].status, records[-1].seq, False)


def test_other_events_may_name_any_run_at_any_time() -> None:
    rating = FeedbackGiven(feedback_id="f", rating=1, user="ada")
    records = log(rating, REQUESTED, rating, STARTED, RunCompleted(), rating)
    assert (fold(records).problems, len(fold(records).feedback)) == ((), 1)


def test_a_run_is_not_changed_by_what_follows() -> None:
    """Earlier states share nothing with later ones that changes."""
    records = log(REQUESTED, STARTED, RunSteered(message=human("s")), RunCompleted(), RunRemoved())
    states = [fold(records[:n]) for n in range(len(records) + 1)]
    copies = [msgspec.to_builtins(one.runs, enc_hook=str) for one in states]
    for n, earlier in enumerate(states):
        fold(records[n:], earlier)
    assert [msgspec.to_builtins(one.runs, enc_hook=str) for one in states] == copies


TOOL = (ToolRequested(call_id="c", name="bash", effect="once"), EVENTS[9])


@pytest.mark.parametrize(
    ("request_", "done", "labels"),
    [
        (RunRequested(), (), set()),
        (RunRequested(webhook="https://example.org"), (), {"webhook"}),
        (RunRequested(on_completion="delete"), (), {"temporary"}),
        (RunRequested(), TOOL[:1], {"used_tools"}),
        (RunRequested(webhook="https://example.org"), TOOL, {"webhook", "used_tools"}),
    ],
)
def test_an_end_carries_what_is_true_of_the_run(
    request_: RunRequested, done: Sequence[Event], labels: set[str]
) -> None:
    thread = fold(log(request_, STARTED, *done))
    assert all(labels_of(thread, "r", [end]) == labels for end in EVENTS if type(end) in ENDS)
    assert not any(labels_of(thread, "r", [event]) for event in EVENTS if type(event) not in (*ENDS, RunRequested))


def test_a_request_says_whether_the_thread_has_a_title() -> None:
    untitled, titled = fold(log(RunRequested())), fold(log(ThreadTitled(title="T")))
    assert (labels_of(untitled, "r", [RunRequested()]), labels_of(titled, "r", [RunRequested()])) == (
        frozenset({"untitled"}),
        frozenset(),
    )


@pytest.mark.parametrize(
    ("paused", "labels"),
    [
        (None, {"goal"}),
        (GoalPaused(reason="r", blocker="needs_user_input"), {"goal"}),
        (GoalPaused(reason="r"), set()),
    ],
)
def test_an_end_says_whether_it_counts_for_a_goal(paused: GoalPaused | None, labels: set[str]) -> None:
    goal = GoalSet(objective="o", by="ada", max_continuations=1, max_no_progress_continuations=1)
    thread = fold(log(RunRequested(), STARTED, goal, *([paused] if paused else [])))
    assert labels_of(thread, "r", [RunCompleted()]) == labels
    assert labels_of(thread, "another", [RunCompleted()]) == labels_of(thread, None, [RunCompleted()]) == set()


def test_tools_of_an_earlier_run_do_not_count() -> None:
    tool = ToolCompleted(call_id="c", message={"type": "tool", "id": "t", "tool_call_id": "c"})
    events = (REQUESTED, STARTED, tool, RunCompleted())
    records = log_of(ThreadCreated(user="ada"), *((event, "r1") for event in events), (REQUESTED, "r2"))
    assert labels_of(fold(records), "r2", [RunCancelled()]) == set()
