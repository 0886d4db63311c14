"""Assistants: named agents, addressed by name or by the UUID that LangGraph derives from it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from aiohttp import web

from channels.http import shapes
from channels.http.bodies import body, plain, within
from channels.http.routes import Route
from core.errors import Invalid, NotFound
from core.events import Json
from core.ids import now

NAMESPACE = uuid.UUID("6ba7b821-9dad-11d1-80b4-00c04fd430c8")
DEFAULT = "lead_agent"

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


class Assistant(NamedTuple):
    id: str
    name: str
    description: str
    created_at: str


class Assistants:
    """Those of this process."""

    def __init__(self, described: Mapping[str, str]) -> None:
        at = now()
        self.all = [Assistant(str(uuid.uuid5(NAMESPACE, name)), name, text, at) for name, text in described.items()]
        self._by_name = {key: one for one in self.all for key in (one.name, one.id)}

    def resolve(self, name: str | None) -> Assistant:
        """By name or id; the default if nothing is named.

        Raises `NotFound` for an unknown id, `Invalid` for an unknown name.
        """
        if found := self._by_name.get(name or DEFAULT):
            return found
        try:
            uuid.UUID(str(name))
        except ValueError:
            raise Invalid(f"assistant_id: no assistant {str(name)[:80]!r}") from None
        raise NotFound(f"Assistant {name} not found")

    def id_of(self, name: str) -> str:
        """The id of an assistant that a run names; the name itself if there is no such assistant any more."""
        found = self._by_name.get(name)
        return found.id if found else name


class SearchBody(msgspec.Struct):
    graph_id: str | None = None
    name: str | None = None
    metadata: dict[str, Any] | None = None
    limit: int = 10
    offset: int = 0


ASSISTANTS: web.AppKey[Assistants] = web.AppKey("assistants", Assistants)


async def search(request: web.Request) -> web.Response:
    wanted = await body(request, SearchBody)
    limit, offset = within("limit", wanted.limit, 1, 1000), within("offset", wanted.offset, 0, 2**31)
    found = [
        one
        for one in request.app[ASSISTANTS].all
        if wanted.graph_id in (None, one.name)
        and (wanted.name or "").lower() in one.name.lower()
        and all(_metadata().get(key) == value for key, value in (wanted.metadata or {}).items())
    ]
    return plain([_object(one) for one in found[offset : offset + limit]])


async def get(request: web.Request) -> web.Response:
    return plain(_object(_named(request)))


async def graph(request: web.Request) -> web.Response:
    return plain({"graph_id": _named(request).name, **_GRAPH})


async def schemas(request: web.Request) -> web.Response:
    kinds = ("input_schema", "output_schema", "state_schema")
    empty: Json = {"config_schema": {}, "context_schema": {}}
    return plain({"graph_id": _named(request).name, **dict.fromkeys(kinds, _SCHEMA), **empty})


def _named(request: web.Request) -> Assistant:
    name = request.match_info["assistant_id"]
    try:
        return request.app[ASSISTANTS].resolve(name)
    except Invalid:
        raise NotFound(f"Assistant {name[:80]!r} not found") from None


def _metadata() -> Json:
    return {"created_by": "system"}


def _object(one: Assistant) -> Json:
    return {
        "assistant_id": one.id,
        "graph_id": one.name,
        "name": one.name,
        "description": one.description,
        "config": {},
        "context": {},
        "metadata": _metadata(),
        "version": 1,
        "created_at": one.created_at,
        "updated_at": one.created_at,
    }


_A = "/assistants/{assistant_id}"
ROUTES = (
    Route("POST", "/assistants/search", search, {200: list[shapes.Assistant]}, SearchBody, scope="assistants:read"),
    Route("GET", _A, get, {200: shapes.Assistant}, errors=(404,), scope="assistants:read"),
    Route("GET", f"{_A}/graph", graph, {200: Json}, errors=(404,), scope="assistants:read"),
    Route("GET", f"{_A}/schemas", schemas, {200: Json}, errors=(404,), scope="assistants:read"),
)
