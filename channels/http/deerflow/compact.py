"""Summarises the older part of a conversation now, and not only when it has become too long."""

from __future__ import annotations

from typing import Annotated

import msgspec

from channels.http.deerflow.agents import known_agent
from channels.http.deerflow.models import check_name
from channels.http.endpoints.call import Call, OwnedThread
from channels.http.endpoints.endpoint import Routes
from channels.http.server.routes import API
from core.config.settings import ContextSize
from core.errors import Refused
from core.user.assistants import DEFAULT

ACTOR = "compaction"


class CompactBody(msgspec.Struct):
    """`force`: whatever its size. `keep`: what stays as it is, as so many messages or as in `summarization.keep`.
    `model_name`: the model that reads; else that of the configuration, else that of the agent `agent_name`.
    """

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


ROUTES = Routes(mounts=API)


@ROUTES("POST", "/threads/{thread_id}/compact", "threads:write", errors=(400, 404, 409))
async def compact(call: Call, thread: OwnedThread, body: CompactBody) -> Compacted:
    """Put a summary in the place of the older messages. What was said stays in the thread's history."""
    check_name(call.config, body.model_name)
    if body.agent_name not in (None, DEFAULT):
        await known_agent(call, body.agent_name)
    if thread.state.status == "busy":
        raise Refused(f"Thread {thread.id} has an active run; wait for its end")
    keep = ContextSize(type="messages", value=body.keep) if isinstance(body.keep, int) else body.keep
    question = {
        "op": "compact",
        "thread": thread.id,
        "user": call.user,
        "force": body.force,
        "keep": keep,
        "agent": body.agent_name,
        "model": body.model_name,
    }
    return msgspec.convert(await call.services.call(ACTOR, question), Compacted)
