"""Work that a cancellation does not cut off, and what bounds it."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from core.runs.finish import finished

pytestmark = pytest.mark.anyio


async def test_work_is_done_before_the_cancellation_is_raised() -> None:
    gate, done = asyncio.Event(), list[str]()

    async def work() -> None:
        await gate.wait()
        done.append("done")

    task = asyncio.create_task(finished(work(), 50))
    await asyncio.sleep(0)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == ["done"]


async def test_work_without_end_is_given_up_though_cancellations_do_not_stop() -> None:
    """As of a scope of anyio around tasks of asyncio, which cancels in each turn of the loop."""
    gate = asyncio.Event()

    async def cancelled() -> None:
        with anyio.CancelScope() as scope:
            working = asyncio.create_task(finished(gate.wait(), 0.05))
            await asyncio.sleep(0)
            scope.cancel()
            await asyncio.gather(working)

    ended, _ = await asyncio.wait([asyncio.create_task(cancelled())], timeout=20)
    gate.set()
    assert ended


async def test_results_and_errors_are_passed_on() -> None:
    async def fail() -> None:
        raise KeyError("x")

    assert await finished(asyncio.sleep(0, 3)) == 3
    with pytest.raises(KeyError):
        await finished(fail())
