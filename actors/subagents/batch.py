"""A batch: works through its prompts with a bounded number of subagents at a time, on whichever workers.

Theory of operation
-------------------
The run of a batch is owned like any other, and is the only writer of what its log says of the items: the start and the
end of each attempt. An item's subagent follows from its index and its attempt. So a worker that takes the run over
reads the log, joins in where attempts are open, and goes on with the items that have not ended. The table is made of
the log: a row is added when the end of an item is a fact, and all rows are written anew, in order, when the work is
taken up and when it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import anyio
import msgspec
import structlog

from actors.agent.setup.delegates import Role
from actors.subagents.delegation import Call, Task
from actors.subagents.pool import Pool, Quota
from core.config.subagents import Batches
from core.errors import Invalid, NotFound, SikaError, ungrouped
from core.events import Event, ModelFailed, Record, SubagentCompleted
from core.log.feed import Listener
from core.phrases import counted
from core.ports.batches import BatchFiles
from core.runs.intake import Intake
from core.runs.owned import OwnedRun
from core.thread import batches
from core.thread.entries import Delegation
from core.thread.state import Run, ThreadState
from core.thread.subagents import identity

log = structlog.get_logger("sika.subagents")

FATAL = frozenset(("auth", "BudgetSpent"))
"""Failures that all further items would share."""
QUOTA = "quota"
"""Failure that all items share for a time: some providers say so when a rate of requests is exceeded."""
TOO_MANY_REQUESTS = 429
ITEM_SECONDS = 600.0
STOP_SECONDS = 30.0
"""Time for the open items of a batch to end that stops."""


class BatchStopped(SikaError):
    """The batch ended early: too many items failed, or one failed in a way that all others would."""

    code = "batch_stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Item(Call):
    """An attempt at an item. `retries`: how many attempts may follow. `limited` is called when the model's provider
    refuses a request for its rate. `patient`: whether the batch waits for a quota. `pause` begins to wait, and returns
    the seconds.
    """

    owned: OwnedRun
    retries: int
    limited: Callable[[], None]
    patient: Callable[[], bool]
    pause: Callable[[], float]

    async def calling(self) -> tuple[ThreadState, Run]:
        return self.owned.state, self.owned.run

    async def _state(self, decide: Callable[[Run, Delegation | None], Sequence[Event]]) -> None:
        run = self.owned.run
        for event in decide(run, run.subagents.get(self.subagent)):
            await self.owned.append(event)

    async def attend(self, listener: Listener, seconds: float) -> SubagentCompleted | None:
        """Follows the subagent to its end. What it says meanwhile is in its own log only."""
        return await self.follow(listener, seconds, 1 << 31)

    def hear(self, records: Sequence[Record]) -> None:
        if any(isinstance(record.event, ModelFailed) and _is_limited(record.event) for record in records):
            self.limited()

    async def completed(self, event: SubagentCompleted) -> SubagentCompleted:
        failed = event.status in ("failed", "timed_out") and event.failure not in FATAL
        again = self.patient() if event.failure == QUOTA else self.retries > 0
        result, left_out = event.result, len(event.result) - batches.MOST_RESULT
        if left_out > 0:
            result = f"{result[: batches.MOST_RESULT]}\n... [{counted(left_out, 'character')} left out]"
        retried = failed and again
        pause = self.pause() if retried and event.failure == QUOTA else 0.0
        event = msgspec.structs.replace(event, result=result, retried=retried, pause_seconds=pause)
        await self._state(lambda run, known: [event] if known else [])
        return event


class Batch:
    """One attempt at the run of a batch."""

    def __init__(self, run: OwnedRun, role: Role, settings: Batches, intake: Intake, files: BatchFiles) -> None:
        about = run.state.metadata
        self._run, self._role, self._settings = run, role, settings
        self._intake, self._files = intake, files
        self._thread, self._depth = str(about["thread"]), int(about["depth"]) + 1
        self._prompts, self._table = run.run.batch or [], str(run.request.batch_table)
        self._history = batches.History(self._prompts)
        self._pool, self._quota = Pool(settings.pool), Quota()

    async def work(self) -> None:
        """Works through the items that have not ended. Raises `BatchStopped`."""
        await self._write_table()
        pending = (index for index in range(len(self._prompts)) if index not in self._history.rows)
        with ungrouped():
            async with anyio.create_task_group() as tasks:
                for _ in range(min(self._settings.pool, len(self._prompts))):
                    tasks.start_soon(self._work, pending)
        await self._write_table()

    async def stop(self) -> None:
        """Stops the items that are at work, and writes the table as it stands then."""
        try:
            with ungrouped():
                async with asyncio.timeout(STOP_SECONDS), anyio.create_task_group() as tasks:
                    for known in self._run.run.subagents.values():
                        tasks.start_soon(self._stop, known)
        except (SikaError, TimeoutError) as error:
            log.warning("items not stopped", run=self._run.id, error=str(error) or "no end in time")
        with suppress(SikaError):
            await self._write_table()

    async def _write_table(self) -> None:
        """Reads the log, and makes the table of it."""
        threads, self._history = self._intake.threads, batches.History(self._prompts)
        async for record in threads.log.read(threads.aggregate(self._run.thread_id)):
            self._history.add([record])
        await self._files.replace(self._run.state.user, self._thread, self._table, self._history.lines())

    async def _work(self, pending: Iterator[int]) -> None:
        while True:
            async with self._pool.place() as period:
                await self._quota.passed()
                if (index := next(pending, None)) is None:
                    return
                await self._item(index, partial(self._pool.refused, period))
                self._pool.answered(period)
            self._check_failures()

    async def _item(self, index: int, limited: Callable[[], None]) -> None:
        """Brings an item to its end."""
        opened = any(known.item == index for known in self._run.run.subagents.values())
        attempt = self._history.attempts.get(index, 0) + (0 if opened else 1)
        while (event := await self._attempt(index, attempt, limited)).retried:
            attempt += 1
            await self._quota.passed()
        row = batches.row(index, self._prompts[index], attempt, self._call(index, attempt).subagent, event)
        try:
            await self._files.append(self._run.state.user, self._thread, self._table, row.line())
        except Invalid as error:  # somebody took the table away: at the end all of it is written
            log.warning("row not added", run=self._run.id, error=str(error))
        if event.failure in FATAL or event.failure == QUOTA:
            raise BatchStopped(f"The batch was stopped, because item {index} failed ({event.failure}): {event.error}")

    async def _attempt(self, index: int, attempt: int, limited: Callable[[], None]) -> SubagentCompleted:
        call, threads = self._call(index, attempt, limited=limited), self._intake.threads
        with threads.log.listen(threads.aggregate(call.subagent)) as listener:
            if self._run.stopping:
                await anyio.sleep_forever()  # the watcher of the run cancels this
            task = Task(description=f"item {index}", prompt=self._prompts[index], name=self._role.name)
            await call.begin(task, self._role, self._depth, item=index)
            while (event := await call.attend(listener, ITEM_SECONDS)) is None:
                pass
        if event.status == "completed":
            self._quota.answered()
        return event

    def _check_failures(self) -> None:
        items, limit = self._run.run.items, self._settings.max_failure_rate
        if items.ended >= self._settings.min_ended and items.failed > limit * items.ended:
            raise BatchStopped(f"The batch was stopped, because more than {limit:.0%} of its items failed.")

    async def _stop(self, known: Delegation) -> None:
        call, threads = (
            self._call(known.item or 0, int(known.call_id.rpartition("-")[2]), retries=0),
            self._intake.threads,
        )
        with threads.log.listen(threads.aggregate(call.subagent)) as listener:
            try:
                await call.stop()
                await call.attend(listener, STOP_SECONDS)
            except NotFound:  # the batch ended before the item was requested
                await call.completed(SubagentCompleted(call_id=call.id, status="cancelled"))

    def _call(
        self, index: int, attempt: int, retries: int | None = None, limited: Callable[[], None] = lambda: None
    ) -> Item:
        threads, key = self._intake.threads, f"{index}-{attempt}"
        return Item(
            callers=threads,
            caller=self._run.thread_id,
            thread=self._thread,
            user=self._run.state.user,
            run=self._run.id,
            id=key,
            subagent=identity(threads.aggregate(self._run.thread_id), self._run.id, key),
            intake=self._intake,
            owned=self._run,
            limited=limited,
            patient=partial(self._quota.is_patient, self._quota.wave),
            pause=partial(self._quota.refused, self._quota.wave),
            retries=self._settings.retries + 1 - attempt if retries is None else retries,
        )


def _is_limited(failed: ModelFailed) -> bool:
    return failed.status == TOO_MANY_REQUESTS or failed.reason == "busy"
