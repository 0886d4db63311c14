"""A state before a run, made from a later one: it is what the log up to there folds to."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from channels.http.protocols.langgraph.frames import Cursor, Frames
from core.events import Event, ModelCompleted, Record, RunCompleted, RunRolledBack, StatePatched
from core.thread.fold import fold
from core.thread.rewind import before_others, rewound
from core.thread.state import Run, ThreadState
from tests.channels.http.story import ALL, THREAD, Story, ai, human, requested, started
from tests.property.test_fold import logs


def held(state: ThreadState) -> dict[str, Any]:
    """What the thread held; of runs that had not begun, only that they were there."""
    names = ("erased", "values", "places", "commits", "head", "paused", "answers", "undone")
    runs = {run.id: (run.request, None if run.open else (run.status, run.ended_seq)) for run in state.runs.values()}
    return {**{name: getattr(state, name) for name in names}, "runs": runs, "order": list(runs)}


def places(run: Run) -> list[int]:
    """Just before it was requested, and just before it began."""
    return [seq - 1 for seq in (run.requested_seq, run.started_seq) if seq is not None]


@given(logs())
def test_rewound_is_folded(records: list[Record]) -> None:
    state = fold(records)
    for run in state.runs.values():
        for seq in places(run):
            before = rewound(state, run, seq)
            if before is not None:
                assert held(before) == held(fold(record for record in records if record.seq <= seq))
    assert state == fold(records)


@given(logs())
def test_what_cannot_be_rewound_is_folded_from_an_earlier_run_on(records: list[Record]) -> None:
    state = fold(records)
    for run in state.runs.values():
        for seq in places(run):
            earlier = before_others(state, seq)
            assert earlier.seq <= seq
            before = fold([record for record in records if earlier.seq < record.seq <= seq], earlier)
            assert held(before) == held(fold(record for record in records if record.seq <= seq))


def turns(*between: Event) -> Story:
    """Three turns, one after the other, and what was written before the last one."""
    story = Story()
    for number in range(3):
        if number == 2:
            story.add(*between, run=None)
        run = f"r{number}"
        story.add(requested(human(f"h{number}", "Hi"), stream_modes=list(ALL)), started(), run=run)
        story.add(ModelCompleted(message=ai(f"m{number}", "Hello")), started(2), run=run)
        story.add(RunRolledBack() if number == 1 else RunCompleted(), run=run)
    return story


@pytest.mark.parametrize("between", [(), (StatePatched(values={"title": "T"}),)])
@pytest.mark.parametrize("run_id", ["r0", "r1", "r2"])
def test_the_frames_of_a_turn_are_the_same(run_id: str, between: tuple[Event, ...]) -> None:
    records = turns(*between).records
    state = fold(records)
    seq = state.runs[run_id].requested_seq - 1
    before = rewound(state, state.runs[run_id], seq)
    assert before is not None
    folded = fold(record for record in records if record.seq <= seq)
    for record in records:
        if record.seq > seq:
            after = Cursor(record.seq)
            frames, expected = (Frames(start, THREAD, run_id, ALL, after=after) for start in (before, folded))
            later = [one for one in records if one.seq > seq]
            assert [frames.fact(one) for one in later] == [expected.fact(one) for one in later]


def test_what_was_written_before_the_run_began_cannot_be_undone() -> None:
    story = Story(requested(human("h", "Hi")))
    story.add(StatePatched(values={"title": "T"}), run=None)
    story.add(started(), RunCompleted())
    state = fold(story.records)
    [run] = state.runs.values()
    assert run.started_seq is not None
    assert rewound(state, run, run.requested_seq - 1) is None
    assert rewound(state, run, run.started_seq - 1) is not None
