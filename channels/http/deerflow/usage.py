"""The usage of a thread's runs."""

from __future__ import annotations

from typing import Annotated

import msgspec

from channels.http.endpoints.call import Call, ReadableThread
from channels.http.endpoints.endpoint import Routes
from channels.http.server.routes import API
from core.config.load import Config
from core.config.windows import window_of
from core.thread import usage
from core.thread.state import ThreadState
from core.thread.usage import Tokens


class OfModel(msgspec.Struct):
    """`runs`: how many used this model, maybe among others."""

    tokens: int
    runs: int


class OfCaller(msgspec.Struct, omit_defaults=True):
    lead_agent: int
    subagent: int
    middleware: int
    subagents: dict[str, int] = {}
    """The part of each type of subagent, by `subagent:<name>`."""


class InContext(msgspec.Struct):
    """The fill of the model's context window; null where the configuration does not name its size."""

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


ROUTES = Routes(mounts=API)


@ROUTES("GET", "/threads/{thread_id}/token-usage", "threads:read")
async def of_thread(
    call: Call,
    thread: ReadableThread,
    *,
    include_active: Annotated[bool, "Also what runs that have not ended used so far"] = False,
) -> TokenUsage:
    """Sum up the usage of a thread's ended runs, also of undone ones: they were paid for. A thread that is not there
    used nothing.
    """
    return _usage(thread.id, thread.state, call.config, active=include_active)


def _usage(thread_id: str, state: ThreadState, config: Config, *, active: bool) -> TokenUsage:
    counted = [run for run in state.runs.values() if active or not run.open]
    runs = [usage.together(usage.by_model(state, run), usage.of_subagents(run)) for run in counted]
    subagents: dict[str, int] = {}
    for part in (part for run in counted for part in run.subagents.values()):
        caller = f"subagent:{part.name}"
        subagents[caller] = subagents.get(caller, 0) + part.tokens.total
    delegated = sum(subagents.values())
    lead = sum(usage.of_run(state, run).agent.total for run in counted)
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
        OfCaller(lead_agent=lead, subagent=delegated, middleware=total.total - lead - delegated, subagents=subagents),
        _in_context(state, config),
        money.total,
        money.currency,
    )


def _in_context(state: ThreadState, config: Config) -> InContext:
    count = usage.in_context(state)
    model = next((run.model for run in reversed(state.runs.values()) if run.model), None)
    known = window_of(config, model)
    window = None if known.source == "assumed" else known.tokens
    return InContext(count, window, round(100 * count / window, 1) if window else None)
