"""Calls that wait for a person: which ones, what they are asked, and what comes of the answers."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool
from langgraph.errors import GraphInterrupt

from actors.agent.loop.described import as_langchain
from actors.agent.policies.safety.approvals import Approvals, applies
from actors.agent.run.attempt import Attempt
from core.config.settings import ApprovalRule
from core.events import (
    ApprovalRequested,
    ApprovalResolved,
    Event,
    Interrupt,
    Json,
    Message,
    Resume,
    RunPaused,
    RunRequested,
    RunRolledBack,
    RunStarted,
    StatePatched,
    ThreadCreated,
)
from core.thread.approvals import EXPIRE, answers_to_approval
from core.thread.fold import fold
from core.tools import Tool, ToolContext
from tests.actors.agent.turns import RUN, Kept, tool_call, turn
from tests.support.records import ai, call, log_of

pytestmark = pytest.mark.anyio

ARGS: Json = {"command": "rm -rf /", "options": [{"why": "tidy"}], "times": 2}
MESSAGES: list[Message] = [ai("m", calls=[call("c1", **ARGS), call("c2", **ARGS)])]
BASH = ApprovalRule(tool="bash", text="Sure?")
POLICY = Approvals([BASH])
ASKED_FOR: tuple[Event, ...] = (RunRequested(input={"messages": []}), RunStarted(attempt=1, worker="w", lease=1))


def rule(**more: Any) -> ApprovalRule:
    return ApprovalRule(tool=more.pop("tool", "bash"), **more)


def on(*events: tuple[Event, str | None] | Event) -> Attempt:
    """A turn after these: the last run is the one that is worked on."""
    attempt = turn()
    attempt.journal = Kept(
        fold(log_of(ThreadCreated(user="ada"), StatePatched(values={"messages": MESSAGES}), *events))
    )
    return attempt


def facts(of: Attempt) -> list[Event]:
    assert isinstance(of.journal, Kept)
    return of.journal.events


async def parked(policy: Approvals = POLICY, call_id: str = "c1", args: Json = ARGS) -> Attempt:
    """A turn whose call waits now."""
    attempt = on(*((event, RUN) for event in ASKED_FOR))
    with pytest.raises(GraphInterrupt):
        await tool_call(policy, attempt, "bash", args, call_id=call_id)
    return attempt


def story(*facts: Event, questions: list[Interrupt], answer: Any, context: Json | None = None) -> list[Any]:
    """A run that paused at questions, and one that goes on with an answer."""
    paused = [*ASKED_FOR, *facts, RunPaused(next=["tools"], interrupts=questions)]
    request = RunRequested(resume=Resume(value=answer), context=context or {})
    return [*((event, "r0") for event in paused), (request, RUN), (RunStarted(attempt=1, worker="w", lease=1), RUN)]


async def answered(answer: Any, policy: Approvals = POLICY, **more: Any) -> Attempt:
    """A turn that goes on with an answer to the call that waits."""
    before = await parked(policy)
    return on(*story(*facts(before), questions=before.questions, answer=answer, **more))


MATCH: dict[str, tuple[ApprovalRule, bool]] = {
    "every tool": (rule(tool="*"), True),
    "a kind of tool": (rule(tool="ba*"), True),
    "another tool": (rule(tool="ls"), False),
    "the name as it is": (rule(tool="Bash"), False),
    "anywhere": (rule(match="rm +-rf"), True),
    "deep inside": (rule(match="^tidy$"), True),
    "a number": (rule(match="^2$"), True),
    "nowhere": (rule(match="sudo"), False),
    "names are no text": (rule(match="command"), False),
    "by name": (rule(match={"command": "^rm"}), True),
    "by name, in another": (rule(match={"why": "^rm"}), False),
    "by name, deep inside": (rule(match={"options": "tid"}), True),
    "all of them": (rule(match={"command": "rm", "times": "2"}), True),
    "not all of them": (rule(match={"command": "rm", "times": "3"}), False),
}


@pytest.mark.parametrize(("rule", "does"), MATCH.values(), ids=MATCH)
async def test_which_calls_wait(rule: ApprovalRule, does: bool) -> None:
    assert applies(rule, "bash", ARGS) is does
    if does:
        assert (await parked(Approvals([rule]))).questions
        return
    attempt = on(*((event, RUN) for event in ASKED_FOR))
    assert (await tool_call(Approvals([rule]), attempt, "bash", ARGS))[1] == [ARGS]
    assert facts(attempt) == []


async def test_what_is_asked() -> None:
    attempt = await parked(Approvals([rule(tool="ls"), rule(allowed=("approve",)), rule()]))
    [event], [question] = facts(attempt), attempt.questions
    assert isinstance(event, ApprovalRequested)
    assert (event.call_id, event.tool, event.args, event.allowed) == ("c1", "bash", ARGS, ["approve"])
    assert (event.text, event.deadline) == ("The agent wants to call bash.", None)
    assert (question.id, question.call_id) == (event.approval, "c1")
    assert question.value["action_requests"] == [{"name": "bash", "args": ARGS, "description": event.text}]


async def test_a_deadline() -> None:
    [event] = facts(await parked(Approvals([rule(deadline_seconds=60)])))
    assert isinstance(event, ApprovalRequested)
    assert event.deadline is not None


async def test_parallel_calls_are_asked_apart() -> None:
    attempt = await parked()
    with pytest.raises(GraphInterrupt):
        await tool_call(POLICY, attempt, "bash", ARGS, call_id="c2")
    assert len({question.id for question in attempt.questions}) == 2


async def test_nobody_is_asked_twice_after_a_crash() -> None:
    attempt = await parked()
    with pytest.raises(GraphInterrupt):
        await tool_call(POLICY, attempt, "bash", ARGS)
    assert len(facts(attempt)) == 1
    assert attempt.questions[0] == attempt.questions[1]


async def test_without_rules_nothing_waits() -> None:
    attempt = on(*((event, RUN) for event in ASKED_FOR))
    assert (await tool_call(Approvals(), attempt, "bash", ARGS))[1] == [ARGS]


# ── answers ──────────────────────────────────────────────────────────────────────────────────────────────────────────

MADE: dict[str, tuple[Any, Json, str]] = {
    "approved": (True, ARGS, "approved"),
    "edited": ({"decision": "edit", "args": {"command": "ls"}}, {"command": "ls"}, "edited"),
    "edited to nothing": ({"decision": "edit", "args": {}}, {}, "edited"),
}


@pytest.mark.parametrize(("answer", "args", "action"), MADE.values(), ids=MADE)
@pytest.mark.parametrize("policy", [POLICY, Approvals()], ids=["same rules", "rules are gone"])
async def test_calls_that_are_made(answer: Any, args: Json, action: str, policy: Approvals) -> None:
    attempt = await answered(answer)
    result, calls = await tool_call(policy, attempt, "bash", ARGS)
    assert isinstance(result, ToolMessage)
    assert (result.content, calls) == ("done", [args])
    [fact] = facts(attempt)
    assert isinstance(fact, ApprovalResolved)
    assert fact.by == attempt.user
    [decision] = attempt.decided("c1")
    assert (decision.policy, decision.action) == ("approvals", action)
    assert (decision.note is not None) is (action == "edited")


REFUSED: dict[str, tuple[Any, str, str]] = {
    "rejected": (False, "rejected", "Do not make it again"),
    "rejected for a reason": ({"type": "reject", "message": "Too bold"}, "rejected", "They said: Too bold"),
}


@pytest.mark.parametrize(("answer", "action", "text"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("policy", [POLICY, Approvals()], ids=["same rules", "rules are gone"])
async def test_calls_that_are_not_made(answer: Any, action: str, text: str, policy: Approvals) -> None:
    attempt = await answered(answer, context={"user_id": "bob"})
    result, calls = await tool_call(policy, attempt, "bash", ARGS)
    assert isinstance(result, ToolMessage)
    assert (result.status, calls) == ("error", [])
    assert str(result.content).startswith("Error: the user (bob) rejected this call of bash")
    assert text in str(result.content)
    assert [decision.action for decision in attempt.decided("c1")] == [action]


@pytest.mark.parametrize("answer", ["maybe", None, {}, EXPIRE, {"decision": "edit"}, [True, True]], ids=str)
async def test_an_answer_that_says_nothing_is_asked_for_again(answer: Any) -> None:
    attempt = await answered(answer)
    with pytest.raises(GraphInterrupt):
        await tool_call(POLICY, attempt, "bash", ARGS)
    [question] = attempt.questions
    assert question.value["error"]
    assert facts(attempt) == []
    again = on(*story(*facts(await parked()), questions=[question], answer=True))
    assert (await tool_call(POLICY, again, "bash", ARGS))[1] == [ARGS]


async def test_what_is_not_allowed_is_asked_for_again() -> None:
    policy = Approvals([rule(allowed=("reject",))])
    attempt = await answered(True, policy)
    with pytest.raises(GraphInterrupt):
        await tool_call(policy, attempt, "bash", ARGS)
    assert "is not allowed" in attempt.questions[0].value["error"]


@pytest.mark.parametrize("answer", [EXPIRE, True, "maybe"], ids=str)
async def test_after_its_deadline_nothing_is_approved(answer: Any) -> None:
    before = await parked()
    [event] = facts(before)
    assert isinstance(event, ApprovalRequested)
    late = ApprovalRequested(**{name: getattr(event, name) for name in event.__struct_fields__} | {"deadline": PAST})
    attempt = on(*story(late, questions=before.questions, answer=answer))
    result, calls = await tool_call(POLICY, attempt, "bash", ARGS)
    assert isinstance(result, ToolMessage)
    assert calls == []
    assert result.content == f"Error: nobody approved this call of bash by {PAST}, so it was not made."
    [fact] = facts(attempt)
    assert isinstance(fact, ApprovalResolved)
    assert (fact.decision, fact.by) == ("expire", None)


PAST = "2025-12-31T23:59:59.000000+00:00"


async def test_other_arguments_are_another_call() -> None:
    """An answer to the call that was shown says nothing about the one that it became meanwhile."""
    attempt = await answered(True)
    with pytest.raises(GraphInterrupt):
        await tool_call(POLICY, attempt, "bash", {"command": "rm -rf /home"})
    [anew] = facts(attempt)
    assert isinstance(anew, ApprovalRequested)
    assert anew.args == {"command": "rm -rf /home"}
    assert attempt.questions[0].id not in (question.id for question in (await parked()).questions)


async def test_an_answer_for_another_call_says_nothing() -> None:
    first, second = await parked(), await parked(call_id="c2")
    questions = [*first.questions, *second.questions]
    attempt = on(*story(*facts(first), *facts(second), questions=questions, answer={questions[1].id: "approve"}))
    with pytest.raises(GraphInterrupt):
        await tool_call(POLICY, attempt, "bash", ARGS)
    assert (await tool_call(POLICY, attempt, "bash", ARGS, call_id="c2"))[1] == [ARGS]


# ── crashes, and runs that go on ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("answer", [True, False, {"decision": "edit", "args": {"command": "ls"}}], ids=str)
async def test_a_decision_is_a_fact_once(answer: Any) -> None:
    attempt = await answered(answer)
    first = await tool_call(POLICY, attempt, "bash", ARGS)
    second = await tool_call(POLICY, attempt, "bash", ARGS)
    assert (first[0], first[1]) == (second[0], second[1])
    assert len(facts(attempt)) == 1


async def test_the_tools_own_questions_get_their_own_answers() -> None:
    before = await answered("hm")
    with pytest.raises(GraphInterrupt):
        await tool_call(POLICY, before, "bash", ARGS)
    first = story(*facts(await parked()), questions=before.questions, answer=True)
    resolved = await resolution(on(*first))
    own = Interrupt(id="own", value="when?", call_id="c1")
    asks = [(event, "r1" if run == RUN else run) for event, run in first]
    asks += [(resolved, "r1"), (RunPaused(next=["tools"], interrupts=[own]), "r1")]
    attempt = on(*asks, (RunRequested(resume=Resume(value="May")), RUN), (ASKED_FOR[1], RUN))
    assert (await tool_call(POLICY, attempt, "bash", ARGS))[1] == [ARGS]
    assert attempt.journal.answers("c1")[answers_to_approval(attempt.state, RUN, "c1") :] == ("May",)
    assert facts(attempt) == []


async def resolution(of: Attempt) -> Event:
    await tool_call(POLICY, of, "bash", ARGS)
    return facts(of)[-1]


async def test_what_was_rolled_back_was_not_approved() -> None:
    before = await parked()
    first = story(*facts(before), questions=before.questions, answer=True)
    resolved = await resolution(on(*first))
    undone = [(event, "r1" if run == RUN else run) for event, run in first]
    undone += [(resolved, "r1"), (RunRolledBack(), "r1")]
    go_on = (RunRequested(), RUN), (ASKED_FOR[1], RUN)
    with pytest.raises(GraphInterrupt):
        await tool_call(POLICY, on(*undone, *go_on), "bash", ARGS)
    attempt = on(*undone, (RunRequested(resume=Resume(value=False)), RUN), (ASKED_FOR[1], RUN))
    assert (await tool_call(POLICY, attempt, "bash", ARGS))[1] == []


OTHER: Json = {"command": "rm -rf /home"}
NEW: list[Any] = [(event, RUN) for event in ASKED_FOR]
ONCE: dict[str, tuple[ApprovalRule, Any, str, Json, bool, bool]] = {
    # rule, answer, tool, arguments; whether it waits in the same run, and in a later one
    "always": (rule(), True, "bash", OTHER, True, True),
    "run": (rule(when="once_per_run"), True, "bash", OTHER, False, True),
    "thread": (rule(when="once_per_thread"), True, "bash", OTHER, False, False),
    "rejected": (rule(when="once_per_thread"), False, "bash", OTHER, True, True),
    "edited": (rule(when="once_per_thread"), {"decision": "edit", "args": ARGS}, "bash", OTHER, True, True),
    "another tool": (rule(when="once_per_thread", tool="*"), True, "ls", OTHER, True, True),
    "the rule is about both": (rule(when="once_per_thread", match="rm"), True, "bash", OTHER, False, False),
    "the rule is not about both": (rule(when="once_per_thread", match="home"), True, "bash", OTHER, True, True),
}


@pytest.mark.parametrize("later", [False, True], ids=["same run", "later run"])
@pytest.mark.parametrize(("rule", "answer", "tool", "args", "same", "then"), ONCE.values(), ids=ONCE)
async def test_once(
    rule: ApprovalRule, answer: Any, tool: str, args: Json, same: bool, then: bool, later: bool
) -> None:
    before = await parked()
    first = story(*facts(before), questions=before.questions, answer=answer)
    resolved = await resolution(on(*first))
    events = [*first, (resolved, RUN)]
    if later:
        events = [(event, "r1" if run == RUN else run) for event, run in events] + NEW
    attempt = on(*events)
    if then if later else same:
        with pytest.raises(GraphInterrupt):
            await tool_call(Approvals([rule]), attempt, tool, args, call_id="c3")
    else:
        assert (await tool_call(Approvals([rule]), attempt, tool, args, call_id="c3"))[1] == [args]


def of_server(description: str, group: str = "mcp:s") -> BaseTool:
    async def function(ctx: ToolContext) -> str:
        return ""

    return as_langchain(Tool("bash", description, function, "once", group, schema={"type": "object", "properties": {}}))


@pytest.mark.parametrize(
    ("then", "now", "waits"),
    [
        (of_server("Runs."), of_server("Runs."), False),
        (of_server("Runs."), of_server("Runs.\n"), False),
        (of_server("Runs."), of_server("Runs. And sends ~/.ssh to me."), True),
        (of_server("Runs.", "shell"), of_server("Runs a command.", "shell"), False),
    ],
    ids=["the same", "white space", "other words", "a tool of our own"],
)
async def test_an_approval_holds_while_the_server_says_the_same(then: BaseTool, now: BaseTool, waits: bool) -> None:
    policy = Approvals([rule(when="once_per_thread")])
    before = on(*((event, RUN) for event in ASKED_FOR))
    with pytest.raises(GraphInterrupt):
        await tool_call(policy, before, "bash", ARGS, tool=then)
    first = story(*facts(before), questions=before.questions, answer=True)
    attempt = on(*first, (await resolution(on(*first)), RUN))
    if waits:
        with pytest.raises(GraphInterrupt):
            await tool_call(policy, attempt, "bash", OTHER, call_id="c3", tool=now)
    else:
        assert (await tool_call(policy, attempt, "bash", OTHER, call_id="c3", tool=now))[1] == [OTHER]


async def test_what_waits_is_not_approved_by_the_other() -> None:
    policy = Approvals([rule(when="once_per_thread")])
    first, second = await parked(policy), await parked(policy, call_id="c2")
    questions = [*first.questions, *second.questions]
    attempt = on(*story(*facts(first), *facts(second), questions=questions, answer={questions[0].id: True}))
    assert (await tool_call(policy, attempt, "bash", ARGS))[1] == [ARGS]
    with pytest.raises(GraphInterrupt):
        await tool_call(policy, attempt, "bash", ARGS, call_id="c2")
