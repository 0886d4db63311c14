"""Runs and their cost, over all threads of a user; for an administrator also over all users."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Annotated, Any

import msgspec

from channels.http.accounts.access import names_of
from channels.http.endpoints.call import Call
from channels.http.endpoints.endpoint import Offset, Routes
from channels.http.endpoints.shapes import RunStatus
from channels.http.server.errors import Forbidden
from channels.http.server.routes import API
from core.views import console, operations
from core.views.console import Prices, RunLine, Used
from core.views.projections import Views

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


class OfUser(Amount):
    """`user_name`: the address of the account; null without accounts."""

    user_id: str
    user_name: str | None
    runs: int


class OfAgent(Amount):
    """`assistant_id`: as runs name it."""

    assistant_id: str
    runs: int


class Usage(Amount):
    """`by_user`, `by_agent`: at most 100, those who used most first. Their `runs` and those of models are runs that
    used tokens; those of days are all.
    """

    runs: int
    days: list[Day]
    by_model: list[OfModel]
    by_user: list[OfUser]
    by_agent: list[OfAgent]


ROUTES = Routes(mounts=API)
AllUsers = Annotated[bool, "Everybody's, for an administrator"]


@ROUTES("GET", "/console/stats", "runs:read")
async def stats(call: Call, *, all_users: AllUsers = False) -> Stats:
    """Totals: threads, runs by status, tokens and cost."""
    totals = await console.totals(*await _views_for(call, all_users))
    amount = _amount(Used("", 0, totals.tokens, totals.price))
    active = sum(totals.runs.get(status, 0) for status in OPEN)
    return Stats(
        **amount,
        total_threads=totals.threads,
        total_runs=sum(totals.runs.values()),
        active_runs=active,
        runs_by_status=totals.runs,
    )


@ROUTES("GET", "/console/runs", "runs:read")
async def runs(
    call: Call,
    *,
    all_users: AllUsers = False,
    limit: Annotated[int, msgspec.Meta(ge=1, le=200), "How many at most"] = 50,
    offset: Annotated[Offset, "How many to pass over"] = 0,
    status: RunStatus | None = None,
) -> Runs:
    """Runs, newest first, with what each used, cost and took."""
    lines, more = await console.runs(*await _views_for(call, all_users), status=status, limit=limit, offset=offset)
    return Runs([_run(line) for line in lines], more)


@ROUTES("GET", "/console/usage", "runs:read")
async def usage(
    call: Call,
    *,
    all_users: AllUsers = False,
    days: Annotated[int, msgspec.Meta(ge=1, le=366), "How many"] = 30,
) -> Usage:
    """Tokens and cost by day (UTC), model, user and agent, over the last days. A run counts for the day it was asked
    for.
    """
    views, user, prices = await _views_for(call, all_users)
    span = await console.span(views, user, prices, until=_today(), days=days)
    within, names = (span.days[0].name, span.days[-1].name), await names_of(call)
    users = await operations.usage_by(views, "user", user, prices, *within)
    agents = await operations.usage_by(views, "assistant", user, prices, *within)
    return Usage(
        **_amount(span.total),
        runs=span.total.runs,
        days=[Day(**_amount(day), date=day.name, runs=day.runs) for day in span.days],
        by_model=[OfModel(**_amount(model), model=model.name, runs=model.runs) for model in span.models],
        by_user=[
            OfUser(**_amount(one), user_id=one.name, user_name=names.get(one.name), runs=one.runs) for one in users
        ],
        by_agent=[OfAgent(**_amount(one), assistant_id=one.name, runs=one.runs) for one in agents],
    )


async def _views_for(call: Call, all_users: bool) -> tuple[Views, str | None, Prices]:
    """The views with everything in them that this process wrote, the user that is asked about (None: all), prices."""
    if all_users and not call.principal.is_admin:
        raise Forbidden("all_users: only an administrator may see everybody's runs")
    await call.services.views.current()
    prices = {model.name: model.pricing for model in call.config.models if model.pricing}
    return call.services.views, None if all_users else call.user, prices


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
    run = line.run
    return Run(
        **_amount(line),
        run_id=run.run_id,
        thread_id=run.thread_id,
        thread_title=run.title,
        user_id=run.user,
        assistant_id=run.assistant,
        model_name=run.model,
        status=run.status,
        error=run.error,
        created_at=run.created_at,
        started_at=run.started_at,
        ended_at=run.ended_at,
        duration_seconds=run.seconds,
    )
