"""A thread at any moment, told from its newest state and a few events: what is shown of it is what the log folds to."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from core.events import (
    Event,
    Record,
    RunPaused,
    RunRemoved,
    RunSteered,
    RunSuspended,
    SubagentCompleted,
    SubagentStarted,
    WebhookDelivered,
)
from core.replay.queries import moment_of
from core.thread.fold import fold
from core.thread.rewind import before_runs
from tests.property.test_fold import BEGINNINGS, CALLS, RUNS, events, logs, messages
from tests.support.records import log_of

LATER: list[st.SearchStrategy[Event]] = [
    st.just(RunPaused(next=["tools"])),
    st.builds(RunSteered, message=messages()),
    st.just(RunSuspended(reason="r")),
    st.just(RunRemoved()),
    st.just(WebhookDelivered(status=200, attempt=1)),
    st.builds(SubagentStarted, call_id=CALLS, subagent=CALLS, name=st.just("s")),
    st.builds(SubagentCompleted, call_id=CALLS, status=st.just("completed")),
]
"""What changes a run that is not at work, and what the next run takes over."""
SOME = st.lists(st.tuples(st.one_of(LATER), RUNS) | events(), max_size=14)


@st.composite
def logs_with_more(draw: st.DrawFn) -> list[Record]:
    return log_of(*draw(BEGINNINGS), *draw(SOME))


@given(logs() | logs_with_more())
def test_what_is_shown_of_a_moment_is_what_the_log_folds_to(records: list[Record]) -> None:
    now = fold(records)
    for seq in [record.seq for record in records]:
        before = before_runs(now, seq)
        assert before.seq < seq
        told = fold([record for record in records if before.seq < record.seq <= seq], before)
        whole = fold(record for record in records if record.seq <= seq)
        assert msgspec.to_builtins(moment_of("t", told)) == msgspec.to_builtins(moment_of("t", whole))
