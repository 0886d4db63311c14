"""A worker hears of what others do to its run: a claim that loses, a stop, a takeover, an end."""

from __future__ import annotations

import anyio
import pytest

from core.bus.queue import WorkQueue
from core.errors import Conflict, OwnershipLost
from core.events import Event, RunCancelRequested, RunCompleted, RunRequested, RunStarted, StatePatched, ThreadCreated
from core.log.store import EventLog
from core.runs.owned import OwnedRun, Worker
from core.runs.previews import Pump
from core.thread.threads import Threads
from tests.support.nats import eventually

pytestmark = pytest.mark.anyio
THREAD, RUN = "t", "r"


async def owned(threads: Threads, name: str = "w") -> OwnedRun:
    """A run that is not claimed yet."""
    if not (await threads.load(THREAD)).exists:
        await threads.decide(THREAD, lambda _: [ThreadCreated(user="ada")], actor="test")
        await threads.decide(THREAD, lambda _: [RunRequested()], actor="test", run=RUN)
    bus = threads.log.bus
    state = await threads.load(THREAD)
    return OwnedRun("lead", Worker(threads, WorkQueue(bus, 2), Pump(bus), name), THREAD, state, state.runs[RUN])


async def test_of_two_claims_one_wins_and_the_other_is_told(log: EventLog) -> None:
    threads = Threads(log)
    first, second = await owned(threads, "w"), await owned(threads, "v")
    await first.claim(RunStarted(attempt=1, worker="w", lease=1))
    with pytest.raises(Conflict):
        await second.claim(RunStarted(attempt=1, worker="v", lease=2))
    assert (first.claimed, second.claimed) == (True, False)
    with pytest.raises(OwnershipLost, match="taken over by w"):
        await second.append(RunCompleted())
    assert await first.append(RunCompleted())


WATCHED: dict[str, tuple[Event, bool, str]] = {
    # what happens; whether the work is to stop, and why nothing can be decided any more
    "a stop": (RunCancelRequested(), True, ""),
    "a takeover": (RunStarted(attempt=2, worker="v", lease=2), True, "taken over by v"),
    "an end": (RunCompleted(), True, "ended by somebody else"),
    "something else": (StatePatched(values={"title": "t"}), False, ""),
}


@pytest.mark.parametrize(("event", "stops", "broken"), WATCHED.values(), ids=WATCHED)
async def test_what_others_do_is_heard(log: EventLog, event: Event, stops: bool, broken: str) -> None:
    threads = Threads(log)
    run = await owned(threads)
    await run.claim(RunStarted(attempt=1, worker="w", lease=1))
    scope = anyio.CancelScope()
    with anyio.fail_after(60), log.listen(threads.aggregate(THREAD)) as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run.watch, listener, scope)
            _, [record] = await threads.decide(THREAD, lambda _: [event], actor="test", run=RUN)

            async def heard() -> bool:
                return scope.cancel_called or run.state.seq >= record.seq

            await eventually(heard)
            tasks.cancel_scope.cancel()
    assert (scope.cancel_called, str(run.broken or "").partition(": ")[2]) == (stops, broken)
