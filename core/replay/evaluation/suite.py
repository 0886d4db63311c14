"""Suites of evaluations: a YAML file with pinned threads, the matrix of models and prompts, and checks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import yaml

from core.errors import Invalid
from core.replay.evaluation.checks import Check, parsed
from core.replay.evaluation.gates import Condition, conditions
from core.replay.whatif.running import MOST_SAMPLES

RECORDED = "recorded"
"""The model of the recorded run, if it is still configured."""
NOW = "now"
"""The prompt as today's configuration builds it."""
REPLAY = "replay"
"""Stands for the model and the prompt of cases that call no model."""
MOST_BYTES = 1 << 20
"""Limit of a suite's file, and of each prompt."""


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A pinned thread. `at`: the event after which the run is live, or `start`. Without it the run is replayed."""

    pin: str
    at: int | Literal["start"] | None = None

    @property
    def name(self) -> str:
        return self.pin if self.at is None else f"{self.pin}@{self.at}"


class Matrix(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Models by name, and prompts: `now`, or a file."""

    model: list[str] = msgspec.field(default_factory=lambda: [RECORDED])
    prompt: list[str] = msgspec.field(default_factory=lambda: [NOW])


class Budget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of an evaluation. `usd` includes judges."""

    usd: float | None = None
    seconds: float | None = None


class Gate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Conditions under which the command fails. `baseline`: `model/prompt` of a cell."""

    baseline: str = ""
    fail_if: str = ""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    cases: list[str | Case]
    checks: list[dict[str, Any]] = []
    matrix: Matrix = Matrix()
    samples: int = 1
    budget: Budget = Budget()
    gate: Gate = Gate()


class Cell(NamedTuple):
    """A combination of the matrix."""

    model: str
    prompt: str

    def __str__(self) -> str:
        return f"{self.model}/{self.prompt}"


class Suite(NamedTuple):
    """A suite that was read. `prompts`: their texts by name; None for today's."""

    path: Path
    sha256: str
    cases: Sequence[Case]
    cells: Sequence[Cell]
    prompts: Mapping[str, str | None]
    checks: Sequence[Check]
    samples: int
    budget: Budget
    gate: Gate
    fail_if: Sequence[Condition]

    def file(self, name: str) -> Path:
        """Returns the path of a file that the suite names, relative to its folder."""
        return self.path.parent / name


def read(path: Path) -> Suite:
    """Reads a suite and its prompts. Blocks. Raises `Invalid` with the file and the place that is wrong."""
    text = _text(path)
    try:
        file = msgspec.convert(yaml.safe_load(text), _File)
    except (msgspec.ValidationError, yaml.YAMLError) as error:
        raise Invalid(f"{path}: {error}") from None
    try:
        return _suite(path, text, file)
    except Invalid as error:
        raise Invalid(f"{path}: {error}") from None


def _suite(path: Path, text: str, file: _File) -> Suite:
    cases = [Case(case) if isinstance(case, str) else case for case in file.cases]
    models, prompts = file.matrix.model, file.matrix.prompt
    cells = [Cell(model, prompt) for model in models for prompt in prompts]
    for name, values in (("cases", [case.name for case in cases]), ("matrix", [str(cell) for cell in cells])):
        _distinct(name, values)
    if not 1 <= file.samples <= MOST_SAMPLES:
        raise Invalid(f"samples: 1 to {MOST_SAMPLES}, got {file.samples}")
    for name in ("usd", "seconds"):
        if (limit := getattr(file.budget, name)) is not None and limit <= 0:
            raise Invalid(f"budget.{name}: more than 0, got {limit:g}")
    gate = file.gate
    if gate.baseline and gate.baseline not in map(str, cells):
        raise Invalid(f"gate.baseline: {gate.baseline!r}; the matrix has {', '.join(map(str, cells))}")
    fail_if = conditions(gate.fail_if)
    if any(condition.metric == "worse" for condition in fail_if) and not gate.baseline:
        raise Invalid("gate.fail_if: 'worse' needs gate.baseline")
    return Suite(
        path=path,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        cases=cases,
        cells=cells,
        prompts={name: None if name == NOW else _text(path.parent / name) for name in prompts},
        checks=list(_checks(file.checks)),
        samples=file.samples,
        budget=file.budget,
        gate=gate,
        fail_if=fail_if,
    )


def _checks(checks: Sequence[dict[str, Any]]) -> Iterator[Check]:
    for index, check in enumerate(checks):
        try:
            yield parsed(check)
        except Invalid as error:
            raise Invalid(f"checks[{index}]: {error}") from None


def _distinct(name: str, values: Sequence[str]) -> None:
    if not values:
        raise Invalid(f"{name}: at least one is needed")
    if len(set(values)) < len(values):
        raise Invalid(f"{name}: {next(value for value in values if values.count(value) > 1)!r} is named twice")


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise Invalid(f"{path}: has more than {MOST_BYTES >> 20} MiB")
        return content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"{path}: {getattr(error, 'strerror', None) or error}") from None
