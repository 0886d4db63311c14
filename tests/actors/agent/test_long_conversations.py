"""No conversation dies of its length: a server with a window, which refuses what does not fit as providers do."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from core.config.load import Config, ConfigSource
from core.config.windows import Window
from core.events import Aggregate, ContextCompacted, Message, ModelFailed, StatePatched, SubagentStarted
from core.replay.source import LogSource
from core.runs.replay import replay
from core.runs.windows import ALL, WindowLearned, Windows
from core.tools import ToolContext, tool
from tests.actors.agent.test_replay import loop
from tests.actors.agent.test_tools import assert_well_formed
from tests.support.model_server import Failure, ToolCall, Turn
from tests.support.records import ai, human
from tests.support.workers import Client, site

pytestmark = pytest.mark.anyio

WINDOW = 12_000
Play = Callable[[Sequence[dict[str, Any]]], Turn]


@tool(effect="pure")
async def fetch(ctx: ToolContext, page: int, lines: int = 200) -> str:
    """Fetch a page."""
    return "\n".join(f"page {page} line {line}: nothing of interest here" for line in range(lines)) + f"\nend {page}"


def size(messages: Sequence[dict[str, Any]]) -> int:
    return len(msgspec.json.encode(messages)) // 4


def windowed(play: Play, window: int = WINDOW, text: str = "maximum context length is {} tokens") -> Play:
    """Refuses what is longer than the window."""

    def answer(messages: Sequence[dict[str, Any]]) -> Turn:
        if size(messages) > window:
            return Turn(error=Failure(status=400, message=text.format(window), code="invalid_request_error"))
        return play(messages)

    return answer


def researcher(pages: int) -> Play:
    """Fetches pages one after the other, and says at the end which it has seen."""

    def play(messages: Sequence[dict[str, Any]]) -> Turn:
        seen = re.findall(r"end (\d+)", msgspec.json.encode(messages).decode())
        page = max(map(int, seen), default=-1) + 1
        return Turn(text=f"Seen {page}.") if page >= pages else Turn(tool_calls=(ToolCall("fetch", {"page": page}),))

    return play


def honest(messages: Sequence[dict[str, Any]]) -> Turn:
    """Writes down the ends of pages and the codes that it is shown."""
    facts = re.findall(r"end \d+|code \d+", str(messages[-1]["content"]))
    return Turn(text="Summary: " + ", ".join(dict.fromkeys(facts)))


def silent(messages: Sequence[dict[str, Any]]) -> Turn:
    return Turn(error=Failure(status=400, message="no summaries today"))


def source(home: Path) -> Config:
    return ConfigSource(home / "config.yaml").current()


async def compactions(client: Client) -> list[ContextCompacted]:
    return [r.event for r in await client.records("t1", ContextCompacted) if isinstance(r.event, ContextCompacted)]


async def replayed(client: Client, **more: Any) -> str | None:
    report = await replay(
        LogSource(client.system.log).read, "t1", None, loop(client.system.log, (fetch,), **more).execute
    )
    return report.divergence


@pytest.mark.parametrize(
    "text", ["maximum context length is {} tokens", "prompt is too long: 99999 tokens > {} maximum", "Prompt 超长"]
)
async def test_a_refused_request_goes_on_in_the_same_run(tmp_path: Path, text: str) -> None:
    scripts = {"m": windowed(researcher(8), text=text), "s": honest}
    settings = {"model_name": "s"}
    async with site(tmp_path, scripts, tools=[fetch], summarization=settings) as (client, models):
        messages = await client.said(await client.thread(), "Read eight pages", "m")
        assert messages[-1]["content"] == "Seen 8."
        events = await compactions(client)
        failures = await client.records("t1", ModelFailed)
        assert 1 <= len(events) <= 4
        assert all(event.model == "s" for event in events)
        assert 1 <= len(failures) <= len(events)
        assert "Read eight pages" in str(messages[0]["content"]), "what the person wrote"
        assert_well_formed(models)
        assert await replayed(client) is None
        learned = [r.event async for r in client.system.log.read(Aggregate("windows", ALL))]
        named = "{" in text
        assert [event.tokens for event in learned if isinstance(event, WindowLearned)] == [WINDOW] * named
        if named:
            assert len(failures) == 1, "the next one comes before a refusal"
        assert (await client.said("t1", "And now?", "m"))[-1]["content"] == "Seen 8."


async def test_what_is_learnt_counts_for_other_threads_and_processes(tmp_path: Path) -> None:
    scripts = {"m": windowed(researcher(6)), "s": honest}
    async with site(tmp_path, scripts, tools=[fetch], summarization={"model_name": "s"}) as (client, _):
        await client.said(await client.thread(), "Read", "m")
        await client.thread("t2")
        await client.said("t2", "Read", "m")
        records = [record.event async for record in client.system.log.read(Aggregate("thread", "t2"))]
        assert not any(isinstance(event, ModelFailed) for event in records)
        fresh = Windows(client.system.log)
        assert await fresh.of(source(tmp_path), "m") == Window(WINDOW, 0, "learned")
        assert (await fresh.of(source(tmp_path), "s")).source == "assumed"


@pytest.mark.parametrize("summariser", [honest, silent])
async def test_a_single_giant_message_is_shortened(tmp_path: Path, summariser: Play) -> None:
    def play(messages: Sequence[dict[str, Any]]) -> Turn:
        text = str(messages[-1]["content"])
        return Turn(text=f"{'begins' * ('BEGIN' in text)} {'ends' * ('code 17' in text)}")

    scripts = {"m": windowed(play), "s": summariser}
    async with site(tmp_path, scripts, summarization={"model_name": "s"}) as (client, _):
        messages = await client.said(await client.thread(), f"BEGIN {'lorem ipsum ' * 20_000} code 17", "m")
        assert messages[-1]["content"] == "begins ends"
        [event] = await compactions(client)
        assert "characters are left out" in str(event.messages[0]["content"])
        assert (await client.said("t1", "Hi code 17", "m"))[-1]["content"].strip() == "ends"
        assert await replayed(client) is None


@pytest.mark.parametrize("summariser", [honest, silent])
async def test_a_giant_result_is_shortened(tmp_path: Path, summariser: Play) -> None:
    def play(messages: Sequence[dict[str, Any]]) -> Turn:
        if any("end 7" in str(message["content"]) for message in messages):
            return Turn(text="Seen.")
        return Turn(tool_calls=(ToolCall("fetch", {"page": 7, "lines": 9000}),))

    scripts = {"m": windowed(play), "s": summariser}
    off = {"enabled": False}
    async with site(tmp_path, scripts, tools=[fetch], summarization={"model_name": "s"}, tool_output=off) as (
        client,
        m,
    ):
        assert (await client.said(await client.thread(), "Fetch it", "m"))[-1]["content"] == "Seen."
        [event] = await compactions(client)
        assert "Fetch it" in str(event.summary["content"])
        assert_well_formed(m)
        assert (await client.said("t1", "Thanks", "m"))[-1]["content"] == "Seen."


async def test_a_thread_that_died_of_its_length_is_alive_again(tmp_path: Path) -> None:
    scripts = {"m": windowed(lambda messages: Turn(text="Here.")), "s": honest}
    talk: list[Message] = [
        message for n in range(40) for message in (human(f"h{n}", f"Question {n} " + "x" * 2000), ai(f"a{n}", "Answer"))
    ]
    died: Message = {
        **ai("error-1", "This conversation is too long"),
        "additional_kwargs": {"deerflow_error_fallback": True},
    }
    async with site(tmp_path, scripts, summarization={"model_name": "s"}) as (client, _):
        await client.thread()
        patch = StatePatched(values={"messages": [*talk, died]})
        await client.system.threads.decide("t1", lambda _: [patch], actor="test")
        assert (await client.said("t1", "and now?", "m"))[-1]["content"] == "Here."


async def test_it_is_on_by_default(tmp_path: Path) -> None:
    async with site(tmp_path, {"m": windowed(researcher(8))}, tools=[fetch]) as (client, _):
        messages = await client.said(await client.thread(), "Read eight pages", "m")
        assert len(await compactions(client)) > 0
        assert messages[-1]["content"] == "Seen 8."


async def test_a_subagent_goes_on_too(tmp_path: Path) -> None:
    def lead(messages: Sequence[dict[str, Any]]) -> Turn:
        results = [message for message in messages if message["role"] == "tool"]
        if results:
            return Turn(text=f"It says: {results[-1]['content']}")
        args = {"description": "read", "prompt": "Read eight pages", "subagent_type": "general-purpose"}
        return Turn(tool_calls=(ToolCall("task", args),))

    scripts = {"lead": lead, "m": windowed(researcher(8)), "s": honest}
    own = {"agents": {"general-purpose": {"model": "m"}}}
    async with site(tmp_path, scripts, tools=[fetch], summarization={"model_name": "s"}, subagents=own) as (
        client,
        models,
    ):
        context = {"subagent_enabled": True, "model_name": "lead"}
        messages = await client.said(await client.thread(), "Go on.", context=context)
        assert "Seen 8." in str(messages[-1]["content"])
        assert any(record.model == "s" for record in models.requests)
        [started] = [r.event for r in await client.records("t1", SubagentStarted)]
        assert isinstance(started, SubagentStarted)
        state = await client.system.subagents.threads.load(started.subagent)
        assert state.messages[0]["name"] == "summary"
        assert "Read eight pages" in str(state.messages[0]["content"])


async def test_the_runs_own_model_goes_on_before_a_fallback(tmp_path: Path) -> None:
    scripts = {"m": windowed(researcher(8)), "s": honest, "other": researcher(8)}
    roles = {"lead": ["m", "other"]}
    sections: dict[str, Any] = {"summarization": {"model_name": "s"}, "model_roles": roles}
    async with site(tmp_path, scripts, tools=[fetch], **sections) as (client, models):
        assert (await client.said(await client.thread(), "Read eight pages"))[-1]["content"] == "Seen 8."
        assert {record.model for record in models.requests} == {"m", "s"}
