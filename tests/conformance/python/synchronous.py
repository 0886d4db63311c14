"""The client that blocks: the same calls from code that is not asynchronous."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

import httpx
from langgraph_sdk import get_sync_client

from tests.conformance.python.lab import AGENT, SECONDS, Lab, case, contents

ANSWER = "Hello to you, too."


async def blocking(lab: Lab, work: Callable[[Any], Any]) -> Any:
    """What the work gives, done in a thread with a client of its own."""

    def done() -> Any:
        client = get_sync_client(url=f"{lab.urls[0]}/api", api_key=None, timeout=SECONDS)
        with client.http.client:
            return work(client)

    return await asyncio.to_thread(done)


@case
async def a_thread_and_its_runs(lab: Lab) -> None:
    def work(client: Any) -> None:
        thread = client.threads.create(metadata={"mark": lab.mark})["thread_id"]
        values = client.runs.wait(thread, AGENT, **lab.asked())
        assert contents(values, lab.mark) == ["Hi", ANSWER]
        modes = ["values", "messages-tuple"]
        parts = list(client.runs.stream(thread, AGENT, stream_mode=modes, **lab.asked(text="Two")))
        assert parts[0].event == "metadata"
        assert parts[-1].event == "end"
        assert "".join(part.data[0]["content"] for part in parts if part.event == "messages") == ANSWER
        run = parts[0].data["run_id"]
        assert client.runs.get(thread, run)["status"] == "success"
        assert client.runs.join(thread, run)["messages"]
        again = list(client.runs.join_stream(thread, run, last_event_id="-1", stream_mode=["values"]))
        state = client.threads.get_state(thread)["values"]
        state["messages"][-1]["additional_kwargs"].pop("turn_duration")  # known once the run has ended
        assert [part.data for part in again if part.event == "values"][-1] == state
        assert len(client.runs.list(thread)) == 2
        assert len(client.threads.get_history(thread)) == 5
        client.threads.update_state(thread, {"title": "T"})
        assert [one["thread_id"] for one in client.threads.search(metadata={"mark": lab.mark})] == [thread]
        client.threads.delete(thread)

    await blocking(lab, work)


@case
async def a_failure(lab: Lab) -> None:
    def work(client: Any) -> None:
        thread = client.threads.create()["thread_id"]
        try:
            values = client.runs.wait(thread, AGENT, **lab.asked("breaks"))
        except Exception as error:
            assert "the script breaks" in str(error)  # noqa: PT017
        else:  # older releases do not raise
            assert "the script breaks" in values["__error__"]["message"]
        try:
            client.threads.get(str(uuid.uuid4()))
        except httpx.HTTPStatusError as error:
            assert error.response.status_code == 404  # noqa: PT017
        else:
            raise AssertionError("an unknown thread was found")

    await blocking(lab, work)


@case
async def stopped(lab: Lab) -> None:
    def work(client: Any) -> None:
        thread = client.threads.create()["thread_id"]
        run = client.runs.create(thread, AGENT, **lab.asked("gated"))["run_id"]
        client.runs.cancel(thread, run, wait=True)
        assert client.runs.get(thread, run)["status"] == "interrupted"

    await blocking(lab, work)


@case
async def other_things(lab: Lab) -> None:
    def work(client: Any) -> None:
        assert client.assistants.search(graph_id=AGENT)
        client.store.put_item([lab.mark], "k", {"a": 1})
        assert client.store.get_item([lab.mark], "k")["value"] == {"a": 1}
        cron = client.crons.create(AGENT, schedule="0 0 1 1 *", input=lab.asked()["input"])
        client.crons.delete(cron["cron_id"])

    await blocking(lab, work)
