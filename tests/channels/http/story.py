"""A recorded run to tell again and again: facts with fixed places, and what a client saw of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from channels.http.protocols.langgraph.follow import ThreadFrames
from channels.http.protocols.langgraph.frames import Cursor, Frames
from channels.http.streams.sse import Frame
from core.events import (
    Event,
    Json,
    Message,
    ModelCompleted,
    Record,
    RunCompleted,
    RunRequested,
    RunStarted,
    ThreadCreated,
    ToolCompleted,
    ToolRequested,
    encode,
    written,
)
from core.runs.previews import Preview, Progress, line_of
from core.thread.fold import fold
from core.thread.rewind import newest_begun, rewound
from core.thread.state import ThreadState
from tests.support.laws import EXAMPLES

THREAD, RUN = "thread-1", "run-1"
ALL = ("values", "updates", "messages-tuple", "custom", "tasks", "checkpoints", "debug", "events")


def human(identity: str, text: str) -> Message:
    return {"type": "human", "id": identity, "content": text}


def ai(identity: str, text: str, *calls: Json, **more: Any) -> Message:
    return {"type": "ai", "id": identity, "content": text, **({"tool_calls": list(calls)} if calls else {}), **more}


def call(identity: str, name: str, **args: Any) -> Json:
    return {"id": identity, "name": name, "args": args}


def answer(identity: str, name: str, text: str, **more: Any) -> Message:
    return {"type": "tool", "id": f"tool-{identity}", "tool_call_id": identity, "name": name, "content": text, **more}


def started(attempt: int = 1) -> RunStarted:
    return RunStarted(attempt=attempt, worker="w", lease=1, model="m")


def requested(*messages: Message, **more: Any) -> RunRequested:
    return RunRequested(input={"messages": list(messages)}, **more)


class Story:
    """Records of one thread, in steps of three: other threads' events lie between."""

    def __init__(self, *events: Event, run: str = RUN) -> None:
        self.records: list[Record] = []
        self.add(ThreadCreated(user="u"), run=None)
        self.add(*events, run=run)

    def add(self, *events: Event, run: str | None = RUN) -> None:
        for event in events:
            seq = 3 * len(self.records) + 10
            fields = {
                "kind": "thread",
                "aggregate_id": THREAD,
                "actor": "test",
                "at": f"2026-01-01T00:00:00.{seq:06}+00:00",
            }
            self.records.append(Record(seq, encode(event, written(event, id=f"e{seq}", run=run, **fields))))


def tools_story() -> Story:
    """Reasoning, text, two tools at once, an answer."""
    calls = (call("c1", "ls", path="/"), call("c2", "cat", path="ä"))
    first = ai(
        "m1",
        "I will look.",
        *calls,
        additional_kwargs={"reasoning_content": "hm hm"},
        usage_metadata={"total_tokens": 3},
    )
    return Story(
        requested(human("h1", "What is there?")),
        started(),
        ModelCompleted(message=first, call_texts={"c2": '{ "path": "ä" }'}),
        ToolRequested(call_id="c1", name="ls", effect="pure"),
        ToolRequested(call_id="c2", name="cat", effect="pure"),
        ToolCompleted(call_id="c2", message=answer("c2", "cat", "no such file", status="error")),
        ToolCompleted(call_id="c1", message=answer("c1", "ls", "a b"), update={"artifacts": ["/a"]}),
        ModelCompleted(message=ai("m2", "There are a and b\u2028 and 😀.")),
        RunCompleted(),
    )


def pieces(event: ModelCompleted, size: int, after: int) -> list[Preview]:
    """Returns the previews of an answer, `size` characters each, in the order in which its model sent them; its worker
    knew the facts up to `after`.
    """
    previews: list[Preview] = []
    offset, begun = 0, set()
    for piece in line_of(event.message, event.call_texts, event.order):
        for place in range(0, len(piece.text), size):
            text = piece.text[place : place + size]
            named = (None, None) if (piece.part, piece.index) in begun else (piece.call_id, piece.name)
            begun.add((piece.part, piece.index))
            previews.append(
                Preview(
                    message=str(event.message["id"]),
                    after=after,
                    offset=offset,
                    text=text,
                    part=piece.part,
                    index=piece.index,
                    call_id=named[0],
                    name=named[1],
                )
            )
            offset += len(text)
    return previews


def tell(
    story: Story, modes: Iterable[str], *, size: int = 0, after: Cursor | None = None, keep: Sequence[bool] = ()
) -> list[Frame]:
    """All frames of the story's run. With `size`, previews come before each message; `keep` says which."""
    frames = Frames(fold(story.records[:1]), THREAD, RUN, list(modes), after=after)
    told: list[Frame] = []
    kept = iter(keep)
    for record in story.records[1:]:
        if size and isinstance(record.event, ModelCompleted) and frames.seq >= (after.seq if after else 0):
            for preview in pieces(record.event, size, frames.seq):
                if next(kept, True):
                    told += frames.preview(preview)
        told += frames.fact(record)
    assert frames.ended
    return told


def two_connections(test: Callable[..., None]) -> Callable[..., None]:
    """Runs a test with any `cut` of a stream, and other piece `sizes` and lost previews before and after it."""
    lost = st.lists(st.booleans(), max_size=80)
    any_cut = given(cut=st.floats(0, 1), sizes=st.tuples(st.integers(0, 7), st.integers(0, 7)), first=lost, second=lost)
    return any_cut(settings(max_examples=4 * EXAMPLES, deadline=None)(test))


def data(frame: Frame) -> Any:
    return msgspec.json.decode(frame.data)


def streamed(frames: Iterable[Frame]) -> dict[str, Json]:
    """What a client makes of `messages` frames: the deltas of each message, put together."""
    found: dict[str, Json] = {}
    for frame in frames:
        if frame.event != "messages":
            continue
        message, _ = data(frame)
        if message["type"] != "AIMessageChunk":
            continue
        whole = found.setdefault(message["id"], {"text": "", "reasoning": "", "calls": {}})
        whole["text"] += message["content"]
        whole["reasoning"] += message["additional_kwargs"].get("reasoning_content", "")
        for chunk in message["tool_call_chunks"]:
            known = whole["calls"].setdefault(chunk["index"], {"id": None, "name": None, "args": ""})
            assert not (known["id"] and chunk["id"]), "announced twice"
            known["id"], known["name"] = known["id"] or chunk["id"], known["name"] or chunk["name"]
            known["args"] += chunk["args"]
    return found


PROGRESS = Progress(call_id="c1", name="ls", text="…")


def resumed(
    records: Sequence[Record], thread_id: str, modes: Iterable[str], last_event_id: str
) -> tuple[ThreadFrames, int]:
    """A translator that goes on after a frame, as the route makes it, and the index of the first record to feed it."""
    cursor, modes = Cursor.parse(last_event_id), list(modes)
    if cursor is None or all(record.seq != cursor.seq for record in records):
        return ThreadFrames(ThreadState(), thread_id, modes), 0
    state = fold(records)
    run = newest_begun(state, cursor.seq)
    first = cursor.seq if run is None or run.started_seq is None else run.started_seq
    before = rewound(state, run, first - 1) if run else None
    earlier = [record for record in records if record.seq < first]
    return ThreadFrames(before or fold(earlier), thread_id, modes, after=cursor), len(earlier)
