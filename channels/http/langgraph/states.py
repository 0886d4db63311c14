"""The state of a thread: now, at any checkpoint, through time; and written from outside."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec
import structlog
from aiohttp import web

from channels.http import inputs
from channels.http import live as alive
from channels.http.asked import checkpoint_seq
from channels.http.bodies import body, names, number, plain, within
from channels.http.langgraph import dumps
from channels.http.langgraph.snapshots import history, metadata, snapshot, timeline
from channels.http.langgraph.threads import node_name
from channels.http.live import Outlet
from channels.http.routes import Param, Route
from channels.http.shapes import Checkpoint, Interrupt, Task, Updated
from core.errors import Invalid, NotFound
from core.events import Json
from core.thread.state import ThreadState

log = structlog.get_logger("sika.http")

THREAD = "/threads/{thread_id}"
DEERFLOW = "/api/langgraph/"
"""Where DeerFlow's page reads: to it the history of a thread that is not there is empty. LangGraph says 404."""
MOST = 1000
"""States in one answer of the history; and in one update."""
PIECE_BYTES = 1 << 20
"""A longer history is sent piece by piece: it is never in memory as a whole."""


class SelectedState(msgspec.Struct, omit_defaults=True):
    """A state, or the fields of it that `select` names."""

    values: Json = {}
    next: list[str] = []
    tasks: list[Task] = []
    metadata: Json = {}
    created_at: str | None = None
    checkpoint: Checkpoint | None = None
    parent_checkpoint: Checkpoint | None = None
    checkpoint_id: str | None = None
    parent_checkpoint_id: str | None = None
    interrupts: list[Interrupt] = []


class CheckpointBody(msgspec.Struct):
    checkpoint: dict[str, Any] | None = None
    subgraphs: bool | None = None
    select: list[str] | None = None


class UpdateBody(msgspec.Struct):
    values: dict[str, Any] | list[dict[str, Any]] | None = None
    as_node: str | None = None
    checkpoint: dict[str, Any] | None = None
    checkpoint_id: str | None = None


class HistoryBody(msgspec.Struct):
    limit: int | None = None
    before: str | dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    checkpoint: dict[str, Any] | None = None
    select: list[str] | None = None


async def get(request: web.Request) -> web.Response:
    """The state of a thread as it is."""
    thread_id, state = await alive.owned(request)
    return plain(_selected(snapshot(thread_id, state, state.head), names(request, "select")))


async def get_at(request: web.Request) -> web.Response:
    """The state at a checkpoint."""
    thread_id, state = await alive.owned(request)
    found = snapshot(thread_id, state, _found(state, request.match_info["checkpoint_id"]))
    return plain(_selected(found, names(request, "select")))


async def post_checkpoint(request: web.Request) -> web.Response:
    """The state at a checkpoint that is named in the body; without one, as it is."""
    wanted = await body(request, CheckpointBody)
    thread_id, state = await alive.owned(request)
    named = _named(wanted.checkpoint)
    found = snapshot(thread_id, state, state.head if named in (None, "") else _found(state, named))
    return plain(_selected(found, wanted.select))


async def update(request: web.Request) -> web.Response:
    """Write to the state through its reducers. From an older checkpoint this is a fork, and the new branch is the head.
    A list of `values` makes one checkpoint each, all or none.
    """
    wanted, user = await body(request, UpdateBody), alive.user(request)
    thread_id, commands = alive.thread_id(request), alive.of(request).services.commands
    base = checkpoint_seq(wanted.checkpoint_id or _named(wanted.checkpoint), "checkpoint_id")
    given = wanted.values if isinstance(wanted.values, list) else [wanted.values or {}]
    if len(given) > MOST - 1:
        raise Invalid(f"values: at most {MOST - 1} updates, got {len(given)}")
    node = node_name(wanted.as_node)
    writes = [inputs.with_messages(values, "values") for values in given] or [{}]

    state, seq = await commands.write_state(user, thread_id, writes, node=node, base=base)
    made = snapshot(thread_id, state, state.commit_at(seq))
    return plain({**made, "configurable": made["checkpoint"]})


async def get_history(request: web.Request) -> web.StreamResponse:
    """The states at a thread's checkpoints, newest first."""
    limit = number(request, "limit", 10, least=1, most=MOST)
    return await _history(request, HistoryBody(limit=limit, before=request.query.get("before")))


async def post_history(request: web.Request) -> web.StreamResponse:
    """The states at a thread's checkpoints, newest first: those before one (`before`, exclusive), up to one
    (`checkpoint`), with certain `metadata`.
    """
    return await _history(request, await body(request, HistoryBody))


async def _history(request: web.Request, wanted: HistoryBody) -> web.StreamResponse:
    limit = 10 if wanted.limit is None else within("limit", wanted.limit, 1, MOST)
    before, newest = _before(wanted.before), _before(wanted.checkpoint)
    thread_id, state = await (alive.readable(request) if request.path.startswith(DEERFLOW) else alive.owned(request))

    def is_wanted(index: int) -> bool:
        found = metadata(thread_id, state, index) if wanted.metadata else {}
        return all(key in found and found[key] == value for key, value in (wanted.metadata or {}).items())

    last = min((seq for seq in (newest, None if before is None else before - 1) if seq is not None), default=None)
    indices = list(islice(filter(is_wanted, history(state, last)), limit))
    values: dict[int, Json] = {}
    for index, found in () if _is_small(wanted.select) else timeline(state, (index for index in indices if index >= 0)):
        values[index] = found
        await asyncio.sleep(0)  # a long history of a long thread is work: let others in between
    shown = (_selected(_shown(thread_id, state, i, values.get(i, {})), wanted.select) for i in indices)
    return await _array(request, shown)


def _shown(thread_id: str, state: ThreadState, index: int, values: Json) -> Json:
    """A checkpoint; of one whose values cannot be shown all but them. The others are shown in any case."""
    try:
        return snapshot(thread_id, state, index, values)
    except Exception as error:
        log.warning("a checkpoint that cannot be shown", thread=thread_id, error=str(error))
        found = snapshot(thread_id, state, index, {})
        return {**found, "metadata": {**found["metadata"], "problem": f"unreadable: {type(error).__name__}"}}


async def _array(request: web.Request, items: Iterator[Json]) -> web.StreamResponse:
    """A JSON array that is made while it is sent, once it is long; others are let in between."""
    outlet = Outlet(request, "application/json; charset=utf-8", {"Cache-Control": "no-store"})
    data = bytearray(b"[")
    for item in items:
        data += (b"," if len(data) > 1 or outlet.response.prepared else b"") + dumps.encode(item)
        if len(data) > PIECE_BYTES:
            await outlet.write(bytes(data))
            data.clear()
        await asyncio.sleep(0)
    data += b"]"
    if not outlet.response.prepared:
        return web.Response(body=bytes(data), content_type="application/json")
    await outlet.write(bytes(data))
    await outlet.response.write_eof()
    return outlet.response


def _is_small(select: Sequence[str] | None) -> bool:
    """Whether what is selected can be told without the values."""
    return bool(select) and not any(
        field.split(".")[0] in ("values", "next", "tasks", "interrupts") for field in select or ()
    )


def _selected(shown: Json, select: Sequence[str] | None) -> Json:
    """The fields that are named; `values.<key>` is one field of the values."""
    if not select:
        return shown
    found = {field: shown[field] for field in select if field in shown}
    keys = [field.removeprefix("values.") for field in select if field.startswith("values.")]
    if keys and "values" not in found:
        found["values"] = {key: shown["values"][key] for key in keys if key in shown["values"]}
    return found


def _named(checkpoint: Json | None) -> Any:
    return (checkpoint or {}).get("checkpoint_id")


def _before(given: str | Json | None) -> int | None:
    """A checkpoint id; clients send the id, a checkpoint, or a config with one."""
    if isinstance(given, dict):
        inner = given.get("configurable")
        given = (inner if isinstance(inner, dict) else given).get("checkpoint_id")
    return checkpoint_seq(given, "before")


def _found(state: ThreadState, named: Any) -> int:
    try:
        seq = checkpoint_seq(named, "checkpoint_id")
    except Invalid:
        seq = None
    if seq is None or not state.has_checkpoint(seq):
        raise NotFound(f"Checkpoint {str(named)[:40]} not found")
    return state.commit_at(seq)


_SUBGRAPHS = Param("subgraphs", str, "Accepted; there are no subgraphs with a state of their own")
_SELECT = Param("select", list[str], "Fields of the state; `values.<key>` for a single one of the values")
ROUTES = (
    Route(
        "GET",
        f"{THREAD}/state",
        get,
        {200: SelectedState},
        query=(_SUBGRAPHS, _SELECT),
        errors=(404,),
        scope="threads:read",
    ),
    Route("POST", f"{THREAD}/state", update, {200: Updated}, UpdateBody, errors=(400, 404, 409), scope="threads:write"),
    Route(
        "POST",
        f"{THREAD}/state/checkpoint",
        post_checkpoint,
        {200: SelectedState},
        CheckpointBody,
        errors=(404,),
        scope="threads:read",
    ),
    Route(
        "GET",
        f"{THREAD}/state/{{checkpoint_id}}",
        get_at,
        {200: SelectedState},
        query=(_SUBGRAPHS, _SELECT),
        errors=(404,),
        scope="threads:read",
    ),
    Route(
        "GET",
        f"{THREAD}/history",
        get_history,
        {200: list[SelectedState]},
        query=(Param("limit", int, "1 to 1000"), Param("before", str, "A checkpoint id; exclusive")),
        errors=(404,),
        scope="threads:read",
    ),
    Route(
        "POST", f"{THREAD}/history", post_history, {200: list[SelectedState]}, HistoryBody, (), (404,), "threads:read"
    ),
)
