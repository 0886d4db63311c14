"""Threads: create, read, annotate, delete, search, count."""

from __future__ import annotations

import re
from typing import Any, Literal

import anyio
import msgspec
from aiohttp import web

from channels.http import live as alive
from channels.http.bodies import body, plain, within
from channels.http.langgraph import dumps, inputs
from channels.http.langgraph.assistants import ASSISTANTS, DEFAULT
from channels.http.live import Live
from channels.http.routes import Route
from channels.http.shapes import Thread
from core.errors import Invalid, NotFound, Refused
from core.events import Json
from core.ids import safe_id, uuid7
from core.projections import ThreadRow
from core.state import ThreadState

RESERVED = ("owner_id", "user_id")
"""Metadata that says whose a thread is: the server's word, not the client's."""
_KEY = re.compile(r"[A-Za-z0-9_-]+")

Status = Literal["idle", "busy", "interrupted", "error"]


class CreateBody(msgspec.Struct):
    thread_id: str | None = None
    metadata: dict[str, Any] | None = None
    assistant_id: str | None = None
    if_exists: Literal["raise", "do_nothing"] | None = None
    supersteps: list[Superstep] | None = None


class Superstep(msgspec.Struct):
    updates: list[Update]


class Update(msgspec.Struct):
    values: dict[str, Any] | None = None
    as_node: str | None = None


class PatchBody(msgspec.Struct):
    metadata: dict[str, Any] | None = None


class CountBody(msgspec.Struct):
    metadata: dict[str, Any] | None = None
    values: dict[str, Any] | None = None
    status: Status | None = None


class SearchBody(CountBody):
    ids: list[str] | None = None
    limit: int = 10
    offset: int = 0
    sort_by: str | None = None
    sort_order: Literal["asc", "desc", "ASC", "DESC"] | None = None
    select: list[str] | None = None


async def create(request: web.Request) -> web.Response:
    """Creating a thread that exists gives that thread (DeerFlow's UI relies on it), unless `if_exists` is `raise`."""
    live, wanted = alive.of(request), await body(request, CreateBody)
    thread_id = safe_id(wanted.thread_id, "thread_id") if wanted.thread_id is not None else uuid7()
    metadata = _unreserved(wanted.metadata)
    if wanted.assistant_id is not None:
        assistant = request.app[ASSISTANTS].resolve(wanted.assistant_id)
        metadata = {"graph_id": assistant.name, "assistant_id": assistant.id, **metadata}
    steps = [_values(update) for step in wanted.supersteps or () for update in step.updates]
    intake = live.services.intake
    state, new = await intake.create_thread(thread_id, user=alive.user(request), metadata=metadata)
    if not new and wanted.if_exists == "raise":
        raise Refused(f"Thread {thread_id} already exists")
    for values, node in steps if new else ():
        state, _ = await intake.patch(thread_id, values, as_node=node)
    _wrote(live, state)
    return plain(thread_object(thread_id, state))


async def get(request: web.Request) -> web.Response:
    return plain(thread_object(*await alive.owned(request)))


async def patch(request: web.Request) -> web.Response:
    live, thread_id = alive.of(request), alive.thread_id(request)
    wanted = await body(request, PatchBody)
    metadata = _unreserved(wanted.metadata)
    if metadata:
        state = await live.services.intake.annotate(thread_id, metadata, user=alive.user(request))
        _wrote(live, state)
    else:
        _, state = await alive.owned(request)
    if "return=minimal" in request.headers.get("Prefer", ""):
        return web.Response(status=204)
    return plain(thread_object(thread_id, state))


async def delete(request: web.Request) -> web.Response:
    """Deleting twice is fine; what never was is not found. Goes on to its end even if the client leaves."""
    live, thread_id = alive.of(request), alive.thread_id(request)
    state = await live.services.threads.load(thread_id)
    if not state.seq or state.user != alive.user(request):
        raise NotFound(f"Thread {thread_id} not found")
    with anyio.CancelScope(shield=True):
        await live.services.intake.erase(thread_id, by=alive.user(request))
        _wrote(live, await live.services.threads.load(thread_id))
    return web.Response(status=204)


async def search(request: web.Request) -> web.Response:
    live, wanted = alive.of(request), await body(request, SearchBody)
    limit, offset = within("limit", wanted.limit, 1, 1000), within("offset", wanted.offset, 0, 2**31)
    await live.services.views.reached(live.written)
    rows, total = await live.services.views.search(
        user=alive.user(request),
        metadata=_filter(request, wanted),
        status=wanted.status,
        ids=wanted.ids,
        sort_by=wanted.sort_by or "updated_at",
        descending=(wanted.sort_order or "desc").lower() == "desc",
        limit=limit,
        offset=offset,
    )
    response = plain([_selected(_row_object(row), wanted.select) for row in rows])
    response.headers["X-Pagination-Total"] = str(total)
    if offset + len(rows) < total:
        response.headers["X-Pagination-Next"] = str(offset + len(rows))
    return response


async def count(request: web.Request) -> web.Response:
    live, wanted = alive.of(request), await body(request, CountBody)
    await live.services.views.reached(live.written)
    metadata = _filter(request, wanted)
    _, total = await live.services.views.search(
        user=alive.user(request), metadata=metadata, status=wanted.status, limit=1
    )
    return plain(total)


def thread_object(thread_id: str, state: ThreadState) -> Json:
    first = next(iter(state.runs.values()), None)
    last = next(reversed(state.runs.values()), None)
    failed = last.error if last is not None and state.status == "error" else None
    return {
        "thread_id": thread_id,
        "created_at": state.created_at,
        "updated_at": state.updated_at,
        "state_updated_at": state.commits[state.head].at if state.head >= 0 else state.created_at,
        "metadata": {**({"graph_id": first.request.assistant} if first else {}), **state.metadata},
        "status": state.status,
        "config": {},
        "values": dumps.values(state.values),
        "interrupts": {},
        "error": {"error": failed.error, "message": failed.text} if failed else None,
    }


def _row_object(row: ThreadRow) -> Json:
    """A hit: of the values only the title, so that a list of long threads stays a list."""
    return {
        "thread_id": row.thread_id,
        "created_at": row.created_at,
        "updated_at": row.updated_at,
        "state_updated_at": row.updated_at,
        "metadata": row.metadata,
        "status": row.status,
        "config": {},
        "values": {"title": row.title} if row.title else {},
        "interrupts": {},
        "error": None,
    }


def _selected(found: Json, select: list[str] | None) -> Json:
    return {key: found[key] for key in select if key in found} if select else found


def _filter(request: web.Request, wanted: CountBody) -> Json:
    if wanted.values:
        raise Invalid("values: threads can be searched by metadata, status and ids, not by values")
    metadata = dict(wanted.metadata or {})
    for key, value in metadata.items():
        if not _KEY.fullmatch(key):
            raise Invalid(f"metadata: keys are of A-Z a-z 0-9 _ -, got {key[:40]!r}")
        if not isinstance(value, str | int | float | None):
            raise Invalid(f"metadata.{key}: expected null, a boolean, a number or a string")
    if metadata.get("graph_id") == DEFAULT:
        del metadata["graph_id"]  # there is no other; threads made without naming it have it all the same
    return metadata


def _values(update: Update) -> tuple[Json, str | None]:
    return inputs.with_messages(update.values or {}, "supersteps.values"), update.as_node


def _unreserved(metadata: Json | None) -> Json:
    return {key: value for key, value in (metadata or {}).items() if key not in RESERVED}


def _wrote(live: Live, state: ThreadState) -> None:
    live.written = max(live.written, state.seq)


_T = "/threads/{thread_id}"
ROUTES = (
    Route("POST", "/threads", create, {200: Thread}, CreateBody, errors=(400, 409), scope="threads:write"),
    Route("POST", "/threads/search", search, {200: list[Json]}, SearchBody, scope="threads:read"),
    Route("POST", "/threads/count", count, {200: int}, CountBody, scope="threads:read"),
    Route("GET", _T, get, {200: Thread}, errors=(404,), scope="threads:read"),
    Route("PATCH", _T, patch, {200: Thread, 204: None}, PatchBody, errors=(404,), scope="threads:write"),
    Route("DELETE", _T, delete, {204: None}, errors=(404,), scope="threads:delete"),
)
