"""The laws of the fold, on well-formed and odd logs: total, deterministic, incremental, and it changes nothing."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from channels.http.runs.messages import full
from core.events import (
    ApprovalRequested,
    ApprovalResolved,
    ContextCompacted,
    Decision,
    Event,
    FolderAttached,
    Message,
    ModelCompleted,
    ModelFailed,
    Record,
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
    ThreadExpirySet,
    ThreadForked,
    ThreadShared,
    ThreadTitled,
    ToolCompleted,
    ToolRequested,
    VariableSet,
)
from core.thread.fold import Folding, fold
from core.thread.messages import timed
from core.thread.state import ThreadState
from core.thread.values import REMOVE_ALL, entitle, next_nodes, unanswered
from tests.support.records import AT, call, log_of, opaque, record

RUNS = st.sampled_from(["r1", "r2", "r3"])
IDS = st.sampled_from(["m1", "m2", "m3", "m4", "m5"])
CALLS = st.sampled_from(["c1", "c2"])
CHECKPOINTS = st.none() | st.integers(0, 30).map(lambda n: 10 * n) | st.just(7)
"""Some are there, some are not."""
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)
OBJECT = st.dictionaries(st.sampled_from(["a", "b", "title"]), JSON, max_size=2)
# Strategies are made once, here: one that is made in each draw is validated again each time, which takes longer than
# the draw.
KINDS = st.sampled_from(["human", "ai", "tool", "remove", "system"])
REMOVED = IDS | st.just(REMOVE_ALL)
TEXT = st.text(max_size=3)
SOME_CALLS = st.lists(CALLS, max_size=2, unique=True)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    kind = draw(KINDS)
    identity = draw(REMOVED if kind == "remove" else IDS)
    message: Message = {"type": kind, "id": identity, "content": draw(TEXT)}
    if kind == "ai":
        message["tool_calls"] = [call(c) for c in draw(SOME_CALLS)]
    if kind == "tool":
        message["tool_call_id"] = draw(CALLS)
    return message


MESSAGES = st.lists(messages(), max_size=3)
ARTIFACTS = st.none() | st.lists(st.text(max_size=2), max_size=3)
VIEWED_IMAGES = st.none() | st.dictionaries(st.text(max_size=2), st.text(max_size=2), max_size=2)


@st.composite
def patches(draw: st.DrawFn) -> dict[str, Any]:
    patch = draw(OBJECT)
    for key, values in (("messages", MESSAGES), ("artifacts", ARTIFACTS), ("viewed_images", VIEWED_IMAGES)):
        if draw(st.booleans()):
            patch[key] = draw(values)
    return patch


def events() -> st.SearchStrategy[tuple[Event, str | None]]:
    """Any event of any run at any time."""
    note = st.none() | messages()
    decisions = st.lists(st.builds(Decision, policy=CALLS, action=CALLS, note=note, again=st.booleans()), max_size=2)
    kept = st.lists(messages(), max_size=2)
    of_thread: list[st.SearchStrategy[Event]] = [
        st.builds(ThreadCreated, user=st.just("ada"), metadata=OBJECT),
        st.builds(ThreadAnnotated, metadata=OBJECT),
        st.builds(StatePatched, values=patches(), base=CHECKPOINTS, as_node=st.none() | st.just("model")),
        st.builds(ThreadForked, source=st.just("s"), source_seq=st.just(1), patches=st.lists(patches(), max_size=3)),
        st.builds(ThreadTitled, title=st.text(max_size=2)),
        st.builds(ThreadErased, by=st.just("ada")),
        st.just(VariableSet(name="A", value="1", by="ada")),
        st.just(FolderAttached(path="/home/ada", access="read-write", by="ada")),
        st.just(ThreadShared(share="s", by="ada", upto=10, digest="d")),
        st.just(ThreadExpirySet(minutes=9, strategy="delete")),
        st.builds(ContextCompacted, summary=messages(), kept=st.lists(IDS, max_size=3), messages=kept),
    ]
    multitask = st.sampled_from(["reject", "enqueue", "interrupt", "rollback"])
    of_run: list[st.SearchStrategy[Event]] = [
        st.builds(RunRequested, input=st.none() | patches(), base=CHECKPOINTS, multitask=multitask),
        st.builds(
            RunStarted, attempt=st.integers(1, 3), worker=st.just("w"), lease=st.just(1), prepared=patches() | OBJECT
        ),
        st.builds(RunCancelRequested, action=st.sampled_from(["interrupt", "rollback"])),
        st.just(RunCompleted()),
        st.builds(RunFailed, error=st.just("E"), text=st.just("t"), message=st.none() | messages()),
        st.just(RunCancelled()),
        st.just(RunRolledBack()),
        st.builds(ModelCompleted, message=messages(), decisions=decisions),
        st.builds(ApprovalRequested, approval=IDS, call_id=CALLS, tool=CALLS, args=OBJECT, digest=st.just("d")),
        st.builds(ApprovalResolved, approval=IDS, call_id=CALLS, decision=st.sampled_from(["approve", "reject"])),
        st.just(ModelFailed(error="E", text="t", attempt=1, max_attempts=2)),
        st.builds(ToolRequested, call_id=CALLS, name=st.just("bash"), effect=st.just("once")),
        st.builds(ToolCompleted, call_id=CALLS, message=messages(), update=patches(), decisions=decisions),
    ]
    either: st.SearchStrategy[tuple[Event, str | None]] = st.tuples(st.one_of(of_thread), st.none() | RUNS)
    return either | st.tuples(st.one_of(of_run), RUNS | st.none())


def beginnings() -> st.SearchStrategy[list[tuple[Event, str | None]]]:
    """Usually a log begins as it should, so that the rest has something to work on."""
    start = RunStarted(attempt=1, worker="w", lease=1)
    run: list[tuple[Event, str | None]] = [(ThreadCreated(user="ada"), None), (RunRequested(), "r1"), (start, "r1")]
    return st.just(run) | st.just(run[:1]) | st.just([])


BEGINNINGS, REST = beginnings(), st.lists(events(), max_size=14)
ANY_RUN = RUNS | st.none()


@st.composite
def logs(draw: st.DrawFn) -> list[Record]:
    """A log with anything in it: also events that this build does not know."""
    records = log_of(*draw(BEGINNINGS), *draw(REST))
    odd, twice = draw(st.booleans()), draw(st.booleans())
    if records and odd:
        place = draw(st.integers(0, len(records) - 1))
        records[place] = opaque(records[place].seq, "rocket.launched", draw(ANY_RUN), fuel=1)
    if records and twice:  # the same event twice
        again = draw(st.integers(0, len(records) - 1))
        records.append(Record(records[-1].seq + 10, records[again].raw))
    return records


def same(left: ThreadState, right: ThreadState) -> bool:
    return left == right and list(left.runs) == list(right.runs)


@given(logs())
def test_it_is_total_and_deterministic(log: list[Record]) -> None:
    again = [Record(r.seq, r.raw) for r in log]
    assert same(fold(log), fold(again))


ANY = st.none() | st.integers(0, 9) | st.text(max_size=2) | st.lists(JSON, max_size=2) | OBJECT
"""What nobody should have written into a field."""
ODD_CALL = st.fixed_dictionaries({}, optional={"id": ANY | CALLS, "name": ANY, "args": ANY})
ODD_MESSAGE = st.fixed_dictionaries(
    {"type": st.sampled_from(["ai", "tool", "human", "remove"]) | ANY},
    optional={
        "id": ANY | IDS,
        "tool_calls": ANY | st.lists(ANY | ODD_CALL, max_size=2),
        "tool_call_id": ANY | CALLS,
        "additional_kwargs": ANY,
    },
)
ODD_PROMOTED = st.fixed_dictionaries({}, optional={"catalog_hash": ANY, "names": ANY})
ODD_VALUES = st.fixed_dictionaries(
    {},
    optional={
        "messages": ANY | st.lists(ANY | ODD_MESSAGE, max_size=3),
        "promoted": ANY | ODD_PROMOTED,
        "artifacts": ANY,
        "viewed_images": ANY,
        "todos": ANY,
    },
)


@given(st.lists(ODD_VALUES, min_size=1, max_size=3), ODD_VALUES)
@example([{"promoted": {"names": 5}}] * 2, {})
@example([{"messages": [{"type": "ai", "id": "m1", "tool_calls": [7, {}, {"id": []}, {"id": "c1"}]}]}], {})
@example([{"messages": [{"type": "ai", "tool_calls": 7}, {"type": "tool", "tool_call_id": []}]}], {})
@example([{"messages": [{"type": "human", "id": []}]}], {"messages": [{"id": []}]})
def test_whatever_was_written_can_be_read(written: list[dict[str, Any]], prepared: dict[str, Any]) -> None:
    """Also by who shows messages, and by who asks what is next."""
    first: list[Event] = [ThreadCreated(user="ada"), *[StatePatched(values=values) for values in written]]
    begin = RunStarted(attempt=1, worker="w", lease=1, prepared=prepared)
    run: list[tuple[Event, str | None]] = [
        (RunRequested(input=written[0]), "r1"),
        (begin, "r1"),
        (RunCompleted(), "r1"),
    ]
    state = fold(log_of(*first, *run))
    next_nodes(state.messages)
    for message in state.messages:
        full(message)
        ended = msgspec.structs.replace(state.runs["r1"], answer=message.get("id"))
        timed(message, ended)
    for one in unanswered(state.messages):
        assert (type(one["id"]), type(one["name"]), type(one["args"])) == (str, str, dict)


@given(logs(), st.data())
@settings(max_examples=40)
def test_one_by_one_it_is_the_same(log: list[Record], data: st.DataObject) -> None:
    """In place, from any cut on; each fact tells what was before it, and the state it began with stays."""
    cut = data.draw(st.integers(0, len(log)))
    start = fold(log[:cut])
    kept = copy.deepcopy(start)
    folding = Folding(start)
    for index, fact in enumerate(log[cut:], cut):
        then = fold(log[:index])
        before = folding.apply(fact)
        assert folding.apply(fact) == before
        assert (before.head, before.commits[: before.length]) == (then.head, then.commits)
        assert (before.paused, before.answers) == (then.paused, then.answers)
        assert before.runs.get(fact.run or "") == then.runs.get(fact.run or "")
        assert same(folding.state, fold(log[: index + 1]))
    assert same(start, kept)


@given(logs(), st.data())
def test_it_is_incremental(log: list[Record], data: st.DataObject) -> None:
    """For every cut; also when what was folded before is kept and folded on by others."""
    whole = fold(log)
    for cut in range(len(log) + 1):
        assert same(fold(log[cut:], fold(log[:cut])), whole)
    first, second = sorted(data.draw(st.tuples(*[st.integers(0, len(log))] * 2)))
    assert same(fold(log[second:], fold(log[first:second], fold(log[:first]))), whole)


@given(logs(), logs())
def test_what_it_is_given_stays_as_it_was(log: list[Record], other: list[Record]) -> None:
    state = fold(log)
    before, raws = copy.deepcopy(state), [r.raw for r in log]
    later = [Record((log[-1].seq if log else 0) + r.seq, r.raw) for r in other]
    fold(later, state)
    fold(later[: len(later) // 2], state)
    assert same(state, before)
    assert [r.raw for r in log] == raws
    for one in log + later:
        assert Record(one.seq, one.raw).event == one.event


@given(logs())
def test_values_are_those_of_the_head(log: list[Record]) -> None:
    """The state that was kept up to date is the one that is rebuilt from the chain; message places are right."""
    state = fold(log)
    rebuilt = copy.copy(state)
    rebuilt.head = -2  # so that `values_at` cannot take the short way
    assert rebuilt.values_at(state.head) == state.values
    assert state.places == {str(m["id"]): n for n, m in enumerate(state.messages)}
    assert -1 <= state.head < len(state.commits)
    assert all(-1 <= commit.parent < n for n, commit in enumerate(state.commits))


@given(logs())
def test_what_is_derived_from_the_state_is_total(log: list[Record]) -> None:
    state = fold(log)
    assert state.status in ("idle", "busy", "interrupted", "error")
    unanswered(state.messages)
    next_nodes(state.messages)
    state.answer_seq()
    assert state.active is None or state.active.open
    for number in range(len(state.commits)):
        state.values_at(number)
        assert next(state.chain(number)) == number


@given(logs())
def test_every_state_of_the_past_can_be_had_back(log: list[Record]) -> None:
    """A checkpoint's values are those the thread had when it was the head, with the title that came later."""
    final = fold(log)
    for cut in range(len(log) + 1):
        then = fold(log[:cut])
        if then.head >= 0 and not any(isinstance(r.event, ThreadErased) for r in log):
            values = dict(then.values)
            entitle(values, final.title)
            assert final.values_at(then.head) == values


@given(logs())
def test_of_what_was_before_a_tombstone_nothing_is_in_a_thread_that_begins_after_it(log: list[Record]) -> None:
    last = log[-1].seq if log else 0
    again = [record(last + 10, ThreadErased(by="eve")), record(last + 20, ThreadCreated(user="ada", metadata={"a": 1}))]
    after, new = fold([*log, *again]), fold(again)
    for each in dataclasses.fields(ThreadState):
        if each.name != "size":
            assert getattr(after, each.name) == getattr(new, each.name), each.name


@given(logs())
def test_an_ended_run_stays_as_it_ended(log: list[Record]) -> None:
    for cut in range(len(log)):
        before, after = fold(log[:cut]), fold(log[: cut + 1])
        if not after.erased:
            for name, run in before.runs.items():
                assert run.open or after.runs[name] == run


@given(logs())
def test_unknown_events_change_nothing_but_what_an_open_run_has_unread(log: list[Record]) -> None:
    state = fold(log)
    for kind in ("rocket.launched", "x.acme.launched"):
        after, runs = fold([opaque(state.seq + 10, kind, "r1")], state), dict(state.runs)
        if kind == "rocket.launched" and "r1" in runs and runs["r1"].open and not state.erased:
            runs["r1"] = copy.copy(runs["r1"])
            runs["r1"].unread, runs["r1"].unread_at = kind, AT
        assert (after.values, after.commits, dict(after.runs)) == (state.values, state.commits, runs)


ODD: list[Callable[[Any], Event]] = [
    lambda value: StatePatched(values={"messages": value}),
    lambda value: StatePatched(values={"messages": [value]}),
    lambda value: StatePatched(values={"artifacts": value}),
    lambda value: StatePatched(values={"viewed_images": value}),
    lambda value: ThreadForked(source="s", source_seq=1, patches=[{"messages": value}]),
]


@pytest.mark.parametrize("event", ODD, ids=["messages", "message", "artifacts", "viewed_images", "fork"])
@settings(max_examples=30)
@given(value=JSON)
@example(value=None)
@example(value=1)
@example(value=[{}])
@example(value={"a": []})
def test_it_is_total_on_patches_of_any_shape(event: Callable[[Any], Event], value: Any) -> None:
    """All of these are well-formed facts: whoever wrote them, the thread must stay readable."""
    fold([record(10, ThreadCreated(user="ada")), record(20, event(value))])
