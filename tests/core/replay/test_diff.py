"""Differences of runs, states and texts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.events import Event, Json, ModelCompleted, Record, RunRequested, RunStarted, ToolCompleted
from core.replay.diff import Step, aligned, changes, steps, words
from tests.support.records import ai, human, record

Calls = tuple[tuple[str, Json, str], ...]


def run(*calls: tuple[str, Json, str], text: str = "Done.", prompt: str = "p", thread: str = "t") -> list[Step]:
    """The steps of a run with these calls (name, arguments, outcome), each asked for by an answer of its own."""
    events: list[Event] = [
        RunRequested(input={"messages": [human("h", f"Work in {thread}.")]}),
        RunStarted(attempt=1, worker="w", lease=1, prompt=prompt),
    ]
    for number, (name, args, outcome) in enumerate(calls):
        call = f"c{number}"
        message = ai(f"a{number}", "", [{"id": call, "name": name, "args": args}])
        events.append(ModelCompleted(message=message, request=f"r{number}", duration_ms=5))
        result = {"type": "tool", "id": f"o{number}", "tool_call_id": call, "name": name, "content": outcome}
        events.append(ToolCompleted(call_id=call, message=result, duration_ms=7))
    events.append(ModelCompleted(message=ai("last", text), request="last"))
    records: list[Record] = [record(seq, event, "r") for seq, event in enumerate(events, 1)]
    return steps(records)


LS: tuple[str, Json, str] = ("ls", {"path": "/mnt"}, "a.txt")
BASH: tuple[str, Json, str] = ("bash", {"command": "wc -l a.txt"}, "3 a.txt")


def test_the_steps_of_a_run() -> None:
    assert [(step.kind, step.name, step.milliseconds) for step in run(LS)] == [
        ("request", "", 0),
        ("answer", "", 5),
        ("call", "ls", 7),
        ("answer", "", 0),
    ]


@pytest.mark.parametrize(
    ("right", "differences"),
    [
        (run(LS, BASH), []),
        (run(LS, ("bash", {"command": "wc -c a.txt"}, "9 a.txt")), [("answer", "output"), ("call", "input")]),
        (run(LS, ("bash", {"command": "wc -l a.txt"}, "4 a.txt")), [("call", "output")]),
        (run(LS, BASH, text="Three."), [("answer", "output")]),
        (run(LS, BASH, prompt="q"), [("answer", "input")] * 3),
        (run(LS), [("answer", "only left"), ("call", "only left")]),
        (
            run(LS, LS, BASH),
            [("answer", "only right"), ("call", "only right"), ("answer", "input"), ("answer", "input")],
        ),
    ],
    ids=["the same", "arguments", "the world", "the model", "the prompt", "a step less", "a step more"],
)
def test_the_first_difference_tells_who_made_it(right: list[Step], differences: list[Any]) -> None:
    rows = [row for row in aligned(run(LS, BASH), right) if not row.same]
    kinds = [((row.left or row.right or run(LS)[0]).kind, row.difference) for row in rows]
    assert sorted(kinds) == sorted(differences)


def test_what_two_threads_are_called_is_no_difference() -> None:
    assert run(thread="t")[0].input == {"messages": ["Work in <thread>."], "model": None}


STATES = st.recursive(
    st.none() | st.integers(0, 3) | st.text("ab", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
    max_leaves=8,
)


@given(STATES, STATES)
def test_states_without_a_change_are_equal(before: Any, after: Any) -> None:
    assert (not list(changes(before, after))) == (before == after)


def test_a_message_that_was_inserted_is_one_change() -> None:
    messages = [{"id": f"m{n}", "content": str(n)} for n in range(500)]
    inserted = [*messages[:10], {"id": "new", "content": "x"}, *messages[10:]]
    assert [change.path for change in changes({"messages": messages}, {"messages": inserted})] == ["messages[new]"]


@given(st.text("ab ,", max_size=30), st.text("ab ,", max_size=30))
def test_words_add_up_to_both_texts(before: str, after: str) -> None:
    pieces = words(before, after)
    assert "".join(text for kind, text in pieces if kind != "new") == before
    assert "".join(text for kind, text in pieces if kind != "gone") == after


def test_long_runs_of_few_different_steps_are_aligned_piece_by_piece() -> None:
    left = [Step("call", f"tool{n % 8}", n, {}, None) for n in range(6000)]
    right = [step for n, step in enumerate(left) if n not in (1000, 2500, 5000)]
    rows = aligned(left, right)
    assert [row.left.seq for row in rows if row.difference == "only left" and row.left] == [1000, 2500, 5000]
    assert sum(row.same for row in rows) == len(right)
