"""What the runs of a thread used."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from channels.http import live as alive
from channels.http.bodies import flag, plain
from channels.http.routes import API, Param, Route
from core.config.load import Config
from core.thread import usage
from core.thread.state import ThreadState
from core.thread.usage import Tokens


class OfModel(msgspec.Struct):
    """`runs`: how many used this model, maybe among others."""

    tokens: int
    runs: int


class OfCaller(msgspec.Struct):
    lead_agent: int
    subagent: int
    middleware: int


class InContext(msgspec.Struct):
    """How full the model's window is; null where the configuration does not say how large it is."""

    token_count: int
    max_context_tokens: int | None
    percentage: float | None


class TokenUsage(msgspec.Struct):
    """`total_cost` is null where no model has a price, or their prices are in several currencies."""

    thread_id: str
    total_tokens: int
    total_input_tokens: int
    total_output_tokens: int
    total_runs: int
    by_model: dict[str, OfModel]
    by_caller: OfCaller
    context_usage: InContext
    total_cost: float | None
    currency: str | None


async def of_thread(request: web.Request) -> web.Response:
    """What the ended runs of a thread used, also those that were undone: they were paid for. A thread that is not there
    used nothing.
    """
    active = flag(request, "include_active")
    thread_id, state = await alive.readable(request)
    return plain(_usage(thread_id, state, alive.of(request).services.config(), active=active))


def _usage(thread_id: str, state: ThreadState, config: Config, *, active: bool) -> TokenUsage:
    counted = [run for run in state.runs.values() if active or not run.open]
    runs = [usage.by_model(state, run) for run in counted]
    lead = sum(usage.of_run(state, run).lead_agent_tokens for run in counted)
    by_model: dict[str, Tokens] = {}
    for used in runs:
        for model, tokens in used.items():
            by_model[model] = by_model.get(model, Tokens()).plus(tokens)
    total = Tokens()
    for tokens in by_model.values():
        total = total.plus(tokens)
    money = usage.price(by_model, {model.name: model.pricing for model in config.models if model.pricing})
    return TokenUsage(
        thread_id,
        total.total,
        total.input,
        total.output,
        len(runs),
        {name: OfModel(tokens.total, sum(name in used for used in runs)) for name, tokens in by_model.items()},
        OfCaller(lead_agent=lead, subagent=0, middleware=total.total - lead),
        _in_context(state, config),
        money.total,
        money.currency,
    )


def _in_context(state: ThreadState, config: Config) -> InContext:
    count = usage.in_context(state)
    model = next((run.model for run in reversed(state.runs.values()) if run.model), None)
    window = next((entry.context_window for entry in config.models if entry.name == model), None)
    return InContext(count, window, round(100 * count / window, 1) if window else None)


_ACTIVE = Param("include_active", bool, "Also what runs that have not ended used so far")
_READ: Any = {"errors": (404,), "scope": "threads:read", "mounts": API}
ROUTES = (Route("GET", "/threads/{thread_id}/token-usage", of_thread, {200: TokenUsage}, query=(_ACTIVE,), **_READ),)
