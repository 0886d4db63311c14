"""Subagents in a run's stream: custom events, frames in namespaces, and that a stream continues at every frame."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from channels.http.protocols.langgraph.frames import Cursor, Frames
from channels.http.streams.sse import Frame
from core.events import (
    ModelCompleted,
    Record,
    RunCompleted,
    SubagentCompleted,
    SubagentProgressed,
    SubagentStarted,
    ToolCompleted,
    ToolRequested,
)
from core.runs.previews import Preview, RunPreview
from core.thread.fold import fold
from tests.channels.http.story import (
    ALL,
    RUN,
    THREAD,
    Story,
    ai,
    answer,
    call,
    data,
    human,
    pieces,
    requested,
    started,
    streamed,
    two_connections,
)

USED = {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7}


def begun(identity: str) -> SubagentStarted:
    return SubagentStarted(
        call_id=identity, subagent=f"run-{identity}", name="bash", description=f"do {identity}", prompt="Do!", model="m"
    )


def progressed(identity: str, index: int, text: str, *calls: Any) -> SubagentProgressed:
    message = ai(f"{identity}-{index}", text, *calls, usage_metadata=USED)
    return SubagentProgressed(call_id=identity, index=index, message=message)


def delegating(*, subgraphs: bool = True) -> Story:
    """Two subagents at once: one looks and answers, the other fails."""
    first = ai("m1", "I delegate.", call("c1", "task", prompt="Do!"), call("c2", "task", prompt="Do!"))
    return Story(
        requested(human("h1", "Both, please."), subgraphs=subgraphs),
        started(),
        ModelCompleted(message=first),
        ToolRequested(call_id="c1", name="task", effect="idempotent"),
        ToolRequested(call_id="c2", name="task", effect="idempotent"),
        begun("c1"),
        begun("c2"),
        progressed("c1", 1, "I look.", call("x1", "ls", path="/")),
        progressed("c2", 1, "I wonder, and wonder."),
        SubagentCompleted(call_id="c2", status="failed", error="no luck", usage=USED),
        ToolCompleted(call_id="c2", message=answer("c2", "task", "Task failed. Error: no luck", status="error")),
        progressed("c1", 2, "There it is."),
        SubagentCompleted(call_id="c1", status="completed", result="There it is.", model="n", usage=USED),
        ToolCompleted(call_id="c1", message=answer("c1", "task", "Task Succeeded. Result: There it is.")),
        ModelCompleted(message=ai("m2", "Done.")),
        RunCompleted(),
    )


FIRST = {8: 8, 9: 8, 12: 10}
"""The records of answers, and those before which their previews begin to come: others' facts lie between."""


def spoken(story: Story, size: int) -> dict[int, list[RunPreview]]:
    """Returns the previews before each fact, by its sequence."""
    previews: dict[int, list[RunPreview]] = {}
    for place, first in FIRST.items():
        event = story.records[place].event
        assert isinstance(event, SubagentProgressed)
        sent = pieces(ModelCompleted(message=event.message), size, event.index) if size else []
        for number, preview in enumerate(sent):
            seq = story.records[min(first + number, place)].seq
            previews.setdefault(seq, []).append(RunPreview(f"run-{event.call_id}", preview))
    return previews


def tell(
    story: Story, modes: Iterable[str], *, size: int = 0, after: Cursor | None = None, keep: Sequence[bool] = ()
) -> list[Frame]:
    frames = Frames(fold(story.records[:1]), THREAD, RUN, list(modes), after=after)
    told: list[Frame] = []
    previews, kept = spoken(story, size), iter(keep)
    for record in story.records[1:]:
        for item in previews.get(record.seq, ()) if frames.seq >= (after.seq if after else 0) else ():
            if next(kept, True):
                inform(frames, item)
                told += frames.run_preview(item)
        inform(frames, record)
        told += frames.fact(record)
    assert frames.ended
    return told


LOGS = {
    "run-c1": [
        human("human-run-c1", "Do!"),
        ai("c1-1", "I look."),
        human("h2", "Hurry!"),
        answer("x1", "ls", "a"),
        ai("c1-2", "There it is."),
    ]
}


def inform(frames: Frames, item: Record | RunPreview, until: int | None = None) -> None:
    """Tells what the subagents' own logs have besides their answers, so far."""
    if (subagent := frames.behind(item)) is not None:
        frames.learn(subagent, LOGS.get(subagent, [])[:until])


def inner(frames: Iterable[Frame]) -> list[tuple[str, Any]]:
    return [(frame.event, data(frame)) for frame in frames if "|" in frame.event]


def test_custom_events() -> None:
    told = [data(frame) for frame in tell(delegating(subgraphs=False), ["custom"]) if frame.event == "custom"]
    assert [one["type"].removeprefix("task_") + one["task_id"] for one in told] == [
        "startedc1",
        "startedc2",
        "runningc1",
        "runningc2",
        "failedc2",
        "runningc1",
        "completedc1",
    ]
    first, running, failed, completed = told[0], told[5], told[4], told[6]
    assert first == {"type": "task_started", "task_id": "c1", "description": "do c1", "model_name": "m"}
    assert running.pop("message")["content"] == "There it is."
    assert running == {
        "type": "task_running",
        "task_id": "c1",
        "message_index": 2,
        "total_messages": 2,
        "model_name": "m",
        "usage": {"input_tokens": 10, "output_tokens": 4, "total_tokens": 14},
    }
    assert failed == {"type": "task_failed", "task_id": "c2", "error": "no luck", "usage": USED, "model_name": "m"}
    common = {"task_id": "c1", "result": "There it is.", "usage": USED, "model_name": "n"}
    assert completed == {"type": "task_completed", **common}


@pytest.mark.parametrize("status", ["cancelled", "timed_out"])
def test_other_ends(status: Any) -> None:
    story = Story(requested(human("h", "x")), started(), begun("c1"), SubagentCompleted(call_id="c1", status=status))
    frames = Frames(fold(story.records[:2]), THREAD, RUN, ["custom"])
    told = [frame for record in story.records[2:] for frame in frames.fact(record)]
    common = {"task_id": "c1", "error": "", "usage": None, "model_name": "m"}
    assert data(told[-1]) == {"type": f"task_{status}", **common}


def test_namespaces() -> None:
    told = inner(tell(delegating(), ["values", "updates", "messages-tuple"]))
    shown = [
        (event, [message["id"] for message in body["messages"]] if event.startswith("values") else None)
        for event, body in told
        if event.endswith("c1")
    ]
    assert shown == [
        ("values|tools:c1", ["human-run-c1"]),
        *[("messages|tools:c1", None)] * 3,
        ("updates|tools:c1", None),
        ("values|tools:c1", ["human-run-c1", "c1-1"]),
        *[("messages|tools:c1", None)] * 2,
        ("updates|tools:c1", None),
        *[("messages|tools:c1", None)] * 2,
        ("updates|tools:c1", None),
        ("values|tools:c1", ["human-run-c1", "c1-1", "h2", "tool-x1", "c1-2"]),
    ]
    chunk, metadata = next(body for event, body in told if event == "messages|tools:c1")
    assert (chunk["id"], chunk["content"], chunk["type"]) == ("c1-1", "I look.", "AIMessageChunk")
    place = "tools:c1|model:c1-1"
    assert metadata == {
        "run_id": RUN,
        "thread_id": THREAD,
        "langgraph_node": "model",
        "langgraph_step": 1,
        "langgraph_triggers": ["branch:to:model"],
        "langgraph_path": ["__pregel_pull", "model"],
        "langgraph_checkpoint_ns": place,
        "checkpoint_ns": place,
        "lc_agent_name": "bash",
    }


def test_without_the_flag_there_are_no_namespaces() -> None:
    plain, flagged = (tell(delegating(subgraphs=flag), ALL, size=3) for flag in (False, True))
    assert inner(plain) == []
    assert [(one.event, one.data) for one in plain] == [
        (one.event, one.data) for one in flagged if "|" not in one.event
    ]


@pytest.mark.parametrize("size", [0, 1, 3, 100])
@pytest.mark.parametrize("modes", [["values", "messages-tuple", "custom"], ["messages"], list(ALL)], ids="+".join)
def test_a_stream_continues_at_every_frame(modes: list[str], size: int) -> None:
    whole = tell(delegating(), modes, size=size)
    for place, frame in enumerate(whole):
        if frame.id:
            cursor = Cursor.parse(frame.id)
            assert cursor is not None, frame.id
            assert tell(delegating(), modes, size=size, after=cursor) == whole[place + 1 :], frame.id


@two_connections
def test_the_text_is_exact_wherever_it_is_cut_and_whatever_is_lost(
    cut: float, sizes: tuple[int, int], first: list[bool], second: list[bool]
) -> None:
    seen = tell(delegating(), ["messages-tuple"], size=sizes[0], keep=first)
    seen = seen[: 1 + int(cut * (len(seen) - 1))]
    while not seen[-1].id:
        seen.pop()
    rest = tell(delegating(), ["messages-tuple"], size=sizes[1], keep=second, after=Cursor.parse(seen[-1].id))
    every = [frame._replace(event=frame.event.partition("|")[0]) for frame in seen + rest]
    texts = {identity: line["text"] for identity, line in streamed(every).items()}
    assert texts == {
        "m1": "I delegate.",
        "c1-1": "I look.",
        "c2-1": "I wonder, and wonder.",
        "c1-2": "There it is.",
        "m2": "Done.",
    }


def test_an_answer_that_was_given_up_is_followed_by_the_whole_new_one() -> None:
    story = delegating()
    frames = Frames(fold(story.records[:1]), THREAD, RUN, ["messages-tuple"])
    told = [frame for record in story.records[1:8] for frame in frames.fact(record)]
    void = [Preview(message="void", after=1, offset=n, text="x") for n in range(3)]
    event = story.records[8].event
    assert isinstance(event, SubagentProgressed)
    again = pieces(ModelCompleted(message=event.message), 2, after=5)
    for preview in (*void, *again, *void):
        told += frames.run_preview(RunPreview("run-c1", preview))
    told += frames.fact(story.records[8])
    every = [frame._replace(event="messages") for frame in told if frame.event == "messages|tools:c1"]
    assert streamed(every)["c1-1"]["text"] == "I look."


@pytest.mark.parametrize("size", [3, 100])
def test_results_of_tools_are_shown_if_the_next_answer_comes_before_the_fact_of_the_last(size: int) -> None:
    frames = Frames(fold(delegating().records[:1]), THREAD, RUN, ["values", "messages-tuple"])
    told: list[Frame] = []
    for place, record in enumerate(delegating().records[1:], 1):
        for answer_ in (8, 12) if place == 8 else ():
            event = delegating().records[answer_].event
            assert isinstance(event, SubagentProgressed)
            for preview in pieces(ModelCompleted(message=event.message), size, event.index):
                item = RunPreview(f"run-{event.call_id}", preview)
                inform(frames, item, until=1 if answer_ == 8 else None)
                told += frames.run_preview(item)
        inform(frames, record)
        told += frames.fact(record)
    *_, last = (data(frame)["messages"] for frame in told if frame.event == "values|tools:c1")
    assert [message["type"] for message in last] == ["human", "ai", "human", "tool", "ai"]


def test_strangers_previews_are_not_shown() -> None:
    story = delegating()
    frames = Frames(fold(story.records[:1]), THREAD, RUN, ["messages-tuple"])
    for record in story.records[1:8]:
        frames.fact(record)
    assert [one.id for one in frames.audible()] == [RUN, "run-c1", "run-c2"]
    assert frames.run_preview(RunPreview("run-c3", Preview(message="m", after=1, offset=0, text="x"))) == []


def test_cursor() -> None:
    for text in ("12-0-0_0123abcd-40", "12-3-8-0123abcd_89abcdef-4_99abcdef-5"):
        assert str(Cursor.parse(text)) == text
    assert Cursor.parse("12-0-0_xyz-40") is None
