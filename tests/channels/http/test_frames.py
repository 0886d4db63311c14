"""The translator: which frames a run has, in which order, and that a stream can be continued from every one of them."""

from __future__ import annotations

import itertools
import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from channels.http.protocols.langgraph.frames import Cursor, Frames
from channels.http.streams.sse import Frame
from core.events import (
    Json,
    ModelCompleted,
    ModelFailed,
    Record,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunRolledBack,
    StatePatched,
    ThreadErased,
    ThreadTitled,
)
from core.runs.previews import Preview, tag
from core.thread.fold import fold
from tests.channels.http.story import (
    ALL,
    PROGRESS,
    RUN,
    THREAD,
    Story,
    ai,
    data,
    human,
    pieces,
    requested,
    started,
    streamed,
    tell,
    tools_story,
    two_connections,
)

LINE = {
    "m1": {
        "text": "I will look.",
        "reasoning": "hm hm",
        "calls": {
            0: {"id": "c1", "name": "ls", "args": '{"path":"/"}'},
            1: {"id": "c2", "name": "cat", "args": '{ "path": "ä" }'},
        },
    },
    "m2": {"text": "There are a and b\u2028 and 😀.", "reasoning": "", "calls": {}},
}


def short(frame: Frame) -> Any:
    """What matters of a frame, in one line."""
    body = data(frame)
    match frame.event:
        case "values":
            return "values", [message["id"] for message in body["messages"]]
        case "updates":
            [(node, update)] = body.items()
            return "updates", node, [message["id"] for message in update["messages"]]
        case "messages":
            message, _ = body
            return "messages", message["type"], message["id"], message["content"]
        case "messages/metadata":
            return frame.event, list(body)
        case "messages/partial" | "messages/complete":
            return frame.event, body[0]["id"], body[0]["content"]
        case "tasks":
            return "tasks", body["name"], "end" if "result" in body else "start", body["id"]
        case "checkpoints":
            return "checkpoints", body["metadata"]["source"], body["next"]
        case "debug":
            return "debug", body["type"], body["step"]
        case "events":
            return body["event"], body["name"]
    return frame.event, body


SIMPLE = Story(requested(human("h1", "hi")), started(), ModelCompleted(message=ai("m1", "Hello")), RunCompleted())
METADATA = ("metadata", {"run_id": RUN, "thread_id": THREAD, "attempt": 1})
END = ("end", None)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("values", [("values", ["h1"]), ("values", ["h1", "m1"])]),
        ("updates", [("updates", "model", ["m1"])]),
        (
            "messages-tuple",
            [
                ("messages", "AIMessageChunk", "m1", "Hel"),
                ("messages", "AIMessageChunk", "m1", "lo"),
                ("messages", "AIMessageChunk", "m1", ""),
            ],
        ),
        (
            "messages",
            [
                ("messages/metadata", ["m1"]),
                ("messages/partial", "m1", "Hel"),
                ("messages/partial", "m1", "Hello"),
                ("messages/complete", "m1", "Hello"),
            ],
        ),
        ("custom", []),
        ("tasks", [("tasks", "model", "start", "e16"), ("tasks", "model", "end", "e16")]),
        (
            "checkpoints",
            [("checkpoints", "input", ["__start__"]), ("checkpoints", "input", ["model"]), ("checkpoints", "loop", [])],
        ),
        (
            "debug",
            [
                ("debug", "checkpoint", -2),
                ("debug", "checkpoint", -1),
                ("debug", "task", 0),
                ("debug", "task_result", 0),
                ("debug", "checkpoint", 0),
            ],
        ),
        (
            "events",
            [
                ("on_chain_start", "lead_agent"),
                ("on_chat_model_start", "m"),
                ("on_chat_model_stream", "model"),
                ("on_chat_model_stream", "model"),
                ("on_chat_model_end", "m"),
                ("on_chain_end", "lead_agent"),
            ],
        ),
    ],
)
def test_each_mode(mode: str, expected: list[Any]) -> None:
    assert [short(frame) for frame in tell(SIMPLE, [mode], size=3)] == [METADATA, *expected, END]


def test_tools_step_by_step() -> None:
    told = [short(frame) for frame in tell(tools_story(), ["values", "updates", "messages-tuple", "tasks"])]
    assert [one for one in told if one[0] in ("values", "updates")] == [
        ("values", ["h1"]),
        ("updates", "model", ["m1"]),
        ("values", ["h1", "m1"]),
        ("updates", "tools", ["tool-c2"]),
        ("updates", "tools", ["tool-c1"]),
        ("values", ["h1", "m1", "tool-c2", "tool-c1"]),
        ("updates", "model", ["m2"]),
        ("values", ["h1", "m1", "tool-c2", "tool-c1", "m2"]),
    ]
    assert [one for one in told if one[0] == "tasks"] == [
        ("tasks", "model", "start", "e16"),
        ("tasks", "model", "end", "e16"),
        ("tasks", "tools", "start", "e22"),
        ("tasks", "tools", "start", "e25"),
        ("tasks", "tools", "end", "e25"),
        ("tasks", "tools", "end", "e22"),
        ("tasks", "model", "start", "e31"),
        ("tasks", "model", "end", "e31"),
    ]
    assert ("messages", "tool", "tool-c2", "no such file") in told


def test_messages_are_full_dumps() -> None:
    final = data([frame for frame in tell(tools_story(), ["values"]) if frame.event == "values"][-1])
    assert final["artifacts"] == ["/a"]
    first, model, tool = final["messages"][0], final["messages"][1], final["messages"][2]
    common: Json = {"additional_kwargs": {"seq": 160_001}, "response_metadata": {}, "name": None}
    assert first == {"type": "human", "id": "h1", "content": "What is there?", **common}
    assert model["invalid_tool_calls"] == []
    assert model["usage_metadata"] == {"total_tokens": 3}
    assert model["tool_calls"][0] == {"type": "tool_call", "id": "c1", "name": "ls", "args": {"path": "/"}}
    assert (tool["status"], tool["artifact"], tool["tool_call_id"]) == ("error", None, "c2")


def test_chunk_ids_are_those_of_the_final_message_and_the_last_brings_the_usage() -> None:
    chunks = [data(frame) for frame in tell(tools_story(), ["messages-tuple"], size=4) if frame.event == "messages"]
    first = [message for message, _ in chunks if message["id"] == "m1"]
    assert first[-1]["usage_metadata"] == {"total_tokens": 3}
    assert all("usage_metadata" not in message for message in first[:-1])
    metadata = chunks[0][1]
    assert (metadata["langgraph_node"], metadata["run_id"], metadata["thread_id"]) == ("model", RUN, THREAD)
    assert [m["langgraph_step"] for _, m in chunks] == sorted(m["langgraph_step"] for _, m in chunks)


def test_ids_are_unique_and_increase_and_line_breaks_are_escaped() -> None:
    told = tell(tools_story(), ALL, size=2)
    places = [cursor for frame in told if frame.id and (cursor := Cursor.parse(frame.id))]
    assert len(set(places)) == len(places)
    assert places == sorted(places)
    wire = b"".join(frame.encoded() for frame in told).decode()
    assert not {"\u2028", "\u2029", "\x85", "\r"} & set(wire)
    assert "😀" in wire


def test_failure_error_then_end() -> None:
    story = Story(requested(human("h", "x")), started(), RunFailed(error="RateLimitError", text="slow down"))
    assert [short(frame) for frame in tell(story, ["updates"])] == [
        METADATA,
        ("error", {"error": "RateLimitError", "message": "slow down", "name": "RateLimitError"}),
        END,
    ]


@pytest.mark.parametrize("end", [RunCancelled(), RunRolledBack()])
@pytest.mark.parametrize("begun", [True, False])
def test_stopped(end: Any, begun: bool) -> None:
    story = Story(requested(human("h", "x")), *([started()] if begun else []), end)
    assert [short(frame) for frame in tell(story, ["updates"])] == [METADATA, END]


def test_erased() -> None:
    story = Story(requested(human("h", "x")), started())
    story.add(ThreadErased(by="u"), run=None)
    assert [short(frame) for frame in tell(story, ["updates"])] == [METADATA, END]


def test_retry_is_told_and_the_broken_message_is_forgotten() -> None:
    failed = ModelFailed(error="E", text="429 at 10.0.0.7", attempt=1, max_attempts=3, reason="busy", wait_ms=500)
    story = Story(
        requested(human("h", "x")), started(), failed, ModelCompleted(message=ai("m2", "Hello")), RunCompleted()
    )
    frames = Frames(fold(story.records[:1]), THREAD, RUN, ["custom", "messages-tuple"])
    told = [frame for record in story.records[1:3] for frame in frames.fact(record)]
    told += frames.preview(Preview(message="m1", after=16, offset=0, text="Hal"))
    told += frames.fact(story.records[3])
    told += frames.preview(Preview(message="m1", after=16, offset=3, text="lo"))  # late
    told += frames.preview(Preview(message="m2", after=19, offset=0, text="He"))
    told += [frame for record in story.records[4:] for frame in frames.fact(record)]
    assert [short(frame) for frame in told][1:4] == [
        ("messages", "AIMessageChunk", "m1", "Hal"),
        (
            "custom",
            {
                "type": "llm_retry",
                "attempt": 1,
                "max_attempts": 3,
                "wait_ms": 500,
                "reason": "busy",
                "message": "LLM request retry 1/3: the model's provider is busy. Retrying in 0.5s.",
            },
        ),
        ("messages", "AIMessageChunk", "m2", "He"),
    ]
    assert streamed(told)["m2"]["text"] == "Hello"


def test_previews_ahead_of_the_facts_wait_for_them() -> None:
    story = tools_story()
    ahead = Frames(fold(story.records[:1]), THREAD, RUN, ["messages-tuple"])
    pairs = pairwise(story.records)
    early = [p for r, s in pairs if isinstance(s.event, ModelCompleted) for p in pieces(s.event, 3, r.seq)]
    told = [frame for preview in early for frame in ahead.preview(preview)]
    assert told == []
    told = [frame for record in story.records[1:] for frame in ahead.fact(record)]
    assert streamed(told) == LINE


FAILED = ModelFailed(error="E", text="busy", attempt=1, max_attempts=3, reason="busy", wait_ms=500)
HELLO = ModelCompleted(message=ai("m2", "Hello"))
OPEN = ("values", ["h"])
FINISHED = [("messages", "AIMessageChunk", "m2", "Hello"), ("messages", "AIMessageChunk", "m2", "")]


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ([started(2), HELLO, RunCompleted()], [("metadata", 2), OPEN, *FINISHED, ("values", ["h", "m2"]), END]),
        ([FAILED, HELLO, RunCompleted()], [OPEN, *FINISHED, ("values", ["h", "m2"]), END]),
        ([RunCancelled()], [OPEN, END]),
        ([RunFailed(error="E", text="e")], [OPEN, ("error", {"error": "E", "message": "e", "name": "E"}), END]),
        ([RunRolledBack()], [("values", []), END]),
    ],
    ids=["a new attempt", "a failure of the model", "cancelled", "failed", "rolled back"],
)
def test_text_that_became_void_is_taken_back(facts: list[Any], expected: list[Any]) -> None:
    """Previews of the void message that come later are not shown, and nobody who comes later sees any."""
    story = Story(requested(human("h", "x")), started(), *facts)
    void = [Preview(message="m1", after=16, offset=n, text="wrong"[n]) for n in range(5)]
    late = Frames(fold(story.records[:4]), THREAD, RUN, ["messages-tuple"])
    assert [frame for preview in void for frame in late.preview(preview)] == []
    frames = Frames(fold(story.records[:1]), THREAD, RUN, ["values", "messages-tuple"])
    seen = [frame for record in story.records[1:3] for frame in frames.fact(record)]
    seen += [frame for preview in void[:3] for frame in frames.preview(preview)]
    rest = frames.fact(story.records[3])
    rest += [frame for preview in void[3:] for frame in frames.preview(preview)]
    rest += [frame for record in story.records[4:] for frame in frames.fact(record)]
    brief = [
        ("metadata", data(frame)["attempt"])
        if frame.event == "metadata"
        else ("values", [message["id"] for message in data(frame).get("messages", [])])
        if frame.event == "values"
        else short(frame)
        for frame in rest
    ]
    assert brief == expected
    resumed = Frames(
        fold(story.records[:1]), THREAD, RUN, ["values", "messages-tuple"], after=Cursor.parse(seen[-1].id)
    )
    assert [frame for record in story.records[1:] for frame in resumed.fact(record)] == rest


def test_a_new_attempt_without_text_to_take_back_repeats_no_values() -> None:
    story = Story(requested(human("h", "x")), started(), started(2), HELLO, RunCompleted())
    told = [short(frame) for frame in tell(story, ["values"])]
    assert told == [METADATA, OPEN, ("metadata", {**METADATA[1], "attempt": 2}), ("values", ["h", "m2"]), END]


def test_an_answer_has_one_step() -> None:
    """Live, late and replayed; also when its text comes with the fact, and when somebody writes meanwhile."""
    story = Story(requested(human("h", "x")))
    story.add(StatePatched(values={"title": "S"}), run=None)
    story.add(started())
    story.add(StatePatched(values={"title": "T"}), run=None)
    story.add(ModelCompleted(message=ai("m1", "Hello")), RunCompleted())
    late = Frames(fold(story.records[:5]), THREAD, RUN, ["messages-tuple"])
    ways = [[frame for record in story.records[5:] for frame in late.fact(record)]]
    for modes in (["messages-tuple"], ["messages"], ["events"]):
        for first in range(6):
            frames = Frames(fold(story.records[:1]), THREAD, RUN, modes)
            told: list[Frame] = []
            for record in story.records[1:]:
                for offset in range(first, 4) if record.seq == 19 else range(4) if record.seq == 22 else ():
                    told += frames.preview(Preview(message="m1", after=19, offset=offset, text="Hello"[offset]))
                told += frames.fact(record)
            ways.append(told)
    for told in ways:
        steps = {match for frame in told for match in re.findall(rb'"langgraph_step":(\d+)', frame.data)}
        assert steps == {b"2"}, told


def test_state_written_meanwhile_is_shown() -> None:
    story = Story(requested(human("h", "x")), started())
    story.add(StatePatched(values={"title": "T"}), run=None)
    story.add(ModelCompleted(message=ai("m1", "Hello")), RunCompleted())
    values = [data(frame) for frame in tell(story, ["values"]) if frame.event == "values"]
    assert [value.get("title") for value in values] == [None, "T", "T"]


def test_other_runs_of_the_thread_are_not_told() -> None:
    story = Story(requested(human("h0", "x")), started(), run="run-0")
    story.add(requested(human("h1", "y"), multitask="enqueue"))
    story.add(ModelCompleted(message=ai("m0", "zero")), RunCompleted(), run="run-0")
    story.add(started(), ModelCompleted(message=ai("m1", "one")), RunCompleted())
    frames = Frames(fold(story.records[:3]), THREAD, RUN, ["values", "messages-tuple"])
    told = [short(frame) for record in story.records[3:] for frame in frames.fact(record)]
    assert told[:2] == [METADATA, ("values", ["h0", "m0", "h1"])]
    assert told[-2:] == [("values", ["h0", "m0", "h1", "m1"]), END]


def test_progress_has_no_id() -> None:
    frames = Frames(fold(tools_story().records[:3]), THREAD, RUN, ["custom"])
    [frame] = frames.preview(PROGRESS)
    assert frame.id == ""
    assert data(frame) == {"type": "tool_progress", "tool_call_id": "c1", "name": "ls", "text": "…"}


def test_cursor() -> None:
    assert Cursor.parse("12-3-4") == Cursor(12, 3, 4)
    assert Cursor.parse("12-3-0-0123abcd") == Cursor(12, 3, 0, "0123abcd")
    for text in ("-1", "0", "", "abc", "1-2", "1-2-3-4", "1" * 30 + "-0-0", "²-0-0"):
        assert Cursor.parse(text) is None, text


@pytest.mark.parametrize("size", [0, 1, 3, 100])
@pytest.mark.parametrize(
    "modes",
    [["values", "messages-tuple", "updates", "custom"], ["messages"], ["values"], list(ALL)],
    ids=lambda m: "+".join(m),
)
def test_a_stream_continues_at_every_frame(modes: list[str], size: int) -> None:
    """The recorded run, cut after each frame that has an id: what comes then is exactly what was missing."""
    whole = tell(tools_story(), modes, size=size)
    for place, frame in enumerate(whole):
        if frame.id:
            cursor = Cursor.parse(frame.id)
            assert tell(tools_story(), modes, size=size, after=cursor) == whole[place + 1 :], frame.id


@two_connections
def test_the_text_is_exact_wherever_it_is_cut_and_whatever_is_lost(
    cut: float, sizes: tuple[int, int], first: list[bool], second: list[bool]
) -> None:
    """Two connections, each with other previews lost and other piece sizes: together they show each message once."""
    modes = ["messages-tuple", "values"]
    seen = tell(tools_story(), modes, size=sizes[0], keep=first)
    seen = seen[: 1 + int(cut * (len(seen) - 1))]
    rest = tell(tools_story(), modes, size=sizes[1], keep=second, after=Cursor.parse(seen[-1].id))
    assert streamed(seen + rest) == LINE
    values = [frame for frame in seen + rest if frame.event == "values"]
    assert values == [frame for frame in tell(tools_story(), modes) if frame.event == "values"]
    assert [frame.event for frame in seen + rest][-1] == "end"


@given(st.permutations(range(12)), st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_previews_in_any_order_and_doubled(order: list[int], size: int) -> None:
    story = tools_story()
    [first, *_] = [record for record in story.records if isinstance(record.event, ModelCompleted)]
    assert isinstance(first.event, ModelCompleted)
    sent = pieces(first.event, size, story.records[2].seq)
    frames = Frames(fold(story.records[:1]), THREAD, RUN, ["messages-tuple"])
    told = list(itertools.chain(frames.fact(story.records[1]), frames.fact(story.records[2])))
    for place in (*order, *order):
        if place < len(sent):
            told += frames.preview(sent[place])
    told += [frame for record in story.records[3:] for frame in frames.fact(record)]
    assert streamed(told) == LINE


def test_resuming_with_other_modes_finds_the_same_place() -> None:
    story = tools_story()
    narrow = tell(story, ["values"])
    wide = tell(story, ALL)
    for frame in narrow:
        cursor = Cursor.parse(frame.id)
        assert cursor
        expected = [place for one in wide if (place := Cursor.parse(one.id)) and place > cursor]
        told = [Cursor.parse(one.id) for one in tell(story, ALL, after=cursor) if one.id]
        assert told == expected


def test_unknown_facts_are_nothing() -> None:
    story = Story(requested(human("h", "x")), started())
    frames = Frames(fold(story.records), THREAD, RUN, ["values"])
    raw = story.records[-1].raw.replace(b"run.started", b"run.pondered")
    assert frames.fact(Record(99, raw)) == []


def test_a_place_in_another_message_is_none() -> None:
    """Who resumes in the middle of an answer that was given up gets the one made in its place from the beginning."""
    cursor = Cursor(16, 3, 0, tag("m1"))
    story = Story(requested(human("h", "x")), started(), HELLO, RunCompleted())
    for size in (0, 2):
        assert streamed(tell(story, ["messages-tuple"], size=size, after=cursor))["m2"]["text"] == "Hello"


TITLED_STREAM = {"TitleMiddleware.after_model": {"title": "T"}}


def titled_story(run: str | None = RUN) -> Story:
    """A run whose title comes while its answer is made."""
    story = Story(requested(human("h", "x")), started())
    story.add(ThreadTitled(title="T"), run=run)
    story.add(ModelCompleted(message=ai("m1", "Hello")), RunCompleted())
    return story


@pytest.mark.parametrize("run", [RUN, "run-0"])
def test_a_title_is_an_update_before_the_end(run: str) -> None:
    told = tell(titled_story(run), ["updates", "values"])
    assert next(data(frame) for frame in told if frame.event == "updates") == TITLED_STREAM
    values = [data(frame) for frame in told if frame.event == "values"]
    assert [value.get("title") for value in values] == [None, "T", "T"]
    assert told[-1].event == "end"


def test_a_title_before_the_start_shows_no_values() -> None:
    story = Story(requested(human("h", "x")))
    story.add(ThreadTitled(title="T"), started(), ModelCompleted(message=ai("m1", "Hello")), RunCompleted())
    told = tell(story, ["updates", "values"])
    assert [frame.event for frame in told] == ["metadata", "updates", "values", "updates", "values", "end"]
    assert data(told[1]) == TITLED_STREAM


def test_a_stream_with_a_title_goes_on_after_any_frame() -> None:
    story, modes = titled_story(), ["updates", "values", "messages-tuple"]
    told = tell(story, modes)
    for number, frame in enumerate(told):
        resumed = Frames(fold(story.records[:1]), THREAD, RUN, modes, after=Cursor.parse(frame.id))
        assert [later for record in story.records[1:] for later in resumed.fact(record)] == told[number + 1 :]


def test_a_title_after_the_end_is_no_frame() -> None:
    story = Story(requested(human("h", "x")), started(), ModelCompleted(message=ai("m1", "Hello")), RunCompleted())
    told = tell(story, ["updates", "values"])
    story.add(ThreadTitled(title="T"))
    assert tell(story, ["updates", "values"]) == told


def test_values_are_encoded_once_for_all_who_follow() -> None:
    records = tools_story().records
    [one, other] = (Frames(fold(records[:1]), THREAD, RUN, modes) for modes in (["values"], ["values", "updates"]))
    shown = [[frame.data for record in records for frame in them.fact(record)] for them in (one, other)]
    assert [data for data in shown[0] if data.startswith(b'{"messages"')]
    assert all(any(data is same for same in shown[1]) for data in shown[0] if data.startswith(b'{"messages"'))
