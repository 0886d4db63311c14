"""A replay beside its recording: which steps are shown as the same, and what stays uncompared."""

from __future__ import annotations

import pytest

from core.events import RunRequested
from core.replay.replayed import Replayed, replayed
from core.runs.replay import Report
from tests.core.replay.recorded import Story
from tests.golden.make_story import NAME

RECORDS = [record for record in Story().records if record.aggregate.id == NAME]
RUN = next(record.run or "" for record in RECORDS if isinstance(record.event, RunRequested))
SAME = 2


def result(seq: int | None, differing: str | None = None) -> Replayed:
    divergence = "another request" if differing else None
    return replayed(Report(divergence=divergence, differing=differing, seq=seq), NAME, RECORDS, RUN)


@pytest.mark.parametrize(("differing", "same"), [(None, None), ("a subagent", None), (NAME, SAME)], ids=str)
def test_the_steps_before_a_difference_in_the_thread_are_the_same(differing: str | None, same: int | None) -> None:
    whole = result(None).comparison.steps
    assert len(whole) > SAME
    step = whole[SAME].left
    assert step is not None
    compared = result(step.seq, differing)
    rows = [row for row in compared.comparison.steps if row is not compared.comparison.first]
    assert (rows, compared.not_compared) == (whole[:same], len(whole) - len(rows))
    assert compared.comparison.same is (differing is None)
