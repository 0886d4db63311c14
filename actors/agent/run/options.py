"""Reads the options of a run from a request (DeerFlow's context of a run)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from actors.agent.run.client_tools import ClientTool, parsed
from core.events import RunRequested
from core.skills.selection import MOST_WHITELIST
from core.user.agents import Definition
from core.user.schedules import KIND as SCHEDULES

MODES: Mapping[str, Mapping[str, Any]] = {
    "flash": {"thinking_enabled": False, "is_plan_mode": False, "subagent_enabled": False},
    "thinking": {"is_plan_mode": False, "subagent_enabled": False, "reasoning_effort": "low"},
    "pro": {"is_plan_mode": True, "subagent_enabled": False, "reasoning_effort": "medium"},
    "ultra": {"is_plan_mode": True, "subagent_enabled": True, "reasoning_effort": "high"},
}
"""The four modes of the web page. Explicit options override them."""
MOST_CALLS = 100_000
"""Limit of `recursion_limit`."""
MOST_CONCURRENT, MOST_SUBAGENTS = 4, 200
"""Limits of `max_concurrent_subagents` and `max_total_subagents` (DeerFlow's middleware SubagentLimit)."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one run. None leaves the decision to the agent or the configuration."""

    model: str | None = None
    thinking: bool | None = None
    effort: str | None = None
    plan_mode: bool | None = None
    """True if it can keep a list of steps. None: yes, but for subagents."""
    subagents: bool | None = None
    """True if it can call subagents. None: yes."""
    agent: str | None = None
    skills: tuple[str, ...] | None = None
    """Names of the only skills that it may use."""
    bootstrap: bool = False
    calls: int | None = None
    """The most model calls."""
    concurrent_subagents: int = 3
    """The most calls of `task` in one answer."""
    total_subagents: int | None = None
    unattended: bool = False
    """Nobody is there to answer a question: the agent decides, and says what it assumed."""
    client_tools: tuple[ClientTool, ...] = ()
    """Tools of the application that asks."""


def options(request: RunRequested) -> Options:
    """Returns the options from `context`, else from `config.configurable`, else from the mode.

    Values of a wrong type are ignored.
    """
    values: dict[str, Any] = {**request.config.get("configurable", {}), **request.context}
    mode = values.get("mode")
    values = {
        **MODES.get(mode if isinstance(mode, str) else "", {}),
        **{name: value for name, value in values.items() if value is not None},
    }
    return Options(
        model=_text(values, "model_name") or _text(values, "model"),
        thinking=_flag(values, "thinking_enabled"),
        effort=_text(values, "reasoning_effort"),
        plan_mode=_flag(values, "is_plan_mode"),
        subagents=_flag(values, "subagent_enabled"),
        agent=_text(values, "agent_name"),
        skills=_names(values, "available_skills"),
        bootstrap=_flag(values, "is_bootstrap") or False,
        calls=_whole(request.config.get("recursion_limit"), MOST_CALLS),
        concurrent_subagents=_whole(values.get("max_concurrent_subagents"), MOST_CONCURRENT) or 3,
        total_subagents=_whole(values.get("max_total_subagents"), MOST_SUBAGENTS),
        unattended=_unattended(request, values),
        client_tools=parsed(values.get("client_tools")),
    )


def of_agent(options: Options, agent: Definition | None) -> Options:
    """Returns the options of a run of a custom agent: what neither the request nor its mode says, the agent does."""
    if agent is None:
        return options
    thinking = agent.thinking_enabled if options.thinking is None else options.thinking
    return msgspec.structs.replace(
        options,
        thinking=thinking,
        effort=options.effort or (None if thinking is False else agent.reasoning_effort),
        plan_mode=agent.is_plan_mode if options.plan_mode is None else options.plan_mode,
        subagents=agent.subagent_enabled if options.subagents is None else options.subagents,
    )


def _unattended(request: RunRequested, values: Mapping[str, Any]) -> bool:
    """Returns what the request says in `unattended`, or DeerFlow's `non_interactive`.

    By default nobody is there in the runs of schedules, those with a webhook, and those whose thread goes with them.
    """
    for name in ("unattended", "non_interactive"):
        if (flag := _flag(values, name)) is not None:
            return flag
    scheduled = request.wanted is not None and request.wanted.kind == SCHEDULES
    return scheduled or request.webhook is not None or request.on_completion == "delete"


def _text(values: Mapping[str, Any], name: str) -> str | None:
    value = values.get(name)
    return value if isinstance(value, str) and value else None


def _names(values: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    value = values.get(name)
    return tuple(map(str, value[:MOST_WHITELIST])) if isinstance(value, list) else None


def _flag(values: Mapping[str, Any], name: str) -> bool | None:
    value = values.get(name)
    return value if isinstance(value, bool) else None


def _whole(limit: Any, most: int) -> int | None:
    """Returns a number from 1 to `most`, None if it is none."""
    if not isinstance(limit, int | float) or isinstance(limit, bool) or limit != limit:
        return None
    return int(min(max(limit, 1), most))
