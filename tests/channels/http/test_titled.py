"""A client that reads the title at the end of a thread's first run finds it."""

from __future__ import annotations

from typing import Any

import pytest

from channels.http.protocols.langgraph import titled
from core.config.agent import Title
from core.events import ModelCompleted, RunCompleted, ThreadTitled
from tests.channels.http.conftest import Api, Settings, Stream, Worker
from tests.channels.http.story import ai, started

pytestmark = pytest.mark.anyio

ASK: dict[str, Any] = {"input": {"messages": [{"role": "user", "content": "hi"}]}}


@pytest.fixture
def config(config: Settings) -> Settings:
    config.title = Title()
    return config


async def begun(stream: Stream, worker: Worker, thread: str) -> str:
    run = str((await stream.until("metadata"))[0][1]["run_id"])
    await worker.write(thread, run, started(), ModelCompleted(message=ai(f"m-{run}", "Hello")), RunCompleted())
    return run


@pytest.mark.parametrize(
    ("mode", "shown"),
    [("updates", {"TitleMiddleware.after_model": {"title": "Greetings"}}), ("values", "Greetings")],
)
async def test_the_title_comes_before_the_end(
    api: Api, worker: Worker, monkeypatch: pytest.MonkeyPatch, mode: str, shown: Any
) -> None:
    monkeypatch.setattr(titled, "SECONDS", 120.0)
    thread = await api.thread()
    async with api.stream("POST", f"/threads/{thread}/runs/stream", {**ASK, "stream_mode": [mode]}) as stream:
        run = await begun(stream, worker, thread)
        await worker.write(thread, run, ThreadTitled(title="Greetings"))
        *_, (event, data, place), end = await stream.rest()
    assert (event, data["title"] if mode == "values" else data, place) == (mode, shown, "")
    assert (end[0], bool(end[2])) == ("end", True)
    async with api.stream(
        "GET", f"/threads/{thread}/runs/{run}/stream", **{"Last-Event-ID": end[2], "Accept": "text/event-stream"}
    ) as again:
        assert again.response.status == 204, "the place is that of the run's end"


async def test_a_slow_title_is_not_waited_for(api: Api, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(titled, "SECONDS", 0.05)
    thread = await api.thread()
    async with api.stream("POST", f"/threads/{thread}/runs/stream", {**ASK, "stream_mode": ["values"]}) as stream:
        await begun(stream, worker, thread)
        assert (await stream.rest())[-1][0] == "end"


@pytest.mark.parametrize("case", ["off", "second run", "no values", "two messages", "hidden", "no input", "titled"])
async def test_who_gets_no_title_waits_for_none(
    api: Api, worker: Worker, config: Settings, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.setattr(titled, "SECONDS", 600.0)
    thread = await api.thread()
    if case == "off":
        config.title = Title(enabled=False)
    if case == "second run":
        await worker.perform(thread, await api.run(thread))
    if case == "titled":
        await api.ask("POST", f"/threads/{thread}/state", {"values": {"title": "T"}})
    [message] = ASK["input"]["messages"]
    inputs = {
        "two messages": {"messages": [message, message]},
        "hidden": {"messages": [{**message, "additional_kwargs": {"hide_from_ui": True}}]},
        "no input": None,
    }
    mode = "messages-tuple" if case == "no values" else "values"
    body = {"input": inputs.get(case, ASK["input"]), "stream_mode": [mode]}
    async with api.stream("POST", f"/threads/{thread}/runs/stream", body) as stream:
        await begun(stream, worker, thread)
        assert (await stream.rest())[-1][0] == "end"
