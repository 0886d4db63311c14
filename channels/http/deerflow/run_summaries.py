"""A run in short, as a conversation shows it beside its messages: what it did, took and cost, and why it failed."""

from __future__ import annotations

from datetime import datetime

import msgspec

from core.config.load import Config
from core.files.workspace import Changed
from core.lifecycle import Status
from core.thread import usage
from core.thread.state import Run, ThreadState
from core.thread.usage import Tokens


class RunChanges(msgspec.Struct):
    """Files that it changed, and lines of text. `undone`: a person took them back."""

    files: int
    additions: int
    deletions: int
    undone: bool


class RunUsage(msgspec.Struct):
    """`cost` is null where no model has a price, or their prices are in several currencies."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    cost: float | None
    currency: str | None


class RunSummary(msgspec.Struct):
    """`changes` is null while nobody has looked. `duration_ms`: from the request to the end, null before it."""

    status: Status
    model: str | None
    started_at: str
    ended_at: str | None
    duration_ms: int | None
    error: str | None
    stopped: str | None
    changes: RunChanges | None
    usage: RunUsage


def summary_of(state: ThreadState, run: Run, changed: Changed, config: Config) -> RunSummary:
    """Returns a run in short. Reads the run's own steps only."""
    changes = changed.runs.get(run.ended_seq or 0)
    ended = None if run.ended_seq is None else run.updated_at
    return RunSummary(
        status=run.status,
        model=run.model,
        started_at=run.created_at,
        ended_at=ended,
        duration_ms=_milliseconds(run.created_at, ended) if ended else None,
        error=run.error.text if run.error else None,
        stopped=run.stopped or None,
        changes=RunChanges(*changes) if changes else None,
        usage=_used(state, run, config),
    )


def _used(state: ThreadState, run: Run, config: Config) -> RunUsage:
    by_model = usage.together(usage.by_model(state, run), usage.of_subagents(run))
    total = Tokens()
    for tokens in by_model.values():
        total = total.plus(tokens)
    money = usage.price(by_model, {model.name: model.pricing for model in config.models if model.pricing})
    return RunUsage(total.input, total.output, total.total, money.total, money.currency)


def _milliseconds(begin: str, end: str) -> int:
    return round((datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds() * 1000)
