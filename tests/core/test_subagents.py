"""What a subagent's log says of its end, and how its caller is told."""

from __future__ import annotations

from typing import Any

import pytest

from core.events import (
    Aggregate,
    Decision,
    Event,
    ModelCompleted,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunPaused,
    RunRequested,
    RunStarted,
    SubagentCompleted,
    SubagentProgressed,
    SubagentStarted,
    ThreadCreated,
)
from core.thread.fold import fold
from core.thread.subagents import MOST_CHARACTERS, NO_ANSWER, answers, identity, outcome, text_of, tool_message_of
from core.thread.usage import APOLOGY, of_run, of_subagents
from tests.support.records import log_of

USAGE = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}


def answer(text: Any, identity: str = "a", *, stopped: str = "", usage: Any = None) -> ModelCompleted:
    decisions = [Decision(policy=stopped, action="stopped")] if stopped else []
    message = {"type": "ai", "id": identity, "content": text}
    return ModelCompleted(message={**message, "usage_metadata": usage} if usage else message, decisions=decisions)


def ended(*events: Event) -> SubagentCompleted:
    request = RunRequested(input={"messages": [{"type": "human", "id": "h", "content": "Go."}]})
    begun = RunStarted(attempt=1, worker="w", lease=1, model="m")
    state = fold(log_of(ThreadCreated(user="u"), *((event, "s") for event in (request, begun, *events))))
    return outcome(state, "s", "c1")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("one", "one"),
        (["one", "two"], "onetwo"),
        ([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}], "one\ntwo"),
        (["one", "two", {"type": "text", "text": "three"}, "four"], "onetwo\nthree\nfour"),
        ([{"type": "image"}, 7, None], ""),
        (None, ""),
    ],
)
def test_text(content: Any, text: str) -> None:
    assert text_of(content) == text


FAILED = RunFailed(error="ValueError", text="it broke")
LATE, SPENT = RunFailed(error="TooLong", text="after 9 s"), RunFailed(error="BudgetSpent", text="no money")


@pytest.mark.parametrize(
    ("events", "status", "text", "reason"),
    [
        ([answer("one"), answer("two", "b"), RunCompleted()], "completed", "two", None),
        ([answer("one"), answer("", "b"), RunCompleted()], "completed", "one", None),
        ([answer(""), RunCompleted()], "completed", NO_ANSWER, None),
        ([RunCompleted()], "completed", NO_ANSWER, None),
        ([answer("one", stopped="budgets"), RunCompleted()], "completed", "one", "token_capped"),
        ([answer("one", stopped="loop_detection"), RunCompleted()], "completed", "one", "loop_capped"),
        ([answer("one", stopped="loop_detection"), answer("two", "b"), RunCompleted()], "completed", "two", None),
        ([answer("one"), SPENT], "completed", "one", "token_capped"),
        ([SPENT], "failed", "no money", None),
        ([answer("one"), FAILED], "failed", "it broke", None),
        ([answer("one"), LATE], "timed_out", "after 9 s", None),
        ([answer("one"), RunCancelled()], "cancelled", None, None),
        (
            [answer("one"), RunPaused(next=["tools"])],
            "failed",
            "it stopped before tools, where nobody lets it go on",
            None,
        ),
    ],
)
def test_outcome(events: list[Event], status: str, text: str | None, reason: str | None) -> None:
    event = ended(*events)
    assert (event.status, event.error or event.result or None, event.stop_reason) == (status, text, reason)


CAPS = {
    "budgets": "by a budget",
    "call_limit": "at its limit of model calls",
    "loop_detection": "because it went in circles",
}


@pytest.mark.parametrize("policy", CAPS)
def test_an_answer_at_a_limit_is_no_success(policy: str) -> None:
    text, fields = tool_message_of(ended(answer("half"), answer("half is done", "b", stopped=policy), RunCompleted()))
    assert text.startswith(f"Task failed. Error: it was stopped {CAPS[policy]}, so the work is not finished.")
    assert text.endswith("What it says of it: half is done")
    assert fields["subagent_status"] == "completed"


def test_an_answer_at_the_end_of_the_time_comes_with_the_reason() -> None:
    event = ended(answer("half"), answer("half is done", "b", stopped="time_limit"), RunCompleted())
    assert (event.status, event.result, event.failure) == ("timed_out", "half is done", "timed_out")
    assert "not finished: half is done" in tool_message_of(event)[0]


@pytest.mark.parametrize("end", [FAILED, LATE])
def test_what_was_said_before_a_failure_is_not_lost(end: Event) -> None:
    assert tool_message_of(ended(answer("half is done"), end))[0].endswith("which is not finished: half is done")


def test_usage_is_a_sum_or_unknown() -> None:
    one, two = (answer("x", name, usage=USAGE) for name in "ab")
    assert ended(one, two, RunCompleted()).usage == {"input_tokens": 6, "output_tokens": 8, "total_tokens": 14}
    assert ended(FAILED).usage is None


def test_a_result_has_a_bound() -> None:
    result = ended(answer("x" * (MOST_CHARACTERS + 5)), RunCompleted()).result
    assert result.endswith("x\n... [5 characters left out]")


def test_the_message() -> None:
    event = SubagentCompleted(call_id="c", status="timed_out", error="after 9 s", model="m", usage=USAGE)
    assert tool_message_of(event) == (
        "Task timed out. Error: after 9 s",
        {
            "subagent_status": "timed_out",
            "subagent_error": "after 9 s",
            "subagent_model_name": "m",
            "subagent_token_usage": USAGE,
        },
    )
    assert tool_message_of(SubagentCompleted(call_id="c", status="cancelled"))[0] == "Task cancelled by user."


def test_the_caller_counts_each_answer_and_each_end_once() -> None:
    """Also of a call id that comes twice in a run."""
    message = {"type": "ai", "id": "a", "content": "x", "usage_metadata": USAGE}
    events = [
        RunRequested(),
        RunStarted(attempt=1, worker="w", lease=1, model="m"),
        SubagentStarted(call_id="c", subagent="s1", name="n", model="other"),
        SubagentProgressed(call_id="c", index=1, message=message),
        SubagentProgressed(call_id="c", index=1, message=message),
        SubagentCompleted(call_id="c", status="completed", usage=USAGE),
        SubagentCompleted(call_id="c", status="failed", usage={**USAGE, "input_tokens": 99}),
        SubagentStarted(call_id="c", subagent="s2", name="n"),
        SubagentProgressed(call_id="c", index=1, message=message),
        SubagentCompleted(call_id="unknown", status="completed"),
    ]
    state = fold(log_of(ThreadCreated(user="u"), *((event, "r") for event in events)))
    run = state.runs["r"]
    assert {name: (known.ended, known.tokens.total) for name, known in run.subagents.items()} == {
        "s1": ("completed", 7),
        "s2": ("", 7),
    }
    assert {model: tokens.total for model, tokens in of_subagents(run).items()} == {"other": 7, "m": 7}
    assert {*of_subagents(run, but="s1")} == {"m"}
    assert of_run(state, run).subagents.total == 14
    assert not state.problems


def test_the_work_of_its_subagents_is_work_of_the_run() -> None:
    """So a run that waits while its workers die is not the one that kills them."""
    start = RunStarted(attempt=1, worker="w", lease=1)
    begun = SubagentStarted(call_id="c", subagent="s", name="n")
    events = RunRequested(), start, start, begun, start, SubagentCompleted(call_id="c", status="completed"), start
    stalled = [
        fold(log_of(ThreadCreated(user="u"), *((e, "r") for e in events[:n]))).runs["r"].stalled for n in (3, 5, 7)
    ]
    assert stalled == [2, 1, 1]


def test_a_call_has_one_subagent() -> None:
    caller = Aggregate("thread", "t")
    assert identity(caller, "r", "1-c") == identity(caller, "r", "1-c")
    others = [
        identity(caller, "r", "2-c"),
        identity(caller, "q", "1-c"),
        identity(Aggregate("subagent", "t"), "r", "1-c"),
    ]
    assert len({identity(caller, "r", "1-c"), *others}) == 4


def test_answers_are_those_of_the_model() -> None:
    request = RunRequested(input={"messages": [{"type": "ai", "id": "told", "content": "x"}]})
    started = RunStarted(attempt=1, worker="w", lease=1)
    sorry = {"type": "ai", "id": "e", "content": "sorry", "additional_kwargs": {APOLOGY: True}}
    apology = RunFailed(error="E", text="t", message=sorry)
    state = fold(log_of((request, "s"), (started, "s"), (answer("one"), "s"), (apology, "s")))
    assert [message["id"] for message in answers(state, "s")] == ["a"]
