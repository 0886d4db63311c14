"""`sika eval`: pinned threads go on under a matrix of models and prompts, and checks tell which is right."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from actors.debugging.evaluations import Evaluations
from actors.wiring import compose
from channels.cli import main
from channels.cli.look.eval import lines
from channels.terminal.text import Style
from core.errors import Invalid
from core.events import Aggregate, thread
from core.replay.evaluation.facts import EvaluationSampled
from core.replay.evaluation.results import Evaluation, folded
from core.replay.evaluation.suite import read
from core.replay.exports import pins
from core.replay.exports.exporting import LogReader
from tests.golden.stories import FOLDER
from tests.support import workers
from tests.support.model_server import Failure, ModelServer, ToolCall, Turn
from tests.support.workers import Client

CALL = Turn(tool_calls=(ToolCall("ls", {"description": "look", "path": "/mnt/user-data/workspace"}),))
RIGHT = [CALL, Turn(text="There are 3 lines.")]
WRONG = [Turn(text="Some lines.")]
HOST = {"provider": "host", "allow_host_bash": True}
site = partial(workers.site, sandbox=HOST)
"""Each sample has a sandbox of its own: that of the host needs no probing."""
CHECK = [{"regex": "messages[-1].content", "match": r"\b3\b"}]
PRICE = {"input_per_million": 1_000_000, "output_per_million": 1_000_000, "currency": "USD"}


async def pinned(client: Client, home: Path, *names: str) -> list[dict[str, Any]]:
    """Cases: threads whose only run is recorded, then pinned."""
    reader, log = LogReader(client.system.log), client.system.log
    for name in names:
        await client.said(await client.thread(name), "Count the lines.", "m")
        records = await pins.records_to_pin(log.read, thread(name))
        await pins.pin(reader, thread(name), records, home / f"{name}.jsonl", most=None)
    return [{"pin": f"{name}.jsonl", "at": "start"} for name in names]


async def evaluate(
    client: Client, home: Path, again: bool = False, seen: list[EvaluationSampled] | None = None, **suite: Any
) -> Evaluation:
    path = home / "suite.yaml"
    path.write_text(json.dumps(suite))  # JSON is YAML
    options = compose.Options(home, config=home / "config.yaml")
    progress: list[EvaluationSampled] = [] if seen is None else seen
    return await Evaluations(options, client.system.log, again=again).run(read(path), progress.append)


def outcomes(evaluation: Evaluation) -> dict[str, list[str]]:
    cells: dict[str, list[str]] = {}
    for sample in evaluation.samples:
        cells.setdefault(f"{sample.model}/{sample.prompt}", []).append(sample.outcome)
    return cells


def asked(models: ModelServer, before: int) -> list[str]:
    return [request.model for request in models.requests[before:]]


@pytest.mark.anyio
async def test_a_matrix_over_six_threads(tmp_path: Path) -> None:
    async with site(tmp_path, {"m": RIGHT, "right": RIGHT, "wrong": WRONG}) as (client, models):
        cases = await pinned(client, tmp_path, *(f"thread-{n}" for n in range(6)))
        (tmp_path / "brief.md").write_text("Be brief.")
        before, seen = len(models.requests), list[EvaluationSampled]()
        last = [len(await client.records(case["pin"].removesuffix(".jsonl"))) for case in cases]
        evaluation = await evaluate(
            client,
            tmp_path,
            seen=seen,
            cases=cases,
            matrix={"model": ["right", "wrong"], "prompt": ["brief.md"]},
            checks=[*CHECK, {"tools": {"must": ["ls"], "never": [{"bash": "rm -rf"}], "max_calls": 3}}],
            gate={"baseline": "right/brief.md", "fail_if": "worse"},
        )
        requests = models.requests[before:]
        now = [len(await client.records(case["pin"].removesuffix(".jsonl"))) for case in cases]
        assert now == last, "nothing is added to the threads"
        aggregate = Aggregate("evaluation", evaluation.id)
        again = folded(evaluation.id, [record async for record in client.system.log.read(aggregate)])
    assert outcomes(evaluation) == {
        "right/brief.md": ["passed"] * 6,
        "wrong/brief.md": ["failed"] * 6,
    }
    assert len(requests) == 6 * (2 + 1), "no call before the fork point, and none for the checks"
    assert {str(request.body["messages"][0]["content"]) for request in requests} == {"Be brief."}
    assert again.samples == evaluation.samples == seen
    assert evaluation.completed is not None
    assert evaluation.completed.outcome == "failed"
    assert evaluation.completed.reasons == ["wrong/brief.md: worse than the baseline (6 threads)"]
    table = "\n".join(lines(evaluation, Style()))
    assert "6/6 (0.61–1.00)" in table
    assert "worse (6 threads)" in table
    assert "not found in Some lines." in table


@pytest.mark.anyio
async def test_a_provider_that_fails_is_no_failure(tmp_path: Path) -> None:
    down = [Turn(error=Failure(status=401, message="Invalid API key", code="invalid_api_key"))]
    async with site(tmp_path, {"m": RIGHT, "down": down}) as (client, _):
        cases = await pinned(client, tmp_path, "t1")
        evaluation = await evaluate(
            client,
            tmp_path,
            cases=cases,
            matrix={"model": ["m", "down"]},
            checks=CHECK,
            samples=2,
            gate={"fail_if": "pass_rate.upper < 0.99"},
        )
        with pytest.raises(Invalid, match="model 'gone': there are: m, down"):
            await evaluate(client, tmp_path, cases=cases, matrix={"model": ["gone"]})
        with pytest.raises(Invalid, match=r"case t1\.jsonl@999999: no run is at work"):
            await evaluate(client, tmp_path, cases=[{"pin": "t1.jsonl", "at": 999999}])
    assert outcomes(evaluation) == {"m/now": ["passed"] * 2, "down/now": ["error"] * 2}
    assert evaluation.completed is not None
    assert (evaluation.completed.outcome, evaluation.completed.reasons) == ("incomplete", [])
    assert "Invalid API key" in evaluation.samples[1].error
    assert "not measured" in "\n".join(lines(evaluation, Style()))


@pytest.mark.anyio
async def test_each_sample_has_an_answer_of_its_own_and_recorded_ones_are_taken_on_request(tmp_path: Path) -> None:
    number = count(1)

    def answer(messages: Sequence[Mapping[str, Any]]) -> Turn:
        return Turn(text=f"Answer {next(number)}.")

    async with site(tmp_path, {"m": RIGHT, "varied": answer}) as (client, models):
        cases = await pinned(client, tmp_path, "t1")
        suite: dict[str, Any] = {"cases": cases, "matrix": {"model": ["varied"]}, "samples": 3}
        first = await evaluate(client, tmp_path, **suite)
        before = len(models.requests)
        second = await evaluate(client, tmp_path, again=True, **suite, checks=CHECK)
        assert asked(models, before) == []
        third = await evaluate(client, tmp_path, again=True, **{**suite, "samples": 4})
        fourth = await evaluate(client, tmp_path, **suite)
    assert [sample.answer for sample in first.samples] == ["Answer 1.", "Answer 2.", "Answer 3."]
    assert [sample.answer for sample in second.samples] == ["Answer 1.", "Answer 2.", "Answer 3."]
    assert [sample.outcome for sample in second.samples] == ["failed", "failed", "passed"], "only the checks are new"
    assert "3 samples are recorded ones" in "\n".join(lines(second, Style()))
    assert [(sample.answer, sample.recorded) for sample in third.samples][2:] == [
        ("Answer 3.", True),
        ("Answer 4.", False),
    ]
    assert [sample.answer for sample in fourth.samples] == ["Answer 5.", "Answer 6.", "Answer 7."]


@pytest.mark.anyio
async def test_a_judge_votes_and_a_function_checks(tmp_path: Path) -> None:
    votes = count()

    def judge(messages: Sequence[Mapping[str, Any]]) -> Turn:
        verdict = ("pass", "fail", "pass", "hm", "fail", "pass")[next(votes) % 6]
        return Turn(text=json.dumps({"reason": "So it is.", "verdict": verdict}))

    (tmp_path / "checks.py").write_text(
        "def right(state, calls):\n    return '3' in state['messages'][-1]['content'] and calls[0][0] == 'ls'\n"
        "def broken(state, calls):\n    return state['nothing']\n"
    )
    judged = {"judge": "The answer names a number.", "model": "judge", "votes": 3}
    async with site(tmp_path, {"m": RIGHT, "judge": judge}) as (client, models):
        cases = await pinned(client, tmp_path, "t1")
        suite: dict[str, Any] = {"cases": cases, "checks": [{"python": "checks.py:right"}, judged]}
        good = await evaluate(client, tmp_path, **suite)
        split = await evaluate(client, tmp_path, **suite)
        request = models.requests[-1].body
        broken = await evaluate(client, tmp_path, cases=cases, checks=[{"python": "checks.py:broken"}])
        with pytest.raises(Invalid, match=r"check checks\.py:gone: AttributeError"):
            await evaluate(client, tmp_path, cases=cases, checks=[{"python": "checks.py:gone"}])
    [sample] = good.samples
    assert sample.outcome == "passed"
    assert sample.checks[-1].reason.startswith("2 pass, 1 fail of 3 votes")
    assert (sample.checks[-1].model, len(sample.checks[-1].answers)) == ("judge", 3)
    assert sample.checks[-1].prompt
    assert "There are 3 lines." in str(request["messages"]), "the judge reads the conversation"
    assert split.samples[0].outcome == "error", "one pass, one fail and no verdict: it cannot be told"
    assert (broken.samples[0].outcome, broken.samples[0].error) == (
        "error",
        "KeyError: 'nothing' (checks.py:4, in broken)",
    )


@pytest.mark.anyio
async def test_a_budget_ends_an_evaluation(tmp_path: Path) -> None:
    async with site(tmp_path, {"m": RIGHT}) as (client, models):
        cases = await pinned(client, tmp_path, "t1")
        with pytest.raises(Invalid, match=r"budget\.usd: model 'm' has no `pricing` in USD"):
            await evaluate(client, tmp_path, cases=cases, budget={"usd": 1})
        settings = json.loads((tmp_path / "config.yaml").read_text())
        settings["models"][0]["pricing"] = PRICE
        (tmp_path / "config.yaml").write_text(json.dumps(settings))
        before = len(models.requests)
        tight = await evaluate(client, tmp_path, cases=cases, samples=2, budget={"usd": 0.001})
        assert asked(models, before) == [], "the estimate of a sample is above the budget"
        one = await evaluate(client, tmp_path, cases=cases, samples=1)
        cost = one.samples[0].cost
        assert cost is not None
        wide = await evaluate(client, tmp_path, cases=cases, samples=4, budget={"usd": cost * 2.5, "seconds": 500})
    assert tight.completed is not None
    assert (tight.completed.outcome, tight.completed.left_out, len(tight.samples)) == ("incomplete", 2, 0)
    assert wide.completed is not None
    assert 1 <= len(wide.samples) <= 2
    assert len(wide.samples) + wide.completed.left_out == 4


@pytest.mark.anyio
async def test_a_run_that_pauses_is_not_completed(tmp_path: Path) -> None:
    async with site(tmp_path, {"m": RIGHT}, approvals=[{"tool": "bash"}]) as (client, _):
        cases = await pinned(client, tmp_path, "t1")
        settings = json.loads((tmp_path / "config.yaml").read_text())
        settings["approvals"] = [{"tool": "ls"}]
        (tmp_path / "config.yaml").write_text(json.dumps(settings))
        default = await evaluate(client, tmp_path, cases=cases)
        expected = await evaluate(client, tmp_path, cases=cases, checks=[{"end": "run.paused"}])
    assert [sample.outcome for sample in (*default.samples, *expected.samples)] == ["failed", "passed"]
    assert default.samples[0].checks[0].reason == "run.paused is not run.completed"


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A suite of replays needs no model: it fails when a policy decides otherwise, with any gate."""
    shutil.copy(FOLDER / "pinned" / "failing-command.jsonl", tmp_path / "pin.jsonl")
    suite, config = tmp_path / "suite.yaml", tmp_path / "config.yaml"
    suite.write_text("cases: [pin.jsonl]\nchecks: [{tools: {must: [bash]}}]\n")
    settings = {"sandbox": HOST}
    place = ["--home", str(tmp_path / "home"), "--config", str(config)]

    def sika(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main(["eval", *arguments, *place])
        return code, capsys.readouterr().out

    config.write_text(json.dumps(settings))
    code, text = sika("run", str(suite))
    assert code == 0, text
    assert "replay/replay  1/1" in text
    config.write_text(json.dumps({**settings, "approvals": [{"tool": "bash", "match": "exit"}]}))
    code, text = sika("run", str(suite))
    assert code == 1, text
    assert "decided as recorded" in text
    assert "approval.requested" in text
    code, text = sika("list")
    assert code == 0
    identities = [line.split()[0] for line in text.splitlines()]
    assert [line.split()[3] for line in text.splitlines()] == ["failed", "passed"]
    assert sika("show", "@last") == sika("show", identities[0])
    evaluation = json.loads(sika("show", identities[1], "--json")[1])
    assert evaluation["rows"][0]["passed"] == 1
    assert sika("show", "nobody")[0] == 2
    suite.write_text("cases: [gone.jsonl]\n")
    assert sika("run", str(suite))[0] == 2
