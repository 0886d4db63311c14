"""How a run is done: by which agent and model, with which tools and prompt. Made of the configuration as it is now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import anyio.to_thread
from langchain_core.language_models import BaseChatModel

from actors.lead.setup.custom_agent import allowed, default_soul, find
from actors.lead.setup.options import Options, options
from actors.lead.setup.prompt import Mounted, build, mounted, parts_of
from core.config.load import Config, ConfigSource
from core.errors import Invalid
from core.events import RunRequested
from core.log.repository import Repository
from core.tools import Tool
from core.user.agents import Definition, Roster

DEMO = "demo"
"""The demo model likes to plan; others do when they are asked to (contract runtime §1.1: `is_plan_mode`)."""
VIEW_IMAGE = "view_image"

Toolset = Callable[[Config], Sequence[Tool]]
"""The tools that a configuration declares; the same ones for the same configuration."""


class Models(Protocol):
    """Finds the model for a run."""

    def name(self, wanted: str | None) -> str:
        """The configured name that a request for `wanted` gets."""
        ...

    def get(self, name: str, *, thinking: bool, reasoning_effort: str | None) -> BaseChatModel: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSetup:
    """`deferred`: those of the tools that have to be looked up before they can be called."""

    config: Config
    options: Options
    agent: Definition | None
    model: str
    candidates: tuple[str, ...]
    """The names of the model and of those that stand in for it."""
    tools: Sequence[Tool]
    deferred: Sequence[Tool]
    prompt: str
    todos: bool
    vision: bool
    blind: frozenset[str]
    """Candidates that do not see images, where the model does."""


class Planner:
    """Plans runs. `home`: where the soul of the agent without a name may lie."""

    def __init__(
        self, config: ConfigSource, models: Models, tools: Toolset, rosters: Repository[Roster], home: Path
    ) -> None:
        self._config = config
        self._models = models
        self._tools = tools
        self._rosters = rosters
        self._home = home

    async def plan(self, request: RunRequested, user: str, model: str | None = None) -> RunSetup:
        """`model`: the one it was begun with. Raises `Invalid` and `NotFound` where the agent is not there."""
        config, wanted = self._config.current(), options(request)
        profiled = config.agents_api.enabled
        roster = await self._rosters.load(user) if wanted.agent or profiled else Roster()
        agent = find(roster, wanted)
        name = model or self._name(config, wanted.model or (agent.model if agent else None))
        settings = {one.name: one for one in config.models}
        candidates = tuple(dict.fromkeys([name, *(n for n in config.model_roles.get("lead", ()) if n in settings)]))
        vision = name in settings and settings[name].supports_vision
        tools = [one for one in allowed(self._tools(config), wanted, agent) if vision or one.name != VIEW_IMAGE]
        deferred = [one for one in tools if one.deferred] if config.tool_search.enabled else []
        soul, mounts = await anyio.to_thread.run_sync(self._read, config, abandon_on_cancel=True)
        parts = parts_of(
            wanted,
            agent,
            soul=soul,
            profile=roster.profile if profiled else None,
            deferred=[one.name for one in deferred],
            mounts=mounts,
        )
        return RunSetup(
            config=config,
            options=wanted,
            agent=agent,
            model=name,
            candidates=candidates,
            tools=tools,
            deferred=deferred,
            prompt=build(parts),
            todos=wanted.plan_mode if wanted.plan_mode is not None else name == DEMO,
            vision=vision,
            blind=frozenset(n for n in candidates if vision and not settings[n].supports_vision),
        )

    def _read(self, config: Config) -> tuple[str, Sequence[Mounted]]:
        """What is told of this machine's files, which may be on a network volume."""
        return default_soul(self._home), mounted(config)

    def _name(self, config: Config, wanted: str | None) -> str:
        """The configured name of the model that is wanted: not another one in its place."""
        name = self._models.name(wanted or _first(config))
        if wanted not in (None, name):
            names = ", ".join(model.name for model in config.models) or DEMO
            raise Invalid(f"The model {wanted!r} is not configured (any more); there are: {names}.")
        return name


def _first(config: Config) -> str | None:
    """The model that is meant where nobody says which."""
    return next(iter(config.model_roles.get("lead", ())), None)
