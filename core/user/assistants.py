"""Assistants: an agent under a name, with settings for its runs. A user's own assistants are a fold over their events.

The server's agents are assistants, too: immutable, common to all users, and not in the log.
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
from core.phrases import Phrase
from core.user.agents import Rosters

KIND = "assistants"
DEFAULT = "lead_agent"
BY_USER: Json = {"created_by": "user"}
MOST_ASSISTANTS = 1000
"""Limit of assistants of a user."""
MOST_VERSIONS = 100
"""Limit of versions of an assistant."""
BUILT_IN_SINCE = "2026-01-01T00:00:00.000000+00:00"
"""Creation time of assistants that are in no log: arbitrary, but the same on every replica."""
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
"""Context keys that identify the caller and the thread: only the server sets them, no client and no assistant."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A version of an assistant. `graph_id` names the agent of its runs."""

    graph_id: str = DEFAULT
    name: str = "Untitled"
    description: str | None = None
    config: Json = {}
    context: Json = {}
    metadata: Json = {}


class AssistantCreated(Event, frozen=True):
    """A user created an assistant; this is its version 1."""

    phrase = Phrase("Assistant created", "助手已创建", "{assistant}: {settings.name}")
    assistant: str
    settings: Settings


class AssistantRevised(Event, frozen=True):
    """The assistant has a new version, which is in force from here on."""

    phrase = Phrase("Assistant changed", "助手已修改", "{assistant}: {settings.name}")
    assistant: str
    settings: Settings


class AssistantReverted(Event, frozen=True):
    """Another version (counted from 1) is in force from here on."""

    phrase = Phrase(
        "Version of an assistant restored",
        "助手版本已恢复",
        "{assistant}: version {number} is in force",
        "{assistant}：版本 {number} 生效",
    )
    assistant: str
    number: int


class AssistantRemoved(Event, frozen=True):
    """The assistant was removed, with all its versions. Its runs stay as they are."""

    phrase = Phrase("Assistant removed", "助手已移除", "{assistant}")
    assistant: str


class Version(msgspec.Struct, frozen=True):
    settings: Settings
    at: str


class Assistant(msgspec.Struct, frozen=True, kw_only=True):
    """The current state of an assistant."""

    id: str
    versions: tuple[Version, ...]
    current: int = 1
    """The version in force, counted from 1."""
    updated_at: str
    own: bool = True
    """True if it is in its user's log, False if it is common to all users."""

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
"""A user's own assistants by id, oldest first."""


def built_in(settings: Settings) -> Assistant:
    """Returns the assistant of an agent that is in no log."""
    return Assistant(
        id=assistant_id(settings.name),
        versions=(Version(settings, BUILT_IN_SINCE),),
        updated_at=BUILT_IN_SINCE,
        own=False,
    )


def fold(records: Iterable[Record], state: Assistants) -> Assistants:
    """Returns the assistants after these records. Pure and total."""
    by_id = dict(state)
    for record in records:
        match record.event:
            case AssistantCreated(assistant=identity, settings=settings):
                by_id[identity] = Assistant(id=identity, versions=(Version(settings, record.at),), updated_at=record.at)
            case AssistantRevised(assistant=identity, settings=settings) if identity in by_id:
                versions = (*by_id[identity].versions, Version(settings, record.at))
                by_id[identity] = msgspec.structs.replace(
                    by_id[identity], versions=versions, current=len(versions), updated_at=record.at
                )
            case AssistantReverted(assistant=identity, number=number) if identity in by_id:
                if 1 <= number <= len(by_id[identity].versions):
                    by_id[identity] = msgspec.structs.replace(by_id[identity], current=number, updated_at=record.at)
            case AssistantRemoved(assistant=identity):
                by_id.pop(identity, None)
    return by_id


def aggregates(log: EventLog) -> Repository[Assistants]:
    """Returns the repository of the users' assistants, by user."""
    return Repository(log, KIND, fold, {})


class Catalog:
    """The assistants of runs: the server's agents (`described`: name → description), the users' custom agents (while
    `custom` returns True), and their own assistants. `actor` decides on these.
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
        """Returns an agent of the server, by name or id."""
        return self._by_name.get(name)

    async def of_user(self, user: str) -> Sequence[Assistant]:
        """Returns the server's agents, the user's custom agents, then the user's own assistants."""
        own = await self._own.load(user)
        return [*self.built_in, *await self._custom(user), *own.values()]

    async def resolve(self, user: str, name: str | None) -> Assistant:
        """Returns the assistant with an id, or with the name of an agent; without a name, the default. `My_Agent` is
        `my-agent` (as in DeerFlow).

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
        """Creates the assistant if needed. Returns it, and whether it is new. Raises `Refused` at too many."""
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
            assistant = _existing(own, identity)
            if len(assistant.versions) >= MOST_VERSIONS:
                raise Refused(f"Assistant {identity} has {MOST_VERSIONS} versions already")
            return [AssistantRevised(assistant=identity, settings=change(assistant.settings))]

        return (await self._own.decide(user, decide, actor=self._actor))[0][identity]

    async def revert(self, user: str, identity: str, number: int) -> Assistant:
        """Puts a version in force. Raises `NotFound`."""

        def decide(own: Assistants) -> Sequence[Event]:
            assistant = _existing(own, identity)
            if not 1 <= number <= len(assistant.versions):
                raise NotFound(f"Assistant {identity} has no version {number}")
            return [] if assistant.current == number else [AssistantReverted(assistant=identity, number=number)]

        return (await self._own.decide(user, decide, actor=self._actor))[0][identity]

    async def remove(self, user: str, identity: str) -> None:
        """Removes an assistant of the user's, if it exists."""

        def decide(own: Assistants) -> Sequence[Event]:
            return [AssistantRemoved(assistant=identity)] if identity in own else []

        await self._own.decide(user, decide, actor=self._actor)

    async def _custom(self, user: str) -> Sequence[Assistant]:
        """Returns the user's custom agents as assistants of the lead agent, with `agent_name` in their context."""
        if not self._custom_allowed():
            return ()
        roster = await self._rosters.of(user)
        return [
            built_in(Settings(name=name, description=agent.description, context={"agent_name": name}, metadata=BY_USER))
            for name, agent in roster.agents.items()
        ]


def _existing(own: Assistants, identity: str) -> Assistant:
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
    """Returns the request with its assistant's settings as defaults.

    `config` (and `config.configurable`), `context` and `metadata` are merged key by key. The assistant's `configurable`
    counts as context, as the request's does.
    """
    settings = assistant.settings
    configurable = _mapping(settings.config.get("configurable"))
    config = {key: value for key, value in settings.config.items() if key != "context"} | request.config
    if configurable:
        config["configurable"] = {**configurable, **_mapping(request.config.get("configurable"))}
    context = {**configurable, **_mapping(settings.config.get("context")), **settings.context}
    return msgspec.structs.replace(
        request,
        assistant=assistant.id if assistant.own else assistant.name,
        config=config,
        context={key: value for key, value in context.items() if key not in NOT_FROM_CLIENTS} | request.context,
        metadata={key: value for key, value in settings.metadata.items() if key != "created_by"} | request.metadata,
    )


def _mapping(value: object) -> Json:
    return value if isinstance(value, dict) else {}
