"""Tools in a run: what comes of calls that go wrong, come together, or come with odd ids."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from actors.agent.model.calls import UNREADABLE
from core.bus.errors import BusUnavailable
from core.events import Message, ModelCompleted, ToolCompleted, ToolRequested
from core.nesting import VALUE_LEVELS
from core.thread.values import unanswered
from core.tools import Result, ToolContext, tool
from tests.support.model_server import ModelServer, ToolCall, Turn
from tests.support.workers import DEADLINE, configure, site

pytestmark = pytest.mark.anyio

DONE = Turn(text="Done.")


@tool(effect="pure")
async def explode(ctx: ToolContext, where: str) -> str:
    """Explode."""
    raise LookupError(f"no bridge at {where}" + "!" * 1000)


@tool(effect="once")
async def sign(ctx: ToolContext, note: str) -> str:
    """Sign."""
    return f"signed {note}"


def bash(command: str) -> ToolCall:
    return ToolCall("bash", {"description": "try", "command": command})


def kinds(messages: Sequence[Message]) -> list[str]:
    return [message["type"] for message in messages]


def tool_texts(messages: Sequence[Message]) -> list[str]:
    return [str(message["content"]) for message in messages if message["type"] == "tool"]


def assert_well_formed(models: ModelServer) -> None:
    """Every provider refuses a conversation with a tool call that is not answered right behind it."""
    for record in models.requests:
        open_calls: list[str] = []
        for message in record.body["messages"]:
            if message["role"] == "tool":
                assert message["tool_call_id"] in open_calls, record.body["messages"]
                open_calls.remove(message["tool_call_id"])
                continue
            assert not open_calls, record.body["messages"]
            open_calls = [call["id"] for call in message.get("tool_calls") or ()]
        assert not open_calls, record.body["messages"]


async def test_a_tool_that_raises_is_told_to_the_model(tmp_path: Path) -> None:
    turns = [Turn(tool_calls=(ToolCall("explode", {"where": "Arnhem"}),)), DONE]
    async with site(tmp_path, {"m": turns}, tools=[explode]) as (client, models):
        messages = await client.said(await client.thread(), "Go")
    [text] = tool_texts(messages)
    assert text.startswith("Error: Tool 'explode' failed: ")
    assert "no bridge at Arnhem" in text
    assert len(text) < 700
    assert messages[2]["status"] == "error"
    assert messages[-1]["content"] == "Done."
    assert_well_formed(models)


GIVES_UP = {"timeout": TimeoutError(), "cancelled": asyncio.CancelledError()}


@tool(effect="pure")
async def give_up(ctx: ToolContext, how: str) -> str:
    """Give up."""
    raise GIVES_UP[how]


@pytest.mark.parametrize("how", GIVES_UP)
async def test_a_tool_that_gives_up_by_itself_is_told_to_the_model(tmp_path: Path, how: str) -> None:
    """Errors without a text, of which one looks as if the run was stopped."""
    call = ToolCall("give_up", {"how": how})
    async with site(tmp_path, {"m": [Turn(tool_calls=(call,)), DONE]}, tools=[give_up]) as (client, _):
        messages = await client.said(await client.thread(), "Go")
    [text] = tool_texts(messages)
    assert text.startswith("Error: Tool 'give_up' failed: ")


async def test_a_tool_that_does_not_reach_the_log_is_called_again(tmp_path: Path) -> None:
    """Its result could not be recorded either: the run waits, and no error is told to the model."""
    calls = 0

    @tool(effect="pure")
    async def look_up(ctx: ToolContext) -> str:
        """Look up."""
        nonlocal calls
        calls += 1
        if calls == 1:
            raise BusUnavailable("the connection to NATS is lost and being made again")
        return "real output"

    turns = [Turn(tool_calls=(ToolCall("look_up", {}),)), DONE]
    async with site(tmp_path, {"m": turns}, tools=[look_up]) as (client, _):
        messages = await client.said(await client.thread(), "Go")
    assert tool_texts(messages) == ["real output"]
    assert calls == 2


@tool(effect="pure")
async def in_text(ctx: ToolContext) -> str:
    """Say it."""
    return "said"


@tool(effect="pure")
async def in_result(ctx: ToolContext) -> Result:
    """Say it."""
    return Result("said")


async def test_the_model_is_told_which_arguments_a_tool_does_not_know(tmp_path: Path) -> None:
    calls = tuple(ToolCall(name, {"loud": True}) for name in ("in_text", "in_result"))
    async with site(tmp_path, {"m": [Turn(tool_calls=calls), DONE]}, tools=[in_text, in_result]) as (client, _):
        messages = await client.said(await client.thread(), "Go")
    assert [text.partition(".")[0] for text in tool_texts(messages)] == ["said\n(Ignored unknown arguments: loud"] * 2


RESULTS = {
    "artifact": Result("ok", artifact=object()),
    "update": Result("ok", update={"plan": object()}),
    "fields": Result("ok", fields={"plan": {"by": object()}}),
    "key": Result("ok", update={"plan": {(1, 2): "x"}}),
}


@tool(effect="pure")
async def give(ctx: ToolContext, what: str) -> Result:
    """Give."""
    return RESULTS[what]


async def test_a_result_that_is_not_json_is_told_to_the_model(tmp_path: Path) -> None:
    calls = tuple(ToolCall("give", {"what": what}) for what in RESULTS)
    async with site(tmp_path, {"m": [Turn(tool_calls=calls), DONE]}, tools=[give]) as (client, models):
        messages = await client.said(await client.thread(), "Go")
    texts = tool_texts(messages)
    assert len(texts) == len(RESULTS)
    for text in texts:
        assert text.startswith("Error: Tool 'give' failed: its result is not JSON: ")
    assert messages[-1]["content"] == "Done."
    assert_well_formed(models)


def nested(levels: int) -> Any:
    value: Any = "leaf"
    for _ in range(levels):
        value = [value]
    return value


@tool(effect="pure")
async def nest(ctx: ToolContext, value: Any, levels: int) -> Result:
    """Nest."""
    return Result("ok", artifact=nested(levels))


async def test_what_is_nested_too_deeply_is_told_to_the_model(tmp_path: Path) -> None:
    """Python 3.13 would store it, and Python 3.11 could not read it."""
    calls = [(VALUE_LEVELS, 0), (0, VALUE_LEVELS), (VALUE_LEVELS - 5, VALUE_LEVELS - 5)]
    of_answer = tuple(ToolCall("nest", {"value": nested(value), "levels": levels}) for value, levels in calls)
    async with site(tmp_path, {"m": [Turn(tool_calls=of_answer), DONE]}, tools=[nest]) as (client, _):
        messages = await client.said(await client.thread(), "Go")
    arguments, result, neither = tool_texts(messages)
    assert arguments == f"Error: {UNREADABLE}"
    assert f"more than {VALUE_LEVELS} levels" in result
    assert neither == "ok"


class Panic(BaseException):
    """What libraries in Rust raise."""


@tool(effect="pure")
async def panic(ctx: ToolContext) -> str:
    """Panic."""
    raise Panic("called `unwrap` on a `None` value")


async def test_a_tool_that_panics_ends_no_process(tmp_path: Path) -> None:
    async with site(tmp_path, {"m": [Turn(tool_calls=(ToolCall("panic"),)), DONE]}, tools=[panic]) as (client, _):
        messages = await client.said(await client.thread(), "Go")
    assert tool_texts(messages) == ["Error: failed: called `unwrap` on a `None` value"]


async def test_a_tool_that_is_not_there_is_told_to_the_model(tmp_path: Path) -> None:
    turns = [Turn(tool_calls=(ToolCall("teleport", {"to": "Mars"}),)), DONE]
    async with site(tmp_path, {"m": turns}) as (client, models):
        messages = await client.said(await client.thread(), "Go")
    [text] = tool_texts(messages)
    assert text.startswith("Error: ")
    assert "teleport" in text
    assert messages[-1]["content"] == "Done."
    assert_well_formed(models)


@tool(effect="pure")
async def echo(ctx: ToolContext, text: str) -> str:
    """Return the text, and the name of a file that is not text."""
    return f"{text} \udcff"


async def test_what_is_no_text_is_replaced(tmp_path: Path) -> None:
    """In the arguments of a call, in the result of a tool, and in an answer."""
    halves = {"name": "halves", "model": "halves", "use": "tests.actors.agent.fakes:Halves"}
    async with site(tmp_path, {}, tools=[echo], more_models=[halves]) as (client, _):
        messages = await client.said(await client.thread(), "Go")
    assert messages[1]["tool_calls"][0]["args"] == {"text": "a\ufffd"}
    assert [message["content"] for message in messages[2:]] == ["a\ufffd \ufffd", "Done 😀."]


async def test_arguments_that_do_not_fit_are_told_to_the_model(tmp_path: Path) -> None:
    turns = [Turn(tool_calls=(ToolCall("sign", {"remark": 1}),)), DONE]
    async with site(tmp_path, {"m": turns}, tools=[sign]) as (client, models):
        messages = await client.said(await client.thread(), "Go")
    [text] = tool_texts(messages)
    assert text.startswith("Error")
    assert "note" in text
    assert messages[-1]["content"] == "Done."
    assert_well_formed(models)


@pytest.mark.parametrize("streams", [True, False])
async def test_arguments_that_are_not_json_are_told_to_the_model(tmp_path: Path, streams: bool) -> None:
    broken = ToolCall("sign", cast(Any, msgspec.Raw(b'{"note": "to be cont')))
    turns = [Turn(text="I sign.", tool_calls=(broken,)), DONE]
    async with site(tmp_path, {"m": turns}, tools=[sign]) as (client, models):
        whole = {"name": "w", "model": "m", "base_url": models.url, "api_key": "none", "disable_streaming": True}
        configure(tmp_path / "config.yaml", models, more_models=[whole])
        await client.said(await client.thread(), "Go", "m" if streams else "w")
        await client.said("t1", "And now?", "m" if streams else "w")
        messages = (await client.state("t1")).messages
    assert_well_formed(models)
    assert kinds(messages) == ["human", "ai", "tool", "ai", "human", "ai", "tool", "ai"]
    assert tool_texts(messages)[0].startswith("Error")


async def test_long_arguments_that_are_broken_at_their_beginning_hold_nobody_up(tmp_path: Path) -> None:
    """LangChain's repair of them takes longer than a test may."""
    broken = ToolCall("sign", cast(Any, msgspec.Raw(b'{"note": "He said "no".' + 20_000 * b" and no" + b'"}')))
    async with site(tmp_path, {"m": [Turn(tool_calls=(broken,)), DONE]}, tools=[sign]) as (client, _):
        messages = await client.said(await client.thread(), "Go")
    assert tool_texts(messages)[0].startswith("Error")


async def test_parallel_calls_run_at_the_same_time(tmp_path: Path) -> None:
    meeting = asyncio.Event()
    here: list[str] = []

    @tool(effect="pure")
    async def meet(ctx: ToolContext, name: str) -> str:
        """Wait for the others."""
        here.append(name)
        if len(here) == 3:
            meeting.set()
        async with asyncio.timeout(DEADLINE):
            await meeting.wait()
        return f"{name} met {len(here)}"

    calls = tuple(ToolCall("meet", {"name": name}) for name in ("ann", "bob", "cy"))
    async with site(tmp_path, {"m": [Turn(tool_calls=calls), DONE]}, tools=[meet]) as (client, models):
        messages = await client.said(await client.thread(), "Go")
        intents = [r.seq for r in await client.records("t1", ToolRequested)]
        outcomes = [r.seq for r in await client.records("t1", ToolCompleted)]
    assert sorted(tool_texts(messages)) == ["ann met 3", "bob met 3", "cy met 3"]
    assert max(intents) < min(outcomes)
    assert_well_formed(models)


async def test_the_intent_is_in_the_log_before_the_tool_starts(tmp_path: Path) -> None:
    logs: list[list[str]] = []

    @tool(effect="once")
    async def look(ctx: ToolContext) -> str:
        """Look into the log."""
        logs.append([record.type for record in await client.records(ctx.thread)])
        return "seen"

    async with site(tmp_path, {"m": [Turn(tool_calls=(ToolCall("look"),)), DONE]}, tools=[look]) as (client, _):
        await client.said(await client.thread(), "Go")
    assert [events[-1] for events in logs] == ["tool.requested"]


# ── ids ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

REPEATED = [[("call_0", "bash", f'{{"description": "d", "command": "echo {word}"}}')] for word in ("one", "two")]
MISSING = [[(None, "bash", f'{{"description": "d", "command": "echo {word}"}}')] for word in ("one", "two")]
TWINS = [
    [("call_0", "bash", f'{{"description": "d", "command": "echo {word}"}}') for word in ("one", "two")],
]
TWINS_ONCE = [[("call_0", "sign", f'{{"note": "{word}"}}') for word in ("one", "two")]]
NAMELESS_TWINS = [[(None, "sign", f'{{"note": "{word}"}}') for word in ("one", "two")]]


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        (REPEATED, ["one", "two"]),
        (MISSING, ["one", "two"]),
        (TWINS, ["one", "two"]),
        (TWINS_ONCE, ["signed one", "signed two"]),
        (NAMELESS_TWINS, ["signed one", "signed two"]),
    ],
    ids=["repeated", "missing", "twins", "twins-once", "nameless-twins"],
)
async def test_odd_call_ids(tmp_path: Path, turns: list[Any], expected: list[str]) -> None:
    """The sandbox must not answer with an old record, and no outcome may take the place of another."""
    odd = {"name": "odd", "model": "odd", "use": "tests.actors.agent.fakes:Odd", "turns": [*turns, []]}
    async with site(tmp_path, {}, tools=[sign], more_models=[odd]) as (client, _):
        for question in (1, 2):
            await client.thread()
            messages = await client.said("t1", f"Question {question}")
        state = await client.state("t1")
        answers = [r.event for r in await client.records("t1", ModelCompleted)]
    recorded = [event.message for event in answers if isinstance(event, ModelCompleted)]
    calls = [call["id"] for message in recorded for call in message.get("tool_calls", ())]
    assert all(calls)
    exchange = ["human", *(kind for turn in turns for kind in ("ai", *["tool"] * len(turn))), "ai"]
    assert kinds(messages) == [*exchange, *exchange]
    assert sorted(tool_texts(messages)) == sorted([*expected, *expected])
    assert not unanswered(state.messages)
    assert len({message["id"] for message in messages}) == len(messages)


@pytest.mark.parametrize("identity", ["call_0", None])
@pytest.mark.parametrize("broken", [0, 1])
async def test_of_calls_with_the_same_id_only_the_broken_one_is_refused(
    tmp_path: Path, identity: str | None, broken: int
) -> None:
    """LangChain completes arguments that were cut off: such a call must not be made."""
    texts = ['{"note": "one"}', '{"note": "two"}']
    texts[broken] = '{"note": "th'
    calls = [(identity, "sign", text) for text in texts]
    odd = {"name": "odd", "model": "odd", "use": "tests.actors.agent.fakes:Odd", "turns": [calls, []]}
    async with site(tmp_path, {}, tools=[sign], more_models=[odd]) as (client, _):
        messages = await client.said(await client.thread(), "Go")
    results = tool_texts(messages)
    assert sorted(result.partition(" ")[0] for result in results) == ["Error:", "signed"]
    assert ["signed one", "signed two"][1 - broken] in results


async def test_a_repeated_command_runs_again(tmp_path: Path) -> None:
    """The same command twice is not the same call twice."""
    turns = [
        Turn(tool_calls=(bash("echo x >> n; wc -l < n"),)),
        Turn(tool_calls=(bash("echo x >> n; wc -l < n"),)),
        DONE,
    ]
    async with site(tmp_path, {"m": turns}) as (client, models):
        messages = await client.said(await client.thread(), "Go")
    assert tool_texts(messages) == ["1", "2"]
    assert_well_formed(models)


async def test_raw_argument_text_is_kept_where_it_is_not_compact(tmp_path: Path) -> None:
    raw = '{ "note":  "spaced" }'
    call = ToolCall("sign", cast(Any, msgspec.Raw(raw.encode())))
    async with site(tmp_path, {"m": [Turn(tool_calls=(call,)), DONE]}, tools=[sign]) as (client, _):
        messages = await client.said(await client.thread(), "Go")
        event = (await client.records("t1", ModelCompleted))[0].event
    assert tool_texts(messages) == ["signed spaced"]
    assert isinstance(event, ModelCompleted)
    assert list(event.call_texts.values()) == [raw]
    assert messages[1]["tool_calls"][0]["args"] == json.loads(raw)
