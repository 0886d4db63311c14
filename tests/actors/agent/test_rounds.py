"""The loop without a graph does as LangGraph's: the same facts, call by call, for tools of all kinds."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain.tools import InjectedState, ToolRuntime
from langchain_core.language_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.messages import ToolCall as LangChainCall
from langchain_core.tools import InjectedToolCallId, StructuredTool
from langgraph.config import get_config, get_stream_writer
from langgraph.runtime import get_runtime
from langgraph.types import Command, interrupt

from actors.agent.loop.rounds import together
from core.events import Resume, RunRequested
from core.ids import uuid7
from core.tools import Result, ToolContext, tool
from tests.actors.agent.turns import turn
from tests.support.model_server import ToolCall, Turn
from tests.support.workers import DEADLINE, Client, site

pytestmark = pytest.mark.anyio

HERE = "tests.actors.agent.test_rounds"
DONE = Turn(text="Done.")


# ── tools of ours ───────────────────────────────────────────────────────────────────────────────────────────────────


@tool(effect="once")
async def ask_twice(ctx: ToolContext, city: str) -> str:
    """Ask for a day, then for a number."""
    day = interrupt({"question": f"when to {city}?"})
    return f"{city} on {day} for {interrupt('how many?')}"


@tool(effect="pure")
async def values(ctx: ToolContext, kind: str) -> Any:
    """Return a value of a kind."""
    if kind == "message":
        return ToolMessage("a message", tool_call_id=ctx.call_id.partition("-")[2])
    made: dict[str, Any] = {
        "text": "a text",
        "none": None,
        "number": 7,
        "object": {"a": ["ä", 1]},
        "blocks": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}],
        "texts": ["one", "two"],
        "empty": [],
        "set": {1},
        "failed": Result("it failed", failed=True),
        "update": Result("noted", update={"colour": "blue"}, artifact={"a": 1}, fields={"mark": 1}),
    }
    return made[kind]


@tool(effect="pure")
async def broken(ctx: ToolContext) -> str:
    """Break."""
    raise LookupError("no bridge")


class Inner(FakeMessagesListChatModel):
    """The model of an agent that a tool asks."""

    def bind_tools(self, *_: Any, **__: Any) -> Any:
        return self


async def _ask_inside() -> str:
    return f"told {interrupt('inside?')}"


@tool(effect="pure")
async def nested(ctx: ToolContext, asks: bool) -> str:
    """Ask another agent, which asks a person."""
    call = LangChainCall(name="ask_inside", args={}, id="inner")
    answers: list[BaseMessage] = [*([AIMessage("", tool_calls=[call])] if asks else []), AIMessage("Well.")]
    inner = StructuredTool.from_function(coroutine=_ask_inside, name="ask_inside", description="d")
    agent = create_agent(Inner(responses=answers), tools=[inner])
    answer = await agent.ainvoke({"messages": [HumanMessage("Go")]})
    return str(answer["messages"][-1].content)


# ── tools of LangChain's, which a middleware brings along ───────────────────────────────────────────────────────────


async def injected(
    word: str,
    state: Annotated[dict[str, Any], InjectedState],
    messages: Annotated[list[Any], InjectedState("messages")],
    call: Annotated[str, InjectedToolCallId],
    runtime: ToolRuntime[Any, Any],
) -> Command[Any]:
    """Use what is injected."""
    get_stream_writer()("unheard")
    get_runtime()
    same = call == runtime.tool_call_id and state["messages"] == messages == runtime.state["messages"]
    text = f"{word} after {len(messages)} messages, {same}, {runtime.store}, {'configurable' in get_config()}"
    return Command(update={"colour": word, "messages": [ToolMessage(text, tool_call_id=call)]}, goto="nowhere")


async def several(call: Annotated[str, InjectedToolCallId]) -> list[Any]:
    """Return a command and a message."""
    return [Command(update={"colour": "red"}), ToolMessage("two things", tool_call_id=call)]


async def asks(word: str) -> str:
    """Ask a person."""
    return f"{word} {interrupt('which?')}"


async def direct(word: str) -> str:
    """Answer."""
    return f"directly {word}"


async def typed(number: int) -> int:
    """Take a number."""
    return number + 1


class Toolbox(AgentMiddleware[Any, Any, Any]):
    """Tools without hooks."""

    name = "toolbox"

    def __init__(self) -> None:
        super().__init__()
        self.tools = [
            *(StructuredTool.from_function(coroutine=each) for each in (injected, several, asks, typed)),
            StructuredTool.from_function(coroutine=direct, return_direct=True),
        ]


class Hooked(AgentMiddleware[Any, Any, Any]):
    """A hook that does nothing: what needs a graph."""

    name = "hooked"

    async def aafter_agent(self, state: Any, runtime: Any) -> None: ...


# ── scripts, by the name of their model ─────────────────────────────────────────────────────────────────────────────


def _calls(*calls: tuple[str, dict[str, Any]]) -> Turn:
    return Turn(tool_calls=tuple(ToolCall(name, args, f"call_{n}") for n, (name, args) in enumerate(calls)))


KINDS = ("text", "none", "number", "object", "blocks", "texts", "empty", "set", "failed", "update", "message")
SCRIPTS: dict[str, list[Turn]] = {
    **{f"value-{kind}": [_calls(("values", {"kind": kind})), DONE] for kind in KINDS},
    "no-calls": [DONE],
    "beside": [_calls(("broken", {}), ("values", {"kind": "text"}), ("missing", {}), ("values", {"no": 1})), DONE],
    "rounds": [_calls(("values", {"kind": "text"})), _calls(("broken", {})), _calls(("values", {"kind": "set"})), DONE],
    "asks": [_calls(("ask_twice", {"city": "Rome"}), ("values", {"kind": "text"}), ("broken", {})), DONE],
    "asks-both": [_calls(("ask_twice", {"city": "Rome"}), ("ask_twice", {"city": "Oslo"})), DONE],
    "clarifies": [_calls(("ask_clarification", {"question": "Which?"}), ("values", {"kind": "text"})), DONE],
    "injected": [_calls(("injected", {"word": "blue"}), ("injected", {"word": "red", "state": {}})), DONE],
    "several": [_calls(("several", {})), DONE],
    "asks-langchain": [_calls(("asks", {"word": "the"}), ("typed", {"number": 1})), DONE],
    "typed": [_calls(("typed", {"number": "many"}), ("typed", {})), DONE],
    "direct": [_calls(("direct", {"word": "so"})), DONE],
    "direct-beside": [_calls(("direct", {"word": "so"}), ("typed", {"number": 1})), DONE],
    "nested": [_calls(("nested", {"asks": False})), DONE],
    "nested-asks": [_calls(("nested", {"asks": True}), ("values", {"kind": "text"})), DONE],
}
ANSWERS = {"asks": ("May", 2), "asks-langchain": ("one",)}
"""Answers to the questions of a script, a run for each."""
AT_ONCE = 4


async def logs(home: Path, middlewares: Sequence[str]) -> dict[str, list[Any]]:
    """Returns what each script records, without ids and times."""
    home.mkdir()
    tools, entries = [ask_twice, values, broken, nested], [f"{HERE}:{name}" for name in middlewares]
    async with site(home, SCRIPTS, tools=tools, middlewares=entries) as (client, _):
        places = asyncio.Semaphore(AT_ONCE)
        written = await asyncio.gather(*(_played(client, name, places) for name in SCRIPTS))
    return dict(zip(SCRIPTS, written, strict=True))


async def _played(client: Client, name: str, places: asyncio.Semaphore) -> list[Any]:
    async with places:
        await client.thread(name)
        await client.ended(name, await client.ask(name, "Go", name))
        for answer in ANSWERS.get(name, ()):
            run = uuid7()
            request = RunRequested(context={"model_name": name}, resume=Resume(value=answer))
            await client.system.intake.request_run(name, run, request)
            await client.ended(name, run)
    return _plain([(record.type, msgspec.to_builtins(record.event)) for record in await client.records(name)])


_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\b[0-9a-f]{16,64}\b|\b\d+(?=-call_)")
_UNEQUAL = {
    "duration_ms",
    "first_token_ms",
    "worker",
    "lease",
    "config",
    "setup",
    "release",
    "prompt",
    "delivery",
    "timestamp",
}


def _plain(events: list[Any]) -> list[Any]:
    """Returns events with ids numbered as they occur, without what differs from run to run."""
    numbers: dict[str, str] = {}
    fresh = itertools.count()

    def plain(value: Any) -> Any:
        if isinstance(value, str):
            return _ID.sub(lambda match: numbers.setdefault(match[0], f"<{next(fresh)}>"), value)
        if isinstance(value, dict):
            return {plain(name): plain(each) for name, each in value.items() if name not in _UNEQUAL}
        return [plain(each) for each in value] if isinstance(value, list | tuple) else value

    return [plain(event) for event in events]


async def test_rounds_record_what_a_graph_records(tmp_path: Path) -> None:
    rounds = await logs(tmp_path / "rounds", ["Toolbox"])
    graph = await logs(tmp_path / "graph", ["Toolbox", "Hooked"])
    for name in SCRIPTS:
        assert _in_order(rounds[name]) == _in_order(graph[name]), name
    texts = {
        name: [e["message"]["content"] for kind, e in log if kind == "tool.completed"] for name, log in rounds.items()
    }
    assert texts["injected"] == ["blue after 2 messages, True, None, True", "red after 2 messages, True, None, True"]
    assert texts["several"] == ["two things"]
    logged = [entry for name in ("injected", "several") for entry in rounds[name]]
    names = [e["message"]["name"] for kind, e in logged if kind == "tool.completed"]
    assert names == ["injected", "injected", "several"], "also of results that do not say whose they are"
    assert texts["nested"] == ["Well."]
    assert "directly so" in texts["direct"]
    assert [kind for kind, _ in rounds["direct"]].count("model.completed") == 1
    assert [kind for kind, _ in rounds["direct-beside"]].count("model.completed") == 2
    assert [kind for kind, _ in rounds["asks-both"]][-1] == "run.paused"


def _in_order(log: Sequence[Any]) -> list[Any]:
    """Returns a log with what the calls of one answer record in the order of the calls: they are made at once."""
    groups = itertools.groupby(log, key=lambda entry: entry[0].startswith("tool."))
    return [each for _, group in groups for each in sorted(group, key=lambda entry: entry[1].get("call_id", ""))]


async def test_a_call_that_fails_fails_the_run_and_the_others_end_with_it() -> None:
    attempt, ended = turn(), list[str]()

    async def wait() -> bool:
        try:
            await asyncio.sleep(DEADLINE)
        except asyncio.CancelledError:
            ended.append("waited")
            raise
        return True

    async def fail() -> bool:
        raise LookupError("no bridge")

    with pytest.raises(LookupError):
        await together(attempt, [wait, fail])
    await attempt.end()
    assert ended == ["waited"]
    assert not attempt.working


async def test_a_run_that_ends_before_its_calls_have_begun_ends_them() -> None:
    attempt, begun = turn(), list[str]()

    async def begin() -> bool:
        begun.append("begun")
        return True

    task = asyncio.create_task(together(attempt, [begin]))
    attempt.working.add(task)
    task.cancel()
    await attempt.end()
    attempt.task(begin())
    await attempt.end()
    assert begun == []
