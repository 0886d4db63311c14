"""Assistants: the agent under a name, with the settings its runs begin with; one user's own, as a fold over its facts.

The agents that come with the server are assistants too, everybody's and unchangeable; those are not in the log.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from core.errors import Invalid, NotFound, Refused
from core.events import Event, Json, Record, RunRequested
from core.ids import assistant_id
from core.log.repository import Repository
from core.log.store import EventLog
from core.user.agents import Rosters

KIND = "assistants"
DEFAULT = "lead_agent"
BY_USER: Json = {"created_by": "user"}
MOST_ASSISTANTS = 1000
"""Of one user."""
MOST_VERSIONS = 100
"""Of one assistant."""
BUILT_IN_SINCE = "2026-01-01T00:00:00.000000+00:00"
"""When assistants that are in no log were made: any moment, the same on every replica."""
NOT_FROM_CLIENTS = frozenset(
    {
        "thread_id",
        "run_id",
        "checkpoint_id",
        "checkpoint_ns",
        "user_id",
        "is_internal",
        "authz_attributes",
        "channel_user_id",
    }
)
"""Context keys that say who asks and where: the server's word, never a client's, nor an assistant's."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a version of an assistant says. `graph_id` names the agent that does its runs."""

    graph_id: str = DEFAULT
    name: str = "Untitled"
    description: str | None = None
    config: Json = {}
    context: Json = {}
    metadata: Json = {}


class AssistantCreated(Event, frozen=True):
    """A user has an assistant of their own from here on; this is its version 1."""

    assistant: str
    settings: Settings


class AssistantRevised(Event, frozen=True):
    """The assistant has one version more, and it is the one in force."""

    assistant: str
    settings: Settings


class AssistantReverted(Event, frozen=True):
    """An older version (counted from 1) is in force again, or a newer one is."""

    assistant: str
    number: int


class AssistantRemoved(Event, frozen=True):
    """The assistant is gone, with all its versions. Runs that were asked of it stay as they are."""

    assistant: str


class Version(msgspec.Struct, frozen=True):
    settings: Settings
    at: str


class Assistant(msgspec.Struct, frozen=True, kw_only=True):
    """An assistant as it is now."""

    id: str
    versions: tuple[Version, ...]
    current: int = 1
    """The version in force, counted from 1."""
    updated_at: str
    own: bool = True
    """Whether it is in its user's log, and not the same for everybody."""

    @property
    def settings(self) -> Settings:
        return self.versions[self.current - 1].settings

    @property
    def graph_id(self) -> str:
        return self.settings.graph_id

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def created_at(self) -> str:
        return self.versions[0].at


Assistants = Mapping[str, Assistant]
"""A user's own by id, oldest first."""


def built_in(settings: Settings) -> Assistant:
    """An agent without anybody's settings."""
    return Assistant(
        id=assistant_id(settings.name),
        versions=(Version(settings, BUILT_IN_SINCE),),
        updated_at=BUILT_IN_SINCE,
        own=False,
    )


def fold(records: Iterable[Record], state: Assistants) -> Assistants:
    """The assistants after these records. Pure and total."""
    found = dict(state)
    for record in records:
        match record.event:
            case AssistantCreated(assistant=one, settings=settings):
                found[one] = Assistant(id=one, versions=(Version(settings, record.at),), updated_at=record.at)
            case AssistantRevised(assistant=one, settings=settings) if one in found:
                versions = (*found[one].versions, Version(settings, record.at))
                found[one] = msgspec.structs.replace(
                    found[one], versions=versions, current=len(versions), updated_at=record.at
                )
            case AssistantReverted(assistant=one, number=number) if one in found:
                if 1 <= number <= len(found[one].versions):
                    found[one] = msgspec.structs.replace(found[one], current=number, updated_at=record.at)
            case AssistantRemoved(assistant=one):
                found.pop(one, None)
    return found


def aggregates(log: EventLog) -> Repository[Assistants]:
    """The users' assistants, by user."""
    return Repository(log, KIND, fold, {})


class Catalog:
    """All that runs can be asked of: the server's agents (`described`: name → description), the users' custom agents
    (while `custom` says so), and their own assistants. `actor` decides on these.
    """

    def __init__(
        self,
        log: EventLog,
        described: Mapping[str, str],
        rosters: Rosters,
        custom: Callable[[], bool],
        *,
        actor: str,
    ) -> None:
        self.built_in = [
            built_in(Settings(graph_id=name, name=name, description=text, metadata={"created_by": "system"}))
            for name, text in described.items()
        ]
        self._by_name = {key: agent for agent in self.built_in for key in (agent.name, agent.id)}
        self._rosters = rosters
        self._custom_allowed = custom
        self._own = aggregates(log)
        self._actor = actor

    @property
    def default(self) -> Assistant:
        return self._by_name[DEFAULT]

    def find(self, name: str) -> Assistant | None:
        """An agent of the server, by name or id."""
        return self._by_name.get(name)

    async def of_user(self, user: str) -> Sequence[Assistant]:
        """All that the user has: the server's, the user's custom agents, then the user's own assistants."""
        own = await self._own.load(user)
        return [*self.built_in, *await self._custom(user), *own.values()]

    async def resolve(self, user: str, name: str | None) -> Assistant:
        """By id (or name, where it is the name of an agent); the default if nothing is named. `My_Agent` is `my-agent`
        (contract runtime §1).

        Raises `NotFound` for an unknown id, `Invalid` for an unknown name.
        """
        if agent := self.find(name or DEFAULT):
            return agent
        text = str(name)
        normal = text.strip().lower().replace("_", "-")
        for custom in await self._custom(user):
            if text == custom.id or normal == custom.name:
                return custom
        own = await self._own.load(user)
        return own.get(text.lower()) or _unknown(text)

    async def create(self, user: str, identity: str, settings: Settings) -> tuple[Assistant, bool]:
        """Makes the assistant exist. Returns it, and whether it is new. Raises `Refused` if there are too many."""
        if agent := self.find(identity):
            return agent, False

        def decide(own: Assistants) -> Sequence[Event]:
            if identity in own:
                return []
            if len(own) >= MOST_ASSISTANTS:
                raise Refused(f"at most {MOST_ASSISTANTS} assistants")
            return [AssistantCreated(assistant=identity, settings=settings)]

        own, records = await self._own.decide(user, decide, actor=self._actor)
        return own[identity], bool(records)

    async def revise(self, user: str, identity: str, change: Callable[[Settings], Settings]) -> Assistant:
        """Adds a version and puts it in force. Raises `NotFound`, and `Refused` if there are too many."""

        def decide(own: Assistants) -> Sequence[Event]:
            assistant = _known(own, identity)
            if len(assistant.versions) >= MOST_VERSIONS:
                raise Refused(f"Assistant {identity} has {MOST_VERSIONS} versions already")
            return [AssistantRevised(assistant=identity, settings=change(assistant.settings))]

        return (await self._own.decide(user, decide, actor=self._actor))[0][identity]

    async def revert(self, user: str, identity: str, number: int) -> Assistant:
        """Puts a version in force. Raises `NotFound`."""

        def decide(own: Assistants) -> Sequence[Event]:
            assistant = _known(own, identity)
            if not 1 <= number <= len(assistant.versions):
                raise NotFound(f"Assistant {identity} has no version {number}")
            return [] if assistant.current == number else [AssistantReverted(assistant=identity, number=number)]

        return (await self._own.decide(user, decide, actor=self._actor))[0][identity]

    async def remove(self, user: str, identity: str) -> None:
        """Removes an assistant of the user's; one that is not there is fine too."""

        def decide(own: Assistants) -> Sequence[Event]:
            return [AssistantRemoved(assistant=identity)] if identity in own else []

        await self._own.decide(user, decide, actor=self._actor)

    async def _custom(self, user: str) -> Sequence[Assistant]:
        """The user's custom agents: each is an assistant of the lead agent with `agent_name` in its context."""
        if not self._custom_allowed():
            return ()
        roster = await self._rosters.of(user)
        return [
            built_in(Settings(name=name, description=agent.description, context={"agent_name": name}, metadata=BY_USER))
            for name, agent in roster.agents.items()
        ]


def _known(own: Assistants, identity: str) -> Assistant:
    if identity not in own:
        raise NotFound(f"Assistant {identity} not found")
    return own[identity]


def _unknown(name: str) -> Assistant:
    try:
        uuid.UUID(name)
    except ValueError:
        raise Invalid(f"assistant_id: no assistant {name[:80]!r}") from None
    raise NotFound(f"Assistant {name} not found")


def applied(assistant: Assistant, request: RunRequested) -> RunRequested:
    """The request, with what its assistant says wherever the request itself says nothing.

    Merged are `config` (and `config.configurable`), `context` and `metadata`, key by key. The assistant's
    `configurable` counts as context, as the request's does.
    """
    said = assistant.settings
    configurable = _mapping(said.config.get("configurable"))
    config = {key: value for key, value in said.config.items() if key != "context"} | request.config
    if configurable:
        config["configurable"] = {**configurable, **_mapping(request.config.get("configurable"))}
    context = {**configurable, **_mapping(said.config.get("context")), **said.context}
    return msgspec.structs.replace(
        request,
        assistant=assistant.id if assistant.own else assistant.name,
        config=config,
        context={key: value for key, value in context.items() if key not in NOT_FROM_CLIENTS} | request.context,
        metadata={key: value for key, value in said.metadata.items() if key != "created_by"} | request.metadata,
    )


def _mapping(value: object) -> Json:
    return value if isinstance(value, dict) else {}
