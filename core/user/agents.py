"""A user's custom agents and profile: one aggregate per user."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from core.errors import Invalid, NotFound, Refused
from core.events import Aggregate, Event, Record
from core.log.repository import Repository
from core.log.store import EventLog
from core.phrases import Phrase

KIND = "agents"
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""Efforts that some model knows."""
OPTIONS = ("thinking_enabled", "reasoning_effort", "is_plan_mode", "subagent_enabled")
"""Options of runs for which an agent can have a value of its own."""
MOST_VERSIONS = 200
MOST = 100
"""Limit of agents of a user."""
_NAME = re.compile(r"[a-z0-9-]{1,64}")


class AgentDefined(Event, frozen=True):
    """A user's agent has this definition from here on, with all its fields."""

    phrase = Phrase("Agent defined", "代理已定义", "{name}<: {description:short}>")
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
    mcp_servers: list[str] | None = None
    """None: all MCP servers that are enabled."""
    thinking_enabled: bool | None = None
    reasoning_effort: str | None = None
    is_plan_mode: bool | None = None
    subagent_enabled: bool | None = None
    """These four: options of its runs that say nothing else."""


class AgentRemoved(Event, frozen=True):
    """The user's agent of this name was removed."""

    phrase = Phrase("Agent removed", "代理已移除", "{name}")
    name: str


class ProfileWritten(Event, frozen=True):
    """The user's profile for all agents, as Markdown. None: it was removed."""

    phrase = Phrase("Profile written", "个人资料已写入", "{content:quote}")
    content: str | None


class Definition(msgspec.Struct, frozen=True):
    """A custom agent."""

    name: str
    description: str = ""
    model: str | None = None
    tool_groups: Sequence[str] | None = None
    skills: Sequence[str] | None = None
    soul: str | None = None
    mcp_servers: Sequence[str] | None = None
    thinking_enabled: bool | None = None
    reasoning_effort: str | None = None
    is_plan_mode: bool | None = None
    subagent_enabled: bool | None = None


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """A version of an agent; `version` is its sequence in the log. `agent` is None where it was removed."""

    version: int
    at: str
    by: str
    """The actor that recorded it."""
    agent: Definition | None
    changed: list[str]
    """The fields that differ from the version before."""


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

    async def take(self, user: str, definition: Definition, *, replace: bool) -> None:
        """Creates an imported agent. Raises `Refused` if the name is taken, unless it is to `replace` that one."""

        def decide(roster: Roster) -> Sequence[Event]:
            if replace and definition.name in roster.agents:
                return [] if roster.agents[definition.name] == definition else [_defined(definition)]
            return create(roster, definition)

        await self._rosters.decide(user, decide, actor=self._actor)

    async def history(self, user: str, name: str) -> list[Version]:
        """Returns the newest `MOST_VERSIONS` versions of an agent, the newest first. Raises `NotFound`."""
        newest = deque[Version](maxlen=MOST_VERSIONS)
        async for record in self._rosters.log.read(Aggregate(KIND, user)):
            if (version := _version(record, name, newest[-1].agent if newest else None)) is not None:
                newest.append(version)
        if not newest:
            raise NotFound(f"Agent {name} not found")
        return list(reversed(newest))

    async def rollback(self, user: str, name: str, version: int) -> Definition:
        """Makes an agent what it was in a version, also if it was removed meanwhile. Raises `NotFound`."""
        versions = {entry.version: entry.agent for entry in await self.history(user, name)}
        agent = versions.get(version)
        if agent is None:
            raise NotFound(f"Agent {name} has no version {version}")
        await self.take(user, agent, replace=True)
        return agent

    async def write_profile(self, user: str, content: str | None) -> None:
        """Replaces the user's profile."""

        def decide(roster: Roster) -> Sequence[Event]:
            return [] if roster.profile == content else [ProfileWritten(content=content)]

        await self._rosters.decide(user, decide, actor=self._actor)


TAKEN = frozenset(("check",))
"""Names that the routes of agents use."""


def valid_name(name: str) -> str:
    """Returns the name of an agent in its stored form, lower case. Raises `Invalid`."""
    lower = name.lower()
    if not _NAME.fullmatch(lower):
        raise Invalid(f"name: 1 to 64 of A-Z a-z 0-9 and -, got {name[:40]!r}")
    return lower


def create(roster: Roster, definition: Definition) -> list[Event]:
    """Returns the events of a new agent. Raises `Refused` if the name is taken, or if there are too many."""
    if definition.name in TAKEN:
        raise Refused(
            f"An agent cannot be called {definition.name}: GET /api/agents/{definition.name} is something else"
        )
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


def _version(record: Record, name: str, before: Definition | None) -> Version | None:
    """Returns the version that a record makes of an agent, None if it concerns another."""
    match record.event:
        case AgentDefined() as event if event.name == name:
            agent: Definition | None = Definition(**msgspec.structs.asdict(event))
        case AgentRemoved(name=removed) if removed == name:
            agent = None
        case _:
            return None
    fields = Definition.__struct_fields__ if agent and before else ()
    changed = [field for field in fields if getattr(agent, field) != getattr(before, field)]
    return Version(version=record.seq, at=record.head.at, by=record.head.actor, agent=agent, changed=changed)


def _defined(definition: Definition) -> Event:
    return AgentDefined(**msgspec.structs.asdict(definition))
