"""Expires approvals whose deadline is over."""

from __future__ import annotations

from datetime import datetime, timedelta

import structlog

from core.actor import Actor, Context
from core.errors import Refused
from core.events import Aggregate, ApprovalRequested
from core.runs.intake import Intake
from core.thread import approvals
from core.thread.state import ThreadState

log = structlog.get_logger("sika.approvals")

AGAIN = timedelta(seconds=5)
"""Interval of checks while an expired approval waits for the end of a run."""


class Approvals(Actor[ApprovalRequested]):
    """Sets one timer for each approval with a deadline. Early and obsolete timers are harmless."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake

    async def handle(self, event: ApprovalRequested, ctx: Context) -> None:
        if event.deadline is not None:
            await ctx.wake_at(datetime.fromisoformat(event.deadline), event.approval)

    async def wake(self, aggregate: Aggregate, ctx: Context) -> None:
        """Expires overdue approvals, and sets the timer of the next deadline."""
        state = await ctx.load()
        if expired := approvals.expired(state, ctx.now()):
            state = await self._expire(state, expired, aggregate.id, ctx)
        if deadlines := approvals.deadlines(state):
            moment, nearest = min(deadlines)
            await ctx.wake_at(max(moment, datetime.fromisoformat(ctx.now()) + AGAIN), nearest)

    async def _expire(self, state: ThreadState, expired: list[str], thread_id: str, ctx: Context) -> ThreadState:
        """Expires all overdue approvals with one run: a second one could not start before its end."""
        request = approvals.resuming(state, dict.fromkeys(expired, approvals.EXPIRE))
        try:
            await self._intake.request_run(thread_id, approvals.expiry_id(state, expired[0]), request, actor=self.name)
        except Refused as reason:  # another run was faster
            log.info("not expired", thread=thread_id, reason=str(reason))
        return await ctx.load()
