"""A call of `task`, from its start to its end, on the logs of the caller and of the subagent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
import structlog

from actors.agent.run.options import options
from actors.agent.setup.delegates import Role
from core import traces
from core.bus.queue import Hint
from core.config.subagents import INHERIT
from core.errors import NotFound, Refused
from core.events import (
    Event,
    Message,
    Record,
    RunOrigin,
    RunRequested,
    SubagentCompleted,
    SubagentProgressed,
    SubagentStarted,
)
from core.ids import uuid7
from core.log.feed import Listener
from core.log.kinds import SUBAGENT
from core.runs.intake import WORKERS, Intake
from core.thread import batches, subagents
from core.thread.entries import Delegation
from core.thread.state import Run, ThreadState
from core.thread.threads import Threads

log = structlog.get_logger("sika.subagents")

ACTOR = WORKERS[SUBAGENT]
RECHECK_SECONDS = 15.0
"""Interval of checks that a silent subagent has a wake-up, and that its caller still waits."""
QUEUE_SECONDS = 60.0
"""Time beyond its own limit after which a subagent that nobody has begun is given up."""


BOUND_BY_CALLER = "timeout_of_caller"
"""Key in the context of a subagent's run: its time is what its caller has left, and not what is configured."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of a call. Of a batch: `prompts`, and the path of the `table` of results."""

    description: str
    prompt: str
    name: str
    prompts: list[str] = []
    table: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call `id`, as the model named it, of the run `run` of the conversation `caller`. `thread`: the one whose files
    are worked with.
    """

    callers: Threads
    caller: str
    thread: str
    user: str
    run: str
    id: str
    subagent: str
    intake: Intake
    """The commands on subagents."""
    seconds: float | None = None
    """The time that the caller has left for it. None: any."""

    # ── the caller's log ────────────────────────────────────────────────────────────────────────────────────────────

    async def calling(self) -> tuple[ThreadState, Run]:
        """Returns the calling conversation and run. Raises `NotFound`."""
        state = await self.callers.load(self.caller)
        if state.user != self.user or self.run not in state.runs:
            raise NotFound(f"run {self.run}: not found")
        return state, state.runs[self.run]

    async def _state(self, decide: Callable[[Run, Delegation | None], Sequence[Event]]) -> None:
        """Appends what `decide` makes of the calling run, and of what is known there of the subagent."""

        def decision(state: ThreadState) -> Sequence[Event]:
            run = state.runs.get(self.run)
            return decide(run, run.subagents.get(self.subagent)) if run else []

        cached = self.callers.cached(self.caller)
        run = cached.runs.get(self.run) if cached else None
        intent = run.intents.get(self.id) if run else None
        await self.callers.decide(self.caller, decision, actor=ACTOR, run=self.run, cause=intent.id if intent else None)

    async def _started(self, event: SubagentStarted) -> None:
        def decide(run: Run, known: Delegation | None) -> Sequence[Event]:
            if known is None and (not run.open or run.cancel is not None):
                raise Refused(f"run {self.run}: has ended, or is to stop")
            return [] if known else [event]

        await self._state(decide)

    async def _progressed(self, index: int, message: Message, batch: bool) -> None:
        def decide(run: Run, known: Delegation | None) -> Sequence[Event]:
            if not run.open or known is None or known.ended or known.messages >= index:
                return []
            fresh = batches.since(message, known.tokens) if batch else message
            return [SubagentProgressed(call_id=self.id, index=index, message=fresh)]

        await self._state(decide)

    async def completed(self, event: SubagentCompleted) -> SubagentCompleted:
        await self._state(lambda run, known: [event] if known and not known.ended else [])
        return event

    async def failed(self, error: str) -> SubagentCompleted:
        return await self.completed(SubagentCompleted(call_id=self.id, status="failed", error=error))

    # ── the subagent's log ──────────────────────────────────────────────────────────────────────────────────────────

    async def begin(self, task: Task, role: Role, depth: int, *, nested: bool = False, item: int | None = None) -> None:
        """Appends the start, and the request for the subagent's run. What is there already stays."""
        _, run = await self.calling()
        intent = run.intents.get(self.id)
        model = run.model if role.model == INHERIT else role.model
        await self._started(
            SubagentStarted(
                call_id=self.id,
                subagent=self.subagent,
                name=task.name,
                description=task.description,
                prompt=task.prompt if item is None else "",
                model=model,
                item=item,
            )
        )
        about = {
            "thread": self.thread,
            "caller": None if self.callers.kind != SUBAGENT else self.caller,
            "run": self.run,
            "call": self.id,
            "subagent": self.subagent,
            "name": task.name,
            "depth": depth,
        }
        await self.intake.create_thread(self.subagent, user=self.user, metadata=about, actor=ACTOR)
        caller = options(run.request)
        context = {
            "model_name": model,
            "agent_name": role.agent or run.request.context.get("agent_name"),
            "channel_user_id": run.request.context.get("channel_user_id"),
            "available_skills": run.request.context.get("available_skills"),
            "thinking_enabled": caller.thinking,
            "reasoning_effort": caller.effort,
            "is_plan_mode": False,
            "subagent_enabled": nested,
            "subagent_type": task.name,
            "timeout_seconds": role.seconds,
            "unattended": True,
        }
        if self.seconds is not None and self.seconds < role.seconds:
            context |= {"timeout_seconds": max(0.0, self.seconds), BOUND_BY_CALLER: True}
        first = {"type": "human", "id": f"human-{self.subagent}", "content": task.prompt}
        request = RunRequested(
            assistant=task.name,
            input={"messages": [first]} if task.table is None else {"prompts": task.prompts},
            batch_table=task.table,
            config={"recursion_limit": role.max_turns},
            context={key: value for key, value in context.items() if value is not None},
            traceparent=traces.header(run.request),
            wanted=RunOrigin(self.callers.kind, self.caller, intent.id) if intent else None,
        )
        try:
            await self.intake.request_run(self.subagent, self.subagent, request, actor=ACTOR)
        except Refused:
            log.info("the subagent is there already", subagent=self.subagent)

    async def late(self) -> SubagentCompleted:
        """States what the subagent has done until now as what comes of the call, and stops it."""
        state = await self.intake.threads.load(self.subagent)
        run = state.runs.get(self.subagent)
        if run is None:
            return await self.completed(
                SubagentCompleted(call_id=self.id, status="timed_out", error=subagents.NOT_BEGUN)
            )
        if not run.open:
            return await self.completed(subagents.outcome(state, self.subagent, self.id))
        event = await self.completed(subagents.unfinished(state, self.subagent, self.id))
        await self.stop()
        return event

    async def attend(self, listener: Listener, seconds: float) -> SubagentCompleted | None:
        """Follows the subagent to its end, and states what comes of it. Returns None if it is at work for longer."""
        return await self.follow(listener, seconds, (await self.calling())[1].subagents[self.subagent].messages)

    async def follow(self, listener: Listener, seconds: float, reported: int) -> SubagentCompleted | None:
        """Does what `attend` does, beginning after what is reported."""
        until, at_least = time.monotonic() + seconds, None
        while True:
            state = await self.intake.threads.load(self.subagent, at_least=at_least)
            if (run := state.runs.get(self.subagent)) is None:
                raise NotFound(f"subagent {self.subagent}: was erased")
            reported = await self._progress(state, reported)
            if not run.open:
                return await self.completed(subagents.outcome(state, self.subagent, self.id))
            if time.monotonic() >= until:
                return None
            at_least = await self._news(listener, state, until - time.monotonic())
            if at_least is None and (late := self._late(await self.intake.threads.load(self.subagent))):
                return await self._given_up(late)

    async def conclude(self, state: ThreadState) -> None:
        """States the end of the subagent, and before it the answers that nobody has stated. Raises `NotFound`."""
        _, caller = await self.calling()
        known = caller.subagents.get(self.subagent)
        if known is None or known.ended:
            return
        if caller.batch is None:  # of an item of a batch, only the end counts
            await self._progress(state, known.messages)
        await self.completed(subagents.outcome(state, self.subagent, self.id))

    async def _progress(self, state: ThreadState, reported: int) -> int:
        """States the answers beyond those reported. Returns the number of the last one."""
        for index, message in subagents.progress(state, self.subagent, reported):
            await self._progressed(index, message, state.runs[self.subagent].batch is not None)
            reported = index
        return reported

    async def _news(self, listener: Listener, state: ThreadState, seconds: float) -> int | None:
        """Waits for the next event and returns its sequence. Returns None after a silence, or if events were lost."""
        try:
            async with asyncio.timeout(min(seconds, RECHECK_SECONDS)):
                records, lost = await listener.take()
            self.hear(records)
            return None if lost or not records else records[-1].seq
        except TimeoutError:
            await self._recheck(state)
            return None

    def hear(self, records: Sequence[Record]) -> None:
        """Takes notice of events of the subagent."""

    async def _recheck(self, state: ThreadState) -> None:
        """Stops a subagent that nobody waits for any more, and wakes one that no wake-up stands for."""
        _, caller = await self.calling()
        if not caller.open or caller.cancel is not None:
            return await self.stop()
        run, queue = state.runs[self.subagent], self.intake.queue
        if run.status == "pending" or not await queue.exists(run.lease):
            await queue.wake(ACTOR, self.intake.threads.aggregate(self.subagent), Hint(), key=f"open-{uuid7()}")

    async def stop(self) -> None:
        """Asks the subagent to stop, unless it has ended."""
        try:
            await self.intake.cancel(self.subagent, self.subagent, actor=ACTOR)
        except Refused:
            log.debug("the subagent has ended", subagent=self.subagent)

    def _late(self, state: ThreadState) -> float:
        """Returns the seconds after which a subagent that nobody has begun is given up, if they have passed."""
        run = state.runs[self.subagent]
        limit = float(run.request.context["timeout_seconds"]) + QUEUE_SECONDS
        waited = (datetime.now(UTC) - datetime.fromisoformat(run.created_at)).total_seconds()
        return limit if run.status == "pending" and waited > limit else 0

    async def _given_up(self, seconds: float) -> SubagentCompleted:
        await self.stop()
        text = f"no worker had begun with it after {seconds:g} s"
        return await self.completed(SubagentCompleted(call_id=self.id, status="timed_out", error=text))
