"""The text of an answer while it is made: what facts and previews make of it, in whichever order they come."""

from __future__ import annotations

import pytest

from actors.delivery.growing import Growing
from core.events import (
    Event,
    ModelCompleted,
    Record,
    RunCompleted,
    RunRequested,
    RunStarted,
    ThreadCreated,
    ToolCompleted,
)
from core.runs.follow import Batch
from core.runs.previews import Preview, RunPreview
from core.thread.fold import fold
from core.thread.state import ThreadState
from tests.support.records import ai, call, human, log_of, record

BEGUN = log_of(
    ThreadCreated(user="ada"),
    (RunRequested(input={"messages": [human("h")]}), "r"),
    (RunStarted(attempt=1, worker="w", lease=1), "r"),
)
AT = BEGUN[-1].seq
CALLED, ANSWERED, ENDED = AT + 10, AT + 30, AT + 40


def said(text: str, offset: int = 0, after: int = AT, message: str = "a") -> RunPreview:
    return RunPreview("r", Preview(message=message, after=after, offset=offset, text=text))


def thought(text: str, after: int, message: str) -> RunPreview:
    return RunPreview("r", Preview(message=message, after=after, offset=0, text=text, part="reasoning"))


def fact(seq: int, event: Event, run: str = "r") -> Record:
    return record(seq, event, run)


CALLS = fact(CALLED, ModelCompleted(message=ai("a", "One.", calls=[call("c")])))
DONE = fact(CALLED + 10, ToolCompleted(call_id="c", message={"type": "tool", "id": "t", "content": ""}))
ANSWER = fact(ANSWERED, ModelCompleted(message=ai("b", "Two three.")))
CASES: dict[str, tuple[Batch, str]] = {
    "nothing yet": ([], ""),
    "it grows": ([said("One "), said("two", 4)], "One two"),
    "nothing of an earlier attempt": ([said("One "), said("no", 4, after=AT - 10)], "One "),
    "the fact wins": ([said("On"), CALLS], "One."),
    "a later answer replaces it": ([CALLS, DONE, said("Two", after=CALLED + 10, message="b")], "Two"),
    "also one that begins with reasoning": (
        [CALLS, DONE, thought("Hm", after=CALLED + 10, message="b"), said("Two", 2, after=CALLED + 10, message="b")],
        "Two",
    ),
    "a preview that is ahead of its facts waits": ([said("Two", after=CALLED + 10, message="b")], ""),
    "and is taken with them": ([said("Two", after=CALLED + 10, message="b"), CALLS, DONE], "Two"),
    "nothing of another run": ([fact(CALLED, ModelCompleted(message=ai("x", "No.")), run="other")], ""),
    "an answer without a text keeps what was said": (
        [CALLS, DONE, fact(ANSWERED, ModelCompleted(message=ai("b", "")))],
        "One.",
    ),
}


def begun() -> Growing:
    return Growing("r", fold(BEGUN, ThreadState()))


@pytest.mark.parametrize(("batch", "text"), CASES.values(), ids=CASES)
def test_the_text_so_far(batch: Batch, text: str) -> None:
    growing = begun()
    growing.take(batch)
    assert (growing.text, growing.is_whole()) == (text, False)


def test_it_is_whole_at_the_end_of_its_run() -> None:
    growing = begun()
    growing.take([CALLS, DONE, ANSWER, fact(ENDED, RunCompleted())])
    assert (growing.text, growing.is_whole()) == ("Two three.", True)
    growing.take([said(" four", 10, after=ANSWERED, message="b")])
    assert growing.text == "Two three."
