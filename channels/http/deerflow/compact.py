"""Summarises the older part of a conversation now, and not only when it has become too long."""

from __future__ import annotations

from typing import Annotated

import msgspec
from aiohttp import web

from channels.http import live as alive
from channels.http.bodies import body, plain
from channels.http.deerflow.models import check_name
from channels.http.routes import API, Route
from core.config.settings import ContextSize
from core.errors import Refused

ACTOR = "compaction"


class CompactBody(msgspec.Struct):
    """`force`: whatever its size. `keep`: what stays as it is, as so many messages or as in `summarization.keep`."""

    force: bool = True
    keep: Annotated[int, msgspec.Meta(ge=1)] | ContextSize | None = None
    agent_name: str | None = None
    model_name: str | None = None


class Compacted(msgspec.Struct):
    """`reason`: why nothing was done. `total_tokens`: of the conversation as it is now, as far as can be told."""

    thread_id: str
    compacted: bool
    reason: str | None
    removed_message_count: int
    preserved_message_count: int
    summary_updated: bool
    checkpoint_id: str | None
    total_tokens: int


async def compact(request: web.Request) -> web.Response:
    """Put a summary in the place of the older messages. What was said stays in the thread's history."""
    wanted = await body(request, CompactBody)
    thread_id, state = await alive.owned(request)
    check_name(alive.of(request).services.config(), wanted.model_name)
    if state.status == "busy":
        raise Refused(f"Thread {thread_id} has an active run; wait for its end")
    keep = ContextSize(type="messages", value=wanted.keep) if isinstance(wanted.keep, int) else wanted.keep
    question = {
        "op": "compact",
        "thread": thread_id,
        "user": alive.user(request),
        "force": wanted.force,
        "keep": keep,
        "agent": wanted.agent_name,
        "model": wanted.model_name,
    }
    return plain(msgspec.convert(await alive.of(request).services.call(ACTOR, question), Compacted))


ROUTES = (
    Route(
        "POST",
        "/threads/{thread_id}/compact",
        compact,
        {200: Compacted},
        CompactBody,
        errors=(400, 404, 409),
        scope="threads:write",
        mounts=API,
    ),
)
