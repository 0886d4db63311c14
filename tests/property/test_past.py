"""What lies in pages and in snapshots is what was folded: whatever the log, wherever it is cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from channels.http.protocols.langgraph import snapshots as shown
from core.events import ModelCompleted, Record, RunCompleted, RunRemoved, RunRequested, RunStarted, ThreadCreated
from core.thread import pages, past
from core.thread.fold import fold
from core.thread.rewind import rewound
from core.thread.snapshots import ThreadForm
from core.thread.state import ThreadState
from core.thread.values import entitle, places_of, reduce
from tests.property.test_fold import logs
from tests.support.records import ai, human, log_of

FORM = ThreadForm()


@contextmanager
def paged(size: int) -> Iterator[None]:
    """Pages of so many commits or runs, and a frame at nearly every commit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(past, "PAGE", size)
        patch.setattr(past, "FRAME_BYTES", 200 * size)
        pages.forget()
        yield
    pages.forget()


def read_again(state: ThreadState, before: ThreadState | None = None) -> ThreadState:
    """A state as it is after it was written, in one piece or as what it adds to an earlier one."""
    counts = FORM.counts(before) if before else [0, 0, 0]
    first = FORM.pages(before, [0, 0, 0]) if before else [[], [], []]
    rest = FORM.pages(state, counts)
    return FORM.state(FORM.head(state), [[*old, *new] for old, new in zip(first, rest, strict=True)])


def conversation(turns: int) -> list[Record]:
    story: list[Any] = [ThreadCreated(user="ada")]
    for number in range(turns):
        run = f"r{number}"
        story.append((RunRequested(input={"messages": [human(f"h{number}")]}), run))
        story.append((RunStarted(attempt=1, worker="w", lease=1), run))
        story.append((ModelCompleted(message=ai(f"m{number}")), run))
        story.append((RunCompleted(), run))
    return log_of(*story, (RunRemoved(), "r0"))


def everything(state: ThreadState) -> dict[str, Any]:
    """What can be told of a state, by all ways to ask for it."""
    seqs = {0, state.seq, *(commit.seq + odd for commit in state.commits for odd in (-1, 0, 1))}
    return {
        "state": state,
        "runs": list(state.runs.values()),
        "newest first": list(reversed(state.runs.values())),
        "commits": list(reversed(state.commits)),
        "values": [state.values_at(index) for index in range(len(state.commits))],
        "timeline": list(shown.timeline(state, range(len(state.commits)))),
        "history": {seq: list(shown.history(state, seq)) for seq in sorted(seqs)},
        "checkpoints": {seq: state.commit_at(seq) for seq in sorted(seqs)},
        "busy": (state.active, state.queued, state.undone, state.status),
        "rewound": [rewound(state, run, run.requested_seq - 1) for run in state.runs.values()],
        "chains": [list(state.chain(index)) for index in range(len(state.commits))],
    }


@settings(max_examples=60)
@given(logs(), st.integers(0, 17), st.integers(0, 17), st.integers(1, 3))
def test_a_snapshot_and_the_rest_are_the_whole_log(log: list[Record], one: int, other: int, size: int) -> None:
    first, second = sorted((one, other))
    whole = fold(log)
    with paged(size):
        before = fold(log[:first])
        cut = fold(log[first:second], before)
        forgotten = any(record.type == "thread.erased" for record in log[first:second])
        again = read_again(cut, None if forgotten else before)
        assert again == cut
        assert list(again.runs) == list(cut.runs)
        assert fold(log[second:], again) == whole
        assert fold(log[second:], read_again(again)) == fold(log[second:], cut)


@settings(max_examples=30)
@given(logs(), st.integers(1, 3))
def test_what_is_in_pages_is_told_as_what_is_not(log: list[Record], size: int) -> None:
    expected = everything(fold(log))
    with paged(size):
        assert everything(fold(log)) == expected


def applied(state: ThreadState, index: int) -> dict[str, Any]:
    """The patches on the way to a commit, one after the other."""
    values: dict[str, Any] = {}
    places: dict[str, int] = {}
    for step in reversed(list(state.chain(index))):
        reduce(values, places, state.commits[step].patch)
    return values


@settings(max_examples=30)
@given(logs(), st.integers(1, 3))
def test_the_values_at_a_commit_are_its_patches_applied(log: list[Record], size: int) -> None:
    with paged(size):
        state = fold(log)
        for index in range(len(state.commits)):
            values = applied(state, index)
            entitle(values, state.title)
            assert state.values_at(index) == values
        assert state.places == places_of(state.values)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_long_conversation_in_small_pages(size: int) -> None:
    log = conversation(30)
    expected = everything(fold(log))
    with paged(size):
        state = fold(log)
        assert state.commits.pages
        assert state.commits.frames
        assert state.runs.pages
        assert everything(state) == everything(read_again(state)) == expected
        assert [run.removed for run in state.runs.values()] == [True] + [False] * 29


@pytest.mark.parametrize("cuts", [(3,), (1, 2), (40, 41, 90)])
def test_pages_do_not_depend_on_how_the_log_is_read(cuts: Sequence[int]) -> None:
    """So that every process goes on where another one's snapshot ends."""
    log = conversation(30)
    with paged(2):
        state = ThreadState()
        for begin, end in zip((0, *cuts), (*cuts, len(log)), strict=True):
            state = read_again(fold(log[begin:end], state))
        assert FORM.pages(state, [0, 0, 0]) == FORM.pages(fold(log), [0, 0, 0])
        assert FORM.head(state) == FORM.head(fold(log))


def test_a_copy_is_not_changed_by_what_follows() -> None:
    log = conversation(30)
    with paged(2):
        before = fold(log[:60])
        expected = everything(before)
        fold(log[60:], before)
        fold(log[60:90], before)
        assert everything(before) == expected == everything(fold(log[:60]))


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_thread_as_it_was_goes_on_as_it_did(size: int) -> None:
    """And leaves the later state alone, with which it shares what lies in pages."""
    log = conversation(30)
    with paged(size):
        state = fold(log)
        expected = everything(state)
        for run in state.runs.values():
            before = rewound(state, run, run.requested_seq - 1)
            assert before is not None
            assert run.id not in before.runs
            assert before.runs.ended_with(state.runs[run.id].answer) is None
            again = fold([record for record in log if record.seq > before.seq], before)
            assert list(again.runs.values()) == expected["runs"]
            assert [again.runs.ended_with(f"m{n}") for n in range(10)] == [state.runs[f"r{n}"] for n in range(10)]
        assert everything(state) == expected


def test_giants_are_small() -> None:
    """The objects that a long thread is made of are those of its newest turns."""
    state = fold(conversation(1000))
    assert len(state.commits) == 2000
    assert len(state.commits.tail) < 2 * past.PAGE
    assert len(state.runs.tail) <= 2 * past.PAGE
    assert sum(len(page.data) for page in state.commits.pages) < 200_000


def test_what_is_forgotten_is_not_decoded_any_more() -> None:
    state = fold(conversation(200))
    assert [commit.node for commit in state.commits][:2] == ["__start__", "model"]
    assert list(pages.decoded_commits._recent)
    pages.forget()
    assert list(pages.decoded_commits._recent) == []


def test_runs_stay() -> None:
    with pytest.raises(TypeError, match="stay"):
        del fold(conversation(1)).runs["r0"]
