"""Crons: runs that come back. None of these comes while a test waits."""

from __future__ import annotations

import uuid
from typing import Any

import httpx

from tests.conformance.python.lab import AGENT, Lab, case, needs, raises

YEARLY = "0 0 1 1 *"


async def made(lab: Lab, **more: Any) -> Any:
    return await lab.client.crons.create(
        AGENT, schedule=YEARLY, metadata={"mark": lab.mark}, input=lab.asked()["input"], **more
    )


@case
async def create_and_find(lab: Lab) -> None:
    cron = await made(lab)
    found: Any = await lab.client.crons.search(limit=1000)
    [mine] = [one for one in found if one["cron_id"] == cron["cron_id"]]
    assert mine["schedule"] == YEARLY
    assert mine["next_run_date"]
    assert mine["payload"]["input"]["messages"]
    uuid.UUID(cron["cron_id"])
    await lab.client.crons.delete(cron["cron_id"])
    left = await lab.client.crons.search(limit=1000)
    assert cron["cron_id"] not in [one["cron_id"] for one in left]


@case
async def on_a_thread(lab: Lab) -> None:
    thread = await lab.thread()
    cron: Any = await lab.client.crons.create_for_thread(
        thread, AGENT, schedule=YEARLY, input=lab.asked()["input"], metadata={"mark": lab.mark}
    )
    assert cron["thread_id"] == thread
    [mine] = await lab.client.crons.search(thread_id=thread)
    assert mine["cron_id"] == cron["cron_id"]
    assert await lab.client.crons.count(thread_id=thread) == 1
    await lab.client.crons.delete(cron["cron_id"])
    assert await lab.client.crons.count(thread_id=thread) == 0
    await lab.ask(
        "POST", f"/threads/{uuid.uuid4()}/runs/crons", {"assistant_id": AGENT, "schedule": YEARLY}, status=404
    )


@case
async def in_pages(lab: Lab) -> None:
    thread = await lab.thread()
    for _ in range(3):
        await lab.client.crons.create_for_thread(thread, AGENT, schedule=YEARLY)
    every = [one["cron_id"] for one in await lab.client.crons.search(thread_id=thread)]
    some = [one["cron_id"] for one in await lab.client.crons.search(thread_id=thread, limit=2)]
    rest = [one["cron_id"] for one in await lab.client.crons.search(thread_id=thread, limit=2, offset=2)]
    assert some + rest == every
    for cron in every:
        await lab.client.crons.delete(cron)


@case
async def update(lab: Lab) -> None:
    needs(lab.client.crons, "update")
    cron = await made(lab)
    await lab.client.crons.update(cron["cron_id"], schedule="30 6 * * 1", timezone="Europe/Berlin", enabled=False)
    [mine] = [one for one in await lab.client.crons.search(limit=1000) if one["cron_id"] == cron["cron_id"]]
    assert (mine["schedule"], mine["enabled"]) == ("30 6 * * 1", False)
    await lab.client.crons.delete(cron["cron_id"])


@case
async def refuses(lab: Lab) -> None:
    for schedule in ("every day", "61 * * * *", ""):
        error = await raises(httpx.HTTPStatusError, lab.client.crons.create(AGENT, schedule=schedule))
        assert error.response.status_code == 422
    error = await raises(httpx.HTTPStatusError, lab.client.crons.create("nobody", schedule=YEARLY))
    assert error.response.status_code in (404, 422)
    error = await raises(httpx.HTTPStatusError, lab.client.crons.delete(str(uuid.uuid4())))
    assert error.response.status_code == 404
