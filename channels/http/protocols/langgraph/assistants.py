"""Assistants: those that come with the server, and each user's own; addressed by id, the former by name too."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from channels.http.endpoints import shapes
from channels.http.endpoints.call import Call
from channels.http.endpoints.endpoint import Depends, Limit, Offset, Page, Routes
from channels.http.endpoints.listings import Order, has_all, page, sort
from channels.http.runs.json_limits import storable
from channels.http.runs.run_request import check_options, check_skills, model_names
from channels.http.server.live import Services
from core.errors import Invalid, NotFound, Refused
from core.events import Json
from core.ids import uuid7
from core.user.assistants import BY_USER, Assistant, Settings, Version

MOST_NAME = 200

_SCHEMA: Json = {
    "type": "object",
    "properties": {
        "messages": {"type": "array", "items": {"type": "object"}},
        "title": {"type": ["string", "null"]},
        "artifacts": {"type": "array", "items": {"type": "string"}},
    },
}
_GRAPH: Json = {
    "nodes": [
        {"id": name, "type": "runnable", "data": {"name": name}} for name in ("__start__", "model", "tools", "__end__")
    ],
    "edges": [
        {"source": "__start__", "target": "model"},
        {"source": "model", "target": "tools", "conditional": True},
        {"source": "tools", "target": "model"},
        {"source": "model", "target": "__end__", "conditional": True},
    ],
}


# ── what is asked and answered ───────────────────────────────────────────────────────────────────────────────────────


class CountBody(msgspec.Struct):
    """`name`: a part of it, in any case. `metadata`: what an assistant's must have, key by key."""

    graph_id: str | None = None
    name: str | None = None
    metadata: dict[str, Any] | None = None


class SearchBody(CountBody):
    limit: Limit = 10
    offset: Offset = 0
    sort_by: Literal["assistant_id", "graph_id", "name", "created_at", "updated_at"] | None = None
    sort_order: Order | None = None
    select: list[str] | None = None


class PatchBody(msgspec.Struct):
    """Changes of an assistant. Null leaves a field as it is; `metadata` is merged, other fields are replaced."""

    graph_id: str | None = None
    name: str | None = None
    description: str | None = None
    config: dict[str, Any] | None = None
    context: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None


class CreateBody(PatchBody):
    assistant_id: str | None = None
    if_exists: Literal["raise", "do_nothing"] | None = None


class VersionsBody(msgspec.Struct):
    metadata: dict[str, Any] | None = None
    limit: Limit = 10
    offset: Offset = 0


class LatestBody(msgspec.Struct):
    version: int


Shown = Annotated[Json, shapes.Assistant]


class Graph(msgspec.Struct):
    graph_id: str
    nodes: list[Json]
    edges: list[Json]


class Schemas(msgspec.Struct):
    graph_id: str
    input_schema: Json
    output_schema: Json
    state_schema: Json
    config_schema: Json
    context_schema: Json


# ── handlers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


ROUTES = Routes()
_ONE = "/assistants/{assistant_id}"
_READ, _WRITE = "assistants:read", "assistants:write"
Ignored = Annotated[str, "Changes nothing"]


async def _named(call: Call) -> Assistant:
    name = call.request.match_info["assistant_id"]
    try:
        return await call.services.assistants.resolve(call.user, name)
    except Invalid:
        raise NotFound(f"Assistant {name[:80]!r} not found") from None


async def _own(call: Call) -> Assistant:
    assistant = await _named(call)
    if not assistant.own:
        raise Refused(
            f"Assistant {assistant.id} is the agent {assistant.name} itself and cannot be changed; create one of it"
        )
    return assistant


Named = Annotated[Assistant, Depends(_named)]
"""By its id, or by the name of an agent."""
Own = Annotated[Assistant, Depends(_own, (400, 404, 409))]
"""One of the user's own, which can be changed."""


@ROUTES("POST", "/assistants/search", _READ)
async def search(call: Call, body: SearchBody) -> Page[Json]:
    """Find assistants: the server's first, then the user's own, oldest first, unless `sort_by` says otherwise."""
    assistants = [_object(assistant) for assistant in await _matching(call, body)]
    if body.sort_by is not None:
        sort(assistants, body.sort_by, "assistant_id", body)
    return page(assistants, body)


@ROUTES("POST", "/assistants/count", _READ)
async def count(call: Call, body: CountBody) -> int:
    """Count the assistants that match."""
    return len(await _matching(call, body))


@ROUTES("POST", "/assistants", _WRITE, errors=(400, 409))
async def create(call: Call, body: CreateBody) -> Shown:
    """Make an assistant of one's own: an agent of the server with settings under which its runs begin. What a run
    says itself goes before what its assistant says.
    """
    settings = _valid_settings(call, _changed(Settings(), body))
    await check_skills(call.services.skills, call.user, settings.config, settings.context)
    identity = str(_uuid(body.assistant_id)) if body.assistant_id is not None else uuid7()
    assistant, new = await call.services.assistants.create(call.user, identity, settings)
    if not new and body.if_exists != "do_nothing":
        raise Refused(f"Assistant {assistant.id} already exists")
    return _object(assistant)


@ROUTES("GET", _ONE, _READ)
async def get(named: Named) -> Shown:
    """One assistant, by its id, or by the name of an agent."""
    return _object(named)


@ROUTES("PATCH", _ONE, _WRITE)
async def patch(call: Call, own: Own, body: PatchBody) -> Shown:
    """Make a new version of an assistant of one's own, and put it in force."""

    def change(settings: Settings) -> Settings:
        return _valid_settings(call, _changed(settings, body))

    await check_skills(call.services.skills, call.user, body.config, body.context)
    return _object(await call.services.assistants.revise(call.user, own.id, change))


@ROUTES("DELETE", _ONE, _WRITE)
async def delete(
    call: Call,
    own: Own,
    *,
    delete_threads: Annotated[bool, "Erase the threads whose metadata name the assistant"] = False,
) -> None:
    """Remove an assistant of one's own, with all its versions. With `delete_threads` the threads whose metadata name
    it are erased as well.
    """
    if delete_threads:
        await _erase_threads(call.services, own.id, call.user)
    await call.services.assistants.remove(call.user, own.id)


@ROUTES("POST", f"{_ONE}/versions", _READ)
async def versions(named: Named, body: VersionsBody) -> Annotated[list[Json], list[shapes.AssistantVersion]]:
    """The versions of an assistant, newest first."""
    shown = [
        _version(named.id, number, version)
        for number, version in enumerate(named.versions, 1)
        if has_all(version.settings.metadata, body.metadata)
    ]
    return shown[::-1][body.offset : body.offset + body.limit]


@ROUTES("POST", f"{_ONE}/latest", _WRITE)
async def latest(call: Call, own: Own, body: LatestBody) -> Shown:
    """Put a version of an assistant of one's own in force."""
    return _object(await call.services.assistants.revert(call.user, own.id, body.version))


@ROUTES("GET", f"{_ONE}/graph", _READ)
async def graph(named: Named, *, xray: Ignored = "") -> Annotated[Json, Graph]:
    """The agent's loop as nodes and edges. It has no subgraphs: `xray` changes nothing."""
    return {"graph_id": named.graph_id, **_GRAPH}


@ROUTES("GET", f"{_ONE}/schemas", _READ)
async def schemas(named: Named) -> Schemas:
    """JSON Schemas of what goes into the agent and what it keeps."""
    return Schemas(named.graph_id, _SCHEMA, _SCHEMA, _SCHEMA, {}, {})


@ROUTES("GET", f"{_ONE}/subgraphs", _READ)
@ROUTES("GET", f"{_ONE}/subgraphs/{{namespace}}", _READ)
async def subgraphs(named: Named, *, recurse: Ignored = "") -> dict[str, Schemas]:
    """The schemas of the agent's subgraphs by namespace: there are none."""
    return {}


# ── how ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _matching(call: Call, filters: CountBody) -> Sequence[Assistant]:
    return [
        assistant
        for assistant in await call.services.assistants.of_user(call.user)
        if _fits(assistant.settings, filters)
    ]


async def _erase_threads(services: Services, identity: str, user: str) -> None:
    """The user's threads whose metadata name an assistant, a hundred at a time."""
    rows: Sequence[Any] = [None]
    while rows:
        await services.views.current()
        rows, _ = await services.views.search(user=user, metadata={"assistant_id": identity}, limit=100)
        for row in rows:
            await services.intake.erase(row.thread_id, by=user)


def _uuid(text: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError:
        raise Invalid("assistant_id: must be a UUID") from None


def _changed(settings: Settings, body: PatchBody) -> Settings:
    """The settings with what is asked for instead. Metadata is merged."""
    fields = {name: getattr(body, name) for name in PatchBody.__struct_fields__}
    changes = {name: value for name, value in fields.items() if value is not None}
    changes["metadata"] = {**BY_USER, **settings.metadata, **(body.metadata or {})}
    return msgspec.structs.replace(settings, **changes)


def _valid_settings(call: Call, settings: Settings) -> Settings:
    if settings.graph_id not in {agent.name for agent in call.services.assistants.built_in}:
        raise Invalid(f"graph_id: no agent {settings.graph_id[:80]!r}")
    if not 0 < len(settings.name) <= MOST_NAME:
        raise Invalid(f"name: 1 to {MOST_NAME} characters, got {len(settings.name)}")
    check_options(settings.config, settings.context, settings.metadata, model_names(call.config))
    for name in ("config", "context", "metadata", "description"):
        storable(getattr(settings, name), name)
    return settings


def _fits(settings: Settings, filters: CountBody) -> bool:
    return (
        filters.graph_id in (None, settings.graph_id)
        and (filters.name or "").lower() in settings.name.lower()
        and has_all(settings.metadata, filters.metadata)
    )


def _object(assistant: Assistant) -> Json:
    version = _version(assistant.id, assistant.current, assistant.versions[assistant.current - 1])
    return {**version, "created_at": assistant.created_at, "updated_at": assistant.updated_at}


def _version(identity: str, number: int, version: Version) -> Json:
    settings = msgspec.structs.asdict(version.settings)
    return {"assistant_id": identity, **settings, "version": number, "created_at": version.at}
