"""Messages to the log and back: nothing is lost, and the second way is the same as the first."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.messages.tool import invalid_tool_call, tool_call, tool_call_chunk

from actors.agent.messages.convert import MessageCache, dump, key_of, load
from tests.support.laws import EXAMPLES

names = st.text("abcxyz_-", min_size=1, max_size=8)
ids = st.uuids().map(str)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(names, json_values, max_size=3)
blocks = st.builds(lambda text: {"type": "text", "text": text}, st.text()) | st.builds(
    lambda url: {"type": "image_url", "image_url": {"url": url}}, st.text()
)
content: st.SearchStrategy[Any] = st.text() | st.lists(st.text() | blocks, max_size=3)
calls = st.builds(lambda name, args, identity: tool_call(name=name, args=args, id=identity), names, objects, ids)
invalid = st.builds(
    lambda name, args, identity, error: invalid_tool_call(name=name, args=args, id=identity, error=error),
    names,
    st.text(),
    ids,
    st.none() | st.text(),
)
counts = st.integers(0, 10**6)
usage = st.none() | st.builds(
    lambda a, b: {"input_tokens": a, "output_tokens": b, "total_tokens": a + b}, counts, counts
)
shared: dict[str, st.SearchStrategy[Any]] = {
    "content": content,
    "id": ids,
    "name": st.none() | names,
    "additional_kwargs": objects,
    "response_metadata": objects,
}
messages: st.SearchStrategy[BaseMessage] = st.one_of(
    st.builds(HumanMessage, **shared),
    st.builds(SystemMessage, **shared),
    st.builds(
        AIMessage,
        **shared,
        tool_calls=st.lists(calls, max_size=3),
        invalid_tool_calls=st.lists(invalid, max_size=2),
        usage_metadata=usage,
    ),
    st.builds(
        ToolMessage,
        **shared,
        tool_call_id=ids,
        artifact=json_values,
        status=st.sampled_from(["success", "error"]),
    ),
)


def through_the_log(message: BaseMessage) -> dict[str, Any]:
    stored: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(dump(message)))
    return stored


@given(messages)
@settings(max_examples=4 * EXAMPLES)
def test_there_and_back(message: BaseMessage) -> None:
    stored = through_the_log(message)
    loaded = load(stored)
    assert type(loaded) is type(message)
    assert loaded.model_dump(exclude={"artifact"}) == message.model_dump(exclude={"artifact"})
    assert through_the_log(loaded) == stored
    assert list(stored)[:3] == ["type", "id", "content"]


@given(messages)
@settings(max_examples=2 * EXAMPLES)
def test_nothing_empty_is_stored(message: BaseMessage) -> None:
    stored = through_the_log(message)
    assert not [
        key for key, value in stored.items() if key not in ("content", "id", "type") and value in (None, "", [], {})
    ]


@given(st.lists(messages, max_size=5))
def test_a_conversation_has_the_same_key_after_the_log(conversation: list[BaseMessage]) -> None:
    again = [load(through_the_log(message)) for message in conversation]
    assert msgspec.json.encode([key_of(m) for m in again]) == msgspec.json.encode([key_of(m) for m in conversation])


def test_what_the_key_leaves_out() -> None:
    call = tool_call(name="ls", args={"path": "/"}, id="a")
    other = tool_call(name="ls", args={"path": "/tmp"}, id="a")
    assert key_of(HumanMessage("x", id="1")) == key_of(HumanMessage("x", id="2"))
    assert key_of(AIMessage("", tool_calls=[call])) == key_of(AIMessage("", tool_calls=[{**call, "id": "b"}]))
    assert key_of(AIMessage("", tool_calls=[call])) != key_of(AIMessage("", tool_calls=[other]))
    assert key_of(HumanMessage("x")) != key_of(HumanMessage("y"))
    assert key_of(HumanMessage("x")) != key_of(AIMessage("x"))


def test_a_streamed_message_is_stored_as_a_whole_one() -> None:
    def chunk(content: str, **part: str | None) -> AIMessageChunk:
        parts = [tool_call_chunk(index=0, **part)] if part else []
        return AIMessageChunk(content=content, id="a", tool_call_chunks=parts)

    chunks = [
        chunk("Hel"),
        chunk("lo", id="c", name="ls", args='{"a"'),
        chunk("", id=None, name=None, args=": 1}"),
    ]
    stored = dump(chunks[0] + chunks[1:])
    assert stored == {
        "type": "ai",
        "id": "a",
        "content": "Hello",
        "tool_calls": [{"name": "ls", "args": {"a": 1}, "id": "c"}],
    }
    assert type(load(stored)) is AIMessage


def test_unknown_types_are_what_a_person_said() -> None:
    assert load({"type": "alien", "id": "a", "content": "beep"}) == HumanMessage("beep", id="a")
    assert load({"type": "ai"}).content == ""
    assert load(dump(RemoveMessage(id="gone"))) == RemoveMessage(id="gone")


def test_a_message_is_converted_once() -> None:
    loaded = MessageCache()
    first: list[dict[str, Any]] = [{"type": "human", "id": str(n), "content": str(n)} for n in range(3)]
    before = loaded.load("t", first)
    again = loaded.load("t", [*first, {"type": "ai", "id": "3", "content": "3"}])
    assert all(a is b for a, b in zip(before, again, strict=False))
    assert [message.content for message in again] == ["0", "1", "2", "3"]
    changed = loaded.load("t", [first[0], {"type": "human", "id": "1", "content": "new"}])
    assert changed[0] is before[0]
    assert [message.content for message in changed] == ["0", "new"]
    changed.clear()
    assert len(loaded.load("t", first)) == 3


def test_threads_that_rest_are_forgotten_by_their_bytes() -> None:
    loaded = MessageCache(limit=10_000)
    message = {"type": "human", "id": "a", "content": "x" * 2000}
    [before] = loaded.load("t", [message])
    loaded.hashes.of("t", [before])
    for number in range(3):
        loaded.load(str(number), [message])
    assert loaded.load("t", [message])[0] is before
    for number in range(5):
        [other] = loaded.load(str(number), [message])
        loaded.hashes.of(str(number), [other])
    [after] = loaded.load("t", [message])
    assert after == before
    assert after is not before
    assert "t" not in list(loaded.hashes._threads)
