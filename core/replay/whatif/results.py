"""The results of a what-if (`core.replay.whatif`): futures, steps beside each other, estimates and shares. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import msgspec

from core.events import ModelCompleted, Record, ToolCompleted, ToolRequested
from core.files.workspace import FileChange
from core.replay.diff import Row, aligned, steps
from core.replay.whatif.running import Call, Estimate, Future, Point
from core.thread.messages import text_of
from core.thread.state import ThreadState
from core.thread.tokens import Tokens, tokens_of
from core.thread.usage import Price, in_context, model_of

ASK_COST = 1.0
"""Estimated cost of all samples, in the currency of the price, from which on a person is asked first."""
ASK_TOKENS = 500_000
"""The same for a model without a price."""
Z = 1.959964
"""Quantile of the normal distribution for 95 %."""

Prices = Callable[[Mapping[str, Tokens]], Price]
"""Returns the cost of tokens by model."""


def future(
    state: ThreadState,
    run: str,
    records: Sequence[Record],
    prices: Prices,
    *,
    calls: Sequence[Call] | None = None,
    files: Sequence[FileChange] = (),
) -> Future:
    """Sums up events after a fork point. `calls`: as they were made; default: all as recorded."""
    answers = [record.event for record in records if isinstance(record.event, ModelCompleted)]
    outcomes = [record.event for record in records if isinstance(record.event, ToolCompleted)]
    named = {event.call_id: event.name for r in records if isinstance(event := r.event, ToolRequested)}
    used: dict[str, Tokens] = {}
    for answer in answers:
        model = model_of(answer.message, state.runs.get(run))
        used[model] = used.get(model, Tokens()).plus(tokens_of(answer.message))
    price = prices(used)
    ended = [record.type for record in records if record.type.startswith("run.") and record.run is not None]
    return Future(
        end=ended[-1] if ended else "",
        text=text_of(answers[-1].message.get("content", "")) if answers else "",
        answers=len(answers),
        tokens=sum(tokens.total for tokens in used.values()),
        cost=price.total,
        currency=price.currency,
        milliseconds=sum(answer.duration_ms for answer in answers) + sum(outcome.duration_ms for outcome in outcomes),
        calls=[Call(call, name, "recorded") for call, name in named.items()] if calls is None else calls,
        files=files,
        events=[msgspec.json.decode(record.raw) for record in records],
    )


def beside(point: Point, records: Sequence[Record]) -> list[Row]:
    """Returns the steps after the fork point beside each other: the recorded ones on the left."""
    sides = (*point.before, *point.after), (*point.shared, *records)
    return aligned(*([step for step in steps(side) if step.seq > point.at] for side in sides))


def estimated(point: Point, model: str | None, prices: Prices) -> Estimate:
    """Estimates a sample by the recorded one: each answer after the fork point pays its context."""
    state, later = point.state, [r.event for r in point.after if isinstance(r.event, ModelCompleted)]
    name = model or (state.runs[point.run].model if point.run in state.runs else None) or ""
    tokens = Tokens(input=in_context(state))
    for answer in later:
        tokens = tokens.plus(tokens_of(answer.message))
    price = prices({name: tokens})
    return Estimate(tokens.total or tokens.input, price.total, price.currency)


def dear(estimate: Estimate, samples: int) -> bool:
    """Tells whether samples may cost so much that a person is asked first."""
    if estimate.cost is None:
        return estimate.tokens * samples >= ASK_TOKENS
    return estimate.cost * samples >= ASK_COST


def wilson(hits: int, count: int) -> tuple[float, float]:
    """Returns the 95 % interval of a share (Wilson's: the naive one covers 0.40 of 0.95 at 10 samples)."""
    if not count:
        return 0.0, 1.0
    share, square = hits / count, Z * Z / count
    middle = (share + square / 2) / (1 + square)
    half = Z / (1 + square) * math.sqrt(share * (1 - share) / count + square / (4 * count))
    return max(0.0, middle - half), min(1.0, middle + half)
