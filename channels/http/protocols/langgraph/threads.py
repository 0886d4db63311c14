"""Threads: create, read, annotate, delete, prune; with a time to live, if wanted."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

import msgspec

from channels.http.endpoints.call import Call, OwnedThread
from channels.http.endpoints.endpoint import Reply, Routes
from channels.http.endpoints.shapes import Thread
from channels.http.protocols.langgraph import dumps
from channels.http.runs import inputs
from core.errors import Invalid, Refused
from core.events import Json, ThreadExpirySet
from core.ids import safe_id, uuid7
from core.runs.copies import Step
from core.thread.runs import thread_metadata
from core.thread.state import Expiry, ThreadState

RESERVED = ("owner_id", "user_id")
"""Metadata that says whose a thread is: the server's word, not the client's."""
MOST_METADATA = 65_536
"""Bytes of JSON in what one request says of a thread."""
NodeName = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
"""As what a state is written: any name is accepted, as there are clients with nodes of their own."""
Minutes = Annotated[float, msgspec.Meta(gt=0, le=10 * 366 * 24 * 60)]


class Ttl(msgspec.Struct):
    """The lifetime of a thread after its last event, in minutes; and what is deleted then."""

    ttl: Minutes
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
    ttl: Minutes | Ttl | None = None


class Superstep(msgspec.Struct):
    updates: list[Update]


class Command(msgspec.Struct):
    update: dict[str, Any] | None = None


class Update(msgspec.Struct):
    values: dict[str, Any] | None = None
    command: Command | None = None
    as_node: NodeName | None = None


class PatchBody(msgspec.Struct):
    metadata: dict[str, Any] | None = None
    ttl: Minutes | Ttl | msgspec.UnsetType | None = msgspec.UNSET


class PruneBody(msgspec.Struct):
    thread_ids: Annotated[list[str], msgspec.Meta(max_length=1000)]
    strategy: Literal["delete", "keep_latest"] = "delete"


class Pruned(msgspec.Struct):
    pruned_count: int


ROUTES = Routes()
_ONE = "/threads/{thread_id}"


@ROUTES("POST", "/threads", "threads:write", errors=(400, 404, 409))
async def create(call: Call, body: CreateBody) -> Annotated[Json, Thread]:
    """Create a thread. If it exists it is returned as it is (DeerFlow's UI relies on that), unless `if_exists` is
    `raise`. The id of a thread that you deleted can be used again when nothing of that is left: 503 until then, after
    15 s. `supersteps` are checkpoints it begins with, one for each update.
    """
    services, user = call.services, call.user
    thread_id = safe_id(body.thread_id, "thread_id") if body.thread_id is not None else uuid7()
    metadata = _metadata(body.metadata)
    if body.assistant_id is not None:
        assistant = await services.assistants.resolve(user, body.assistant_id)
        metadata = {"graph_id": assistant.graph_id, "assistant_id": assistant.id, **metadata}
    steps = _supersteps(body.supersteps or [])
    expiry = _expiry(body.ttl) if body.ttl is not None else None
    state, new = await services.commands.create(user, thread_id, metadata, expiry=expiry, steps=steps)
    if not new and body.if_exists == "raise":
        raise Refused(f"Thread {thread_id} already exists")
    return thread_object(thread_id, state)


@ROUTES("GET", _ONE, "threads:read")
async def get(
    thread: OwnedThread, *, include: Annotated[Sequence[str], "`ttl`: show when the thread goes"] = ()
) -> Annotated[Json, ShownThread]:
    """A thread with its values. With `include=ttl` also when it goes."""
    state, shown = thread.state, thread_object(thread.id, thread.state)
    if "ttl" in ",".join(include).split(","):
        shown["ttl"] = _ttl(state, state.expiry) if state.expiry else None
    return shown


@ROUTES("PATCH", _ONE, "threads:write", answers={204: None})
async def patch(call: Call, thread: OwnedThread, body: PatchBody) -> Annotated[Reply[Json | None], Thread]:
    """Merge metadata into a thread's, key by key, where `null` removes a key; set its time to live, or lift it by
    `null`.
    """
    expiry = _expiry(body.ttl) if body.ttl is not msgspec.UNSET else None
    state, metadata = thread.state, _metadata(body.metadata)
    if metadata:
        state = await call.services.intake.annotate(thread.id, metadata, user=call.user)
    if expiry is not None:
        state = await call.services.commands.set_expiry(call.user, thread.id, expiry)
    if "return=minimal" in call.request.headers.get("Prefer", ""):
        return Reply(None, 204)
    return Reply(thread_object(thread.id, state))


@ROUTES("DELETE", _ONE, "threads:delete", errors=(404,))
async def delete(call: Call) -> None:
    """Delete a thread with all it has. Deleting twice is fine; what never was is not found."""
    await call.live.to_its_end(call.services.commands.erase(call.user, call.thread_id))


@ROUTES("POST", "/threads/prune", "threads:delete")
async def prune(call: Call, body: PruneBody) -> Pruned:
    """Delete threads, or (`keep_latest`) their past. Those that are at work are left alone, as are unknown ones; and
    those that wait for an answer keep their past.
    """
    count = 0
    for thread_id in dict.fromkeys(safe_id(name, "thread_ids") for name in body.thread_ids):
        count += await call.live.to_its_end(call.services.commands.prune(call.user, thread_id, body.strategy))
    return Pruned(count)


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
        "values": dumps.timed_values(state.values, state, state.head),
        "interrupts": state.interrupts,
        "error": {"error": failed.error, "message": failed.text} if failed else None,
        **({"problems": [problem._asdict() for problem in state.problems]} if state.problems else {}),
    }


def _supersteps(supersteps: Sequence[Superstep]) -> list[Step]:
    steps: list[Step] = []
    for update in (update for step in supersteps for update in step.updates):
        written = update.values or (update.command.update if update.command else None) or {}
        values = inputs.with_messages(written, "supersteps.values")
        steps.append(Step(values, update.as_node, "update", len(steps) - 1))
    return steps


def _metadata(metadata: Json | None) -> Json:
    own = {key: value for key, value in (metadata or {}).items() if key not in RESERVED}
    if len(msgspec.json.encode(own)) > MOST_METADATA:
        raise Invalid(f"metadata: at most {MOST_METADATA} bytes")
    return own


def _expiry(ttl: float | Ttl | None) -> ThreadExpirySet:
    if ttl is None:
        return ThreadExpirySet(minutes=None)
    expiry = ttl if isinstance(ttl, Ttl) else Ttl(ttl)
    return ThreadExpirySet(minutes=expiry.ttl, strategy=expiry.strategy)


def _ttl(state: ThreadState, expiry: Expiry) -> Json:
    ends = datetime.fromisoformat(state.updated_at) + timedelta(minutes=expiry.minutes)
    return {"strategy": expiry.strategy, "ttl_minutes": expiry.minutes, "expires_at": ends.isoformat()}
