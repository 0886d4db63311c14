"""The goal of a thread: shown, set, given up."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from channels.http.endpoints.call import Call, OwnedThread, ReadableThread
from channels.http.endpoints.endpoint import Routes
from channels.http.server.routes import API
from core.errors import Invalid, Refused
from core.events import Blocker, GoalSet
from core.thread import goals
from core.thread.state import ThreadState


class GoalBody(msgspec.Struct):
    """`max_continuations`: at most `goals.max_continuations`, which is the default."""

    objective: Annotated[str, msgspec.Meta(min_length=1, max_length=4000)]
    max_continuations: Annotated[int, msgspec.Meta(ge=0)] | None = None


class Evaluation(msgspec.Struct, omit_defaults=True):
    """The judgement after the run `run_id`. `stand_down_reason`: why no run followed from it."""

    satisfied: bool
    blocker: Blocker
    reason: str
    run_id: str
    evaluated_at: str
    stand_down_reason: str | None = None


class Goal(msgspec.Struct, omit_defaults=True):
    """A goal that is not reached yet. `pause_reason`: why no runs follow by themselves."""

    objective: str
    status: Literal["active", "paused"]
    created_at: str
    updated_at: str
    continuation_count: int
    max_continuations: int
    no_progress_count: int
    max_no_progress_continuations: int
    pause_reason: str | None = None
    last_evaluation: Evaluation | None = None


class GoalAnswer(msgspec.Struct):
    goal: Goal | None


ROUTES = Routes(mounts=API)
_PATH = "/threads/{thread_id}/goal"


@ROUTES("GET", _PATH, "threads:read")
async def get(thread: ReadableThread) -> GoalAnswer:
    """The goal of a thread; null if it has none, or has reached it."""
    return GoalAnswer(goal_of(thread.state))


@ROUTES("PUT", _PATH, "runs:create", errors=(409,))
async def put(call: Call, body: GoalBody) -> GoalAnswer:
    """Set the goal of a thread, which is created if it does not exist. No run starts by this: the next one works for
    the goal, and further ones follow by themselves. A paused goal goes on when it is set again.
    """
    settings = call.config.goals
    if not settings.enabled:
        raise Refused("Goals are off (goals.enabled)")
    if not body.objective.strip():
        raise Invalid("objective: must not be blank")
    most = settings.max_continuations
    goal = GoalSet(
        objective=body.objective.strip(),
        by=call.user,
        max_continuations=most if body.max_continuations is None else min(body.max_continuations, most),
        max_no_progress_continuations=settings.max_no_progress_continuations,
        max_tokens=settings.max_tokens,
    )
    return GoalAnswer(goal_of(await call.services.commands.set_goal(call.user, call.thread_id, goal)))


@ROUTES("DELETE", _PATH, "runs:create")
async def delete(call: Call, thread: OwnedThread) -> GoalAnswer:
    """Give the goal of a thread up. A run that is at work goes on."""
    await call.services.commands.clear_goal(call.user, thread.id)
    return GoalAnswer(None)


def goal_of(state: ThreadState) -> Goal | None:
    """The goal of a thread; None if it has none, or has reached it."""
    return msgspec.convert(goals.goal_for_clients(state.goal), Goal | None)
