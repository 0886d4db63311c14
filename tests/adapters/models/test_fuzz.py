"""Streams of all ways and harms: the right answer, or an error in words. `SIKA_LONG=1` tries 100 000."""

from __future__ import annotations

import os

import pytest

from tests.support.answers import outcome
from tests.support.fuzzed_answers import TOOLS, Case, made, wrong

pytestmark = pytest.mark.anyio

STREAMS = 100_000 if os.environ.get("SIKA_LONG") else 1_500


@pytest.mark.timeout(3600)
async def test_streams_of_all_ways() -> None:
    faults = []
    for seed in range(STREAMS):
        case = made(seed)
        if fault := wrong(case, await outcome(case.blocks, TOOLS)):
            faults.append(f"{seed} ({case.harm or 'exact'}): {fault}")
    assert not faults, f"{len(faults)} of {STREAMS}: {faults[:5]}"


@pytest.mark.parametrize(
    ("case", "result"),
    [
        (Case([], "half", [], None, exact=False, harm="cut off"), {"text": "half"}),
        (Case([], "", [["bash", {"a": 1}]], None, exact=True), {"calls": [["bash", {}]]}),
        (Case([], "", [["bash", {"a": 1}]], None, exact=False, harm="repeated"), {"calls": [["bash", {}]]}),
        (Case([], "x", [], [5, 5], exact=False, harm="repeated"), {"text": "x", "tokens": [10, 5]}),
        (Case([], "x", [], None, exact=False, harm="byte"), {"error": "Expecting value", "class": "JSONDecodeError"}),
        (Case([], "x", [], None, exact=True), {"error": "boom", "class": "APIError"}),
        (Case([], "x", [], None, exact=True), {"text": "xx"}),
    ],
)
def test_the_judge_finds_each_fault(case: Case, result: dict[str, object]) -> None:
    assert wrong(case, result)
