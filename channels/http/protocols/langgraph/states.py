"""The state of a thread: now, at any checkpoint, through time; and written from outside."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Annotated, Any

import msgspec
import structlog
from aiohttp import web

from channels.http.endpoints.call import Call, ListedThread, OwnedThread
from channels.http.endpoints.endpoint import Limit, Routes
from channels.http.endpoints.shapes import State, Updated, part_of
from channels.http.protocols.langgraph import dumps
from channels.http.protocols.langgraph.namespaces import called, in_namespace
from channels.http.protocols.langgraph.snapshots import history, metadata, snapshot, timeline, within
from channels.http.protocols.langgraph.threads import NodeName
from channels.http.runs import inputs
from channels.http.runs.run_request import checkpoint_seq
from channels.http.server.live import Outlet
from core.errors import Invalid, NotFound
from core.events import Json
from core.thread.state import ThreadState

log = structlog.get_logger("sika.http")

THREAD = "/threads/{thread_id}"
MOST = 1000
"""States in one update."""
PIECE_BYTES = 1 << 20
"""A longer history is sent piece by piece: it is never in memory as a whole."""


SelectedState = part_of(State, "SelectedState", "A state, or the fields of it that `select` names.")


class CheckpointBody(msgspec.Struct):
    checkpoint: dict[str, Any] | None = None
    subgraphs: bool | None = None
    select: list[str] | None = None


class UpdateBody(msgspec.Struct):
    values: dict[str, Any] | list[dict[str, Any]] | None = None
    as_node: NodeName | None = None
    checkpoint: dict[str, Any] | None = None
    checkpoint_id: str | None = None


class HistoryBody(msgspec.Struct):
    limit: Limit | None = None
    before: str | dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    checkpoint: dict[str, Any] | None = None
    select: list[str] | None = None


ROUTES = Routes()
_READ = "threads:read"
Shown = Annotated[Json, SelectedState]
Subgraphs = Annotated[bool, "Whether `tasks[].state` is there for the subagents at work"]
Select = Annotated[Sequence[str], "Fields of the state; `values.<key>` for a single one of the values"]


@ROUTES("GET", f"{THREAD}/state", _READ)
async def get(call: Call, thread: OwnedThread, *, subgraphs: Subgraphs = False, select: Select = ()) -> Shown:
    """The state of a thread as it is."""
    return _selected(await _inside(call, thread, thread.state.head, subgraphs), select)


@ROUTES("GET", f"{THREAD}/state/{{checkpoint_id}}", _READ)
async def get_at(
    call: Call, thread: OwnedThread, checkpoint_id: str, *, subgraphs: Subgraphs = False, select: Select = ()
) -> Shown:
    """The state at a checkpoint."""
    return _selected(await _inside(call, thread, _index_of(thread.state, checkpoint_id), subgraphs), select)


@ROUTES("POST", f"{THREAD}/state/checkpoint", _READ)
async def post_checkpoint(call: Call, thread: OwnedThread, body: CheckpointBody) -> Shown:
    """The state at a checkpoint that is named in the body; without one, as it is. With a `checkpoint_ns`
    (`tools:<id of the call>`) that of a subagent.
    """
    named, namespace = _named(body.checkpoint), _namespace(body.checkpoint)
    thread = await _in_namespace(call, thread, namespace)
    index = thread.state.head if named in (None, "") else _index_of(thread.state, named)
    return _selected(within(namespace, await _inside(call, thread, index, bool(body.subgraphs))), body.select)


@ROUTES("POST", f"{THREAD}/state", "threads:write", errors=(400, 404, 409))
async def update(call: Call, body: UpdateBody) -> Annotated[Json, Updated]:
    """Write to the state through its reducers. From an older checkpoint this is a fork, and the new branch is the head.
    A list of `values` makes one checkpoint each, all or none.
    """
    base = checkpoint_seq(body.checkpoint_id or _named(body.checkpoint), "checkpoint_id")
    updates = body.values if isinstance(body.values, list) else [body.values or {}]
    if len(updates) > MOST - 1:
        raise Invalid(f"values: at most {MOST - 1} updates, got {len(updates)}")
    writes = [inputs.with_messages(values, "values") for values in updates] or [{}]
    commands = call.services.commands
    state, seq = await commands.write_state(call.user, call.thread_id, writes, node=body.as_node, base=base)
    written = snapshot(call.thread_id, state, state.commit_at(seq))
    return {**written, "configurable": written["checkpoint"]}


@ROUTES("GET", f"{THREAD}/history", _READ, errors=(404,))
async def get_history(
    call: Call, *, limit: Limit = 10, before: Annotated[str | None, "A checkpoint id; exclusive"] = None
) -> Annotated[web.StreamResponse, list[SelectedState]]:
    """The states at a thread's checkpoints, newest first."""
    return await _history(call, HistoryBody(limit=limit, before=before))


@ROUTES("POST", f"{THREAD}/history", _READ, errors=(404,))
async def post_history(call: Call, body: HistoryBody) -> Annotated[web.StreamResponse, list[SelectedState]]:
    """The states at a thread's checkpoints, newest first: those before one (`before`, exclusive), up to one
    (`checkpoint`), with certain `metadata`. With a `checkpoint_ns` in `checkpoint` those of a subagent.
    """
    return await _history(call, body)


async def _history(call: Call, body: HistoryBody) -> web.StreamResponse:
    before, newest = _before(body.before), _before(body.checkpoint)
    namespace = _namespace(body.checkpoint)
    thread = await _in_namespace(call, await ListedThread.of_call(call), namespace)
    thread_id, state = thread.id, thread.state

    def is_wanted(index: int) -> bool:
        about = metadata(thread_id, state, index) if body.metadata else {}
        return all(key in about and about[key] == value for key, value in (body.metadata or {}).items())

    last = min((seq for seq in (newest, None if before is None else before - 1) if seq is not None), default=None)
    indices = list(islice(filter(is_wanted, history(state, last)), body.limit or 10))
    values: dict[int, Json] = {}
    for index, values_ in () if _is_small(body.select) else timeline(state, (index for index in indices if index >= 0)):
        values[index] = values_
        await asyncio.sleep(0)  # a long history of a long thread is work: let others in between
    shown = (
        _selected(within(namespace, _checkpoint(thread_id, state, i, values.get(i, {}))), body.select) for i in indices
    )
    return await _array(call, shown)


def _checkpoint(thread_id: str, state: ThreadState, index: int, values: Json) -> Json:
    """A checkpoint; of one whose values cannot be shown all but them. The others are shown in any case."""
    try:
        return snapshot(thread_id, state, index, values)
    except Exception as error:
        log.warning("a checkpoint that cannot be shown", thread=thread_id, error=str(error))
        shown = snapshot(thread_id, state, index, {})
        problem = "its values cannot be shown; the server's log says why"
        return {**shown, "metadata": {**shown["metadata"], "problem": problem}}


async def _array(call: Call, items: Iterator[Json]) -> web.StreamResponse:
    """A JSON array that is made while it is sent, once it is long; others are let in between."""
    outlet = Outlet(call.request, "application/json; charset=utf-8", {"Cache-Control": "no-store"})
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
    """Tells whether what is selected is known without the values."""
    return bool(select) and not any(
        field.split(".")[0] in ("values", "next", "tasks", "interrupts") for field in select or ()
    )


def _selected(shown: Json, select: Sequence[str] | None) -> Json:
    """The fields that are named; `values.<key>` is one field of the values."""
    if not select:
        return shown
    fields = {field: shown[field] for field in select if field in shown}
    keys = [field.removeprefix("values.") for field in select if field.startswith("values.")]
    if keys and "values" not in fields:
        fields["values"] = {key: shown["values"][key] for key in keys if key in shown["values"]}
    return fields


async def _inside(call: Call, thread: OwnedThread, index: int, subgraphs: bool) -> Json:
    """Returns a snapshot; if `subgraphs`, with those of the subagents at work."""
    shown = snapshot(thread.id, thread.state, index)
    for task in shown["tasks"] if subgraphs else ():
        if task["checkpoint"] is not None and called(thread.state, task["id"]) is not None:
            namespace = task["checkpoint"]["checkpoint_ns"]
            subagent = await in_namespace(call.services.subagents.threads, thread.state, namespace)
            task["state"] = within(namespace, snapshot(thread.id, subagent, subagent.head))
    return shown


async def _in_namespace(call: Call, thread: OwnedThread, namespace: str) -> OwnedThread:
    state = await in_namespace(call.services.subagents.threads, thread.state, namespace)
    return OwnedThread(thread.id, state)


def _namespace(checkpoint: Json | None) -> str:
    namespace = (checkpoint or {}).get("checkpoint_ns") or ""
    if not isinstance(namespace, str):
        raise Invalid("checkpoint.checkpoint_ns: expected a string")
    return namespace


def _named(checkpoint: Json | None) -> Any:
    return (checkpoint or {}).get("checkpoint_id")


def _before(checkpoint: str | Json | None) -> int | None:
    """A checkpoint id; clients send the id, a checkpoint, or a config with one."""
    if isinstance(checkpoint, dict):
        inner = checkpoint.get("configurable")
        checkpoint = (inner if isinstance(inner, dict) else checkpoint).get("checkpoint_id")
    return checkpoint_seq(checkpoint, "before")


def _index_of(state: ThreadState, named: Any) -> int:
    try:
        seq = checkpoint_seq(named, "checkpoint_id")
    except Invalid:
        seq = None
    if seq is None or not state.has_checkpoint(seq):
        raise NotFound(f"Checkpoint {str(named)[:40]} not found")
    return state.commit_at(seq)
