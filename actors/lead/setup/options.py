"""What a caller may ask of a run (contract runtime §1.1), whatever way it is said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from core.events import RunRequested

MODES: Mapping[str, Mapping[str, Any]] = {
    "flash": {"thinking_enabled": False},
    "thinking": {"reasoning_effort": "low"},
    "pro": {"is_plan_mode": True, "reasoning_effort": "medium"},
    "ultra": {"is_plan_mode": True, "subagent_enabled": True, "reasoning_effort": "high"},
}
"""The four modes of the web page. What is said besides counts more."""
MOST_STEPS = 1000


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one run; None where nothing was said and the agent or the configuration decides."""

    model: str | None = None
    thinking: bool | None = None
    effort: str | None = None
    plan_mode: bool | None = None
    subagents: bool = False
    agent: str | None = None
    bootstrap: bool = False
    steps: int | None = None


def options(request: RunRequested) -> Options:
    """The caller's `context`, else `config.configurable`, else what the mode means. Values of a wrong type do not
    count.
    """
    said: dict[str, Any] = {**request.config.get("configurable", {}), **request.context}
    mode = said.get("mode")
    said = {**MODES.get(mode if isinstance(mode, str) else "", {}), **_given(said)}
    return Options(
        model=_text(said, "model_name") or _text(said, "model"),
        thinking=_flag(said, "thinking_enabled"),
        effort=_text(said, "reasoning_effort"),
        plan_mode=_flag(said, "is_plan_mode"),
        subagents=_flag(said, "subagent_enabled") or False,
        agent=_text(said, "agent_name"),
        bootstrap=_flag(said, "is_bootstrap") or False,
        steps=_steps(request.config.get("recursion_limit")),
    )


def _given(said: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in said.items() if value is not None}


def _text(said: Mapping[str, Any], name: str) -> str | None:
    value = said.get(name)
    return value if isinstance(value, str) and value else None


def _flag(said: Mapping[str, Any], name: str) -> bool | None:
    value = said.get(name)
    return value if isinstance(value, bool) else None


def _steps(limit: Any) -> int | None:
    if not isinstance(limit, int | float) or isinstance(limit, bool) or limit != limit:
        return None
    return int(min(max(limit, 1), MOST_STEPS))
