"""Writes down the agents that people make and change by talking: what the tools `setup_agent` and `update_agent` ask.

Which agent is meant, and whose, is said by the run that asks, not by the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Never

import msgspec

from actors.lead.setup.options import Options, options
from core.actor import Actor, Progress
from core.config.load import Config, ConfigSource
from core.errors import Invalid
from core.events import Event
from core.log.store import EventLog
from core.thread.state import Run, ThreadState
from core.thread.threads import Threads
from core.user import agents
from core.user.agents import Definition, Roster

CREATED = "created_agent_name"
"""Field of the state of a conversation in which an agent was made (contract runtime §6)."""
DEMO = "demo"

Soul = Annotated[str, msgspec.Meta(max_length=100_000, pattern=r"\S")]
Text = Annotated[str, msgspec.Meta(max_length=2000)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
Names = Annotated[list[Name], msgspec.Meta(max_length=200)]


class Setup(msgspec.Struct, frozen=True, tag_field="op", tag="setup"):
    """Make the agent that the run is about. Answered with its name."""

    thread: str
    user: str
    run: str
    soul: Soul
    description: Text
    skills: Names | None = None


class Update(msgspec.Struct, frozen=True, tag_field="op", tag="update"):
    """Change the agent that does the run. Answered with the names of the fields that changed; none if all of it was so
    already.
    """

    thread: str
    user: str
    run: str
    soul: Soul | None = None
    description: Text | None = None
    skills: Names | None = None
    tool_groups: Names | None = None
    model: Name | None = None

    def changes(self) -> dict[str, Any]:
        given = {name: getattr(self, name) for name in ("soul", "description", "skills", "tool_groups", "model")}
        return {name: value for name, value in given.items() if value is not None}


class Agents(Actor[Never]):
    """An agent is one fact: it is never there in part. Asking the same again changes nothing."""

    def __init__(self, config: ConfigSource, log: EventLog, threads: Threads) -> None:
        self._config, self._threads = config, threads
        self._rosters = agents.aggregates(log)

    async def answer(self, request: Mapping[str, Any], progress: Progress) -> str | list[str]:
        try:
            asked: Setup | Update = msgspec.convert(dict(request), type=Setup | Update)
        except msgspec.ValidationError as error:
            raise Invalid(str(error)) from None
        state = await self._threads.load(asked.thread)
        if state.user != asked.user or asked.run not in state.runs:
            raise Invalid(f"Run {asked.run} not found")
        run = state.runs[asked.run]
        if isinstance(asked, Setup):
            return await self._setup(asked, run, state)
        return await self._update(asked, run)

    async def _setup(self, asked: Setup, run: Run, state: ThreadState) -> str:
        wanted = options(run.request)
        name = agents.checked(wanted.agent or "") if wanted.bootstrap else ""
        if not name:
            raise Invalid("Agents are made only in a conversation that was opened for that.")
        made = Definition(name, asked.description, skills=asked.skills, soul=asked.soul)
        own = state.values.get(CREATED) == name

        def decide(roster: Roster) -> Sequence[Event]:
            return made_events(roster, made, own=own)

        await self._rosters.decide(asked.user, decide, actor=self.name, cause=run.last_id)
        return name

    async def _update(self, asked: Update, run: Run) -> list[str]:
        name, changes = _agent(options(run.request)), asked.changes()
        if not changes:
            raise Invalid("Say at least one of soul, description, skills, tool_groups and model.")
        if "model" in changes:
            _check_model(self._config.current(), changes["model"])
        changed: list[str] = []

        def decide(roster: Roster) -> Sequence[Event]:
            before = agents.known(roster, name)
            changed[:] = [field for field, value in changes.items() if getattr(before, field) != value]
            return agents.change(roster, name, changes)

        await self._rosters.decide(asked.user, decide, actor=self.name, cause=run.last_id)
        return changed


def made_events(roster: Roster, wanted: Definition, *, own: bool) -> list[Event]:
    """What makes the agent. One that is there stays as it is, unless it is this conversation's `own`, or the same.

    Raises `Refused`.
    """
    there = roster.agents.get(wanted.name)
    said = {"description": wanted.description, "skills": wanted.skills, "soul": wanted.soul}
    if there and (own or all(getattr(there, field) == value for field, value in said.items())):
        return agents.change(roster, wanted.name, said)
    return agents.create(roster, wanted)


def _agent(wanted: Options) -> str:
    if wanted.agent is None or wanted.bootstrap:
        raise Invalid("Only an agent that a person defined can change itself.")
    return agents.checked(wanted.agent)


def _check_model(config: Config, wanted: str) -> None:
    names = [model.name for model in config.models] or [DEMO]
    if wanted not in names:
        raise Invalid(f"model: {wanted!r} is not configured; there are: {', '.join(names)}")
