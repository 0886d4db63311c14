"""Parks tool calls until a person approves, edits or rejects them, or their deadline is over (`approvals`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any, cast

import msgspec
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import ToolCall
from langgraph.prebuilt.tool_node import ToolCallRequest

from actors.agent.run.attempt import Attempt, ToolHandler, ToolResult, error_result
from core.config.settings import ApprovalRule
from core.errors import Invalid
from core.events import ApprovalRequested, ApprovalResolved, Json
from core.ids import stamp
from core.mcp.seen import version
from core.mcp.tools import GROUP as MCP
from core.thread import approvals
from core.thread.approvals import Verdict
from core.thread.state import Approval, ThreadState
from core.thread.values import unanswered
from core.tools import Question, Response


class Approvals(AgentMiddleware[Any, Attempt, Any]):
    """Parks calls that match a rule. A parked call waits for its decision even if the rules change.

    An unreadable or forbidden answer decides nothing: the question is repeated with the error.
    """

    name = "approvals"

    def __init__(self, rules: Sequence[ApprovalRule] = ()) -> None:
        super().__init__()
        self._rules = tuple(rules)

    async def awrap_tool_call(self, request: ToolCallRequest, handler: ToolHandler) -> ToolResult:
        attempt = cast(Attempt, request.runtime.context)
        call = request.tool_call
        if (not self._rules and not attempt.state.approvals) or attempt.begun(str(call["id"])):
            return await handler(request)
        if attempt.subagent is not None:
            return await self._of_subagent(attempt, request, handler)
        approval = await self._approval(attempt, call, _described(request.tool))
        if approval is None:
            return await handler(request)
        resolved = await _resolved(attempt, approval)
        text = _outcome(approval, resolved)
        attempt.decide(self.name, approvals.STATUS[resolved.decision], text, **_decision_fields(approval, resolved))
        match resolved.decision:
            case "approve":
                return await handler(request)
            case "edit":
                return await handler(request.override(tool_call={**call, "args": resolved.args or {}}))
        return error_result(call, text)

    async def _of_subagent(self, attempt: Attempt, request: ToolCallRequest, handler: ToolHandler) -> ToolResult:
        """Refuses a call that would have to wait: a subagent has nobody to ask, and its caller can make the call."""
        call = request.tool_call
        if not any(applies(rule, call["name"], call["args"]) for rule in self._rules):
            return await handler(request)
        text = f"this call of {call['name']} needs the approval of a person, which a subagent cannot ask for."
        attempt.decide(self.name, "refused", text, call_id=str(call["id"]))
        return error_result(call, f"{text} Do without it, and say in your answer that the call is left to your caller.")

    async def _approval(self, attempt: Attempt, call: ToolCall, described: str) -> ApprovalRequested | None:
        """Returns the approval of a call, requesting it if a rule demands one. None: the call needs none."""
        digest, call_id = approvals.digest(call["name"], call["args"]), str(call["id"])
        identity = approvals.approval_id(attempt.call_ref(call_id).key, digest)
        if (approval := attempt.state.approvals.get(identity)) is not None:
            return approval.request
        rule = next((rule for rule in self._rules if wants(rule, call["name"], call["args"], described, attempt)), None)
        if rule is None:
            return None

        async def make() -> ApprovalRequested:
            return ApprovalRequested(
                approval=identity,
                call_id=call_id,
                tool=call["name"],
                args=call["args"],
                digest=digest,
                text=rule.text or f"The agent wants to call {call['name']}.",
                allowed=list(rule.allowed),
                deadline=_deadline(rule.deadline_seconds),
                described=described,
            )

        return await attempt.journal.fact(ApprovalRequested, call_id, make)


async def answered(attempt: Attempt, call: ToolCall, question: Question) -> Response:
    """Returns a person's answer to a question of a call (`ToolContext.ask`). Without one, raises the run's pause."""
    if attempt.subagent is not None:
        return Response(None)
    step = dict(question.step)
    digest, call_id = approvals.digest(call["name"], step), str(call["id"])
    identity = approvals.approval_id(attempt.call_ref(call_id).key, digest)

    async def make() -> ApprovalRequested:
        return ApprovalRequested(
            approval=identity,
            call_id=call_id,
            tool=call["name"],
            args=step,
            digest=digest,
            text=question.text,
            allowed=["approve", "reject"] if question.form is None else ["edit", "reject"],
            deadline=_deadline(question.seconds),
            form=dict(question.form) if question.form is not None else None,
        )

    known = attempt.state.approvals.get(identity)
    request = known.request if known else await attempt.journal.fact(ApprovalRequested, call_id, make)
    resolved = await _resolved(attempt, request)
    attempt.decide(Approvals.name, approvals.STATUS[resolved.decision], _outcome(request, resolved), call_id=call_id)
    accepted = None if resolved.decision == "expire" else resolved.decision != "reject"
    return Response(accepted, resolved.args or {})


def has_asked(attempt: Attempt, call: ToolCall) -> bool:
    """Tells whether a call has asked a person something itself, besides waiting for the approval of a rule."""
    call_id, key = str(call["id"]), attempt.call_ref(str(call["id"])).key
    made = [call["args"], *(c["args"] for c in unanswered(attempt.state.messages) if c["id"] == call_id)]
    of_rules = {approvals.digest(call["name"], args) for args in made}
    requests = (approval.request for approval in attempt.state.approvals.values())
    return any(
        request.digest not in of_rules and request.approval == approvals.approval_id(key, request.digest)
        for request in requests
    )


async def _resolved(attempt: Attempt, request: ApprovalRequested) -> ApprovalResolved:
    """Returns the decision about a call. Raises the pause of the run if there is none."""
    state, identity = attempt.state, request.approval
    run, approval = state.runs[attempt.run], state.approvals[identity]
    answer = approvals.answer_in(run, identity, state)
    if answer is approvals.NO_ANSWER:
        if (settled := approvals.settled(state, approval)) is not None:
            return settled
        raise attempt.ask(approvals.question(request))
    try:
        late = approvals.over(request, run.created_at)
        verdict = Verdict("expire") if late else approvals.read(answer, request)
    except Invalid as error:
        raise attempt.ask(approvals.question(request, str(error))) from None
    return await _recorded(attempt, approval, verdict)


async def _recorded(attempt: Attempt, approval: Approval, verdict: Verdict) -> ApprovalResolved:
    """Records the decision once, also if a crash came between the fact and its consequence."""
    request, before = approval.request, approval.resolved
    if before is not None and Verdict(before.decision, before.args, before.message) == verdict:
        return before

    async def make() -> ApprovalResolved:
        return ApprovalResolved(
            approval=request.approval,
            call_id=request.call_id,
            decision=verdict.decision,
            by=None if verdict.decision == "expire" else _decider(attempt),
            args=verdict.args,
            message=verdict.message,
        )

    return await attempt.journal.fact(ApprovalResolved, request.call_id, make)


def _decider(attempt: Attempt) -> str:
    """Returns the authenticated user that requested this run, regardless of the answer's claims."""
    user = attempt.state.runs[attempt.run].request.context.get("user_id")
    return user if isinstance(user, str) and user else attempt.user


def _deadline(seconds: float | None) -> str | None:
    return None if seconds is None else stamp(datetime.now(UTC) + timedelta(seconds=seconds))


# ── rules ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def wants(rule: ApprovalRule, tool: str, args: Json, described: str, attempt: Attempt) -> bool:
    """Tells whether a rule makes a call wait for a person."""
    return applies(rule, tool, args) and not _approved_before(rule, tool, described, attempt)


def _described(tool: Any) -> str:
    """Returns the version of what an MCP server says of a tool; empty for other tools, which are our own."""
    declared = getattr(tool, "tool", None)
    group = getattr(declared, "group", None) or ""
    return version(declared.description, declared.schema) if declared and group.startswith(f"{MCP}:") else ""


def applies(rule: ApprovalRule, tool: str, args: Json) -> bool:
    """Tells whether a rule matches a call: the tool's name, and all of the arguments that it names."""
    if not fnmatchcase(tool, rule.tool):
        return False
    if rule.match is None:
        return True
    expressions = rule.match if isinstance(rule.match, Mapping) else {None: rule.match}
    return all(_matches(pattern, args if name is None else args.get(name)) for name, pattern in expressions.items())


def _matches(expression: str, value: Any) -> bool:
    return any(re.search(expression, text) for text in _texts(value))


def _texts(value: Any) -> Iterator[str]:
    """Yields all texts in a nested value; numbers and booleans as JSON."""
    match value:
        case None:
            return
        case str():
            yield value
        case dict():
            for part in value.values():
                yield from _texts(part)
        case list():
            for part in value:
                yield from _texts(part)
        case _:
            yield msgspec.json.encode(value).decode()


def _approved_before(rule: ApprovalRule, tool: str, described: str, attempt: Attempt) -> bool:
    """Tells whether an earlier approval suffices: of a call of the same tool, described alike, that matches the rule
    too.
    """
    if rule.when == "always":
        return False
    state = attempt.state
    runs = {run.id for run in approvals.chain(state, attempt.run)} if rule.when == "once_per_run" else state.runs.keys()
    return any(
        past.run in runs
        and (past.request.tool, past.request.described) == (tool, described)
        and applies(rule, tool, past.request.args)
        and _approved(state, past)
        for past in state.approvals.values()
    )


def _approved(state: ThreadState, approval: Approval) -> bool:
    resolved = approvals.settled(state, approval)
    return resolved is not None and resolved.decision == "approve"


# ── texts ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _outcome(request: ApprovalRequested, resolved: ApprovalResolved) -> str:
    """Describes the decision for people and for the model."""
    if request.form is not None:
        words = {"expire": f"nobody answered by {request.deadline}", "reject": f"the user ({resolved.by}) declined"}
        return f"{words.get(resolved.decision, f'the user ({resolved.by}) answered')} a question of {request.tool}."
    tool, why = request.tool, f" They said: {resolved.message}" if resolved.message else ""
    match resolved.decision:
        case "expire":
            return f"nobody approved this call of {tool} by {request.deadline}, so it was not made."
        case "reject":
            advice = why or " Do not make it again unless you are asked to."
            return f"the user ({resolved.by}) rejected this call of {tool}, so it was not made.{advice}"
        case "edit":
            return f"the user ({resolved.by}) changed the arguments of this call of {tool}.{why}"
    return f"the user ({resolved.by}) approved this call of {tool}.{why}"


def _decision_fields(request: ApprovalRequested, resolved: ApprovalResolved) -> dict[str, Any]:
    """Returns the arguments that record the decision; of edited calls a note tells the model the new arguments."""
    if resolved.decision != "edit":
        return {"call_id": request.call_id}
    args = msgspec.json.encode(resolved.args).decode()
    note = f"{_outcome(request, resolved)} It was made on purpose, not with yours, but with these: {args}"
    return {"call_id": request.call_id, "note": note}
