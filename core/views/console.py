"""The console's figures of many threads: totals, runs and days. Read from the read models in SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import NamedTuple

from core.config.settings import Pricing
from core.thread.usage import Price, Tokens, price
from core.views.projections import Views
from core.views.tables import EVERYBODY

Prices = Mapping[str, Pricing]
"""By the configured name of a model."""

_SHOWN = "status != 'rolled_back'"
SUMS = "sum(input_tokens), sum(output_tokens), sum(cache_read_tokens), sum(calls)"


class Totals(NamedTuple):
    threads: int
    runs: dict[str, int]
    """By status."""
    tokens: Tokens
    price: Price


class ListedRun(NamedTuple):
    """A run, and whose it is. `created_at`: when it was asked for."""

    run_id: str
    thread_id: str
    title: str | None
    user: str
    assistant: str
    model: str | None
    status: str
    created_at: str
    started_at: str | None
    ended_at: str | None
    error: str | None

    @property
    def seconds(self) -> float | None:
        """From its first start to its end."""
        if not self.started_at or not self.ended_at:
            return None
        span = datetime.fromisoformat(self.ended_at) - datetime.fromisoformat(self.started_at)
        return round(span.total_seconds(), 3)


class RunLine(NamedTuple):
    run: ListedRun
    tokens: Tokens
    price: Price


RUNS = (
    "SELECT r.run_id, r.thread_id, t.title, r.user, r.assistant, r.model, r.status, r.created_at, r.started_at,"
    " r.ended_at, r.error FROM runs r LEFT JOIN threads t USING (thread_id)"
)
"""Selects the columns of `ListedRun`."""


class Used(NamedTuple):
    """The usage of the runs of one day, or of one model."""

    name: str
    runs: int
    tokens: Tokens
    price: Price


class Span(NamedTuple):
    days: list[Used]
    """Every day of the span, also those without runs."""
    models: list[Used]
    total: Used


async def totals(views: Views, user: str | None, prices: Prices) -> Totals:
    """Returns the totals of one user's threads, or (None) of all. Tokens include rolled-back runs,
    which were paid for.
    """
    whose = (_whose(user),)
    [(threads,)] = await views.query(
        "SELECT coalesce(sum(threads), 0) FROM thread_counts WHERE user = ? AND key = '' AND value = ''", whose
    )
    runs = await views.query(
        f"SELECT status, sum(runs) FROM run_counts WHERE user = ? AND {_SHOWN} GROUP BY 1 ORDER BY 1", whose
    )
    used = await views.query(f"SELECT model, {SUMS} FROM usage_sums WHERE user = ? GROUP BY 1", whose)
    by_model = {model: Tokens(*sums) for model, *sums in used}
    return Totals(int(threads), {status: int(count) for status, count in runs}, _sum(by_model), price(by_model, prices))


async def runs(
    views: Views, user: str | None, prices: Prices, *, status: str | None = None, limit: int, offset: int
) -> tuple[list[RunLine], bool]:
    """A page of runs, newest first, and whether there are more."""
    mine, values = ("TRUE", ()) if user is None else ("r.user = ?", (user,))
    chosen = " AND r.status = ?" if status else ""
    lines = await views.query(
        f"{RUNS} WHERE {mine} AND r.{_SHOWN}{chosen} ORDER BY r.created_at DESC, r.seq DESC LIMIT ? OFFSET ?",
        (*values, *([status] if status else []), limit + 1, offset),
    )
    page = [ListedRun(*line) for line in lines[:limit]]
    used = await _used(views, [run.run_id for run in page])
    spent_by_run = [(run, used.get(run.run_id, {})) for run in page]
    return [RunLine(run, _sum(spent), price(spent, prices)) for run, spent in spent_by_run], len(lines) > limit


async def span(views: Views, user: str | None, prices: Prices, *, until: date, days: int) -> Span:
    """Returns the usage of the runs requested in the last `days` days, the day `until` being the last (UTC)."""
    since = (until - timedelta(days=days - 1)).isoformat()
    within, values = "user = ? AND day BETWEEN ? AND ?", (_whose(user), since, until.isoformat())
    counts = dict(
        await views.query(f"SELECT day, sum(runs) FROM run_counts WHERE {within} AND {_SHOWN} GROUP BY 1", values)
    )
    rows = await views.query(
        f"SELECT day, model, sum(runs), {SUMS} FROM usage_sums WHERE {within} GROUP BY 1, 2 ORDER BY 1, 2",
        values,
    )
    by_day: dict[str, dict[str, Tokens]] = {}
    by_model: dict[str, Tokens] = {}
    of_model: dict[str, int] = {}
    for day, model, count, *sums in rows:
        tokens = Tokens(*sums)
        by_day.setdefault(day, {})[model] = tokens
        by_model[model] = by_model.get(model, Tokens()).plus(tokens)
        of_model[model] = of_model.get(model, 0) + count
    named = [(until - timedelta(days=back)).isoformat() for back in reversed(range(days))]
    return Span(
        [used_of(day, counts.get(day, 0), by_day.get(day, {}), prices) for day in named],
        [used_of(model, of_model[model], {model: tokens}, prices) for model, tokens in sorted(by_model.items())],
        used_of("", sum(counts.values()), by_model, prices),
    )


async def _used(views: Views, run_ids: Sequence[str]) -> dict[str, dict[str, Tokens]]:
    """Returns the usage of each run by model."""
    used: dict[str, dict[str, Tokens]] = {}
    places = ", ".join("?" * len(run_ids))
    sql = f"SELECT run_id, model, {SUMS} FROM usage WHERE run_id IN ({places}) GROUP BY 1, 2"
    for run, model, *sums in await views.query(sql, run_ids):
        used.setdefault(run, {})[model] = Tokens(*sums)
    return used


def _whose(user: str | None) -> str:
    return EVERYBODY if user is None else user


def used_of(name: str, runs: int, used: Mapping[str, Tokens], prices: Prices) -> Used:
    """Returns the sum of what was used by model."""
    return Used(name, runs, _sum(used), price(used, prices))


def _sum(used: Mapping[str, Tokens]) -> Tokens:
    total = Tokens()
    for tokens in used.values():
        total = total.plus(tokens)
    return total
