"""A second run on a busy thread: every strategy by every way in."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from tests.conformance.python.errors import ENTRIES, entered
from tests.conformance.python.lab import AGENT, Lab, case, eventually, raises, table

ANSWER = "Hello to you, too."


async def busy(lab: Lab) -> tuple[str, str]:
    """A thread with one turn done and a run that waits at its gate."""
    thread, _ = await lab.said(text="Before")
    run = await lab.client.runs.create(thread, AGENT, **lab.asked("gated", "First"))
    await lab.reached()
    return thread, run["run_id"]


async def second_of(lab: Lab, thread: str, first: str) -> str:
    [second] = await lab.client.runs.list(thread, limit=1)
    assert second["run_id"] != first
    return str(second["run_id"])


@table(*((entry,) for entry in ENTRIES))
async def reject(lab: Lab, entry: str) -> None:
    thread, first = await busy(lab)
    error = await raises(
        httpx.HTTPStatusError, entered(lab, entry, thread, multitask_strategy="reject", **lab.asked(text="Second"))
    )
    assert error.response.status_code == 409
    assert len(await lab.client.runs.list(thread)) == 2
    await lab.release()
    assert await lab.ended(thread, first) == "success"
    assert await lab.texts(thread) == ["Before", ANSWER, "First", "one two three four"]


@table(*((entry,) for entry in ENTRIES))
async def enqueue(lab: Lab, entry: str) -> None:
    thread, first = await busy(lab)
    asking = asyncio.create_task(entered(lab, entry, thread, multitask_strategy="enqueue", **lab.asked(text="Second")))

    async def stored() -> bool:
        return len(await lab.client.runs.list(thread)) == 3

    await eventually(stored)
    second = await second_of(lab, thread, first)
    assert (await lab.status(thread, first), await lab.status(thread, second)) == ("running", "pending")
    await lab.release()
    await asking
    assert await lab.ended(thread, second) == "success"
    assert await lab.status(thread, first) == "success"
    assert await lab.texts(thread) == ["Before", ANSWER, "First", "one two three four", "Second", ANSWER]


@table(*((entry,) for entry in ENTRIES))
async def interrupt(lab: Lab, entry: str) -> None:
    thread, first = await busy(lab)
    await entered(lab, entry, thread, multitask_strategy="interrupt", **lab.asked(text="Second"))
    second = await second_of(lab, thread, first)
    assert await lab.ended(thread, second) == "success"
    assert await lab.status(thread, first) == "interrupted"
    texts = await lab.texts(thread)
    assert texts[:3] == ["Before", ANSWER, "First"]
    assert texts[-2:] == ["Second", ANSWER]


@table(*((entry,) for entry in ENTRIES))
async def rollback(lab: Lab, entry: str) -> None:
    thread, first = await busy(lab)
    await entered(lab, entry, thread, multitask_strategy="rollback", **lab.asked(text="Second"))
    second = await second_of(lab, thread, first)
    assert await lab.ended(thread, second) == "success"
    await lab.ask("GET", f"/threads/{thread}/runs/{first}", status=404)
    assert await lab.texts(thread) == ["Before", ANSWER, "Second", ANSWER]


@case
async def first_come_first_served(lab: Lab) -> None:
    thread, _ = await busy(lab)
    texts = ["One", "Two", "Three"]
    made = [
        await lab.client.runs.create(thread, AGENT, multitask_strategy="enqueue", **lab.asked(text=text))
        for text in texts
    ]
    await lab.release()
    assert [await lab.ended(thread, run["run_id"]) for run in made] == ["success"] * 3
    assert (await lab.texts(thread))[4:] == ["One", ANSWER, "Two", ANSWER, "Three", ANSWER]


@case
async def queued_and_joined_later(lab: Lab) -> None:
    """What the newest bindings do with a submit during a stream."""
    thread, _ = await busy(lab)
    queued = await lab.client.runs.create(
        thread, AGENT, multitask_strategy="enqueue", stream_resumable=True, **lab.asked(text="Queued")
    )
    joining: list[Any] = []

    async def join() -> None:
        async for part in lab.client.runs.join_stream(
            thread, queued["run_id"], last_event_id="-1", stream_mode=["values", "messages-tuple"]
        ):
            joining.append(part)

    reading = asyncio.create_task(join())
    await lab.release()
    await reading
    assert joining[0].event == "metadata"
    assert joining[-1].event == "end"
    said = "".join(part.data[0]["content"] for part in joining if part.event == "messages")
    assert said == ANSWER
