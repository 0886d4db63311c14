"""Threads: create, read, annotate, delete, prune; with a time to live, if wanted."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec
from aiohttp import web

from channels.http import inputs
from channels.http import live as alive
from channels.http.bodies import body, names, plain
from channels.http.langgraph import dumps
from channels.http.routes import Param, Route
from channels.http.shapes import Thread
from core.errors import Invalid, Refused
from core.events import Json, ThreadExpirySet
from core.ids import safe_id, uuid7
from core.thread.commands_copies import Step
from core.thread.runs import thread_metadata
from core.thread.state import Expiry, ThreadState

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
        assistant = await live.services.assistants.resolve(user, wanted.assistant_id)
        metadata = {"graph_id": assistant.graph_id, "assistant_id": assistant.id, **metadata}
    steps = _supersteps(wanted.supersteps or [])
    expiry = _expiry(wanted.ttl) if wanted.ttl is not None else None
    state, new = await live.services.commands.create(user, thread_id, metadata, expiry=expiry, steps=steps)
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
    services, user, thread_id = alive.of(request).services, alive.user(request), alive.thread_id(request)
    wanted = await body(request, PatchBody)
    expiry = _expiry(wanted.ttl) if wanted.ttl is not msgspec.UNSET else None
    metadata = _metadata(wanted.metadata)
    _, state = await alive.owned(request)
    if metadata:
        state = await services.intake.annotate(thread_id, metadata, user=user)
    if expiry is not None:
        state = await services.commands.set_expiry(user, thread_id, expiry)
    if "return=minimal" in request.headers.get("Prefer", ""):
        return web.Response(status=204)
    return plain(thread_object(thread_id, state))


async def delete(request: web.Request) -> web.Response:
    """Delete a thread with all it has. Deleting twice is fine; what never was is not found."""
    live, thread_id = alive.of(request), alive.thread_id(request)
    await live.to_its_end(live.services.commands.erase(alive.user(request), thread_id))
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
        count += await live.to_its_end(live.services.commands.prune(user, thread_id, wanted.strategy))
    return plain({"pruned_count": count})


def thread_object(thread_id: str, state: ThreadState) -> Json:
    last = next(reversed(state.runs.values()), None)
    failed = last.error if last is not None and state.status == "error" else None
    return {
        "thread_id": thread_id,
        "created_at": state.created_at,
        "updated_at": state.updated_at,
        "state_updated_at": state.commits[-1].at if state.commits else state.created_at,
        "metadata": thread_metadata(state),
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
