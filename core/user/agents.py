"""A user's custom agents and profile: one aggregate per user."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from core.errors import Invalid, NotFound, Refused
from core.events import Event, Record
from core.log.repository import Repository
from core.log.store import EventLog

KIND = "agents"
MOST = 100
"""Limit of agents of a user."""
_NAME = re.compile(r"[a-z0-9-]{1,64}")


class AgentDefined(Event, frozen=True):
    """A user's agent has this definition from here on, with all its fields."""

    name: str
    description: str = ""
    model: str | None = None
    """None: the default model."""
    tool_groups: list[str] | None = None
    """None: all tools."""
    skills: list[str] | None = None
    """None: all skills that are enabled."""
    soul: str | None = None
    """The agent's part of the system prompt."""


class AgentRemoved(Event, frozen=True):
    """The user's agent of this name was removed."""

    name: str


class ProfileWritten(Event, frozen=True):
    """The user's profile for all agents, as Markdown. None: it was removed."""

    content: str | None


class Definition(msgspec.Struct, frozen=True):
    """A custom agent."""

    name: str
    description: str = ""
    model: str | None = None
    tool_groups: Sequence[str] | None = None
    skills: Sequence[str] | None = None
    soul: str | None = None


class Roster(NamedTuple):
    """A user's agents by name, in the order of their names, and their profile."""

    agents: Mapping[str, Definition] = {}
    profile: str | None = None


def fold(records: Iterable[Record], roster: Roster) -> Roster:
    agents, profile = dict(roster.agents), roster.profile
    for record in records:
        match record.event:
            case AgentDefined() as event:
                agents[event.name] = Definition(**msgspec.structs.asdict(event))
            case AgentRemoved(name=name):
                agents.pop(name, None)
            case ProfileWritten(content=content):
                profile = content
    return Roster(dict(sorted(agents.items())), profile)


def aggregates(log: EventLog) -> Repository[Roster]:
    """Returns the repository of rosters, by user."""
    return Repository(log, KIND, fold, Roster())


class Rosters:
    """The users' rosters: read, and decided on by one channel (`actor`)."""

    def __init__(self, log: EventLog, *, actor: str) -> None:
        self._rosters = aggregates(log)
        self._actor = actor

    async def of(self, user: str) -> Roster:
        return await self._rosters.load(user)

    async def create(self, user: str, definition: Definition) -> None:
        """Creates an agent. Raises `Refused` if the name is taken, or if there are too many."""
        await self._rosters.decide(user, lambda roster: create(roster, definition), actor=self._actor)

    async def change(self, user: str, name: str, changes: Mapping[str, object]) -> Definition:
        """Changes the fields in `changes`, and returns the agent. Raises `NotFound`."""
        roster, _ = await self._rosters.decide(user, lambda roster: change(roster, name, changes), actor=self._actor)
        return known(roster, name)

    async def remove(self, user: str, name: str) -> None:
        """Removes an agent. Raises `NotFound`."""
        await self._rosters.decide(user, lambda roster: remove(roster, name), actor=self._actor)

    async def write_profile(self, user: str, content: str | None) -> None:
        """Replaces the user's profile."""

        def decide(roster: Roster) -> Sequence[Event]:
            return [] if roster.profile == content else [ProfileWritten(content=content)]

        await self._rosters.decide(user, decide, actor=self._actor)


def checked(name: str) -> str:
    """Returns the name of an agent in its stored form, lower case. Raises `Invalid`."""
    lower = name.lower()
    if not _NAME.fullmatch(lower):
        raise Invalid(f"name: 1 to 64 of A-Z a-z 0-9 and -, got {name[:40]!r}")
    return lower


def create(roster: Roster, definition: Definition) -> list[Event]:
    """Returns the events of a new agent. Raises `Refused` if the name is taken, or if there are too many."""
    if definition.name in roster.agents:
        raise Refused(f"Agent {definition.name} already exists")
    if len(roster.agents) >= MOST:
        raise Refused(f"there are {MOST} agents already; remove one first")
    return [_defined(definition)]


def change(roster: Roster, name: str, changes: Mapping[str, object]) -> list[Event]:
    """Returns the events that change the fields in `changes`. Raises `NotFound`."""
    before = known(roster, name)
    after = msgspec.structs.replace(before, **changes)
    return [] if after == before else [_defined(after)]


def remove(roster: Roster, name: str) -> list[Event]:
    """Returns the events that remove an agent. Raises `NotFound`."""
    return [AgentRemoved(name=known(roster, name).name)]


def known(roster: Roster, name: str) -> Definition:
    if name not in roster.agents:
        raise NotFound(f"Agent {name} not found")
    return roster.agents[name]


def _defined(definition: Definition) -> Event:
    return AgentDefined(**msgspec.structs.asdict(definition))
