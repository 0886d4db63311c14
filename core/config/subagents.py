"""Settings of subagents: their types, and what bounds them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

import msgspec

from core.config.sections import Positive, Section, Share

BUILT_IN = ("general-purpose", "bash")
INHERIT = "inherit"
_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_-]{0,63}")
WorkSeconds = Annotated[float, msgspec.Meta(gt=0, le=6000)]
"""A tool call ends after 7200 seconds, and its subagent before."""


class SubagentBudget(Section, frozen=True, kw_only=True):
    """The tokens of one subagent. Its answers also count in the budgets of the run that called it."""

    enabled: bool = True
    """True if it counts."""
    max_tokens: Positive = 2_000_000
    """Tokens of input and output, after which it has to answer with what it has."""
    warn_threshold: Share = 0.8
    """The part of it after which the subagent is told to come to an end."""


class SubagentOverride(Section, frozen=True, kw_only=True):
    """Changes of one type of subagents."""

    timeout_seconds: WorkSeconds | None = None
    """Seconds of work after which it is stopped."""
    max_turns: Positive | None = None
    """The most steps: a model call is one, its tool calls are another."""
    model: str | None = None
    """The name of its model."""
    skills: tuple[str, ...] | None = None
    """The names of its skills, whose instructions it gets with its prompt. Default: those of the agent which calls it,
    to look up."""


class CustomSubagent(Section, frozen=True, kw_only=True):
    """A type of subagents of yours."""

    description: Annotated[str, msgspec.Meta(min_length=1)]
    """For the agent: what it is good at."""
    system_prompt: Annotated[str, msgspec.Meta(min_length=1)]
    """Its instructions."""
    tools: tuple[str, ...] | None = None
    """The names of its tools. Default: all that the agent has which calls it."""
    skills: tuple[str, ...] | None = None
    """The names of its skills, as in `agents`."""
    disallowed_tools: tuple[str, ...] = ()
    """Tools that it does not get. No subagent gets `ask_clarification` and `present_files`."""
    model: str = INHERIT
    """The name of its model; `inherit` is the model of the run that calls it."""
    max_turns: Positive = 50
    """The most steps: a model call is one, its tool calls are another."""
    timeout_seconds: WorkSeconds = 900
    """Seconds of work after which it is stopped."""


class Batches(Section, frozen=True, kw_only=True):
    """Batches of prompts, which the agent hands over with the tool `tasks`. Each prompt has a subagent of its own."""

    pool: Annotated[int, msgspec.Meta(ge=1, le=64)] = 8
    """The most subagents of a batch at the same time, on all workers together. There are fewer while the provider of
    their model limits the rate of requests."""
    max_items: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 10_000
    """The most prompts of a batch."""
    retries: Annotated[int, msgspec.Meta(ge=0, le=5)] = 1
    """Further attempts at a prompt whose subagent failed or was timed out."""
    max_failure_rate: Share = 0.5
    """The part of the prompts that may fail; beyond it the batch stops."""
    min_ended: Positive = 20
    """The number of prompts that must have ended before failures can stop the batch."""
    timeout_seconds: Annotated[float, msgspec.Meta(gt=0, le=82_800)] = 21_600
    """Seconds after which a batch is stopped. What was done until then stays."""


class Subagents(Section, frozen=True, kw_only=True):
    """Subagents, to which the agent gives work with the tool `task`. Runs have it, but for those
    with `subagent_enabled: false`.
    """

    timeout_seconds: WorkSeconds = 900
    """Seconds of work after which a subagent of a built-in type is stopped."""
    max_turns: Positive | None = None
    """The most steps of the built-in types. Default: 100 of `general-purpose`, 60 of `bash`."""
    max_total_per_run: Annotated[int, msgspec.Meta(ge=1, le=50)] = 6
    """The most subagents of one run, unless the run says `max_total_subagents`."""
    max_depth: Annotated[int, msgspec.Meta(ge=1, le=3)] = 1
    """Levels of subagents that subagents may call. 1: they may call none."""
    token_budget: SubagentBudget = SubagentBudget()
    batch: Batches = Batches()
    agents: Mapping[str, SubagentOverride] = {}
    """Changes by type, as `{bash: {timeout_seconds: 60}}`."""
    custom_agents: Mapping[str, CustomSubagent] = {}
    """Types of yours by name, beside `general-purpose` and `bash`."""

    def __post_init__(self) -> None:
        for name in self.custom_agents:
            if not _NAME.fullmatch(name):
                raise ValueError(f"custom_agents.{name}: a name begins with a letter; letters, digits, _ and - follow")
            if name in BUILT_IN:
                raise ValueError(f"custom_agents.{name}: is built in; change it in agents.{name}")
        for name in self.agents:
            if name not in (*BUILT_IN, *self.custom_agents):
                known = ", ".join((*BUILT_IN, *self.custom_agents))
                raise ValueError(f"agents.{name}: there is no such type; there are: {known}")
