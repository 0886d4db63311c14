"""The events of a thread as a function of its facts and previews: numbers, messages, what a cut stream amounts to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from channels.http.protocols.langgraph_events.filters import Filter, SubscribeParams
from channels.http.protocols.langgraph_events.tape import Tape, Wants
from channels.http.protocols.langgraph_events.wire import CHANNELS, Slot, WireEvent, place
from channels.http.server.errors import BadRequest
from core.errors import Invalid
from core.events import (
    Event,
    Interrupt,
    Json,
    MessageAdded,
    ModelCompleted,
    ModelFailed,
    Record,
    Resume,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunPaused,
    RunRequested,
    RunRolledBack,
    RunSteered,
    StatePatched,
    SubagentProgressed,
    ThreadErased,
    ToolCompleted,
    ToolRequested,
)
from core.runs.previews import Preview, RunPreview, line_of
from core.thread.fold import fold
from core.thread.state import ThreadState
from tests.channels.http.story import (
    PROGRESS,
    RUN,
    Story,
    ai,
    answer,
    call,
    human,
    pieces,
    requested,
    started,
    tools_story,
)
from tests.channels.http.test_subgraphs import LOGS, delegating
from tests.support.laws import EXAMPLES

TEXT = "Where the river bends, an old heron waits; it has all the time there is. " * 3


def everything(channel: str, namespace: tuple[str, ...]) -> bool:
    return True


def interleaved() -> Story:
    """A model that goes back and forth between text and calls, one of which was dropped; then a second run."""
    message = ai("m1", "One. Two. " + TEXT, call("c1", "ls", path="/a/long/path/to/see/what/becomes/of/it"))
    text, size = "One. ", len(line_of(message, {})[1].text)
    order = [("text", 0, len(text)), ("call", 0, 20), ("call", 1, 7), ("text", 0, 60), ("call", 0, size - 20)]
    story = Story(
        requested(human("h1", "Look.")),
        started(),
        ModelCompleted(message=message, order=order),
        ToolRequested(call_id="c1", name="ls", effect="pure"),
        ToolCompleted(call_id="c1", message=answer("c1", "ls", "nothing")),
        ModelCompleted(message=ai("m2", "Nothing there.", additional_kwargs={"reasoning_content": TEXT})),
        RunCompleted(),
    )
    story.add(
        requested(human("h2", "Sure?")), started(), ModelCompleted(message=ai("m3", TEXT)), RunCompleted(), run="run-2"
    )
    return story


STORIES = {"tools": tools_story(), "interleaved": interleaved(), "subagents": delegating()}

Step = Record | Preview | RunPreview


def steps(story: Story, size: int) -> Iterator[Step]:
    """What happens on a thread, previews among it."""
    after = 0
    for record in story.records:
        if size and isinstance(record.event, ModelCompleted):
            yield from pieces(record.event, size, after)
        if size and isinstance(record.event, SubagentProgressed):
            for preview in pieces(ModelCompleted(message=record.event.message), size, 1):
                yield RunPreview(f"run-{record.event.call_id}", preview)
        after = record.seq
        yield record


class Connection:
    """One connection of a client: what a feed does, without a bus. It is opened when `past` has happened."""

    def __init__(self, past: Sequence[Step], wants: Wants = everything, since: int = -1) -> None:
        records = [step for step in past if isinstance(step, Record)]
        self.tape = Tape(fold(records), wants)
        stored = [step for step in past if not isinstance(step, Record)]
        for preview in stored:
            _preview(self.tape, preview, run_of(records))
        first = next((i for i, record in enumerate(records) if place(record.seq, Slot.ENDED) > since), len(records))
        before = Tape(fold(records[:first]), wants, after=since)
        self.told = [told for record in records[first:] for told in _fact(before, record)]
        self.told += self.tape.unfinished()

    def happens(self, step: Step, run_id: str = "") -> None:
        self.told += _fact(self.tape, step) if isinstance(step, Record) else _preview(self.tape, step, run_id)


def _fact(tape: Tape, record: Record) -> list[WireEvent]:
    inform(tape, record)
    return tape.fact(record)


def _preview(tape: Tape, step: Preview | RunPreview, run_id: str) -> list[WireEvent]:
    item = step if isinstance(step, RunPreview) else RunPreview(run_id, step)
    inform(tape, item)
    return tape.preview(item.run, item.preview)


def inform(tape: Tape, item: Record | RunPreview) -> None:
    """Tells what the subagents' own logs have besides their answers."""
    if (subagent := tape.behind(item)) is not None:
        tape.learn(subagent, LOGS.get(subagent, []))


def run_of(records: Sequence[Record]) -> str:
    return next((record.run for record in reversed(records) if record.run), "")


class Client:
    """Keeps what it has not seen, and puts messages together from nothing but their deltas."""

    def __init__(self) -> None:
        self.seen: dict[str, WireEvent] = {}
        self.since = -1

    def hear(self, told: Iterable[WireEvent]) -> None:
        for one in told:
            self.seen.setdefault(one.id, one)
            self.since = max(self.since, -1 if one.seq is None else one.seq)

    @property
    def numbered(self) -> list[int]:
        return [one.seq for one in self.seen.values() if one.seq is not None]

    def messages(self) -> dict[str, dict[int, str]]:
        """The text of each block of each message; every message is finished, and says what its deltas said."""
        blocks: dict[str, dict[int, str]] = {}
        finished: dict[str, dict[int, Json]] = {}
        for one in self.seen.values():
            if one.method != "messages":
                continue
            data = msgspec.json.decode(one.data)
            match data["event"]:
                case "message-start":
                    assert data["id"] not in blocks
                    blocks[data["id"]], finished[data["id"]] = {}, {}
                case "content-block-start":
                    assert data["index"] == len(blocks[data["id"]])
                    blocks[data["id"]][data["index"]] = ""
                case "content-block-delta":
                    _, text = data["delta"].values()
                    blocks[data["id"]][data["index"]] += text
                case "content-block-finish":
                    finished[data["id"]][data["index"]] = data["content"]
        for message, contents in finished.items():
            for index, content in contents.items():
                assert blocks[message][index] == text_of_block(content), (message, index)
        return blocks


def text_of_block(content: Json) -> Any:
    if content["type"] == "tool_call":
        return {"cat": '{ "path": "ä" }'}.get(content["name"]) or msgspec.json.encode(content["args"]).decode()
    return {"text": content.get("text"), "reasoning": content.get("reasoning"), "non_standard": ""}[content["type"]]


def whole(story: Story, size: int = 0) -> list[WireEvent]:
    """The whole stream of somebody who listened from the beginning."""
    connection = Connection([])
    for step in steps(story, size):
        run_id = run_of([r for r in story.records if r.seq <= connection.tape.seq])
        connection.happens(step, run_id)
    return connection.told


@pytest.mark.parametrize("name", STORIES)
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_previews_change_nothing_but_when(name: str, size: int) -> None:
    story = STORIES[name]
    live, replayed = whole(story, size), whole(story)
    assert sorted(one.id for one in live) == sorted(one.id for one in replayed)
    assert {one.id: one.data for one in live} == {one.id: one.data for one in replayed}
    heard, read = Client(), Client()
    heard.hear(live)
    read.hear(replayed)
    assert heard.messages() == read.messages()


@pytest.mark.parametrize("name", STORIES)
def test_numbers(name: str) -> None:
    numbers = [one.seq for one in whole(STORIES[name]) if one.seq is not None]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] < 2**53


@settings(max_examples=4 * EXAMPLES, deadline=None)
@given(data=st.data(), name=st.sampled_from(sorted(STORIES)), size=st.integers(0, 9), resumes=st.booleans())
def test_a_stream_may_be_cut_anywhere(data: st.DataObject, name: str, size: int, resumes: bool) -> None:
    """Several times, with `since` or without, with previews lost: what was heard amounts to the same."""
    story = STORIES[name]
    happening = list(steps(story, size))
    lost = data.draw(st.sets(st.integers(0, len(happening))), label="lost if previews")
    kept = [step for i, step in enumerate(happening) if isinstance(step, Record) or i not in lost]
    cuts = sorted(data.draw(st.sets(st.integers(1, len(kept) - 1), max_size=5), label="cut before"))
    client = Client()
    for begin, end in pairwise([0, *cuts, len(kept)]):
        connection = Connection(kept[:begin], since=client.since if resumes else -1)
        for step in kept[begin:end]:
            connection.happens(step, run_of([r for r in story.records if r.seq <= connection.tape.seq]))
        heard = connection.told
        if end < len(kept):
            heard = heard[: data.draw(st.integers(0, len(heard)), label="events heard")]
        client.hear(heard)
    expected = Client()
    expected.hear(whole(story))
    assert client.numbered == expected.numbered
    assert client.messages() == expected.messages()


FILTERS = (
    SubscribeParams(channels=["values"]),
    SubscribeParams(channels=["messages", "tools"]),
    SubscribeParams(channels=["messages"], namespaces=[[]], depth=0),
    SubscribeParams(channels=["messages", "lifecycle"], namespaces=[["tools"]]),
    SubscribeParams(channels=["messages"], namespaces=[["tools:c1"]]),
    SubscribeParams(channels=["custom:llm_retry", "tasks"]),
    SubscribeParams(channels=list(CHANNELS), depth=1),
)


@pytest.mark.parametrize("wanted", FILTERS, ids=lambda wanted: str(wanted.channels))
def test_a_filter_only_leaves_out(wanted: SubscribeParams) -> None:
    story, kept = STORIES["tools"], Filter(wanted)
    filtered = Connection(story.records, kept.wants).told
    assert filtered == [one for one in Connection(story.records).told if kept.wants(one.channel, one.namespace)]


@pytest.mark.parametrize("since", [one.seq for one in whole(STORIES["tools"]) if one.seq is not None])
def test_since_with_another_filter(since: int) -> None:
    """Everything that is numbered higher, and the whole of each message that ends later."""
    story = STORIES["tools"]
    resumed = Connection(story.records, since=since).told
    rest = [one for one in Connection(story.records).told if one.seq is not None and one.seq > since]
    assert [one for one in resumed if one.seq is not None] == rest
    ending = {one.id.removesuffix(":finish") for one in rest if one.method == "messages"}
    assert {one.id.partition(":")[0] for one in resumed if one.method == "messages"} == ending


@pytest.mark.parametrize(
    ("prefixes", "depth", "namespace", "covered"),
    [
        (None, 0, ("a", "b"), True),
        ([[]], None, ("a", "b"), True),
        ([[]], 0, (), True),
        ([[]], 0, ("a",), False),
        ([[]], 1, ("a",), True),
        ([["a"]], None, (), False),
        ([["a"]], None, ("a:1", "b"), True),
        ([["a"]], 0, ("a:1", "b"), False),
        ([["a:1"]], None, ("a:2",), False),
        ([["a:1"]], None, ("a",), False),
        ([["b"], ["a"]], None, ("a",), True),
    ],
)
def test_namespaces(
    prefixes: list[list[str]] | None, depth: int | None, namespace: tuple[str, ...], covered: bool
) -> None:
    wanted = Filter(SubscribeParams(channels=["values"], namespaces=prefixes, depth=depth))
    assert wanted.wants("values", namespace) is covered


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        (SubscribeParams(), BadRequest),
        (SubscribeParams(channels=["value"]), BadRequest),
        (SubscribeParams(channels=["custom:"]), BadRequest),
        (SubscribeParams(channels=["values"], depth=-1), Invalid),
        (SubscribeParams(channels=["values"], since=-1), Invalid),
        (SubscribeParams(channels=["values"] * 101), Invalid),
    ],
)
def test_what_cannot_be_subscribed_to(wanted: SubscribeParams, error: type[Exception]) -> None:
    with pytest.raises(error):
        Filter(wanted)


def test_custom_channels() -> None:
    assert Filter(SubscribeParams(channels=["custom"])).wants("custom:a", ())
    assert Filter(SubscribeParams(channels=["custom:a"])).wants("custom:a", ())
    assert not Filter(SubscribeParams(channels=["custom:a"])).wants("custom:b", ())


# ── single facts ─────────────────────────────────────────────────────────────────────────────────────────────────────


def told_of(*events: Event, preview: ModelCompleted | None = None, before: int = 0) -> list[tuple[str, Any]]:
    """What a run tells once it is started, as (method, data); `preview` is shown before the event numbered `before`."""
    story = Story(requested(human("h1", "hi")), started(), *events)
    tape = Tape(ThreadState(), everything)
    told: list[WireEvent] = []
    for place_of, record in enumerate(story.records):
        if preview and place_of == 3 + before:
            for piece in pieces(preview, 4, tape.seq):
                told += tape.preview(RUN, piece)
        told += tape.fact(record)
    shown = [(one.method, msgspec.json.decode(one.data)) for one in told]
    begin = next(i for i, (_, data) in enumerate(shown) if data.get("event") == "running")
    return shown[begin + 5 :]


GRAPH = {"graph_name": "lead_agent"}


@pytest.mark.parametrize(
    ("event", "phase"),
    [
        (RunCompleted(), {"event": "completed"}),
        (RunFailed(error="E", text="broke"), {"event": "failed", "error": "broke"}),
        (RunCancelled(), {"event": "interrupted"}),
        (RunPaused(next=["tools"]), {"event": "interrupted"}),
    ],
)
def test_ends(event: Event, phase: Json) -> None:
    assert told_of(event) == [("lifecycle", {**phase, **GRAPH})]


def test_questions() -> None:
    asked = [Interrupt(id="q1", value={"a": 1}, call_id="c1"), Interrupt(id="q2", value="b", call_id="c2")]
    assert told_of(RunPaused(next=["tools"], interrupts=asked)) == [
        ("input.requested", {"interrupt_id": "q1", "payload": {"a": 1}, "value": {"a": 1}}),
        ("input.requested", {"interrupt_id": "q2", "payload": "b", "value": "b"}),
        ("lifecycle", {"event": "interrupted", **GRAPH}),
    ]


@pytest.mark.parametrize(("value", "answered"), [({"q2": "no"}, ["q2"]), ("yes", ["q1", "q2"])])
def test_answers(value: Any, answered: list[str]) -> None:
    asked = [Interrupt(id="q1", value=1, call_id="c1"), Interrupt(id="q2", value=2, call_id="c2")]
    story = Story(requested(human("h1", "hi")), started(), RunPaused(next=["tools"], interrupts=asked))
    story.add(RunRequested(resume=Resume(value=value)), started(), run="run-2")
    told = [one for one in whole(story) if one.method == "input.answered"]
    assert [msgspec.json.decode(one.data) for one in told] == [{"interrupt_ids": answered}]


def test_a_message_that_breaks_off() -> None:
    message = ModelCompleted(message=ai("m1", "Once upon a time"))
    failed = ModelFailed(error="E", text="secret", attempt=1, max_attempts=3, wait_ms=5, reason="busy")
    shown = told_of(failed, preview=message)
    assert [data["event"] for method, data in shown if method == "messages"][-2:] == ["content-block-delta", "error"]
    [(_, custom)] = [one for one in shown if one[0] == "custom"]
    assert custom["name"] == "llm_retry"
    assert custom["payload"]["wait_ms"] == 5
    assert custom["payload"]["message"].startswith("LLM request retry 1/3: the model's provider is busy.")


@pytest.mark.parametrize("end", [RunCancelled(), RunFailed(error="E", text="t")])
def test_the_end_of_a_run_that_waits_breaks_no_message_off(end: Event) -> None:
    story = Story(requested(human("h1", "hi")), started())
    message = ModelCompleted(message=ai("m1", "Once upon a time"))
    tape = Tape(fold(story.records), everything)
    told = [one for piece in pieces(message, 4, tape.seq)[:2] for one in tape.preview(RUN, piece)]
    story.add(requested(human("h2", "no"), multitask="enqueue"), end, run="r2")
    story.add(message)
    told += [one for record in story.records[3:] for one in tape.fact(record)]
    shown = [msgspec.json.decode(one.data)["event"] for one in told if one.method == "messages"]
    assert "error" not in shown
    assert shown.count("message-start") == shown.count("message-finish") == 1


def test_a_rollback_is_undone_for_those_who_saw_it_and_nothing_to_others() -> None:
    story = Story(requested(human("h1", "hi")), started(), ModelCompleted(message=ai("m1", "a")), RunCompleted())
    story.add(requested(human("h2", "no")), started(), ModelCompleted(message=ai("m2", "b")), RunRolledBack(), run="r2")
    values = [msgspec.json.decode(one.data) for one in whole(story) if one.method == "values"]
    assert [len(value["messages"]) for value in values] == [1, 2, 3, 4, 2]
    tape = Tape(ThreadState(), everything, gone=frozenset({"r2"}))
    told = [one for record in story.records for one in tape.fact(record)]
    assert [len(msgspec.json.decode(one.data)["messages"]) for one in told if one.method == "values"] == [1, 2, 2]
    assert [one.id for one in told if one.method == "messages" and one.seq] == ["m1:finish"]
    assert told[-1].id == "synth:r2:lc||interrupted"


def test_steered() -> None:
    message = human("h2", "wait")
    shown = told_of(RunSteered(message=message), MessageAdded(messages=[message]), RunCompleted())
    assert [method for method, _ in shown] == ["checkpoints", "values", "lifecycle"]
    assert [one["id"] for one in shown[1][1]["messages"]] == ["h1", "h2"]


def test_state_written_from_outside_is_told_at_any_time() -> None:
    story = Story(requested(human("h1", "hi")), started(), RunCompleted())
    story.add(StatePatched(values={"title": "t"}), run=None)
    assert [one.method for one in whole(story)][-2:] == ["checkpoints", "values"]


def test_tool_output() -> None:
    calls = ai("m1", "", call("c1", "ls", path="/"))
    story = Story(requested(human("h1", "hi")), started(), ModelCompleted(message=calls))
    tape = Tape(fold(story.records), everything)
    assert tape.preview(RUN, PROGRESS) == []
    story.add(ToolRequested(call_id="c1", name="ls", effect="pure"))
    tape.fact(story.records[-1])
    [told] = tape.preview(RUN, PROGRESS)
    assert msgspec.json.decode(told.data) == {"event": "tool-output-delta", "tool_call_id": "c1", "delta": "…"}
    assert b"event_id" not in told.encoded()
    assert b'"seq"' not in told.encoded()


def test_calls_that_cannot_be_made() -> None:
    broken = {**call("c1", "ls"), "error": "no JSON"}
    message = ModelCompleted(message=ai("m1", "", broken), call_texts={"c1": '{"path": "/'})
    [content] = [data["content"] for _, data in told_of(message) if data.get("event") == "content-block-finish"]
    assert content == {"type": "invalid_tool_call", "id": "c1", "name": "ls", "args": '{"path": "/', "error": "no JSON"}


def test_time_never_goes_back() -> None:
    """Writers' clocks differ, and clients drop what is older than what they have."""
    story = Story(requested(human("h1", "hi")), started())
    late, early = story.records[-1], Story(requested(), started(), RunCompleted()).records[-1]
    tape = Tape(fold(story.records[:2]), everything)
    ahead = Record(late.seq, late.raw.replace(b"2026-01-01", b"2026-01-02"))
    before = [one.at for one in tape.fact(ahead)]
    assert [one.at for one in tape.fact(early)] == [before[0]]


def test_nothing_is_told_of_an_erased_thread_and_its_open_message_ends() -> None:
    message = ModelCompleted(message=ai("m1", "Once upon a time"))
    story = Story(requested(human("h1", "hi")), started())
    tape = Tape(fold(story.records), everything)
    for piece in pieces(message, 4, tape.seq):
        tape.preview(RUN, piece)
    story.add(ThreadErased(by="u"), run=None)
    assert [one.id for one in tape.fact(story.records[-1])] == ["m1:error"]


def test_subagents_speak_in_their_namespaces() -> None:
    told = whole(STORIES["subagents"], size=4)
    inside = [one for one in told if one.namespace == ("tools:c1",)]
    values = [msgspec.json.decode(one.data)["messages"] for one in inside if one.method == "values"]
    assert [[message["id"] for message in messages] for messages in values] == [
        ["human-run-c1"],
        ["human-run-c1", "c1-1"],
        [message["id"] for message in LOGS["run-c1"]],
    ]
    texts = Client()
    texts.hear(inside)
    assert {identity: blocks.get(0) for identity, blocks in texts.messages().items()} == {
        "c1-1": "I look.",
        "tool-x1": "a",
        "c1-2": "There it is.",
    }
    names = [one.channel for one in told if one.channel.startswith("custom:")]
    assert [name.partition("_")[2] for name in names] == [
        *("started", "started", "running", "running", "failed", "running", "completed"),
    ]
