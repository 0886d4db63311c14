"""Suites, checks, gates and statistics of evaluations, without a run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from core.errors import Invalid
from core.replay.evaluation.checks import Subject, parsed, run_check
from core.replay.evaluation.facts import EvaluationSampled, Outcome
from core.replay.evaluation.gates import conditions
from core.replay.evaluation.results import compared, failures, percentile, rows
from core.replay.evaluation.suite import Cell, read

STATE: dict[str, Any] = {
    "messages": [{"type": "human", "content": "Count."}, {"type": "ai", "content": "There are 3 lines."}],
    "todos": [{"status": "completed"}, {"status": "completed"}],
    "end": "run.completed",
}
ON = Subject(STATE, [("bash", {"command": "wc -l x"}), ("ls", {"path": "/"})], "run.completed")


@pytest.mark.parametrize(
    ("check", "problem"),
    [
        ({"regex": "messages[-1].content", "match": r"\b3\b"}, ""),
        ({"regex": "messages[-1].content", "match": r"\b4\b"}, "not found in There are 3 lines."),
        ({"exact": "messages[-1].content", "equals": "There are 3 lines."}, ""),
        ({"exact": "messages[-1].content", "equals": "3"}, "There are 3 lines. is not 3"),
        ({"path": "todos[*].status", "all": "completed"}, ""),
        ({"path": "messages[*].type", "all": "ai"}, "human is not ai"),
        ({"path": "messages[*].type", "any": "ai"}, ""),
        ({"path": "messages[*].type", "any": "tool"}, 'none of ["human","ai"]'),
        ({"path": "artifacts"}, "path 'artifacts': nothing there; there are messages, todos, end"),
        ({"tools": {"must": ["bash"], "max_calls": 2}}, ""),
        ({"tools": {"must": ["present_files"]}}, "not called: present_files"),
        ({"tools": {"never": ["bash"]}}, "called: bash"),
        ({"tools": {"never": [{"bash": "rm -rf"}]}}, ""),
        ({"tools": {"never": [{"bash": r"wc\b"}]}}, 'called: {"bash":"wc\\\\b"}'),
        ({"tools": {"max_calls": 1}}, "2 calls, more than 1"),
        ({"end": "run.paused"}, "run.completed is not run.paused"),
    ],
)
def test_checks(check: dict[str, Any], problem: str) -> None:
    outcome = run_check(parsed(check), ON)  # type: ignore[arg-type]
    assert (outcome.outcome, outcome.reason) == ("failed" if problem else "passed", problem)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cases: []", "cases: at least one is needed"),
        ("cases: [a, a]", "cases: 'a' is named twice"),
        ("cases: [a]\nsample: 1", "Object contains unknown field `sample`"),
        ("cases: [a]\nsamples: 0", "samples: 1 to 100, got 0"),
        ("cases: [a]\nbudget: {usd: 0}", r"budget\.usd: more than 0"),
        ("cases: [a]\nchecks: [{regex: x, match: '('}]", r"checks\[0\]: regex: missing \)"),
        ("cases: [a]\nchecks: [{sounds: nice}]", r"checks\[0\]: one of exact, regex"),
        ("cases: [a]\nchecks: [{tools: {}}]", r"checks\[0\]: tools: must, never or max_calls is needed"),
        ("cases: [a]\nchecks: [{judge: good, model: m, votes: 2}]", "an odd number"),
        ("cases: [a]\nchecks: [{python: checks.py}]", "FILE:FUNCTION"),
        ("cases: [a]\nmatrix: {prompt: [gone.md]}", r"gone\.md: No such file"),
        ("cases: [a]\ngate: {baseline: m/now}", "the matrix has recorded/now"),
        ("cases: [a]\ngate: {fail_if: worse}", r"'worse' needs gate\.baseline"),
        ("cases: [a]\ngate: {fail_if: pass_rate < 1}", "there are: pass_rate.upper < N"),
        ("cases: [", "while parsing"),
    ],
)
def test_a_wrong_suite_is_named_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text(text)
    with pytest.raises(Invalid, match=message) as caught:
        read(path)
    assert str(caught.value).startswith(str(path))


def test_a_suite(tmp_path: Path) -> None:
    (tmp_path / "v2.md").write_text("Be brief.")
    path = tmp_path / "suite.yaml"
    path.write_text(
        "cases: [a.jsonl, {pin: b.jsonl, at: 16}]\nmatrix: {model: [m, n], prompt: [now, v2.md]}\nsamples: 5\n"
        "gate: {baseline: m/now, fail_if: pass_rate.upper < 0.8 or cost.p95 > 0.05 or worse}\n"
    )
    suite = read(path)
    assert [case.name for case in suite.cases] == ["a.jsonl", "b.jsonl@16"]
    assert list(suite.cells) == [Cell("m", "now"), Cell("m", "v2.md"), Cell("n", "now"), Cell("n", "v2.md")]
    assert suite.prompts == {"now": None, "v2.md": "Be brief."}
    assert [str(one) for one in suite.fail_if] == ["pass_rate < 0.8", "cost.p95 > 0.05", "worse than the baseline"]


def samples(model: str, outcomes: str, cost: float = 0.01, per_thread: int = 1) -> list[EvaluationSampled]:
    """Samples of a model by letters: passed, failed, error."""
    words: dict[str, Outcome] = {"p": "passed", "f": "failed", "e": "error"}
    return [
        EvaluationSampled(
            case="c", thread=f"t{n // per_thread}", model=model, prompt="now", sample=n % per_thread + 1,
            outcome=words[letter], cost=cost, currency="USD", milliseconds=1000 * (n + 1),
        )
        for n, letter in enumerate(outcomes)
    ]  # fmt: skip


def test_errors_are_a_third_state() -> None:
    [row] = rows(samples("m", "ppppppppef"), "")
    assert (row.passed, row.measured, row.errors) == (8, 9, 1)
    assert (round(row.low, 2), round(row.high, 2)) == (0.57, 0.98)
    [nothing] = rows(samples("m", "eee"), "")
    assert (nothing.measured, nothing.p50, nothing.cost) == (0, None, None)
    assert failures(samples("m", "eee"), "", conditions("pass_rate.upper < 0.9 or cost.p95 > 0")) == []


def test_the_gate_fails_only_when_the_interval_is_on_the_wrong_side() -> None:
    gate = conditions("pass_rate.upper < 0.8")
    assert failures(samples("m", "pppff"), "", gate) == [], "3 of 5 may be 0.88"
    assert failures(samples("m", "p" * 12 + "f" * 18), "", gate) == ["m/now: pass_rate < 0.8: 12/30 (0.25–0.58)"]
    dear = samples("m", "p" * 4, cost=0.01) + samples("m", "p", cost=0.9)
    assert failures(dear, "", conditions("cost.p95 > 0.05")) == [], "one of five may be chance"
    dear += samples("m", "pp", cost=0.9)
    assert failures(dear, "", conditions("cost.p95 > 0.05")) == ["m/now: cost.p95 > 0.05: 3 of 7 samples are above"]


def test_cells_are_compared_in_pairs_of_threads() -> None:
    better = [*samples("base", "ffffffff"), *samples("m", "pppppppf")]
    assert [(row.comparison, row.threads) for row in rows(better, "base/now")] == [("", 0), ("better", 8)]
    worse = [*samples("base", "pppppppp"), *samples("m", "fffffffp")]
    assert rows(worse, "base/now")[1].comparison == "worse"
    assert failures(worse, "base/now", conditions("worse")) == ["m/now: worse than the baseline (8 threads)"]
    mixed = [*samples("base", "pppppppp"), *samples("m", "pppppppf")]
    assert rows(mixed, "base/now")[1].comparison == "cannot tell"


def test_many_samples_of_few_threads_are_no_evidence() -> None:
    many = [*samples("base", "f" * 50, per_thread=10), *samples("m", "p" * 50, per_thread=10)]
    row = rows(many, "base/now")[1]
    assert (row.comparison, row.threads) == ("cannot tell", 5)
    assert compared([1.0] * 6) == "better"


def test_percentiles_by_nearest_rank() -> None:
    assert percentile([5, 1, 4, 2, 3], 0.5) == 3
    assert percentile(list(range(1, 101)), 0.95) == 95
    assert percentile([7], 0.95) == 7
    assert percentile([], 0.5) is None


@pytest.mark.parametrize("page", ["debugging", "debugging-whatif", "evaluations"])
def test_every_test_that_a_page_names_is_there(page: str) -> None:
    root = Path(__file__).parents[3]
    text = (root / "channels/http/docs" / f"{page}.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text)
    assert len(named) >= 7
    missing = [
        (path, name) for path, name in named if not (root / path).is_file() or name not in (root / path).read_text()
    ]
    assert not missing
