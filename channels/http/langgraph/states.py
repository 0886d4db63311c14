"""The state of a thread: now, at any checkpoint, through time; and written from outside."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from aiohttp import web

from channels.http import live as alive
from channels.http.bodies import body, number, plain, within
from channels.http.langgraph import inputs
from channels.http.langgraph.asked import checkpoint_seq
from channels.http.langgraph.snapshots import history, metadata, snapshot
from channels.http.routes import Param, Route
from channels.http.shapes import State, Updated
from core.errors import Invalid, NotFound
from core.events import Json
from core.state import ThreadState

THREAD = "/threads/{thread_id}"
MOST = 1000
"""States in one answer of the history."""


class CheckpointBody(msgspec.Struct):
    checkpoint: dict[str, Any] | None = None


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


async def get(request: web.Request) -> web.Response:
    thread_id, state = await alive.owned(request)
    return plain(snapshot(thread_id, state, state.head))


async def get_at(request: web.Request) -> web.Response:
    thread_id, state = await alive.owned(request)
    return plain(snapshot(thread_id, state, _found(state, request.match_info["checkpoint_id"])))


async def post_checkpoint(request: web.Request) -> web.Response:
    wanted = await body(request, CheckpointBody)
    thread_id, state = await alive.owned(request)
    named = (wanted.checkpoint or {}).get("checkpoint_id")
    return plain(snapshot(thread_id, state, state.head if named is None else _found(state, named)))


async def update(request: web.Request) -> web.Response:
    """Write through the reducers; from an older checkpoint this is a fork, and the new branch is the head."""
    wanted = await body(request, UpdateBody)
    thread_id = alive.thread_id(request)
    live = alive.of(request)
    named = wanted.checkpoint_id or (wanted.checkpoint or {}).get("checkpoint_id")
    base = checkpoint_seq(named, "checkpoint_id")
    writes = wanted.values if isinstance(wanted.values, list) else [wanted.values or {}]
    checked = [inputs.with_messages(values, "values") for values in writes] or [{}]
    for values in checked:
        state, record = await live.services.intake.patch(
            thread_id, values, as_node=wanted.as_node, base=base, user=alive.user(request)
        )
        base = None
    live.written = max(live.written, state.seq)
    made = snapshot(thread_id, state, state.commit_at(record.seq))
    return plain({**made, "configurable": made["checkpoint"]})


async def get_history(request: web.Request) -> web.Response:
    limit = number(request, "limit", 10, least=1, most=MOST)
    return await _history(request, HistoryBody(limit=limit, before=request.query.get("before")))


async def post_history(request: web.Request) -> web.Response:
    return await _history(request, await body(request, HistoryBody))


async def _history(request: web.Request, wanted: HistoryBody) -> web.Response:
    limit = 10 if wanted.limit is None else within("limit", wanted.limit, 1, MOST)
    before, newest = _before(wanted.before), _before(wanted.checkpoint)
    thread_id, state = await alive.owned(request)
    shown: list[Json] = []
    for index in history(state):
        commit = state.commits[index]
        if (before is not None and commit.seq >= before) or (newest is not None and commit.seq > newest):
            continue
        if wanted.metadata:
            found = metadata(thread_id, state, commit)
            if any(found.get(key) != value for key, value in wanted.metadata.items()):
                continue
        shown.append(snapshot(thread_id, state, index))
        if len(shown) == limit:
            break
        await asyncio.sleep(0)  # a long history of a long thread is work: let others in between
    return plain(shown)


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
    index = -1 if seq is None else state.commit_at(seq)
    if index < 0:
        raise NotFound(f"Checkpoint {str(named)[:40]} not found")
    return index


ROUTES = (
    Route("GET", f"{THREAD}/state", get, {200: State}, errors=(404,), scope="threads:read"),
    Route("POST", f"{THREAD}/state", update, {200: Updated}, UpdateBody, errors=(400, 404, 409), scope="threads:write"),
    Route(
        "POST", f"{THREAD}/state/checkpoint", post_checkpoint, {200: State}, CheckpointBody, (), (404,), "threads:read"
    ),
    Route("GET", f"{THREAD}/state/{{checkpoint_id}}", get_at, {200: State}, errors=(404,), scope="threads:read"),
    Route(
        "GET",
        f"{THREAD}/history",
        get_history,
        {200: list[State]},
        query=(Param("limit", int, "1 to 1000"), Param("before", str, "A checkpoint id; exclusive")),
        errors=(404,),
        scope="threads:read",
    ),
    Route("POST", f"{THREAD}/history", post_history, {200: list[State]}, HistoryBody, (), (404,), "threads:read"),
)
