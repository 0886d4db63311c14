"""What was done and what it cost, over all threads of a user; for an administrator also over all users."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Annotated, Any, Literal

import msgspec
from aiohttp import web

from channels.http import live as alive
from channels.http.bodies import flag, number, plain
from channels.http.errors import Forbidden
from channels.http.routes import API, Param, Route
from core.errors import Invalid
from core.views import console
from core.views.console import Prices, RunLine, Used
from core.views.projections import Views

Status = Literal["pending", "running", "success", "error", "timeout", "interrupted"]
STATUSES = ("pending", "running", "success", "error", "timeout", "interrupted")
OPEN = ("pending", "running")


class Amount(msgspec.Struct):
    """Tokens, and what they cost; null where no model has a price, or where prices are in several currencies."""

    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    total_tokens: int
    llm_call_count: int
    total_cost: float | None
    currency: str | None


class Stats(Amount):
    total_threads: int
    total_runs: int
    active_runs: int
    runs_by_status: dict[str, int]


class Run(Amount):
    run_id: str
    thread_id: str
    thread_title: str | None
    user_id: str
    assistant_id: str
    model_name: str | None
    status: str
    error: str | None
    created_at: str
    started_at: str | None
    ended_at: str | None
    duration_seconds: float | None


class Runs(msgspec.Struct):
    runs: list[Run]
    has_more: bool


class Day(Amount):
    date: str
    runs: int


class OfModel(Amount):
    model: str
    runs: int


class Usage(Amount):
    runs: int
    days: list[Day]
    by_model: list[OfModel]


async def stats(request: web.Request) -> web.Response:
    """Totals: threads, runs by status, tokens and cost."""
    user = _whose(request)
    found = await console.totals(await _views(request), user, _prices(request))
    amount = _amount(Used("", 0, found.tokens, found.price))
    active = sum(found.runs.get(status, 0) for status in OPEN)
    return plain(
        Stats(
            **amount,
            total_threads=found.threads,
            total_runs=sum(found.runs.values()),
            active_runs=active,
            runs_by_status=found.runs,
        )
    )


async def runs(request: web.Request) -> web.Response:
    """Runs, newest first, with what each used, cost and took."""
    user, status = _whose(request), request.query.get("status") or None
    if status is not None and status not in STATUSES:
        raise Invalid(f"status: one of {', '.join(STATUSES)}, got {status[:40]!r}")
    limit, offset = number(request, "limit", 50, least=1, most=200), number(request, "offset", 0, most=2**31)
    lines, more = await console.runs(
        await _views(request), user, _prices(request), status=status, limit=limit, offset=offset
    )
    return plain(Runs([_run(line) for line in lines], more))


async def usage(request: web.Request) -> web.Response:
    """Tokens and cost by day (UTC) and by model, over the last days. A run counts for the day it was asked for."""
    user, days = _whose(request), number(request, "days", 30, least=1, most=366)
    found = await console.span(await _views(request), user, _prices(request), until=_today(), days=days)
    return plain(
        Usage(
            **_amount(found.total),
            runs=found.total.runs,
            days=[Day(**_amount(day), date=day.name, runs=day.runs) for day in found.days],
            by_model=[OfModel(**_amount(model), model=model.name, runs=model.runs) for model in found.models],
        )
    )


def _whose(request: web.Request) -> str | None:
    """The user that is asked about; None for all."""
    if not flag(request, "all_users"):
        return alive.user(request)
    asking = alive.principal(request)
    if asking.role != "admin" or not asking.may("admin"):
        raise Forbidden("all_users: only an administrator may see everybody's runs")
    return None


async def _views(request: web.Request) -> Views:
    """With everything in them that this process wrote."""
    live = alive.of(request)
    await live.services.views.current()
    return live.services.views


def _prices(request: web.Request) -> Prices:
    return {model.name: model.pricing for model in alive.of(request).services.config().models if model.pricing}


def _today() -> date:
    return datetime.now(UTC).date()


def _amount(used: Used | RunLine) -> dict[str, Any]:
    tokens, money = used.tokens, used.price
    return {
        "input_tokens": tokens.input,
        "output_tokens": tokens.output,
        "cache_read_tokens": tokens.cache_read,
        "total_tokens": tokens.total,
        "llm_call_count": tokens.calls,
        "total_cost": money.total,
        "currency": money.currency,
    }


def _run(line: RunLine) -> Run:
    return Run(
        **_amount(line),
        run_id=line.run_id,
        thread_id=line.thread_id,
        thread_title=line.title,
        user_id=line.user,
        assistant_id=line.assistant,
        model_name=line.model,
        status=line.status,
        error=line.error,
        created_at=line.created_at,
        started_at=line.started_at,
        ended_at=line.ended_at,
        duration_seconds=line.seconds,
    )


_ALL = Param("all_users", bool, "Everybody's, for an administrator")
_READ: Any = {"scope": "runs:read", "mounts": API}
ROUTES = (
    Route("GET", "/console/stats", stats, {200: Stats}, query=(_ALL,), **_READ),
    Route(
        "GET",
        "/console/runs",
        runs,
        {200: Runs},
        query=(
            _ALL,
            Param("limit", Annotated[int, msgspec.Meta(ge=1, le=200)], "How many at most; default 50"),
            Param("offset", Annotated[int, msgspec.Meta(ge=0, le=2**31)], "How many to pass over"),
            Param("status", Status),
        ),
        **_READ,
    ),
    Route(
        "GET",
        "/console/usage",
        usage,
        {200: Usage},
        query=(_ALL, Param("days", Annotated[int, msgspec.Meta(ge=1, le=366)], "How many; default 30")),
        **_READ,
    ),
)
