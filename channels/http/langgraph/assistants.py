"""Assistants: those that come with the server, and each user's own; addressed by id, the former by name too."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from aiohttp import web

from channels.http import live as alive
from channels.http import shapes
from channels.http.asked import check_options, model_names
from channels.http.bodies import body, flag, plain, within
from channels.http.kept import storable
from channels.http.listings import has_all, page, selected, sort
from channels.http.live import Live
from channels.http.routes import PAGING, Param, Route
from core.errors import Invalid, NotFound, Refused
from core.events import Json
from core.ids import uuid7
from core.user.assistants import BY_USER, Assistant, Settings, Version

MOST_NAME = 200
SORTABLE = ("assistant_id", "graph_id", "name", "created_at", "updated_at")

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
    limit: int = 10
    offset: int = 0
    sort_by: str | None = None
    sort_order: Literal["asc", "desc", "ASC", "DESC"] | None = None
    select: list[str] | None = None


class PatchBody(msgspec.Struct):
    """What is null or left out stays as it is; `metadata` is merged, the others are replaced."""

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
    limit: int = 10
    offset: int = 0


class LatestBody(msgspec.Struct):
    version: int


class AssistantVersion(msgspec.Struct):
    assistant_id: str
    graph_id: str
    name: str
    description: str | None
    config: Json
    context: Json
    metadata: Json
    version: int
    created_at: str


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


async def search(request: web.Request) -> web.Response:
    """Find assistants: the server's first, then the user's own, oldest first, unless `sort_by` says otherwise."""
    wanted = await body(request, SearchBody)
    limit, offset = within("limit", wanted.limit, 1, 1000), within("offset", wanted.offset, 0, 2**31)
    found = [_object(one) for one in await _all(request) if _fits(one.settings, wanted)]
    if wanted.sort_by is not None:
        sort(found, wanted.sort_by, "assistant_id", sortable=SORTABLE, order=wanted.sort_order)
    shown = [selected(one, wanted.select) for one in found[offset : offset + limit]]
    return page(shown, len(found), offset)


async def count(request: web.Request) -> web.Response:
    """How many assistants there are of the kind that is asked for."""
    wanted = await body(request, CountBody)
    return plain(sum(_fits(one.settings, wanted) for one in await _all(request)))


async def create(request: web.Request) -> web.Response:
    """Make an assistant of one's own: an agent of the server with settings under which its runs begin. What a run
    says itself goes before what its assistant says.
    """
    wanted = await body(request, CreateBody)
    settings = _checked(request, _changed(Settings(), wanted))
    identity = str(_uuid(wanted.assistant_id)) if wanted.assistant_id is not None else uuid7()
    catalog = alive.of(request).services.assistants
    one, new = await catalog.create(alive.user(request), identity, settings)
    if not new and wanted.if_exists != "do_nothing":
        raise Refused(f"Assistant {one.id} already exists")
    return plain(_object(one))


async def get(request: web.Request) -> web.Response:
    """One assistant, by its id, or by the name of an agent."""
    return plain(_object(await _named(request)))


async def patch(request: web.Request) -> web.Response:
    """Make a new version of an assistant of one's own, and put it in force."""
    one, wanted = await _mine(request), await body(request, PatchBody)

    def change(settings: Settings) -> Settings:
        return _checked(request, _changed(settings, wanted))

    catalog = alive.of(request).services.assistants
    return plain(_object(await catalog.revise(alive.user(request), one.id, change)))


async def delete(request: web.Request) -> web.Response:
    """Remove an assistant of one's own, with all its versions. With `delete_threads` the threads whose metadata name
    it are erased as well.
    """
    live, one, user = alive.of(request), await _mine(request), alive.user(request)
    if flag(request, "delete_threads"):
        await _erase_threads(live, one.id, user)
    await live.services.assistants.remove(user, one.id)
    return web.Response(status=204)


async def versions(request: web.Request) -> web.Response:
    """The versions of an assistant, newest first."""
    one, wanted = await _named(request), await body(request, VersionsBody)
    limit, offset = within("limit", wanted.limit, 1, 1000), within("offset", wanted.offset, 0, 2**31)
    found = [
        _version(one.id, number, version)
        for number, version in enumerate(one.versions, 1)
        if has_all(version.settings.metadata, wanted.metadata)
    ]
    return plain(found[::-1][offset : offset + limit])


async def latest(request: web.Request) -> web.Response:
    """Put a version of an assistant of one's own in force."""
    one, wanted = await _mine(request), await body(request, LatestBody)
    catalog = alive.of(request).services.assistants
    return plain(_object(await catalog.revert(alive.user(request), one.id, wanted.version)))


async def graph(request: web.Request) -> web.Response:
    """The agent's loop as nodes and edges. It has no subgraphs: `xray` changes nothing."""
    return plain({"graph_id": (await _named(request)).graph_id, **_GRAPH})


async def schemas(request: web.Request) -> web.Response:
    """JSON Schemas of what goes into the agent and what it keeps."""
    kinds = ("input_schema", "output_schema", "state_schema")
    empty: Json = {"config_schema": {}, "context_schema": {}}
    return plain({"graph_id": (await _named(request)).graph_id, **dict.fromkeys(kinds, _SCHEMA), **empty})


async def subgraphs(request: web.Request) -> web.Response:
    """The schemas of the agent's subgraphs by namespace: there are none."""
    await _named(request)
    return plain({})


# ── how ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _all(request: web.Request) -> Sequence[Assistant]:
    return await alive.of(request).services.assistants.of_user(alive.user(request))


async def _erase_threads(live: Live, identity: str, user: str) -> None:
    """The user's threads whose metadata name an assistant, a hundred at a time."""
    rows: Sequence[Any] = [None]
    while rows:
        await live.services.views.current()
        rows, _ = await live.services.views.search(user=user, metadata={"assistant_id": identity}, limit=100)
        for row in rows:
            await live.services.intake.erase(row.thread_id, by=user)


async def _named(request: web.Request) -> Assistant:
    name = request.match_info["assistant_id"]
    try:
        return await alive.of(request).services.assistants.resolve(alive.user(request), name)
    except Invalid:
        raise NotFound(f"Assistant {name[:80]!r} not found") from None


async def _mine(request: web.Request) -> Assistant:
    one = await _named(request)
    if not one.own:
        raise Refused(f"Assistant {one.id} is the agent {one.name} itself and cannot be changed; create one of it")
    return one


def _uuid(text: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError:
        raise Invalid("assistant_id: must be a UUID") from None


def _changed(settings: Settings, wanted: PatchBody) -> Settings:
    """The settings with what is asked for instead. Metadata is merged."""
    said = {name: getattr(wanted, name) for name in PatchBody.__struct_fields__}
    changes = {name: value for name, value in said.items() if value is not None}
    changes["metadata"] = {**BY_USER, **settings.metadata, **(wanted.metadata or {})}
    return msgspec.structs.replace(settings, **changes)


def _checked(request: web.Request, settings: Settings) -> Settings:
    services = alive.of(request).services
    if settings.graph_id not in {one.name for one in services.assistants.built_in}:
        raise Invalid(f"graph_id: no agent {settings.graph_id[:80]!r}")
    if not 0 < len(settings.name) <= MOST_NAME:
        raise Invalid(f"name: 1 to {MOST_NAME} characters, got {len(settings.name)}")
    check_options(settings.config, settings.context, model_names(services.config()))
    for name in ("config", "context", "metadata", "description"):
        storable(getattr(settings, name), name)
    return settings


def _fits(settings: Settings, wanted: CountBody) -> bool:
    return (
        wanted.graph_id in (None, settings.graph_id)
        and (wanted.name or "").lower() in settings.name.lower()
        and has_all(settings.metadata, wanted.metadata)
    )


def _object(one: Assistant) -> Json:
    version = _version(one.id, one.current, one.versions[one.current - 1])
    return {**version, "created_at": one.created_at, "updated_at": one.updated_at}


def _version(identity: str, number: int, version: Version) -> Json:
    settings = msgspec.structs.asdict(version.settings)
    return {"assistant_id": identity, **settings, "version": number, "created_at": version.at}


_A = "/assistants/{assistant_id}"
_READ: Any = {"errors": (404,), "scope": "assistants:read"}
_WRITE: Any = {"errors": (400, 404, 409), "scope": "assistants:write"}
_DELETE_THREADS = Param("delete_threads", bool, "Erase the threads whose metadata name the assistant")
_XRAY, _RECURSE = Param("xray", text="Changes nothing"), Param("recurse", text="Changes nothing")
ROUTES = (
    Route("POST", "/assistants/search", search, {200: list[Json]}, SearchBody, headers=PAGING, scope="assistants:read"),
    Route("POST", "/assistants/count", count, {200: int}, CountBody, scope="assistants:read"),
    Route(
        "POST", "/assistants", create, {200: shapes.Assistant}, CreateBody, errors=(400, 409), scope="assistants:write"
    ),
    Route("GET", _A, get, {200: shapes.Assistant}, **_READ),
    Route("PATCH", _A, patch, {200: shapes.Assistant}, PatchBody, **_WRITE),
    Route("DELETE", _A, delete, {204: None}, query=(_DELETE_THREADS,), **_WRITE),
    Route("POST", f"{_A}/versions", versions, {200: list[AssistantVersion]}, VersionsBody, **_READ),
    Route("POST", f"{_A}/latest", latest, {200: shapes.Assistant}, LatestBody, **_WRITE),
    Route("GET", f"{_A}/graph", graph, {200: Graph}, query=(_XRAY,), **_READ),
    Route("GET", f"{_A}/schemas", schemas, {200: Schemas}, **_READ),
    Route("GET", f"{_A}/subgraphs", subgraphs, {200: dict[str, Schemas]}, query=(_RECURSE,), **_READ),
    Route("GET", f"{_A}/subgraphs/{{namespace}}", subgraphs, {200: dict[str, Schemas]}, query=(_RECURSE,), **_READ),
)
