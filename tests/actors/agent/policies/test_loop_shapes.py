"""Loop detection against shapes of sessions: no work is stopped, and of 100 loops 95 within 8 repetitions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

import pytest

from actors.agent.policies.limits.loop_detection import Round, judged
from core.config.settings import LoopDetection
from tests.actors.agent.policies import loop_shapes as shapes

REPETITIONS = 8
DEFAULT = LoopDetection()


def as_round(number: int, calls: shapes.Round) -> Round:
    requests = [{"id": f"c{number}-{n}", "name": call.name, "args": call.args} for n, call in enumerate(calls)]
    results = {
        request["id"]: {"type": "tool", "content": call.result, "status": "error" if call.failed else "success"}
        for request, call in zip(requests, calls, strict=True)
    }
    text = "" if calls else "I will go on."
    return Round({"type": "ai", "content": text, "tool_calls": requests}, results)  # type: ignore[arg-type]


def verdicts(rounds: Iterable[shapes.Round]) -> list[str]:
    """Returns `warn`, `stop` or nothing after each round, up to the stop."""
    newest: list[Round] = []
    said: list[str] = []
    for number, calls in enumerate(rounds):
        newest.insert(0, as_round(number, calls))
        verdict = judged(newest, DEFAULT)
        said.append("" if verdict is None else "stop" if verdict.stop else "warn")
        if said[-1] == "stop":
            break
    return said


@cache
def of_work(name: str) -> list[str]:
    return verdicts(shapes.WORK[name])


@cache
def stopped_in(name: str) -> int | None:
    """Returns the repetition in which a loop is stopped."""
    session = list(shapes.session(shapes.LOOPS[name], 2 * REPETITIONS))
    said = verdicts(round_ for _, round_ in session)
    return session[len(said) - 1][0] if said[-1] == "stop" else None


def test_the_numbers_of_shapes() -> None:
    assert (len(shapes.LOOPS), len(shapes.WORK)) == (100, 100)


@pytest.mark.parametrize("name", shapes.WORK)
def test_work_is_not_stopped(name: str) -> None:
    assert "stop" not in of_work(name)


@pytest.mark.parametrize("name", shapes.LOOPS)
def test_a_loop_is_stopped(name: str) -> None:
    repetition = stopped_in(name)
    assert (repetition is None) == bool(shapes.LOOPS[name].missed)
    assert repetition is None or 1 < repetition <= REPETITIONS


def test_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    stops = [stopped_in(name) for name in shapes.LOOPS]
    within = [stop for stop in stops if stop is not None and stop <= REPETITIONS]
    said = {name: of_work(name) for name in shapes.WORK}
    warned = [name for name, each in said.items() if "warn" in each]
    with capsys.disabled():
        print(f"\nloops stopped within {REPETITIONS} repetitions: {len(within)} of {len(stops)} {_counts(within)}")
        print(f"work stopped: {sum('stop' in each for each in said.values())} of {len(said)}; warned: {len(warned)}")
    assert len(within) >= 95


def _counts(stops: Sequence[int]) -> str:
    return ", ".join(f"{stops.count(number)} in the {number}th" for number in sorted(set(stops)))
