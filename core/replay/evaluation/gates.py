"""Conditions under which an evaluation fails. Each fails only when the interval is on the wrong side."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from core.errors import Invalid

Metric = Literal["pass_rate", "cost", "seconds", "worse"]
SHARES = {"p50": 0.5, "p95": 0.05}
"""Share of the samples that lie above a percentile."""
_CONDITION = re.compile(r"(pass_rate)\.upper\s*<\s*(\d*\.?\d+)|(cost|seconds)\.(p50|p95)\s*>\s*(\d*\.?\d+)|worse")


class Condition(NamedTuple):
    """`worse` than the baseline, a pass rate below a limit, or a percentile of costs or seconds above one."""

    metric: Metric
    limit: float = 0.0
    percentile: str = ""

    def __str__(self) -> str:
        if self.metric == "worse":
            return "worse than the baseline"
        return (
            f"pass_rate < {self.limit:g}"
            if not self.percentile
            else f"{self.metric}.{self.percentile} > {self.limit:g}"
        )


def conditions(text: str) -> list[Condition]:
    """Returns conditions that are joined by `or`. Raises `Invalid`."""
    return [_condition(part.strip()) for part in text.split(" or ")] if text.strip() else []


def _condition(text: str) -> Condition:
    if not (match := _CONDITION.fullmatch(text)):
        raise Invalid(
            f"gate.fail_if: {text!r}; there are: pass_rate.upper < N, cost.p50 > N, cost.p95 > N, seconds.p50 > N, "
            "seconds.p95 > N, worse"
        )
    if match[1]:
        return Condition("pass_rate", float(match[2]))
    if match[3] == "cost" or match[3] == "seconds":
        return Condition("cost" if match[3] == "cost" else "seconds", float(match[5]), match[4])
    return Condition("worse")
