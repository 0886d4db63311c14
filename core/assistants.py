"""Assistants: the agent under a name, with the settings its runs begin with; one user's own, as a fold over its facts.

The agents that come with the server are assistants too, everybody's and unchangeable; those are not in the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from core.events import Event, Json, Record, RunRequested
from core.ids import assistant_id
from core.log import EventLog
from core.repository import Repository

KIND = "assistants"
DEFAULT = "lead_agent"
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
