"""Your memory, as DeerFlow's document of it: to see, to change, to export, to forget."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from channels.http.endpoints.call import Call, OwnedThread
from channels.http.endpoints.endpoint import Routes
from channels.http.server.errors import BadRequest
from channels.http.server.routes import API
from core.errors import Invalid, NotFound
from core.events import Event, Json, Message
from core.ids import now
from core.log.repository import Decision
from core.memory import facts
from core.memory.conversation import plain
from core.memory.document import document, parsed
from core.memory.facts import MANUAL, Fact, FactRemembered, FactRevised, Memory
from core.memory.inject import agent_of, refs_of
from core.thread.state import ThreadState
from core.thread.turns import conversation, index_of, run_of
from core.user import agents

AgentName = Annotated[
    str | None,
    msgspec.Meta(pattern="^[A-Za-z0-9-]{0,64}$"),
    "Of this custom agent; without a name, of the default agent",
]
Text = Annotated[str, msgspec.Meta(max_length=10_000)]
Category = Annotated[str, msgspec.Meta(max_length=100)]


class Section(msgspec.Struct):
    summary: str
    updatedAt: str


class UserSections(msgspec.Struct):
    workContext: Section
    personalContext: Section
    topOfMind: Section


class HistorySections(msgspec.Struct):
    recentMonths: Section
    earlierContext: Section
    longTermBackground: Section


class MemoryFact(msgspec.Struct, omit_defaults=True):
    """`source`: a thread's id, `manual` or `unknown`. `sourceEvent`: the sequence in the log of that thread."""

    id: str
    content: str
    category: str
    confidence: float
    createdAt: str
    source: str
    sourceError: str | UnsetType = UNSET
    sourceRun: str | UnsetType = UNSET
    sourceMessage: str | UnsetType = UNSET
    sourceEvent: int | UnsetType = UNSET
    keywords: list[str] | UnsetType = UNSET
    replaces: list[str] | UnsetType = UNSET


class MemoryDocument(msgspec.Struct):
    """A memory as DeerFlow's `memory.json`."""

    version: str
    lastUpdated: str
    user: UserSections
    history: HistorySections
    facts: list[MemoryFact]


class NewFact(msgspec.Struct):
    content: Text
    category: Category = "context"
    confidence: float = 0.5


class ChangeFact(msgspec.Struct):
    content: Text | UnsetType = UNSET
    category: Category | UnsetType = UNSET
    confidence: float | UnsetType = UNSET


class MemorySource(msgspec.Struct):
    """`link`: the messages of the run, `event`: the sequence of the event in the log of the thread."""

    fact_id: str
    source: str
    run_id: str | None = None
    event: int | None = None
    link: str | None = None
    message: str | None = None


class MemoryConfig(msgspec.Struct):
    enabled: bool
    injection_enabled: bool
    debounce_seconds: float
    max_facts: int
    fact_confidence_threshold: float
    max_injection_tokens: int
    mode: str
    order: str
    storage_path: str = ""
    manager_class: str = "deermem"
    backend_config: Json = {}


class MemoryStatus(msgspec.Struct):
    """`former`: texts of former versions, by reference. `failed`: conversations that could not be read, and why."""

    config: MemoryConfig
    data: MemoryDocument
    former: dict[str, str]
    failed: dict[str, str]


class MemorySettings(msgspec.Struct, forbid_unknown_fields=True):
    """`in_groups`: in groups of chat platforms, your memory goes into the prompt when it is you who writes. It is about
    all your agents, and off until you set it.
    """

    in_groups: bool


class RecalledFact(msgspec.Struct):
    """`ref`: names a version of a fact or summary. `text`: null if it was forgotten."""

    ref: str
    text: str | None


class RecalledRun(msgspec.Struct):
    """What an agent was told of your memory with a message. `agent`: whose memory; null for the default agent's."""

    run_id: str | None
    message_id: str
    agent: str | None
    facts: list[RecalledFact]


class RecalledRuns(msgspec.Struct):
    runs: list[RecalledRun]


ROUTES = Routes(mounts=API)
_READ, _WRITE = "memory:read", "memory:write"


@ROUTES("GET", "/memory", _READ)
async def get(call: Call, *, agent: AgentName = None) -> MemoryDocument:
    """Your memory."""
    return _document(await _memory(call, agent))


@ROUTES("POST", "/memory/reload", _READ)
async def reload(call: Call, *, agent: AgentName = None) -> MemoryDocument:
    """Your memory. There is nothing to reload: it is always current."""
    return _document(await _memory(call, agent))


@ROUTES("GET", "/memory/export", _READ)
async def export(call: Call, *, agent: AgentName = None) -> MemoryDocument:
    """The document that `import` takes."""
    return _document(await _memory(call, agent))


@ROUTES("POST", "/memory/import", _WRITE, errors=(409,))
async def import_(call: Call, body: Json, *, agent: AgentName = None) -> MemoryDocument:
    """Replace what is remembered by a document, also by a `memory.json` of DeerFlow as it is."""
    at = now()
    entries, summaries = parsed(body, at)
    return await _decided(call, agent, lambda memory: facts.imported(memory, entries, summaries, at))


@ROUTES("DELETE", "/memory", _WRITE)
async def clear(call: Call, *, agent: AgentName = None) -> MemoryDocument:
    """Forget everything, for good. Conversations stay, and are not read again."""
    return await _decided(call, agent, facts.cleared)


@ROUTES("POST", "/memory/facts", _WRITE, errors=(400, 409))
async def add(call: Call, body: NewFact, *, agent: AgentName = None) -> MemoryDocument:
    """Add a fact in your own words."""
    at = now()
    fact = _valid_fact(Fact(id="", created_at=at, seen_at=at, source=MANUAL, **msgspec.structs.asdict(body)))

    def decide(memory: Memory) -> list[Event]:
        if facts.twin(memory, fact.content) is not None:
            return []
        return [FactRemembered(fact=msgspec.structs.replace(fact, id=facts.fact_id(memory, MANUAL, at, fact.content)))]

    return await _decided(call, agent, decide)


@ROUTES("PATCH", "/memory/facts/{fact_id}", _WRITE, errors=(400, 404))
async def change(call: Call, fact_id: str, body: ChangeFact, *, agent: AgentName = None) -> MemoryDocument:
    """Change a fact; what is left out stays."""
    changes = {name: value for name, value in msgspec.structs.asdict(body).items() if value is not UNSET}

    def decide(memory: Memory) -> list[Event]:
        before = _known(memory, fact_id)
        after = _valid_fact(msgspec.structs.replace(before, **changes))
        if after == before:
            return []
        return [FactRevised(fact=msgspec.structs.replace(after, version=before.version + 1))]

    return await _decided(call, agent, decide)


@ROUTES("DELETE", "/memory/facts/{fact_id}", _WRITE, errors=(404,))
async def forget(call: Call, fact_id: str, *, agent: AgentName = None) -> MemoryDocument:
    """Forget a fact for good, with all that it replaced, and each summary that quotes it."""
    return await _decided(call, agent, lambda memory: facts.forgotten(memory, fact_id))


@ROUTES("GET", "/memory/facts/{fact_id}/source", _READ, errors=(404,))
async def source(call: Call, fact_id: str, *, agent: AgentName = None) -> MemorySource:
    """The message that a fact is from. `message` is null if the conversation has gone."""
    fact = _known(await _memory(call, agent), fact_id)
    if fact.run is None or fact.message is None:
        return MemorySource(fact.id, fact.source)
    try:
        state = await call.services.commands.state(call.user, fact.source)
        messages = conversation(state, fact.message)
        text = plain(messages[index_of(messages, fact.message)])
    except (NotFound, Invalid):
        return MemorySource(fact.id, fact.source)
    link = f"/api/threads/{fact.source}/runs/{fact.run}/messages"
    return MemorySource(fact.id, fact.source, fact.run, fact.event, link, text)


@ROUTES("GET", "/threads/{thread_id}/memory", "memory:read threads:read")
async def recalled(call: Call, thread: OwnedThread) -> RecalledRuns:
    """What the agents of a conversation were told of your memory, by run."""
    messages = [message for message in thread.state.messages if refs_of(message.get("additional_kwargs"))]
    memories = {
        agent: await _memory(call, agent) for agent in {agent_of(each.get("additional_kwargs")) for each in messages}
    }
    return RecalledRuns([_recalled(thread.state, message, memories) for message in messages])


@ROUTES("GET", "/memory/config", _READ)
async def get_config(call: Call) -> MemoryConfig:
    """The settings of memories."""
    return _config(call)


@ROUTES("GET", "/memory/settings", _READ)
async def get_settings(call: Call) -> MemorySettings:
    """Your own settings of your memory."""
    return MemorySettings((await _memory(call, None)).in_groups)


@ROUTES("PUT", "/memory/settings", _WRITE)
async def set_settings(call: Call, body: MemorySettings) -> MemorySettings:
    """Set whether your memory goes into your turns in groups of chat platforms, from your next message there on."""
    decide = partial(facts.set_for_groups, in_groups=body.in_groups, by=call.user)
    memory = await call.services.memories.decide(facts.memory_id(call.user, None), decide)
    return MemorySettings(memory.in_groups)


@ROUTES("GET", "/memory/status", _READ)
async def status(call: Call, *, agent: AgentName = None) -> MemoryStatus:
    """The settings, the document, texts of former facts that replays need, and conversations that could not be read."""
    memory = await _memory(call, agent)
    failed = {event.thread: event.reason for event in memory.failed.values()}
    return MemoryStatus(_config(call), _document(memory), dict(memory.former), failed)


def _recalled(state: ThreadState, message: Message, memories: Mapping[str | None, Memory]) -> RecalledRun:
    identity, extra, run = str(message.get("id")), message.get("additional_kwargs"), None
    with suppress(NotFound):  # it is from before what is known of the thread's past
        run = run_of(state, identity)
    agent = agent_of(extra)
    return RecalledRun(run, identity, agent, [RecalledFact(ref, memories[agent].text(ref)) for ref in refs_of(extra)])


def _config(call: Call) -> MemoryConfig:
    settings = call.config.memory
    on = settings.enabled and bool(call.config.models)
    fields = {name: getattr(settings, name) for name in MemoryConfig.__struct_fields__ if hasattr(settings, name)}
    return MemoryConfig(**{**fields, "enabled": on, "mode": "tool" if settings.tools else "middleware"})


async def _memory(call: Call, agent: str | None) -> Memory:
    return await call.services.memories.of(call.user, _agent(agent))


def _agent(name: str | None) -> str | None:
    return None if name is None else agents.valid_name(name)


async def _decided(call: Call, agent: str | None, decision: Decision[Memory]) -> MemoryDocument:
    identity = facts.memory_id(call.user, _agent(agent))
    return _document(await call.services.memories.decide(identity, decision))


def _document(memory: Memory) -> MemoryDocument:
    return msgspec.convert(document(memory), MemoryDocument)


def _known(memory: Memory, identity: str) -> Fact:
    if identity not in memory.facts:
        raise NotFound(f"Fact {identity[:80]} not found")
    return memory.facts[identity]


def _valid_fact(fact: Fact) -> Fact:
    try:
        return facts.checked_fact(fact)
    except Invalid as error:
        raise BadRequest(str(error)) from None
