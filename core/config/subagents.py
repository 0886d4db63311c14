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
WorkSeconds = Annotated[float, msgspec.Meta(gt=0, le=82_800)]
"""A call of `task` ends after 24 hours, and its subagent before."""
WORK_SECONDS, WORK_CALLS = 7200.0, 1000
"""Two hours, and the model calls that fit in them at one in seven seconds: a subagent does a part of a long work."""


class SubagentBudget(Section, frozen=True, kw_only=True):
    """The tokens of one subagent. Its answers also count in the budgets of the run that called it."""

    enabled: bool = True
    """True if it counts."""
    max_tokens: Positive = 20_000_000
    """Tokens of input and output, after which it has to answer with what it has. The default is 200 model calls with
    100 000 tokens each: every call reads the whole conversation again."""
    warn_threshold: Share = 0.8
    """The part of it after which the subagent is told to come to an end."""


class SubagentOverride(Section, frozen=True, kw_only=True):
    """Changes of one type of subagents."""

    timeout_seconds: WorkSeconds | None = None
    """Seconds of work after which it is stopped."""
    max_turns: Positive | None = None
    """The most model calls; then it answers once more, without tools, and its caller is told that it is not done."""
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
    max_turns: Positive = WORK_CALLS
    """The most model calls. DeerFlow means steps by this name, of which a call and its tools are two."""
    timeout_seconds: WorkSeconds = WORK_SECONDS
    """Seconds of work, with its last answer, which begins two minutes before the end."""


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
    timeout_seconds: WorkSeconds = 82_800
    """Seconds after which a batch is stopped. What was done until then stays. 10 000 prompts of a minute, 8 at a time,
    take 21 hours."""


class Subagents(Section, frozen=True, kw_only=True):
    """Subagents, to which the agent gives work with the tool `task`. Runs have it, but for those
    with `subagent_enabled: false`.
    """

    timeout_seconds: WorkSeconds = WORK_SECONDS
    """Seconds of work of a subagent of a built-in type, with its last answer, which begins two minutes before the end.
    """
    max_turns: Positive = WORK_CALLS
    """The most model calls of the built-in types. DeerFlow means steps by this name, of which a call and its tools are
    two."""
    max_total_per_run: Annotated[int, msgspec.Meta(ge=1, le=200)] = 50
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
