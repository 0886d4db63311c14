"""Figures for operators: what runs now, why runs failed, how long calls take, who used what, what was configured when.

Every question is bounded: it reads what is open, or the newest of its kind.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Literal, NamedTuple

import msgspec

from core.ids import stamp
from core.thread.usage import Tokens
from core.views.console import RUNS, SUMS, ListedRun, Prices, Used, used_of
from core.views.projections import Views
from core.views.search import WAITS

MOST_FAILED = 1000
"""Newest failed runs that are grouped."""
MOST_CALLS = 20_000
"""Newest calls of which the percentiles are taken."""
MOST_LISTED = 100
EXAMPLES = 5
REASON_CHARACTERS = 300
_VARYING = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|\b(?=[0-9a-f]*\d)[0-9a-f]{8,}\b|\d+(?:[.:]\d+)*")
"""Parts of a reason that differ from run to run: ids, counts, times."""


class Open(NamedTuple):
    """Open runs of a user in a status. `oldest`: when the first of them was asked for."""

    user: str
    status: str
    runs: int
    oldest: str


class Now(NamedTuple):
    """What runs now. `runs`: the oldest ones first. `waiting`: conversations that wait for answers of a person."""

    open: list[Open]
    runs: list[ListedRun]
    waiting: int


class Failures(NamedTuple):
    """Runs that failed for the same reason. `examples`: the newest ones first."""

    reason: str
    runs: int
    users: int
    models: list[str]
    first_at: str
    last_at: str
    examples: list[ListedRun]


Kind = Literal["tool", "model"]


class Calls(msgspec.Struct):
    """Calls of a tool or a model, and how long they took."""

    kind: Kind
    name: str
    calls: int
    failed: int
    p50_ms: int
    p95_ms: int
    longest_ms: int


class Change(NamedTuple):
    """Something that was configured. `by`: a user, or the part of Sika that recorded it. `text`: without secrets."""

    seq: int
    at: str
    type: str
    by: str
    text: str


async def now(views: Views) -> Now:
    """Returns what runs and waits now, of all users."""
    counted = await views.query(
        "SELECT user, status, count(*), min(created_at) FROM all_runs"
        " WHERE status IN ('pending', 'running') AND NOT removed GROUP BY 1, 2 ORDER BY 4"
    )
    runs = await views.query(
        f"{RUNS} WHERE r.status IN ('pending', 'running') ORDER BY r.created_at LIMIT ?", (MOST_LISTED,)
    )
    [(waiting,)] = await views.query(f"SELECT count(*) FROM threads WHERE {WAITS}")
    return Now([Open(*row) for row in counted], [ListedRun(*row) for row in runs], int(waiting))


async def failures(views: Views, since: datetime) -> list[Failures]:
    """Returns the failed runs that were asked for since then, by reason; the most frequent first."""
    rows = await views.query(
        f"{RUNS} WHERE r.status = 'error' AND r.created_at >= ? ORDER BY r.created_at DESC LIMIT ?",
        (stamp(since), MOST_FAILED),
    )
    groups: dict[str, list[ListedRun]] = {}
    for run in (ListedRun(*row) for row in rows):
        groups.setdefault(kind_of(run.error or ""), []).append(run)
    grouped = [_failures(reason, runs) for reason, runs in groups.items()]
    return sorted(grouped, key=lambda group: (-group.runs, group.reason))


def kind_of(reason: str) -> str:
    """Returns a reason without what differs from run to run."""
    return _VARYING.sub("…", " ".join(reason.split()))[:REASON_CHARACTERS]


def _failures(reason: str, runs: Sequence[ListedRun]) -> Failures:
    users, models = {run.user for run in runs}, sorted({run.model for run in runs if run.model})
    return Failures(
        reason, len(runs), len(users), models, runs[-1].created_at, runs[0].created_at, list(runs[:EXAMPLES])
    )


async def calls(views: Views, since: datetime) -> list[Calls]:
    """Returns how long the calls since then took, of the newest `MOST_CALLS`; the slowest first."""
    rows = await views.query(
        "SELECT kind, name, ms, failed FROM (SELECT * FROM calls ORDER BY seq DESC LIMIT ?) WHERE at >= ?",
        (MOST_CALLS, stamp(since)),
    )
    grouped: dict[tuple[Kind, str], list[tuple[int, int]]] = {}
    for kind, name, ms, failed in rows:
        grouped.setdefault((kind, name), []).append((ms, failed))
    listed = [_calls(kind, name, each) for (kind, name), each in grouped.items()]
    return sorted(listed, key=lambda one: (-one.p95_ms, one.name))[: 2 * MOST_LISTED]


def _calls(kind: Kind, name: str, each: Sequence[tuple[int, int]]) -> Calls:
    ordered, failed = sorted(ms for ms, _ in each), sum(failed for _, failed in each)
    p50, p95 = (ordered[int(len(ordered) * part)] for part in (0.5, 0.95))
    return Calls(kind, name, len(ordered), failed, p50, p95, ordered[-1])


async def usage_by(views: Views, by: str, user: str | None, prices: Prices, since: str, until: str) -> list[Used]:
    """Returns what was used from a day to another by `user` or by `assistant`, of one user or (None) of all; those who
    used most first.
    """
    column = {"user": "user", "assistant": "assistant"}[by]
    whose = "user = ?" if user is not None or by == "assistant" else "user != ?"
    rows = await views.query(
        f"SELECT {column}, model, sum(runs), {SUMS} FROM usage_sums"
        f" WHERE {whose} AND day BETWEEN ? AND ? GROUP BY 1, 2",
        (user or "", since, until),
    )
    runs: dict[str, int] = {}
    used: dict[str, dict[str, Tokens]] = {}
    for name, model, count, *sums in rows:
        runs[name] = runs.get(name, 0) + count
        used.setdefault(name, {})[model] = Tokens(*sums)
    listed = [used_of(name, runs[name], used[name], prices) for name in used]
    return sorted(listed, key=lambda one: (-one.tokens.total, one.name))[:MOST_LISTED]


async def changes(views: Views, limit: int, before: int | None = None) -> tuple[list[Change], bool]:
    """Returns what was configured, newest first, before a sequence; and whether there is more."""
    rows = await views.query(
        "SELECT seq, at, type, actor, text FROM changes WHERE seq < ? ORDER BY seq DESC LIMIT ?",
        (before or 1 << 62, limit + 1),
    )
    return [Change(*row) for row in rows[:limit]], len(rows) > limit
