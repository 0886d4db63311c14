"""The translation of frames, where servers may do it in several ways."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from channels.client.events import Translator, text_of
from channels.client.sse import Frame

HUMAN = {"type": "human", "id": "h1", "content": "Hi"}
OLD = {"type": "ai", "id": "a0", "content": "Before", "usage_metadata": {"input_tokens": 9, "total_tokens": 9}}
USAGE = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
CALL = {"name": "ls", "args": {"path": "/"}, "id": "c1", "type": "tool_call"}
SAID = {"type": "ai", "id": "a1", "content": "Let me see", "tool_calls": [CALL], "usage_metadata": USAGE}
RESULT = {"type": "tool", "id": "t1", "content": "a b", "name": "ls", "tool_call_id": "c1"}

FIRST = Frame("values", {"messages": [OLD, HUMAN]})
LAST = Frame("values", {"messages": [OLD, HUMAN, SAID, RESULT]})
END = Frame("end", None)


def _chunk(content: Any = "", **more: Any) -> Frame:
    return Frame("messages", [{"type": "AIMessageChunk", "id": "a1", "content": content, **more}, {}])


STREAMED = [_chunk("Let me "), _chunk([{"type": "text", "text": "see"}]), _chunk(usage_metadata=USAGE)]
UPDATES = [Frame("updates", {"model": {"messages": [SAID]}}), Frame("updates", {"tools": {"messages": [RESULT]}})]
TOOL = Frame("messages", [RESULT, {}])
WHOLE = Frame("messages", [SAID, {}])
WAYS: dict[str, Sequence[Frame]] = {
    "all of it": [FIRST, *STREAMED, UPDATES[0], TOOL, UPDATES[1], LAST, END],
    "no updates": [FIRST, *STREAMED, TOOL, LAST, END],
    "only values": [FIRST, LAST, LAST, END],
    "whole messages": [FIRST, WHOLE, TOOL, LAST, END],
    "everything twice": [FIRST, *STREAMED, WHOLE, *UPDATES, TOOL, TOOL, *UPDATES, LAST, LAST, END],
    "with noise": [
        FIRST,
        *STREAMED,
        Frame("messages|sub", [SAID, {}]),
        Frame("feedback", {"score": "x"}),
        Frame("updates", {"title": None, "other": {"messages": "none"}}),
        Frame("messages", []),
        TOOL,
        LAST,
        END,
    ],
}


@pytest.mark.parametrize("frames", WAYS.values(), ids=WAYS)
def test_each_thing_is_told_once(frames: Sequence[Frame]) -> None:
    translator = Translator("t")
    events = [event for frame in frames for event in translator.take(frame)]
    data = [event.data for event in events if event.type == "messages-tuple"]
    assert "".join(piece["content"] for piece in data if piece["type"] == "ai") == "Let me see"
    assert [piece["tool_calls"] for piece in data if "tool_calls" in piece] == [
        [{"name": "ls", "args": {"path": "/"}, "id": "c1"}]
    ]
    assert [piece["content"] for piece in data if piece["type"] == "tool"] == ["a b"]
    assert [piece["usage_metadata"] for piece in data if "usage_metadata" in piece] == [USAGE]
    assert (events[-1].type, events[-1].data) == ("end", {"usage": USAGE})


def test_what_was_there_before_is_not_told() -> None:
    translator = Translator()
    assert [event.type for event in translator.take(FIRST)] == ["values"]
    assert translator.usage["total_tokens"] == 0


def test_values_have_what_the_contract_says() -> None:
    (event,) = Translator().take(Frame("values", {"messages": [HUMAN], "todos": [], "title": "T"}))
    assert event.data == {"title": "T", "messages": [HUMAN], "artifacts": []}
    asked = [{"id": "i", "value": 1}]
    (event,) = Translator().take(Frame("values", {"__interrupt__": asked}))
    assert event.data == {"title": None, "messages": [], "artifacts": [], "interrupts": asked}
    (event,) = Translator().take(Frame("values", {"todos": [{"content": "one"}]}))
    assert event.data["todos"] == [{"content": "one"}]


def test_the_rest_of_a_text_of_which_previews_were_lost_is_told() -> None:
    translator = Translator()
    events = [event for frame in (FIRST, STREAMED[0], LAST, LAST) for event in translator.take(frame)]
    texts = [event.data["content"] for event in events if event.data.get("type") == "ai"]
    assert "".join(texts) == "Let me see"


def test_a_result_says_whether_it_is_an_error() -> None:
    for status in ("error", "success"):
        (event,) = Translator().take(Frame("messages", [{**RESULT, "status": status}, {}]))
        assert event.data.get("status") == {"error": "error"}.get(status)


def test_a_failure_is_no_end() -> None:
    translator = Translator()
    failure = {"message": "no", "name": "Broken"}
    assert [*translator.take(Frame("error", failure)), *translator.take(END)] == []
    assert translator.failure == failure


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("a", "a"),
        (None, ""),
        ([], ""),
        (["a", {"type": "text", "text": "b"}, {"type": "image_url"}, {"type": "thinking", "thinking": "x"}], "ab"),
    ],
)
def test_the_text_of_a_message(content: Any, text: str) -> None:
    assert text_of(content) == text
