"""`threads.stream()` of the unmodified Python SDK, on facts that a worker would write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal

import anyio
import pytest
from langgraph_sdk import get_client
from langgraph_sdk._async.stream import AsyncThreadStream

from core.events import (
    Interrupt,
    ModelCompleted,
    ModelFailed,
    RunCompleted,
    RunFailed,
    RunPaused,
    ToolCompleted,
    ToolRequested,
)
from core.ids import uuid7
from core.runs.previews import Progress, Pump
from core.thread.state import Run
from tests.channels.http.conftest import Worker
from tests.channels.http.story import ai, answer, call, pieces, started
from tests.conformance.python.lab import untimed
from tests.support.workers import wait_for

pytestmark = pytest.mark.anyio

INPUT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
TEXT = "Where the river bends, an old heron waits; it has all the time there is."

Open = Callable[..., Any]


@pytest.fixture(params=["sse", "websocket"])
async def opened(url: str, request: pytest.FixtureRequest) -> AsyncIterator[Open]:
    """Opens a thread's stream, on either transport."""
    client = get_client(url=f"{url}/api")

    @asynccontextmanager
    async def enter(thread: str | None = None) -> AsyncIterator[AsyncThreadStream]:
        kind: Literal["sse", "websocket"] = request.param
        with anyio.fail_after(60):
            async with client.threads.stream(thread, assistant_id="lead_agent", transport=kind) as stream:
                yield stream

    yield enter
    await client.aclose()


async def shown(worker: Worker, run: Run, event: ModelCompleted, size: int = 3, upto: int | None = None) -> None:
    """The previews of a message."""
    pump = Pump(worker.system.bus)
    for preview in pieces(event, size, worker.newest[run.id])[:upto]:
        await pump.publish(run.id, preview)
    await worker.system.bus.nc.flush()


async def texts(stream: AsyncThreadStream, began: asyncio.Event | None = None) -> list[str]:
    """What the messages of a run say. They are fed by this loop, so they cannot be waited for inside it. `began`: is
    set when the first one has.
    """
    messages = []
    async for message in stream.messages:
        messages.append(message)
        if began is not None:
            began.set()
    found = []
    for message in messages:
        try:
            found.append(await message.text)
        except RuntimeError as error:
            found.append(str(error))
    return found


async def test_a_run(opened: Open, worker: Worker) -> None:
    said = ModelCompleted(
        message=ai(
            "m1",
            TEXT,
            call("c1", "ls", path="/"),
            additional_kwargs={"reasoning_content": "Let me see."},
            usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
        )
    )
    told = ModelCompleted(message=ai("m2", "There is nothing."))

    async def work(thread: str) -> None:
        run = await worker.requested(thread)
        await worker.start(thread, run.id)
        await shown(worker, run, said, upto=20)
        await worker.write(thread, run.id, said, ToolRequested(call_id="c1", name="ls", effect="pure"))
        await Pump(worker.system.bus).progress(run.id, Progress(call_id="c1", name="ls", text="half"))
        await worker.write(thread, run.id, ToolCompleted(call_id="c1", message=answer("c1", "ls", "nothing")))
        await shown(worker, run, told)
        await worker.write(thread, run.id, told, RunCompleted())

    async with opened() as stream:
        task = asyncio.create_task(work(stream.thread_id))
        assert (await stream.run.start(input=INPUT))["run_id"]
        seen: list[Any] = []
        async for channel, item in stream.interleave_projections(
            ["values", "messages", "tool_calls", "updates", "tasks"]
        ):
            seen.append((channel, item))
        await task
        messages = [item for channel, item in seen if channel == "messages"]
        assert [await message.text for message in messages] == [TEXT, "There is nothing."]
        assert await messages[0].reasoning == "Let me see."
        assert await anext(aiter(messages[0].text)) == TEXT[:4]
        output = await messages[0].output
        assert output.tool_calls == [{"type": "tool_call", "id": "c1", "name": "ls", "args": {"path": "/"}}]
        assert output.usage_metadata == {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
        [tool] = [item for channel, item in seen if channel == "tool_calls"]
        assert (tool.name, tool.input, (await tool.output)["content"]) == ("ls", {"path": "/"}, "nothing")
        values = await stream.output
        assert [message["content"] for message in values["messages"]] == ["hi", TEXT, "nothing", "There is nothing."]
        last = [item for channel, item in seen if channel == "values"][-1]
        assert {**last, "messages": untimed(last["messages"])} == {**values, "messages": untimed(values["messages"])}
        assert [item["node"] for channel, item in seen if channel == "updates"] == ["model", "tools", "model"]
        tasks = [item for channel, item in seen if channel == "tasks"]
        assert [task["id"] for task in tasks if "result" in task] == [task["id"] for task in tasks if "input" in task]


async def test_runs_on_one_stream(opened: Open, worker: Worker) -> None:
    async with opened() as stream:
        for count in (1, 2, 3):
            await stream.run.start(input=INPUT)
            run = await worker.requested(stream.thread_id, count)
            task = asyncio.create_task(worker.perform(stream.thread_id, run.id, f"answer {count}"))
            assert await texts(stream) == [f"answer {count}"]
            await task


async def test_a_thread_with_a_past(opened: Open, worker: Worker) -> None:
    """The end of an earlier run is not taken for that of the one that was just started."""
    thread = uuid7()
    for count in (1, 2):
        async with opened(thread) as stream:
            await stream.run.start(input=INPUT)
            run = await worker.requested(thread, count)
            output = asyncio.ensure_future(stream.output)
            await worker.start(thread, run.id)
            await anyio.sleep(0.2)
            assert not output.done()
            await worker.finish(thread, run.id, f"answer {count}")
            assert (await output)["messages"][-1]["content"] == f"answer {count}"


async def test_questions(opened: Open, worker: Worker) -> None:
    asked = ModelCompleted(message=ai("m1", "May I?", call("c1", "rm", path="/")))
    async with opened() as stream:
        await stream.run.start(input=INPUT)
        run = await worker.requested(stream.thread_id)
        await worker.start(stream.thread_id, run.id)
        await worker.write(stream.thread_id, run.id, asked, ToolRequested(call_id="c1", name="rm", effect="once"))

        async def interrupted() -> bool:
            return bool(stream.interrupts)

        async for event in stream.subscribe(["tools"]):
            assert event["params"]["data"]["input"] == {"path": "/"}
            question = Interrupt(id="q1", value={"really": True}, call_id="c1")
            await worker.write(stream.thread_id, run.id, RunPaused(next=["tools"], interrupts=[question]))
        await wait_for(interrupted)
        assert stream.interrupts == [{"interrupt_id": "q1", "value": {"really": True}, "namespace": []}]
        with pytest.raises(RuntimeError, match="no_such_interrupt"):
            await stream._send_command("input.respond", {"interrupt_id": "q2", "namespace": [], "response": 1})
        assert await stream.run.respond("yes") == {}
        second = await worker.requested(stream.thread_id, 2)
        assert second.request.resume is not None
        assert second.request.resume.value == {"q1": "yes"}
        await worker.start(stream.thread_id, second.id)
        await worker.write(stream.thread_id, second.id, ToolCompleted(call_id="c1", message=answer("c1", "rm", "gone")))
        await worker.finish(stream.thread_id, second.id, "Done.")
        assert (await stream.output)["messages"][-1]["content"] == "Done."


async def test_failure(opened: Open, worker: Worker) -> None:
    async with opened() as stream:
        await stream.run.start(input=INPUT)
        run = await worker.requested(stream.thread_id)
        await worker.write(stream.thread_id, run.id, started(), RunFailed(error="Oh", text="it broke"))
        with pytest.raises(RuntimeError, match="it broke"):
            await stream.output


async def test_an_answer_that_breaks_off(opened: Open, worker: Worker) -> None:
    """The next one is shown all the same, and nobody waits for the first."""
    lost, kept = ModelCompleted(message=ai("m1", "Once upon a")), ModelCompleted(message=ai("m2", TEXT))
    async with opened() as stream:
        await stream.run.start(input=INPUT)
        run = await worker.requested(stream.thread_id)
        began = asyncio.Event()
        listening = asyncio.create_task(texts(stream, began))
        await worker.start(stream.thread_id, run.id)
        with anyio.fail_after(60):
            while not began.is_set():  # previews that are sent before it listens are lost
                await shown(worker, run, lost)
                await anyio.sleep(0.05)
        failed = ModelFailed(error="E", text="e", attempt=1, max_attempts=2, wait_ms=1)
        await worker.write(stream.thread_id, run.id, failed)
        await shown(worker, run, kept)
        await worker.write(stream.thread_id, run.id, kept, RunCompleted())
        assert await listening == ["the model's answer broke off", TEXT]
