"""Decides when nobody has decided: approvals whose deadline is over are answered by time."""

from __future__ import annotations

from datetime import datetime, timedelta

import structlog

from core.actor import Actor, Context
from core.errors import Refused
from core.events import Aggregate, ApprovalRequested
from core.thread import approvals
from core.thread.intake import Intake
from core.thread.state import ThreadState

log = structlog.get_logger("sika.approvals")

GRAIN = timedelta(milliseconds=1)
"""Timers are cut to this: a timer is set so much later that it is never early."""
AGAIN = timedelta(seconds=5)
"""When a thread is looked at again where something was due and a run was at work."""


class Approvals(Actor[ApprovalRequested]):
    """One timer for each approval with a deadline. If it comes early, or too late to matter, it costs a look."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake

    async def handle(self, event: ApprovalRequested, ctx: Context) -> None:
        if event.deadline is not None:
            await ctx.wake_at(datetime.fromisoformat(event.deadline) + GRAIN, event.approval)

    async def wake(self, aggregate: Aggregate, ctx: Context) -> None:
        """Have the thread go on, if it is paused at what is over; then see to what is still ahead."""
        state = await ctx.load()
        if expired := approvals.expired(state, ctx.now()):
            state = await self._expire(state, expired, aggregate.id, ctx)
        if deadlines := approvals.deadlines(state):
            moment, nearest = min(deadlines)
            await ctx.wake_at(max(moment + GRAIN, datetime.fromisoformat(ctx.now()) + AGAIN), nearest)

    async def _expire(self, state: ThreadState, expired: list[str], thread_id: str, ctx: Context) -> ThreadState:
        """All at once: while a run is at work nobody else could be told."""
        request = approvals.resuming(state, dict.fromkeys(expired, approvals.EXPIRE))
        try:
            await self._intake.request_run(thread_id, approvals.expiry_id(state, expired[0]), request, actor=self.name)
        except Refused as reason:  # somebody was quicker
            log.info("not expired", thread=thread_id, reason=str(reason))
        return await ctx.load()
