"""What the model can search of its conversation: all that summaries replaced, and nothing that was removed."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain.agents.middleware import ModelRequest, ModelResponse
from langchain_core.messages import ToolMessage
from langchain_core.tools import StructuredTool

from actors.agent.policies.context.earlier_messages import (
    MOST_HITS,
    PASSAGE,
    READ_CHARACTERS,
    Earlier,
    EarlierMessages,
    search,
)
from actors.agent.policies.context.thinning import Thinning
from actors.agent.run.attempt import Attempt
from core.events import ContextCompacted, Json, Message, StatePatched
from core.thread.earlier import SEARCH, Entry, conversation
from core.thread.values import REMOVE_ALL
from tests.actors.agent.turns import Asked, model_call, tool_call, turn
from tests.support.records import ai, call, human

pytestmark = pytest.mark.anyio


def summarised(on: Attempt, kept: list[str], text: str = "A summary.") -> None:
    identity = f"summary-{on.state.seq}"
    message: Message = {"type": "human", "id": identity, "name": "summary", "content": text}
    happened(on, ContextCompacted(summary=message, kept=kept))


def happened(on: Attempt, event: Any) -> None:
    on.journal._take(event)  # type: ignore[attr-defined]


def patched(on: Attempt, *messages: Message) -> None:
    happened(on, StatePatched(values={"messages": list(messages)}))


async def asked(on: Attempt, **args: Any) -> str:
    patched(on, ai(f"asks-{on.state.seq}", "", [call("s", SEARCH, **args)]))
    answer, passed_on = await tool_call(EarlierMessages(), on, SEARCH, args, call_id="s")
    assert isinstance(answer, ToolMessage)
    assert not passed_on
    return str(answer.content)


def result(identity: str, text: str, of: str) -> Message:
    return {"type": "tool", "id": identity, "tool_call_id": of, "name": "bash", "content": text}


WORK: list[Message] = [
    human("h", "Mend the harbour crane"),
    ai("a", "I look at the motor first.", [call("c", "bash", command="motor --serial")]),
    result("t", "serial 4471-Q of the motor", "c"),
    ai("b", "It is mended."),
]


class Inner(Asked):
    """The handler of `Thinning`: the policy, and what it asks."""

    async def __call__(self, request: ModelRequest[Attempt]) -> ModelResponse[Any]:
        return await EarlierMessages().awrap_model_call(request, super().__call__)


async def offered(on: Attempt) -> bool:
    handler = Inner()
    other = StructuredTool.from_function(func=lambda: "", name="ls", description="lists")
    await model_call(Thinning(), on, handler, tools=[other, *EarlierMessages().tools])
    names = [tool.name for tool in handler.requests[-1].tools if not isinstance(tool, dict)]
    assert "ls" in names
    return SEARCH in names


async def test_the_tool_is_offered_once_a_summary_leaves_something_out() -> None:
    on = turn(WORK)
    assert not await offered(on)
    summarised(on, ["b"])
    assert await offered(on)


async def test_the_tool_is_offered_once_a_result_is_thinned() -> None:
    models: Json = {"models": [{"name": "m", "model": "m", "context_window": 10_000}]}
    steps = [
        [ai(f"a{n}", "", [call(f"c{n}", "bash", command="make")]), result(f"t{n}", "x" * 4000, f"c{n}")]
        for n in range(5)
    ]
    messages = [message for step in steps for message in step]
    assert not await offered(turn([human("h", "Go"), *messages[:6]], config=models))
    assert await offered(turn([human("h", "Go"), *messages], config=models))


@pytest.mark.parametrize(
    ("query", "hit"),
    [
        ("cranes", "Mend the harbour crane"),
        ("serials of motors", "serial 4471-Q"),
        ("4471-Q", "serial 4471-Q"),
        ("motor --serial", "calls bash("),
        ("mending", "Mend the harbour crane"),
        ("the", ""),
        ("ship", ""),
        ('"* OR NEAR( -', ""),
    ],
)
async def test_words_find_messages(query: str, hit: str) -> None:
    on = turn(WORK)
    summarised(on, [])
    text = await asked(on, query=query)
    assert hit in text if hit else text.startswith("No earlier message has these words")


async def test_words_of_scripts_without_spaces() -> None:
    on = turn([human("h", "港口的起重机坏了"), human("i", "天气很好")])
    summarised(on, [])
    assert "港口的起重机" in await asked(on, query="起重机")
    assert "天气" not in await asked(on, query="起重机")


async def test_what_is_shown_in_full_is_not_found_again() -> None:
    on = turn(WORK)
    summarised(on, ["h"])
    assert "Mend the harbour" not in await asked(on, query="harbour crane motor")
    assert "4471-Q" in await asked(on, query="harbour crane motor")


@pytest.mark.parametrize("removed", ["t", REMOVE_ALL])
@pytest.mark.parametrize("after", [False, True], ids=["before the summary", "after it"])
async def test_what_was_removed_is_never_found(removed: str, after: bool) -> None:
    on = turn(WORK)
    if after:
        summarised(on, ["t"] if removed == "t" else ["b"])
    patched(on, {"type": "remove", "id": removed}, human("n", "Go on"))
    summarised(on, ["n"])
    text = await asked(on, query="serial 4471-Q crane")
    assert "serial 4471-Q of" not in text
    assert ("harbour crane" in text) == (removed == "t")


async def test_a_message_is_found_as_it_was_last_written() -> None:
    on = turn(WORK)
    patched(on, human("h", "Mend the lighthouse"))
    summarised(on, [])
    assert "crane" not in await asked(on, query="mend crane lighthouse")
    assert "lighthouse" in await asked(on, query="mend crane lighthouse")


async def test_a_shortened_message_is_found_whole() -> None:
    on = turn([human("h", f"The code is 8842. {'x ' * 2000}")])
    summary: Message = {"type": "human", "id": "summary-1", "name": "summary", "content": "s"}
    happened(on, ContextCompacted(summary=summary, kept=["h"], messages=[human("h", "The … code")]))
    assert "8842" in await asked(on, query="code")


async def test_notes_summaries_and_the_searches_themselves_are_not_found() -> None:
    note = {**human("n", "note about cranes"), "additional_kwargs": {"hide_from_ui": True}}
    search_: list[Message] = [
        ai("x", "", [call("q", SEARCH, query="cranes")]),
        {"type": "tool", "id": "y", "tool_call_id": "q", "name": SEARCH, "content": "cranes were found"},
    ]
    on = turn([note, *search_])
    summarised(on, [], "A summary about cranes.")
    assert (await asked(on, query="cranes")).startswith("No earlier message")


async def test_a_long_message_is_read_in_parts() -> None:
    text = " ".join(f"word{n}" for n in range(6000))
    on = turn([human("h", text)])
    summarised(on, [])
    hits = await asked(on, query="word4999")
    key = re.search(r"message ([\d-]+): the person, .*characters (\d+) to", hits)
    assert key is not None
    assert len(hits) < PASSAGE + 500
    start, read = 0, ""
    while True:
        part = await asked(on, message=key[1], start=start)
        assert len(part) < READ_CHARACTERS + 500
        read += part.partition("<earlier>\n")[2].removesuffix("\n</earlier>")
        if (more := re.search(r"read on with start=(\d+)", part)) is None:
            break
        start = int(more[1])
    assert read == text


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ({}, "Error: query: 1 to 500 characters"),
        ({"query": "x" * 501}, "Error: query: 1 to 500 characters"),
        ({"query": 3}, "Error: query: 1 to 500 characters"),
        ({"message": "7-7"}, "Error: message: there is no earlier message '7-7'"),
        ({"message": "0-0", "start": -1}, "Error: start: a number from 0"),
    ],
)
async def test_refusals(args: Json, problem: str) -> None:
    on = turn(WORK)
    summarised(on, [])
    assert (await asked(on, **args)).startswith(problem)


async def test_a_start_beyond_the_end() -> None:
    on = turn(WORK)
    summarised(on, [])
    key = re.search(r"message ([\d-]+): the person", await asked(on, query="crane"))
    assert key is not None
    assert "is beyond the end" in await asked(on, message=key[1], start=10_000)


texts = st.text(max_size=3000)


@given(st.lists(texts, max_size=12), texts)
def test_any_words_of_any_texts(bodies: list[str], query: str) -> None:
    """A search ends with passages of the texts, at most one of each, whatever is asked."""
    messages = [(Entry(str(n), {"type": "human"}, ""), Earlier(str(n), "", body)) for n, body in enumerate(bodies)]
    hits = search(messages, query)
    assert len(hits) <= MOST_HITS
    assert len({hit.of.key for hit in hits}) == len(hits)
    assert all(hit.text in bodies[int(hit.of.key)] and len(hit.text) <= PASSAGE for hit in hits)


@given(st.integers(0, 40), st.integers(0, 4000), st.integers(0, 4000))
def test_a_word_is_found_wherever_it_lies(place: int, before: int, after: int) -> None:
    others = [f"other {n} " * 200 for n in range(40)]
    bodies = [*others[:place], f"{'a ' * before}needle{' b' * after}", *others[place:]]
    messages = [(Entry(str(n), {"type": "human"}, ""), Earlier(str(n), "", body)) for n, body in enumerate(bodies)]
    [hit] = search(messages, "Needles")
    assert hit.of.key == str(place)
    assert "needle" in hit.text


@given(st.lists(st.sampled_from(["add", "remove", "clear", "change", "summarise"]), max_size=25), st.data())
async def test_the_conversation_is_what_it_is_without_summaries(steps: list[str], data: st.DataObject) -> None:
    """Compared with a thread to which the same happened, but for its summaries."""
    one, other = turn([human("h", "begin")]), turn([human("h", "begin")])
    for number, step in enumerate(steps):
        ids = [str(message["id"]) for message in one.state.messages if message.get("name") != "summary"]
        if step == "summarise":
            summarised(one, data.draw(st.lists(st.sampled_from(ids), unique=True)) if ids else [])
            continue
        event: Message = human(f"m{number}", f"text {number}")
        if step == "clear":
            event = {"type": "remove", "id": REMOVE_ALL}
        elif step != "add" and ids:
            identity = data.draw(st.sampled_from(ids))
            event = {"type": "remove", "id": identity} if step == "remove" else human(identity, f"changed {number}")
        patched(one, event)
        patched(other, event)
    entries = await conversation(one.state)
    assert len({entry.key for entry in entries}) == len(entries)
    key = {json.dumps(message, sort_keys=True) for message in other.state.messages}
    assert {json.dumps(entry.message, sort_keys=True) for entry in entries} == key
