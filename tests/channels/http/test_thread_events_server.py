"""`threads.stream()` of the unmodified Python SDK against everything there is but the model, which is scripted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest
from langgraph.types import interrupt
from langgraph_sdk import get_client
from langgraph_sdk._async.stream import AsyncThreadStream
from langgraph_sdk.client import LangGraphClient

from channels.http.app import Services, serve
from core.config.load import ConfigSource
from core.tools import ToolContext, tool
from tests.support.model_server import Failure, ModelServer, ToolCall, Turn
from tests.support.workers import Client, site, wait_for

pytestmark = pytest.mark.anyio

TEXT = "Where the river bends, an old heron waits; it has all the time there is. " * 5


@tool(effect="pure")
async def ask(ctx: ToolContext, question: str) -> str:
    """Ask the person who is there."""
    return f"They said: {interrupt({'question': question})}"


SCRIPTS = {
    "long": (Turn(reasoning="I wonder.", text=TEXT, delay_ms=1),),
    "slow": (Turn(text=TEXT, delay_ms=15),),
    "asks": (Turn(text="May I?", tool_calls=(ToolCall("ask", {"question": "go on?"}),)), Turn(text="Understood.")),
    "gated": (Turn(text="one two three four", gate="go", gate_after=2),),
    "breaks": (Turn(error=Failure(status=400, message="the script breaks")),),
}


class Whole(NamedTuple):
    sdk: LangGraphClient
    models: ModelServer
    client: Client


@pytest.fixture
async def whole(tmp_path: Path) -> AsyncIterator[Whole]:
    async with site(tmp_path, SCRIPTS, tools=[ask]) as (client, models):
        services = Services.of(client.system, ConfigSource(tmp_path / "config.yaml").current, tmp_path)
        async with serve(services, "127.0.0.1", 0) as port:
            sdk = get_client(url=f"http://127.0.0.1:{port}/api")
            with anyio.fail_after(60):
                yield Whole(sdk, models, client)
            await sdk.aclose()


async def start(stream: AsyncThreadStream, model: str) -> str:
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
    return str((await stream.run.start(input=asked, config={"configurable": {"model_name": model}}))["run_id"])


async def texts(stream: AsyncThreadStream) -> list[str]:
    messages = [message async for message in stream.messages]
    return [await message.text for message in messages]


async def test_turns(whole: Whole) -> None:
    async with whole.sdk.threads.stream(assistant_id="lead_agent") as stream:
        for count in (1, 2):
            await start(stream, "long")
            messages = [message async for message in stream.messages]
            assert [await message.text for message in messages] == [TEXT]
            assert [await message.reasoning for message in messages] == ["I wonder."]
            deltas = [delta async for delta in messages[0].text]
            assert len(deltas) > 10
            assert len((await stream._fetch_state())["values"]["messages"]) == 2 * count
        assert (await stream.output)["messages"][1]["content"] == TEXT


async def test_a_question_and_its_answer(whole: Whole) -> None:
    async with whole.sdk.threads.stream(assistant_id="lead_agent") as stream:
        await start(stream, "asks")

        async def asked() -> bool:
            return bool(stream.interrupts)

        await wait_for(asked)
        assert stream.interrupts[0]["value"] == {"question": "go on?"}
        await stream.run.respond("yes")
        values = await stream.output
        assert [message["content"] for message in values["messages"][-2:]] == ["They said: yes", "Understood."]


async def test_a_cancelled_run_ends_the_stream_of_messages(whole: Whole) -> None:
    """What was shown stays; the thread takes a new run."""
    async with whole.sdk.threads.stream(assistant_id="lead_agent") as stream:
        run = await start(stream, "gated")
        seen: list[str] = []
        async for event in stream.subscribe(["messages", "lifecycle"]):
            data = event["params"]["data"]
            seen.append(data["event"])
            if data["event"] == "content-block-delta" and "interrupted" not in seen:
                await whole.sdk.runs.cancel(stream.thread_id, run)
            if data["event"] == "interrupted":
                break
        whole.models.release("go")
        assert seen[:2] == ["running", "message-start"]
        await start(stream, "long")
        state = await whole.client.until(
            stream.thread_id, lambda state, _: state.messages[-1:] != [] and state.status == "idle"
        )
        assert state.messages[-1]["content"] == TEXT


async def test_failure(whole: Whole) -> None:
    async with whole.sdk.threads.stream(assistant_id="lead_agent") as stream:
        await start(stream, "breaks")
        with pytest.raises(RuntimeError, match="the script breaks"):
            await stream.output


async def test_connections_that_are_cut(whole: Whole) -> None:
    """Every 20 ms, while the model talks: the client comes back by itself, and has the text once."""
    async with whole.sdk.threads.stream(assistant_id="lead_agent") as stream:
        stream._shared_max_reconnect_attempts = stream._lifecycle_max_reconnect_attempts = 1000
        stream._shared_reconnect_backoff_base = 0.001

        async def begun() -> bool:
            return len(list(stream._seen_event_ids)) > 3

        async def cut() -> None:
            await wait_for(begun)  # it does not open its first connection twice
            while True:
                transport: Any = whole.sdk.http.client._transport
                for connection in transport._pool.connections:
                    inner = connection._connection
                    if inner is not None:
                        inner._network_stream.get_extra_info("socket").shutdown(2)
                        cuts.append(1)
                await anyio.sleep(0.02)

        cuts: list[int] = []
        await start(stream, "slow")
        cutting = asyncio.create_task(cut())
        try:
            assert await texts(stream) == [TEXT]
        finally:
            cutting.cancel()
            await asyncio.gather(cutting, return_exceptions=True)
        assert len(cuts) > 5
