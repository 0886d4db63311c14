"""Threads: create, read, annotate, delete, prune; with a time to live, if wanted."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec
import structlog
from aiohttp import web

from channels.http import live as alive
from channels.http.bodies import body, names, plain
from channels.http.langgraph import dumps, inputs
from channels.http.langgraph.assistants import resolve
from channels.http.langgraph.grafts import Step, graft
from channels.http.live import Live
from channels.http.routes import Param, Route
from channels.http.shapes import Thread
from core.errors import Invalid, NotFound, Refused, Unavailable
from core.events import Event, Json, ThreadCreated, ThreadExpirySet, ThreadPruned, thread
from core.ids import safe_id, uuid7
from core.prune import prune as prune_thread
from core.rows import known_by
from core.state import Expiry, ThreadState

log = structlog.get_logger("sika.http")

RESERVED = ("owner_id", "user_id")
"""Metadata that says whose a thread is: the server's word, not the client's."""
MOST_METADATA = 65_536
"""Bytes of JSON in what one request says of a thread."""
MOST_MINUTES = 10 * 366 * 24 * 60
MOST_PRUNED = 1000
"""Threads in one request."""


class Ttl(msgspec.Struct):
    """How long a thread lives after anything last happened in it, in minutes; and what goes then."""

    ttl: float
    strategy: Literal["delete", "keep_latest"] = "delete"


class ShownTtl(msgspec.Struct):
    strategy: Literal["delete", "keep_latest"]
    ttl_minutes: float
    expires_at: str


class ShownThread(Thread):
    """`ttl` only where it is asked for."""

    ttl: ShownTtl | msgspec.UnsetType | None = msgspec.UNSET


class CreateBody(msgspec.Struct):
    thread_id: str | None = None
    metadata: dict[str, Any] | None = None
    assistant_id: str | None = None
    if_exists: Literal["raise", "do_nothing"] | None = None
    supersteps: list[Superstep] | None = None
    ttl: float | Ttl | None = None


class Superstep(msgspec.Struct):
    updates: list[Update]


class Command(msgspec.Struct):
    update: dict[str, Any] | None = None


class Update(msgspec.Struct):
    values: dict[str, Any] | None = None
    command: Command | None = None
    as_node: str | None = None


class PatchBody(msgspec.Struct):
    metadata: dict[str, Any] | None = None
    ttl: float | Ttl | msgspec.UnsetType | None = msgspec.UNSET


class PruneBody(msgspec.Struct):
    thread_ids: list[str]
    strategy: Literal["delete", "keep_latest"] = "delete"


class Pruned(msgspec.Struct):
    pruned_count: int


async def create(request: web.Request) -> web.Response:
    """Create a thread. If it exists it is returned as it is (DeerFlow's UI relies on that), unless `if_exists` is
    `raise`. `supersteps` are checkpoints it begins with, one for each update.
    """
    live, wanted, user = alive.of(request), await body(request, CreateBody), alive.user(request)
    thread_id = safe_id(wanted.thread_id, "thread_id") if wanted.thread_id is not None else uuid7()
    metadata = _metadata(wanted.metadata)
    if wanted.assistant_id is not None:
        assistant = await resolve(request, wanted.assistant_id)
        metadata = {"graph_id": assistant.graph_id, "assistant_id": assistant.id, **metadata}
    steps = _supersteps(wanted.supersteps or [])
    expiry = [_expiry(wanted.ttl)] if wanted.ttl is not None else []
    before = await live.services.threads.load(thread_id) if steps or expiry else None
    if before is not None and not before.seq:
        first: list[Event] = [ThreadCreated(user=user, metadata=metadata), *expiry]
        state = await graft(live.services.threads, thread_id, before, first, steps)
        return plain(thread_object(thread_id, state))
    state, new = await live.services.intake.create_thread(thread_id, user=user, metadata=metadata)
    if not new and wanted.if_exists == "raise":
        raise Refused(f"Thread {thread_id} already exists")
    return plain(thread_object(thread_id, state))


async def get(request: web.Request) -> web.Response:
    """A thread with its values. With `include=ttl` also when it goes."""
    thread_id, state = await alive.owned(request)
    found = thread_object(thread_id, state)
    if "ttl" in ",".join(names(request, "include")).split(","):
        found["ttl"] = _ttl(state, state.expiry) if state.expiry else None
    return plain(found)


async def patch(request: web.Request) -> web.Response:
    """Merge metadata into a thread's, key by key; set its time to live, or lift it by `null`."""
    live, thread_id = alive.of(request), alive.thread_id(request)
    wanted = await body(request, PatchBody)
    events: list[Event] = []
    if wanted.ttl is not msgspec.UNSET:
        events.append(_expiry(wanted.ttl))
    metadata = _metadata(wanted.metadata)
    _, state = await alive.owned(request)
    if metadata:
        state = await live.services.intake.annotate(thread_id, metadata, user=alive.user(request))
    if events:
        state, _ = await live.services.threads.decide(thread_id, lambda now: events if now.exists else [], actor="http")
    if "return=minimal" in request.headers.get("Prefer", ""):
        return web.Response(status=204)
    return plain(thread_object(thread_id, state))


async def delete(request: web.Request) -> web.Response:
    """Delete a thread with all it has. Deleting twice is fine; what never was is not found."""
    live, thread_id = alive.of(request), alive.thread_id(request)
    if await _owner(live, thread_id) != alive.user(request):
        raise NotFound(f"Thread {thread_id} not found")
    await _erase(live, thread_id, alive.user(request))
    return web.Response(status=204)


async def prune(request: web.Request) -> web.Response:
    """Delete threads, or (`keep_latest`) their past. Those that are at work are left alone, as are unknown ones; and
    those that wait for an answer keep their past.
    """
    live, wanted, user = alive.of(request), await body(request, PruneBody), alive.user(request)
    if len(wanted.thread_ids) > MOST_PRUNED:
        raise Invalid(f"thread_ids: at most {MOST_PRUNED}, got {len(wanted.thread_ids)}")
    count = 0
    for thread_id in dict.fromkeys(safe_id(name, "thread_ids") for name in wanted.thread_ids):
        if wanted.strategy == "keep_latest":
            count += await prune_thread(live.services.threads, thread_id, user=user, actor="http")
            continue
        state = await live.services.threads.load(thread_id)
        if state.exists and state.user == user and state.status != "busy":
            await _erase(live, thread_id, user)
            count += 1
    return plain({"pruned_count": count})


async def _erase(live: Live, thread_id: str, user: str) -> None:
    """Goes on to its end even if the client leaves. The thread's files are the janitor's."""
    await live.to_its_end(live.services.intake.erase(thread_id, by=user))


async def _owner(live: Live, thread_id: str) -> str | None:
    """The thread's user, also of one that was deleted, or whose state cannot be made out."""
    try:
        state = await live.services.threads.load(thread_id)
        return state.user if state.seq else None
    except Unavailable:
        raise
    except Exception as error:
        log.warning("a thread whose state cannot be made out", thread=thread_id, error=str(error))
    async for record in live.services.log.read(thread(thread_id)):
        if isinstance(record.event, ThreadCreated | ThreadPruned):
            return record.event.user
    return None


async def readable(request: web.Request) -> tuple[str, ThreadState]:
    """The request's thread; a state of nothing if there is none. Raises `NotFound` if it is somebody else's."""
    thread_id = alive.thread_id(request)
    state = await alive.of(request).services.threads.load(thread_id)
    if not state.exists:
        return thread_id, ThreadState()
    if state.user != alive.user(request):
        raise NotFound(f"Thread {thread_id} not found")
    return thread_id, state


def thread_object(thread_id: str, state: ThreadState) -> Json:
    first = next(iter(state.runs.values()), None)
    last = next(reversed(state.runs.values()), None)
    failed = last.error if last is not None and state.status == "error" else None
    return {
        "thread_id": thread_id,
        "created_at": state.created_at,
        "updated_at": state.updated_at,
        "state_updated_at": state.commits[-1].at if state.commits else state.created_at,
        "metadata": {**(known_by(first.request.assistant) if first else {}), **state.metadata},
        "status": state.status,
        "config": {},
        "values": dumps.timed_values(state.values, state),
        "interrupts": state.interrupts,
        "error": {"error": failed.error, "message": failed.text} if failed else None,
        **({"problems": [problem._asdict() for problem in state.problems]} if state.problems else {}),
    }


def _supersteps(given: Sequence[Superstep]) -> list[Step]:
    steps: list[Step] = []
    for update in (update for step in given for update in step.updates):
        written = update.values or (update.command.update if update.command else None) or {}
        values = inputs.with_messages(written, "supersteps.values")
        steps.append(Step(values, node_name(update.as_node), "update", len(steps) - 1))
    return steps


def node_name(given: str | None) -> str | None:
    """As what a state is written: any name is accepted, as there are clients with nodes of their own."""
    if given is not None and not 0 < len(given) <= 200:
        raise Invalid("as_node: must be 1 to 200 characters")
    return given


def _metadata(given: Json | None) -> Json:
    found = {key: value for key, value in (given or {}).items() if key not in RESERVED}
    if len(msgspec.json.encode(found)) > MOST_METADATA:
        raise Invalid(f"metadata: at most {MOST_METADATA} bytes")
    return found


def _expiry(given: float | Ttl | None) -> ThreadExpirySet:
    if given is None:
        return ThreadExpirySet(minutes=None)
    wanted = given if isinstance(given, Ttl) else Ttl(given)
    if not 0 < wanted.ttl <= MOST_MINUTES:
        raise Invalid(f"ttl: must be more than 0 and at most {MOST_MINUTES} minutes, got {wanted.ttl:g}")
    return ThreadExpirySet(minutes=wanted.ttl, strategy=wanted.strategy)


def _ttl(state: ThreadState, expiry: Expiry) -> Json:
    ends = datetime.fromisoformat(state.updated_at) + timedelta(minutes=expiry.minutes)
    return {"strategy": expiry.strategy, "ttl_minutes": expiry.minutes, "expires_at": ends.isoformat()}


_T = "/threads/{thread_id}"
_INCLUDE = Param("include", list[str], "`ttl`: show when the thread goes")
ROUTES = (
    Route("POST", "/threads", create, {200: Thread}, CreateBody, errors=(400, 404, 409), scope="threads:write"),
    Route("POST", "/threads/prune", prune, {200: Pruned}, PruneBody, scope="threads:delete"),
    Route("GET", _T, get, {200: ShownThread}, query=(_INCLUDE,), errors=(404,), scope="threads:read"),
    Route("PATCH", _T, patch, {200: Thread, 204: None}, PatchBody, errors=(404,), scope="threads:write"),
    Route("DELETE", _T, delete, {204: None}, errors=(404,), scope="threads:delete"),
)
