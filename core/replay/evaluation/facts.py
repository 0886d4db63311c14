"""Facts about an evaluation, on a log of its own (`evaluation/<id>`), and about a sample that can be used again."""

from __future__ import annotations

from typing import Literal

import msgspec

from core.events import Event, Json
from core.phrases import Phrase

KIND = "evaluation"
SAMPLE = "sample"
"""Kind of the logs with one sample each, which the hash of all its conditions names."""
Outcome = Literal["passed", "failed", "error"]
"""`error`: the infrastructure failed (a model's provider, a judge, a check), so nothing was measured."""

Verdict = Literal["passed", "failed", "incomplete"]


class Checked(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome of a check. `answers` are the judge's, as they came."""

    check: str
    outcome: Outcome
    reason: str = ""
    model: str = ""
    """The judge."""
    prompt: str = ""
    """Short hash of the judge's request."""
    answers: list[str] = []


class EvaluationStarted(Event, frozen=True):
    """An evaluation of a suite began. First event of its aggregate."""

    phrase = Phrase(
        "Evaluation begun",
        "评估已开始",
        "{suite}: {cases:count} case<cases:count!=1?s>, {samples} sample<samples!=1?s>",
        "{suite}：{cases:count} 个案例，{samples} 个样本",
    )
    suite: str
    """The name of the suite's file."""
    sha256: str
    """The hash of that file."""
    release: str
    """The version of Sika."""
    cases: list[str]
    models: list[str]
    prompts: list[str]
    samples: int
    baseline: str = ""
    """`model/prompt` of the cell with which others are compared."""
    fail_if: str = ""
    """The conditions of the gate."""


class EvaluationSampled(Event, frozen=True):
    """One sample of a case was taken under a model and a prompt, and checked."""

    phrase = Phrase(
        "Sample evaluated",
        "样本已评估",
        "{case} {model}/{prompt} sample {sample}: {outcome}",
        "{case} {model}/{prompt} 样本 {sample}：{outcome}",
    )
    case: str
    thread: str
    """The thread of the pin; of a task its name."""
    model: str
    prompt: str
    sample: int
    """Its number, from 1 on."""
    outcome: Outcome
    checks: list[Checked] = msgspec.field(default_factory=list)
    error: str = ""
    """The reason of the outcome `error`."""
    end: str = ""
    """The type of the last event of the run, such as `run.completed`."""
    answer: str = ""
    """The beginning of the last answer."""
    tokens: int = 0
    cost: float | None = None
    """The cost of the run; that of judges is `judged`. None: a model has no price."""
    judged: float = 0.0
    currency: str | None = None
    milliseconds: int = 0
    """Time that models and tools took."""
    key: str = ""
    """Identifies the sample's log (`sample/<key>`). Empty for a replay."""
    recorded: bool = False
    """The sample is one of an earlier evaluation: only the checks are new."""
    steps: int = 0
    """Model calls of a task."""
    refusals: int = 0
    """Tool calls of a task that ended with an error, as those do that are refused."""


class EvaluationCompleted(Event, frozen=True):
    """The evaluation ended. `incomplete`: samples are missing, by errors or the budget, and nothing else is wrong."""

    phrase = Phrase("Evaluation done", "评估完成", "{outcome}<: {reasons}>")
    outcome: Verdict
    reasons: list[str] = msgspec.field(default_factory=list)
    left_out: int = 0
    """Number of the samples that the budget left out."""


class SampleRecorded(Event, frozen=True):
    """A sample, as `core.replay.whatif.running.Future`. The only event of its aggregate."""

    phrase = Phrase("Sample recorded", "样本已记录", "{future.end}")
    future: Json
