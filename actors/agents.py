"""Creates and changes custom agents in conversation: serves the tools `setup_agent` and `update_agent`.

The run determines the agent and its owner, not the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Never

import msgspec

from actors.agent.run.options import Options, options
from core.actor import Actor, Progress
from core.config.load import Config, ConfigSource
from core.errors import Invalid
from core.events import Event
from core.log.store import EventLog
from core.skills.library import Library
from core.skills.selection import known
from core.thread.state import Run, ThreadState
from core.thread.threads import Threads
from core.user import agents
from core.user.agents import Definition, Roster

CREATED = "created_agent_name"
"""Field of the state of a conversation that created an agent (DeerFlow's tool `setup_agent`)."""
DEMO = "demo"

Soul = Annotated[str, msgspec.Meta(max_length=100_000, pattern=r"\S")]
Text = Annotated[str, msgspec.Meta(max_length=2000)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
Names = Annotated[list[Name], msgspec.Meta(max_length=200)]


class Setup(msgspec.Struct, frozen=True, tag_field="op", tag="setup"):
    """Creates the agent that the run names. The answer is its name."""

    thread: str
    user: str
    run: str
    soul: Soul
    description: Text
    skills: Names | None = None


class Update(msgspec.Struct, frozen=True, tag_field="op", tag="update"):
    """Changes the agent of the run. The answer is the names of the fields that changed."""

    thread: str
    user: str
    run: str
    soul: Soul | None = None
    description: Text | None = None
    skills: Names | None = None
    tool_groups: Names | None = None
    model: Name | None = None

    def changes(self) -> dict[str, Any]:
        fields = ("soul", "description", "skills", "tool_groups", "model")
        return {name: value for name in fields if (value := getattr(self, name)) is not None}


class Agents(Actor[Never]):
    """Records each change of an agent as one event. Repeating a request changes nothing."""

    def __init__(self, config: ConfigSource, log: EventLog, threads: Threads, skills: Library | None = None) -> None:
        self._config, self._threads, self._skills = config, threads, skills
        self._rosters = agents.aggregates(log)

    async def answer(self, request: Mapping[str, Any], progress: Progress) -> str | list[str]:
        command: Setup | Update = self.parse(request, Setup | Update)
        state = await self._threads.load(command.thread)
        if state.user != command.user or command.run not in state.runs:
            raise Invalid(f"Run {command.run} not found")
        run = state.runs[command.run]
        if self._skills is not None and command.skills:
            known(await self._skills.of(command.user), command.skills)
        if isinstance(command, Setup):
            return await self._setup(command, run, state)
        return await self._update(command, run)

    async def _setup(self, setup: Setup, run: Run, state: ThreadState) -> str:
        requested = options(run.request)
        name = agents.valid_name(requested.agent or "") if requested.bootstrap else ""
        if not name:
            raise Invalid("Agents are made only in a conversation that was opened for that.")
        agent = Definition(name, setup.description, skills=setup.skills, soul=setup.soul)
        own = state.values.get(CREATED) == name

        def decide(roster: Roster) -> Sequence[Event]:
            return setup_events(roster, agent, own=own)

        await self._rosters.decide(setup.user, decide, actor=self.name, cause=run.last_id)
        return name

    async def _update(self, update: Update, run: Run) -> list[str]:
        name, changes = _agent(options(run.request)), update.changes()
        if not changes:
            raise Invalid("Say at least one of soul, description, skills, tool_groups and model.")
        if "model" in changes:
            _check_model(self._config.current(), changes["model"])
        changed: list[str] = []

        def decide(roster: Roster) -> Sequence[Event]:
            before = agents.known(roster, name)
            changed[:] = [field for field, value in changes.items() if getattr(before, field) != value]
            return agents.change(roster, name, changes)

        await self._rosters.decide(update.user, decide, actor=self.name, cause=run.last_id)
        return changed


def setup_events(roster: Roster, agent: Definition, *, own: bool) -> list[Event]:
    """Returns the events that create the agent, or change it if it is this conversation's `own` or equal.

    Raises `Refused` if another agent has the name.
    """
    before = roster.agents.get(agent.name)
    fields = {"description": agent.description, "skills": agent.skills, "soul": agent.soul}
    if before and (own or all(getattr(before, field) == value for field, value in fields.items())):
        return agents.change(roster, agent.name, fields)
    return agents.create(roster, agent)


def _agent(options: Options) -> str:
    if options.agent is None or options.bootstrap:
        raise Invalid("Only an agent that a person defined can change itself.")
    return agents.valid_name(options.agent)


def _check_model(config: Config, model: str) -> None:
    names = [entry.name for entry in config.models] or [DEMO]
    if model not in names:
        raise Invalid(f"model: {model!r} is not configured; there are: {', '.join(names)}")
