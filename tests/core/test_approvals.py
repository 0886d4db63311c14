"""What an approval is bound to, what answers say, and what becomes of it: pure."""

from __future__ import annotations

from typing import Any

import pytest

from core.errors import Invalid, Refused
from core.events import (
    ApprovalRequested,
    ApprovalResolved,
    Event,
    Json,
    ModelCompleted,
    Resume,
    RunCancelled,
    RunCompleted,
    RunPaused,
    RunRequested,
    RunRolledBack,
    RunStarted,
    StatePatched,
    ThreadCreated,
)
from core.thread import approvals
from core.thread.approvals import (
    EXPIRE,
    NO_ANSWER,
    Verdict,
    answer_in,
    answers_to_approval,
    chain,
    digest,
    expired,
    expiry_id,
    read,
    resuming,
)
from core.thread.fold import fold
from core.thread.state import ThreadState
from tests.support.records import AT, ai, call, human, log_of

BEFORE, AFTER = "2025-12-31T00:00:00+00:00", "2026-02-01T00:00:00+00:00"
ASKED = ApprovalRequested(
    approval="A", call_id="c", tool="bash", args={"x": 1}, digest="d", allowed=["approve", "edit", "reject"]
)


def asked(identity: str = "A", call_id: str = "c", **more: Any) -> ApprovalRequested:
    return ApprovalRequested(approval=identity, call_id=call_id, tool="bash", args={"x": 1}, digest="d", **more)


def paused(*questions: ApprovalRequested) -> RunPaused:
    return RunPaused(next=["tools"], interrupts=[approvals.question(one) for one in questions])


def parked(*questions: ApprovalRequested, request: RunRequested | None = None) -> list[Any]:
    """A run that is paused at these."""
    calls = [call(one.call_id, x=1) for one in questions]
    return [
        ThreadCreated(user="ada"),
        (request or RunRequested(input={"messages": [human("h")]}), "r1"),
        (RunStarted(attempt=1, worker="w", lease=1), "r1"),
        (ModelCompleted(message=ai("m", calls=calls)), "r1"),
        *((one, "r1") for one in questions),
        (paused(*questions), "r1"),
    ]


def resumed(run: str, value: Any, *events: Event) -> list[Any]:
    request = RunRequested(resume=Resume(value=value))
    return [(request, run), (RunStarted(attempt=1, worker="w", lease=1), run), *((event, run) for event in events)]


def state_of(*events: Any) -> ThreadState:
    return fold(log_of(*events))


def test_an_approval_is_bound_to_the_call_and_its_arguments() -> None:
    one = digest("bash", {"a": {"x": 1, "y": 2}, "b": [1]})
    assert one == digest("bash", {"b": [1], "a": {"y": 2, "x": 1}})
    assert len({one, digest("bash", {"a": 1}), digest("ls", {"a": 1}), digest("ls", {"a": "1"})}) == 4
    ids = {approvals.approval_id(*key) for key in (("1-c", one), ("2-c", one), ("1-d", one), ("1-c", "other"))}
    assert len(ids) == 4
    assert all(len(identity) == 32 for identity in ids)


def test_the_question_has_the_shape_of_langchains() -> None:
    question = approvals.question(asked(text="Sure?", allowed=["approve"], deadline=AFTER))
    assert (question.id, question.call_id) == ("A", "c")
    assert question.value == {
        "type": "approval",
        "approval_id": "A",
        "deadline": AFTER,
        "action_requests": [{"name": "bash", "args": {"x": 1}, "description": "Sure?"}],
        "review_configs": [{"action_name": "bash", "allowed_decisions": ["approve"]}],
    }
    assert approvals.question(ASKED, "why").value["error"] == "why"


def hitl(**decision: Any) -> Json:
    return {"decisions": [decision]}


APPROVED, REJECTED, EDITED = Verdict("approve"), Verdict("reject"), Verdict("edit", {"x": 2})
READ: dict[str, tuple[Any, Verdict]] = {
    "true": (True, APPROVED),
    "false": (False, REJECTED),
    "word": ("approve", APPROVED),
    "yes": (" Yes\n", APPROVED),
    "no": ("NO", REJECTED),
    "rejected by word": ("reject", REJECTED),
    "langchain approve": (hitl(type="approve"), APPROVED),
    "langchain reject": (hitl(type="reject", message="why"), Verdict("reject", None, "why")),
    "langchain respond": (hitl(type="respond", message="42"), Verdict("reject", None, "42")),
    "langchain edit": (hitl(type="edit", edited_action={"name": "bash", "args": {"x": 2}}), EDITED),
    "one decision": ({"type": "approve"}, APPROVED),
    "inbox accept": ([{"type": "accept", "args": None}], APPROVED),
    "inbox ignore": ([{"type": "ignore", "args": None}], REJECTED),
    "inbox response": ([{"type": "response", "args": "no, thanks"}], Verdict("reject", None, "no, thanks")),
    "inbox edit": ([{"type": "edit", "args": {"action": "bash", "args": {"x": 2}}}], EDITED),
    "ours": ({"decision": "approve", "message": "go", "by": "eve"}, Verdict("approve", None, "go")),
    "ours edit": ({"decision": "edit", "args": {"x": 2}}, EDITED),
    "arguments without an edit": ({"decision": "approve", "args": {"x": 2}}, APPROVED),
}


@pytest.mark.parametrize(("answer", "verdict"), READ.values(), ids=READ)
def test_answers(answer: Any, verdict: Verdict) -> None:
    assert read(answer, ASKED) == verdict


UNREADABLE: dict[str, tuple[Any, str]] = {
    "nothing": (None, "expected"),
    "a number": (1, "expected"),
    "another word": ("maybe", "decision: approve, edit or reject, got 'maybe'"),
    "an edit by word": ("edit", "args"),
    "no decision": ({}, "expected"),
    "somebody else's answer": ({"f" * 32: {"decision": "approve"}}, "expected"),
    "none of a list": ({"decisions": []}, "expected"),
    "two decisions": ({"decisions": [{"type": "approve"}, {"type": "approve"}]}, "expected"),
    "lists in lists": ([[True]], "expected"),
    "another decision": ({"decision": "allow"}, "decision"),
    "time is not asked": (EXPIRE, "decision"),
    "a decision that is no word": ({"decision": ["approve"]}, "decision"),
    "an edit without arguments": ({"decision": "edit"}, "args"),
    "an edit of arguments that are none": ({"decision": "edit", "args": [1]}, "args"),
    "an edit of nothing": (hitl(type="edit"), "edited_action"),
    "an edit to another tool": (hitl(type="edit", edited_action={"name": "ls", "args": {}}), "edited_action.name"),
    "a message that is no text": ({"decision": "reject", "message": 5}, "message"),
}


@pytest.mark.parametrize(("answer", "problem"), UNREADABLE.values(), ids=UNREADABLE)
def test_what_says_nothing_decides_nothing(answer: Any, problem: str) -> None:
    with pytest.raises(Invalid, match=problem):
        read(answer, ASKED)


@pytest.mark.parametrize("answer", [True, {"decision": "edit", "args": {}}, "approve"])
def test_what_is_not_allowed_decides_nothing(answer: Any) -> None:
    with pytest.raises(Invalid, match="is not allowed here, but reject"):
        read(answer, asked(allowed=["reject"]))


@pytest.mark.parametrize(("deadline", "over"), [(None, False), (BEFORE, True), (AT, True), (AFTER, False)])
def test_deadlines(deadline: str | None, over: bool) -> None:
    assert approvals.over(asked(deadline=deadline), AT) is over


ANSWERED: dict[str, tuple[Any, Any, Any]] = {
    "for all": (True, True, True),
    "nothing, for all": (None, None, None),
    "by id": ({"A": 1, "B": None}, 1, None),
    "for one": ({"A": 1}, 1, NO_ANSWER),
    "for another": ({"B": 1}, NO_ANSWER, 1),
    "not by id": ({"A": 1, "C": 2}, {"A": 1, "C": 2}, {"A": 1, "C": 2}),
}


@pytest.mark.parametrize("started", [True, False], ids=["started", "requested"])
@pytest.mark.parametrize(("value", "first", "second"), ANSWERED.values(), ids=ANSWERED)
def test_the_answer_in_a_run(value: Any, first: Any, second: Any, started: bool) -> None:
    events = resumed("r2", value)[: 2 if started else 1]
    state = state_of(*parked(asked(), asked("B", "d")), *events)
    assert [answer_in(state.runs["r2"], one, state) for one in ("A", "B", "C")] == [first, second, NO_ANSWER]


def test_a_run_that_was_stopped_before_it_began_brings_nothing() -> None:
    state = state_of(*parked(asked()), *resumed("r2", True)[:1], (RunCancelled(), "r2"))
    assert answer_in(state.runs["r2"], "A", state) is NO_ANSWER


RESOLVED = ApprovalResolved(approval="A", call_id="c", decision="approve", by="ada")
B = asked("B", "d")
STATUSES: dict[str, tuple[list[Any], str]] = {
    "not asked yet": (parked(asked())[:-1], "pending"),
    "paused": (parked(asked()), "pending"),
    "answered": ([*parked(asked()), *resumed("r2", True)], "pending"),
    "resolved": ([*parked(asked()), *resumed("r2", True, RESOLVED)], "approved"),
    "the other resolved": ([*parked(asked(), B), *resumed("r2", {"B": True}, paused(asked()))], "pending"),
    "rolled back": ([*parked(asked()), *resumed("r2", True, RESOLVED, RunRolledBack())], "pending"),
    "left behind": (
        [*parked(asked()), (RunRequested(input={"messages": [human("i")]}), "r2"), *resumed("r2", None)[1:]],
        "abandoned",
    ),
    "asked anew": (
        [*parked(asked()), *resumed("r2", {"B": 1}, asked("A2"), paused(asked("A2")))],
        "abandoned",
    ),
    "about to be asked anew": ([*parked(asked()), *resumed("r2", {"B": 1}, asked("A2"))], "abandoned"),
    "forked away": (
        [*parked(asked()), StatePatched(values={"messages": []}, base=30)],
        "abandoned",
    ),
    "stopped": ([*parked(asked())[:-1], (RunCancelled(), "r1")], "abandoned"),
}


@pytest.mark.parametrize(("events", "status"), STATUSES.values(), ids=STATUSES)
def test_status(events: list[Any], status: str) -> None:
    state = state_of(*events)
    assert approvals.status(state, state.approvals["A"]) == status


@pytest.mark.parametrize("decision", approvals.STATUS)
def test_status_of_what_is_decided(decision: Any) -> None:
    resolved = ApprovalResolved(approval="A", call_id="c", decision=decision)
    state = state_of(*parked(asked()), *resumed("r2", True, resolved, RunCompleted()))
    assert approvals.status(state, state.approvals["A"]) == approvals.STATUS[decision]


def test_what_is_due_is_what_the_thread_is_paused_at() -> None:
    late, later, never = asked(deadline=BEFORE), asked("B", "d", deadline=AFTER), asked("C", "e")
    state = state_of(*parked(late, later, never))
    assert expired(state, AT) == ["A"]
    assert [identity for _, identity in approvals.deadlines(state)] == ["A", "B"]
    for begun in (1, 2):
        assert expired(state_of(*parked(late, later, never), *resumed("r2", {"A": EXPIRE})[:begun]), AT) == []
    gone = state_of(*parked(late), *resumed("r2", True, RunCompleted()))
    assert (expired(gone, AT), approvals.deadlines(gone)) == ([], [])


def test_going_on() -> None:
    first = RunRequested(
        assistant="a",
        input={"messages": [human("h")]},
        base=10,
        config={"recursion_limit": 9},
        context={"model_name": "m"},
        metadata={"k": 1},
        multitask="interrupt",
        stream_modes=["values"],
        on_disconnect="cancel",
        interrupt_before=["tools"],
        webhook="https://example.org/",
    )
    wanted = resuming(state_of(*parked(asked(), request=first)), {"A": {"decision": "approve"}})
    assert wanted == RunRequested(
        assistant="a",
        config={"recursion_limit": 9},
        context={"model_name": "m"},
        metadata={"k": 1},
        stream_modes=["values"],
        interrupt_before=["tools"],
        resume=Resume(value={"A": {"decision": "approve"}}),
        webhook="https://example.org/",
    )


def test_going_on_from_the_last_run_that_counts() -> None:
    second = (RunRequested(context={"model_name": "two"}, resume=Resume(value={"B": 1})), "r2")
    third = [*resumed("r3", True, RunRolledBack()), *resumed("r4", True)[:1], (RunCancelled(), "r4")]
    events = [*parked(asked(), B), second, *resumed("r2", None)[1:], (paused(asked()), "r2"), *third]
    assert resuming(state_of(*events), {"A": True}).context == {"model_name": "two"}


def test_nothing_to_go_on_from() -> None:
    for events in ([ThreadCreated(user="u")], [*parked(asked()), *resumed("r2", True)]):
        with pytest.raises(Refused):
            resuming(state_of(*events), {"A": True})


def test_time_tells_once_until_it_came_to_nothing() -> None:
    waiting = parked(asked(), B)
    first = expiry_id(state_of(*waiting), "A")
    assert first == expiry_id(state_of(*waiting, *resumed("r2", {"B": EXPIRE})), "A")
    assert len({first, expiry_id(state_of(*waiting), "B")}) == 2
    for end in (RunRolledBack(), RunCancelled()):
        events = resumed("r2", {"A": EXPIRE}, end)
        assert expiry_id(state_of(*waiting, *events), "A") != first
        assert expiry_id(state_of(*waiting, events[0], events[-1]), "A") != first


def test_what_is_one_run_to_a_person() -> None:
    again = (RunRequested(input={"messages": [human("i")]}), "r3")
    events = [*parked(asked()), *resumed("r2", True, RunCompleted()), again, *resumed("r3", None)[1:]]
    state = state_of(*events, (paused(asked()), "r3"), *resumed("r4", True))
    assert {run: [one.id for one in chain(state, run)] for run in ("r1", "r2", "r3", "r4")} == {
        "r1": ["r1"],
        "r2": ["r2", "r1"],
        "r3": ["r3"],
        "r4": ["r4", "r3"],
    }


def test_answers_to_approvals_are_not_the_tools() -> None:
    own = RunPaused(next=["tools"], interrupts=[approvals.question(asked("own"))])
    events = [*parked(asked()), *resumed("r2", "hm", paused(asked())), *resumed("r3", True, RESOLVED, own)]
    state = state_of(*events, *resumed("r4", "May"))
    assert state.runs["r4"].answers == {"c": ("hm", True, "May")}
    assert [answers_to_approval(state, run, "c") for run in ("r1", "r2", "r3", "r4")] == [0, 1, 2, 2]
    assert answers_to_approval(state, "r4", "d") == 0
