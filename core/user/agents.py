"""The agents a person has defined, and what they said of themselves: one aggregate per user."""

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
"""Agents of one user."""
_NAME = re.compile(r"[a-z0-9-]{1,64}")


class AgentDefined(Event, frozen=True):
    """A user's agent is this from here on: all of it, also what did not change."""

    name: str
    description: str = ""
    model: str | None = None
    """None: the default model."""
    tool_groups: list[str] | None = None
    """None: all tools."""
    skills: list[str] | None = None
    """None: all skills that are enabled."""
    soul: str | None = None
    """Its part of the system prompt."""


class AgentRemoved(Event, frozen=True):
    """The user's agent of this name is no more."""

    name: str


class ProfileWritten(Event, frozen=True):
    """What the user wants every agent to know of them, as Markdown. None: nothing."""

    content: str | None


class Definition(msgspec.Struct, frozen=True):
    """One agent."""

    name: str
    description: str = ""
    model: str | None = None
    tool_groups: Sequence[str] | None = None
    skills: Sequence[str] | None = None
    soul: str | None = None


class Roster(NamedTuple):
    """What one user has defined. Agents by name, in the order of their names."""

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
    """The users' rosters, by user."""
    return Repository(log, KIND, fold, Roster())


class Rosters:
    """The users' rosters: read, and decided on by one channel (`actor`)."""

    def __init__(self, log: EventLog, *, actor: str) -> None:
        self._rosters = aggregates(log)
        self._actor = actor

    async def of(self, user: str) -> Roster:
        return await self._rosters.load(user)

    async def create(self, user: str, definition: Definition) -> None:
        """Raises `Refused` if there is one of that name, or too many."""
        await self._rosters.decide(user, lambda roster: create(roster, definition), actor=self._actor)

    async def change(self, user: str, name: str, changes: Mapping[str, object]) -> Definition:
        """Changes only what is in `changes`; returns the agent as it is then. Raises `NotFound`."""
        roster, _ = await self._rosters.decide(user, lambda roster: change(roster, name, changes), actor=self._actor)
        return known(roster, name)

    async def remove(self, user: str, name: str) -> None:
        """Raises `NotFound`."""
        await self._rosters.decide(user, lambda roster: remove(roster, name), actor=self._actor)

    async def write_profile(self, user: str, content: str | None) -> None:
        """Writes what the user wants every agent to know of them."""

        def decide(roster: Roster) -> Sequence[Event]:
            return [] if roster.profile == content else [ProfileWritten(content=content)]

        await self._rosters.decide(user, decide, actor=self._actor)


def checked(name: str) -> str:
    """The name of an agent as it is kept, in lower case. Raises `Invalid`."""
    lower = name.lower()
    if not _NAME.fullmatch(lower):
        raise Invalid(f"name: 1 to 64 of A-Z a-z 0-9 and -, got {name[:40]!r}")
    return lower


def create(roster: Roster, wanted: Definition) -> list[Event]:
    """Raises `Refused` if there is one of that name, or too many."""
    if wanted.name in roster.agents:
        raise Refused(f"Agent {wanted.name} already exists")
    if len(roster.agents) >= MOST:
        raise Refused(f"there are {MOST} agents already; remove one first")
    return [_defined(wanted)]


def change(roster: Roster, name: str, changes: Mapping[str, object]) -> list[Event]:
    """Only what is in `changes`. Raises `NotFound`."""
    before = known(roster, name)
    after = msgspec.structs.replace(before, **changes)
    return [] if after == before else [_defined(after)]


def remove(roster: Roster, name: str) -> list[Event]:
    """Raises `NotFound`."""
    return [AgentRemoved(name=known(roster, name).name)]


def known(roster: Roster, name: str) -> Definition:
    if name not in roster.agents:
        raise NotFound(f"Agent {name} not found")
    return roster.agents[name]


def _defined(one: Definition) -> Event:
    return AgentDefined(**msgspec.structs.asdict(one))
