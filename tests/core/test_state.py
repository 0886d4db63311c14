"""The fold by example: runs, branches, rollbacks, messages, erasing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest

from core.events import (
    Event,
    Json,
    ModelCompleted,
    RunCancelled,
    RunCancelRequested,
    RunCompleted,
    RunFailed,
    RunRequested,
    RunRolledBack,
    RunStarted,
    StatePatched,
    ThreadAnnotated,
    ThreadCreated,
    ThreadErased,
    ThreadForked,
    ToolCompleted,
    ToolRequested,
)
from core.thread.fold import fold
from core.thread.state import ThreadState
from core.thread.values import REMOVE_ALL, next_nodes, unanswered
from tests.support.records import AT, ai, call, human, log_of, opaque

CREATED = ThreadCreated(user="ada", metadata={"a": 1})
STARTED = RunStarted(attempt=1, worker="w1", lease=3, model="demo")


def asks(*identities: str, base: int | None = None) -> RunRequested:
    return RunRequested(input={"messages": [human(i) for i in identities]}, base=base)


def said(identity: str, *calls: Json) -> ModelCompleted:
    return ModelCompleted(message=ai(identity, calls=calls))


def ids(state: ThreadState) -> list[str]:
    return [m["id"] for m in state.messages]


TURN = (
    CREATED,  # 10
    (asks("h1"), "r1"),  # 20
    (STARTED, "r1"),  # 30
    (said("a1"), "r1"),  # 40
    (RunCompleted(), "r1"),  # 50
)


def test_a_thread() -> None:
    state = fold(log_of(CREATED, ThreadAnnotated(metadata={"b": None, "a": {"c": 2}})))
    assert (state.exists, state.user, state.created_at, state.seq) == (True, "ada", AT, 20)
    assert state.metadata == {"a": {"c": 2}, "b": None}
    assert (state.status, state.values, state.active, state.queued) == ("idle", {}, None, [])


def test_a_turn() -> None:
    state = fold(log_of(*TURN))
    run = state.runs["r1"]
    assert (run.status, run.attempt, run.worker, run.lease, run.model) == ("success", 1, "w1", 3, "demo")
    assert (run.requested_seq, run.started_seq, run.ended_seq, run.said) == (20, 30, 50, "e40")
    assert ids(state) == ["h1", "a1"]
    assert [(c.seq, c.parent, c.source, c.node, c.run, c.step) for c in state.commits] == [
        (30, -1, "input", "__start__", "r1", -1),
        (40, 0, "loop", "model", "r1", 0),
    ]
    assert (state.answer_seq(), state.status) == (40, "idle")


def test_the_input_is_written_when_the_run_starts() -> None:
    assert [ids(fold(log_of(*TURN[:n]))) for n in range(1, 6)] == [[], [], ["h1"], ["h1", "a1"], ["h1", "a1"]]


@pytest.mark.parametrize(
    ("end", "status", "thread_status", "left"),
    [
        (RunCompleted(), "success", "idle", ["h1", "a1"]),
        (RunFailed(error="E", text="t"), "error", "error", ["h1", "a1"]),
        (RunCancelled(), "interrupted", "interrupted", ["h1", "a1"]),
        (RunRolledBack(), "rolled_back", "idle", []),
    ],
)
def test_how_runs_end(end: RunCompleted, status: str, thread_status: str, left: list[str]) -> None:
    state = fold(log_of(*TURN[:4], (end, "r1")))
    assert (state.runs["r1"].status, state.status, ids(state)) == (status, thread_status, left)


def test_a_run_that_was_never_started_changes_nothing_by_ending() -> None:
    for end in (RunCancelled(), RunRolledBack()):
        state = fold(log_of(*TURN, (asks("h2"), "r2"), (RunCancelRequested(), "r2"), (end, "r2")))
        assert ids(state) == ["h1", "a1"]


def test_what_comes_after_the_end_is_not_the_runs_any_more() -> None:
    late = [(said("a9"), "r1"), (RunFailed(error="E", text="t"), "r1"), (RunCancelRequested(), "r1"), (STARTED, "r1")]
    state = fold(log_of(*TURN, *late))
    assert (state.runs["r1"].status, state.runs["r1"].cancel, ids(state)) == ("success", None, ["h1", "a1"])


def test_a_second_attempt_goes_on_and_does_not_apply_the_input_again() -> None:
    again = RunStarted(attempt=2, worker="w2", lease=3)
    state = fold(log_of(*TURN[:4], (again, "r1")))
    run = state.runs["r1"]
    assert (run.attempt, run.worker, run.started_seq, run.stalled, ids(state)) == (2, "w2", 30, 1, ["h1", "a1"])
    assert fold(log_of(*TURN[:3], (again, "r1"))).runs["r1"].stalled == 2


def test_intents_are_open_until_their_outcome() -> None:
    asked = ToolRequested(call_id="c1", name="bash", effect="once")
    done = ToolCompleted(
        call_id="c1", message={"type": "tool", "id": "t1", "tool_call_id": "c1"}, update={"todos": [1]}
    )
    log = log_of(*TURN[:3], (said("a1", call("c1"), call("c2")), "r1"), (asked, "r1"), (done, "r1"))
    before, after = fold(log[:-1]), fold(log)
    assert {k: (i.id, i.event) for k, i in before.runs["r1"].intents.items()} == {"c1": ("e50", asked)}
    assert (after.runs["r1"].intents, after.values["todos"], ids(after)) == ({}, [1], ["h1", "a1", "t1"])
    assert [c["id"] for c in unanswered(before.messages)] == ["c1", "c2"]
    assert [c["id"] for c in unanswered(after.messages)] == ["c2"]
    assert (next_nodes(after.messages), next_nodes(fold(log_of(*TURN)).messages)) == (["tools"], [])
    assert next_nodes(fold(log_of(*TURN[:3])).messages) == ["model"]


# ── branches ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_run_from_an_older_checkpoint_leaves_the_rest_beside() -> None:
    branch = [(asks("h2", base=30), "r2"), (STARTED, "r2"), (said("a2"), "r2"), (RunCompleted(), "r2")]
    state = fold(log_of(*TURN, *branch))
    assert ids(state) == ["h1", "h2", "a2"]
    assert [c.parent for c in state.commits] == [-1, 0, 0, 2]
    assert [m["id"] for m in state.values_at(state.commit_at(40))["messages"]] == ["h1", "a1"]


def test_a_run_without_input_from_an_older_checkpoint_goes_on_from_there() -> None:
    branch = [(RunRequested(base=30), "r2"), (STARTED, "r2"), (said("a2"), "r2")]
    assert ids(fold(log_of(*TURN, *branch))) == ["h1", "a2"]


def test_rolling_back_a_branch_returns_to_where_it_started() -> None:
    """To the head as it was, not to the checkpoint that the run began with."""
    branch = [(asks("h2", base=30), "r2"), (STARTED, "r2"), (said("a2"), "r2"), (RunRolledBack(), "r2")]
    state = fold(log_of(*TURN, *branch))
    assert ids(state) == ["h1", "a1"]
    assert len(state.commits) == 4


def test_a_patch_on_an_older_checkpoint() -> None:
    state = fold(log_of(*TURN, StatePatched(values={"title": "x", "messages": [human("h9")]}, base=30)))
    assert (ids(state), state.values["title"]) == (["h1", "h9"], "x")
    assert "title" not in state.values_at(1)


@pytest.mark.parametrize("replaced", [("h1",), ("a1",), ("h1", "a1"), ("a1", "h1")])
@pytest.mark.parametrize("new", [(), ("h3",), ("h3", "h4")])
def test_the_past_of_messages_that_were_replaced(replaced: tuple[str, ...], new: tuple[str, ...]) -> None:
    """They are in the values before that, as they were then."""
    patch = [{**human(identity), "content": "other words"} for identity in (*replaced, *new)]
    later = [(asks("h2"), "r2"), (STARTED, "r2"), (said("a2"), "r2"), (RunCompleted(), "r2")]
    before = fold(log_of(*TURN))
    after = fold(log_of(*TURN, StatePatched(values={"messages": patch}), *later))
    assert after.values_at(before.head) == before.values


def test_a_run_that_interrupts_cancels_all_open_ones() -> None:
    more = RunRequested(multitask="interrupt")
    state = fold(log_of(*TURN[:3], (RunRequested(multitask="enqueue"), "r2"), (more, "r3")))
    assert {r.id: (r.status, r.cancel) for r in state.runs.values()} == {
        "r1": ("running", "interrupt"),
        "r2": ("pending", "interrupt"),
        "r3": ("pending", None),
    }
    assert (state.active and state.active.id, [r.id for r in state.queued]) == ("r1", ["r2", "r3"])


def test_a_fork_has_the_commits_of_its_source() -> None:
    patches: list[Json] = [{"messages": [human("h1")]}, {"messages": [ai("a1")], "title": "x"}]
    state = fold(log_of(CREATED, ThreadForked(source="s", source_seq=40, patches=patches)))
    assert (ids(state), state.values["title"]) == (["h1", "a1"], "x")
    assert [(c.source, c.parent) for c in state.commits] == [("fork", -1), ("fork", 0)]


def test_the_head_of_a_fork_is_a_checkpoint_to_start_from() -> None:
    patches: list[Json] = [{"messages": [human("h1")]}, {"messages": [ai("a1")]}]
    state = fold(log_of(CREATED, ThreadForked(source="s", source_seq=40, patches=patches)))
    assert state.commit_at(state.commits[state.head].seq) == state.head


def test_checkpoints_that_do_not_exist_are_the_root() -> None:
    state = fold(log_of(*TURN))
    assert [state.commit_at(seq) for seq in (0, 10, 29, 30, 31, 40, 41)] == [-1, -1, -1, 0, -1, 1, -1]
    assert state.values_at(-1) == {}


# ── reducers ────────────────────────────────────────────────────────────────────────────────────────────────────────


def remove(identity: str) -> Json:
    return {"type": "remove", "id": identity}


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        ([human("c")], ["a", "b", "c"]),
        ([human("a", "new")], ["a", "b"]),
        ([remove("a")], ["b"]),
        ([remove("a"), human("a")], ["b", "a"]),
        ([remove("nobody")], ["a", "b"]),
        ([remove(REMOVE_ALL)], []),
        ([remove(REMOVE_ALL), human("b")], ["b"]),
        ([human("c"), human("c", "2")], ["a", "b", "c"]),
    ],
)
def test_messages(new: list[Json], expected: list[str]) -> None:
    state = fold(
        log_of(StatePatched(values={"messages": [human("a"), human("b")]}), StatePatched(values={"messages": new}))
    )
    assert ids(state) == expected
    for message in new:
        if message["type"] != "remove":
            last = [m for m in new if m["id"] == message["id"]][-1]
            assert next(m for m in state.messages if m["id"] == message["id"]) == last


@pytest.mark.parametrize(
    ("field", "first", "second", "expected"),
    [
        ("artifacts", ["a", "b"], ["b", "c"], ["a", "b", "c"]),
        ("artifacts", ["a"], None, ["a"]),
        ("viewed_images", {"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
        ("viewed_images", {"a": 1}, {}, {}),
        ("todos", [1], [2], [2]),
        ("title", "x", None, None),
    ],
)
def test_other_fields(field: str, first: object, second: object, expected: object) -> None:
    assert fold(log_of(StatePatched(values={field: first}), StatePatched(values={field: second}))).values == {
        field: expected
    }


def test_an_erased_thread_is_empty_and_stays_so() -> None:
    state = fold(
        log_of(*TURN, ThreadErased(by="ada"), StatePatched(values={"a": 1}), (asks("h"), "r9"), (STARTED, "r9"))
    )
    assert (state.exists, state.erased, state.values, dict(state.runs), list(state.commits), state.metadata) == (
        *(False, True, {}, {}, [], {}),
    )
    assert state.seq == 90


def test_the_tombstone_alone_is_enough() -> None:
    """After a purge it is the only event that is left."""
    state = fold(log_of(ThreadErased(by="ada")))
    assert (state.exists, state.erased) == (False, True)


def test_events_without_a_start() -> None:
    """A log that was cut: nothing is known of the run, nothing is made up."""
    state = fold(
        log_of((said("a1"), "r1"), (RunCompleted(), "r1"), (ToolRequested(call_id="c", name="n", effect="pure"), None))
    )
    assert (state.exists, dict(state.runs), state.values) == (False, {}, {})
    assert fold([opaque(10, "run.completed")]).runs == {}


# --- events of installed packages


class PinSet(Event, frozen=True):
    """An event of an extension that changes the state of its thread."""

    text: str

    def patch(self, values: Mapping[str, Any]) -> Json:
        return {"pins": [*values.get("pins", []), self.text]} if self.text else {}


class PinStuck(Event, frozen=True):
    """Its patch fails, or changes what it may not."""

    messages: bool = False

    def patch(self, values: Mapping[str, Any]) -> Json:
        return {"messages": []} if self.messages else {"pins": values["nothing"]}


def test_an_event_of_an_extension_says_what_it_changes() -> None:
    """A commit like any other: history has it, and a run can start before it."""
    events = (CREATED, (asks("h1"), "r1"), (STARTED, "r1"), (PinSet(text="one"), "r1"), PinSet(text=""))
    state = fold(log_of(*events))
    assert state.values["pins"] == ["one"]
    assert ids(state) == ["h1"]
    assert len(state.commits) == 2
    before = fold(log_of(*events, (RunCompleted(), "r1"), (asks("h2", base=3), "r2"), (STARTED, "r2")))
    assert "pins" not in before.values


def test_an_event_of_an_extension_that_fails_is_a_problem_of_its_own() -> None:
    state = fold(log_of(CREATED, PinStuck(), PinStuck(messages=True), PinSet(text="one")))
    failed, changed = [problem.text for problem in state.problems]
    assert re.fullmatch(r"pin\.stuck: its patch fails: KeyError: 'nothing' \(test_state\.py:\d+, in patch\)", failed)
    assert changed == "pin.stuck: its patch changes messages"
    assert state.values == {"pins": ["one"]}
