"""Reports the last answers and the end of each subagent to its caller's log, if nobody who waits for it has."""

from __future__ import annotations

from contextlib import suppress

from actors.subagents.delegation import Call
from core.actor import Actor, Context
from core.errors import NotFound
from core.lifecycle import RunEnded
from core.log.kinds import SUBAGENT
from core.runs.intake import Intake
from core.thread.threads import Threads


class Reports(Actor[RunEnded]):
    """Appends `subagent.completed` where it is missing: all processes that answered the call may have died."""

    kind = SUBAGENT

    def __init__(self, threads: Threads, subagents: Intake) -> None:
        self._threads = threads
        self._intake = subagents

    async def handle(self, event: RunEnded, ctx: Context) -> None:
        state = await ctx.load(self._intake.threads)
        subagent, about = ctx.record.aggregate.id, state.metadata
        if subagent not in state.runs:
            return
        nested = about["caller"] is not None
        call = Call(
            callers=self._intake.threads if nested else self._threads,
            caller=about["caller"] or about["thread"],
            thread=about["thread"],
            user=state.user,
            run=about["run"],
            id=about["call"],
            subagent=subagent,
            intake=self._intake,
        )
        with suppress(NotFound):  # the conversation that called it is gone
            await call.conclude(state)
