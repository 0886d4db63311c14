"""The part of a thread that a memory reads."""

from __future__ import annotations

from core.events import (
    Event,
    ModelCompleted,
    RunCompleted,
    RunRequested,
    RunRolledBack,
    RunStarted,
    ToolCompleted,
)
from core.memory.conversation import Part, ended_after, part, plain
from core.thread.fold import fold
from core.thread.messages import UPLOADS_BLOCK
from core.thread.state import ThreadState
from tests.support.records import ai, call, human, log_of

HIDDEN = {**human("x", "hidden"), "additional_kwargs": {"hide_from_ui": True}}


def run(
    name: str, *messages: dict[str, object], answer: str = "Yes.", end: Event | None = None
) -> list[tuple[Event, str]]:
    events = [
        RunRequested(input={"messages": list(messages)}),
        RunStarted(attempt=1, worker="w", lease=1),
        ModelCompleted(message=ai(f"tool-{name}", "looking", [call("c")])),
        ToolCompleted(
            call_id="c", message={"type": "tool", "id": f"r-{name}", "tool_call_id": "c", "content": "secret"}
        ),
        ModelCompleted(message=ai(f"ai-{name}", answer)),
        end or RunCompleted(),
    ]
    return [(event, name) for event in events]


def read(state: ThreadState, after: int = 0) -> Part | None:
    return part(state, ended_after(state, after))


def lines(state: ThreadState, after: int = 0) -> list[str]:
    unread = read(state, after)
    return [f"{u.speaker} {u.text}" for u in unread.utterances] if unread else []


def test_what_people_and_the_agent_say() -> None:
    state = fold(log_of(*run("r1", human("h1", "I keep otters"), HIDDEN)))
    unread = read(state)
    assert unread is not None
    assert unread.complete
    assert lines(state) == ["User I keep otters", "Assistant Yes."]
    assert (unread.utterances[0].message, unread.utterances[0].run, unread.utterances[0].event) == ("h1", "r1", 20)
    assert unread.upto == 60
    assert read(state, unread.upto) is None


def test_a_client_that_sends_the_conversation_again() -> None:
    first, again = human("h1", "one"), [human("h1b", "one"), ai("a", "Yes."), human("h2", "two")]
    state = fold(log_of(*run("r1", first), *run("r2", *again)))
    assert lines(state) == ["User one", "Assistant Yes.", "User two", "Assistant Yes."]
    assert lines(state, 60) == ["User two", "Assistant Yes."]


def test_what_was_undone_or_is_not_over_is_not_read() -> None:
    undone = run("r2", human("h2", "two"), end=RunRolledBack())
    state = fold(log_of(*run("r1", human("h1", "one")), *undone, *run("r3", human("h3", "three"))[:-1]))
    assert lines(state) == ["User one", "Assistant Yes."]


def test_uploads_are_left_out_with_the_answers_to_them() -> None:
    block = "<uploaded_files>\nx\n</uploaded_files>\n\n"
    extra = {"additional_kwargs": {UPLOADS_BLOCK: len(block)}}
    only, more = {**human("h1", block), **extra}, {**human("h2", f"{block}Read it"), **extra}
    state = fold(log_of(*run("r1", only, answer="A file."), *run("r2", more)))
    assert lines(state) == ["User Read it", "Assistant Yes."]
    listed = {
        **human("h", ""),
        "content": [{"type": "text", "text": block}, {"type": "text", "text": "x" * 2000}],
        **extra,
    }
    assert plain(listed) == "x" * 1000


def test_one_alone_is_no_conversation() -> None:
    state = fold(log_of(*run("r1", human("h1", "one"), answer="")))
    unread = read(state)
    assert unread is not None
    assert not unread.complete
