"""Parks tool calls until a person has approved, edited or rejected them, or their deadline is over (`approvals`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any, cast

import msgspec
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import ToolCall, ToolMessage
from langgraph.prebuilt.tool_node import ToolCallRequest

from actors.lead.loop.turn import ToolHandler, ToolResult, Turn
from core.config.settings import ApprovalRule
from core.errors import Invalid
from core.events import ApprovalRequested, ApprovalResolved, Json
from core.ids import stamp
from core.thread import approvals
from core.thread.approvals import Verdict
from core.thread.state import Approval, ThreadState


class Approvals(AgentMiddleware[Any, Turn, Any]):
    """A call that was parked stays parked until somebody decides, also if the rules change meanwhile. An answer that
    cannot be read, or is not allowed, decides nothing: the question is asked again, and says what was wrong.
    """

    name = "approvals"

    def __init__(self, rules: Sequence[ApprovalRule] = ()) -> None:
        super().__init__()
        self._rules = tuple(rules)

    async def awrap_tool_call(self, request: ToolCallRequest, handler: ToolHandler) -> ToolResult:
        turn = cast(Turn, request.runtime.context)
        call = request.tool_call
        if not self._rules and not turn.state.approvals:
            return await handler(request)
        if turn.begun(str(call["id"])):
            _pass_over(turn, str(call["id"]))
            return await handler(request)
        asked = await self._asked(turn, call)
        resolved = await _resolved(turn, asked) if asked is not None else None
        _pass_over(turn, str(call["id"]))
        if asked is None or resolved is None:
            return await handler(request)
        turn.decide(self.name, approvals.STATUS[resolved.decision], _told(asked, resolved), **_noted(asked, resolved))
        match resolved.decision:
            case "approve":
                return await handler(request)
            case "edit":
                return await handler(request.override(tool_call={**call, "args": resolved.args or {}}))
        text = f"Error: {_told(asked, resolved)}"
        return ToolMessage(text, tool_call_id=asked.call_id, name=asked.tool, status="error")

    async def _asked(self, turn: Turn, call: ToolCall) -> ApprovalRequested | None:
        """The approval that a call waits, or waited, for: asked for now if a rule wants one. None: none is needed."""
        digest, call_id = approvals.digest(call["name"], call["args"]), str(call["id"])
        identity = approvals.approval_id(turn.call_ref(call_id).key, digest)
        if (known := turn.state.approvals.get(identity)) is not None:
            return known.request
        rule = next((rule for rule in self._rules if wants(rule, call["name"], call["args"], turn)), None)
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
                deadline=_deadline(rule),
            )

        return await turn.journal.fact(ApprovalRequested, call_id, make)


async def _resolved(turn: Turn, asked: ApprovalRequested) -> ApprovalResolved:
    """What was decided about a call. Pauses the run if nothing is."""
    state, identity = turn.state, asked.approval
    run, known = state.runs[turn.run], state.approvals[identity]
    answer = approvals.answer_in(run, identity, state)
    if answer is approvals.NO_ANSWER:
        if (settled := approvals.settled(state, known)) is not None:
            return settled
        raise turn.ask(approvals.question(asked))
    try:
        late = approvals.over(asked, run.created_at)
        verdict = Verdict("expire") if late else approvals.read(answer, asked)
    except Invalid as error:
        raise turn.ask(approvals.question(asked, str(error))) from None
    return await _recorded(turn, known, verdict)


async def _recorded(turn: Turn, known: Approval, verdict: Verdict) -> ApprovalResolved:
    """The decision as a fact; once, also if a crash came between the fact and its consequence."""
    asked, before = known.request, known.resolved
    if before is not None and Verdict(before.decision, before.args, before.message) == verdict:
        return before

    async def make() -> ApprovalResolved:
        return ApprovalResolved(
            approval=asked.approval,
            call_id=asked.call_id,
            decision=verdict.decision,
            by=None if verdict.decision == "expire" else _decider(turn),
            args=verdict.args,
            message=verdict.message,
        )

    return await turn.journal.fact(ApprovalResolved, asked.call_id, make)


def _decider(turn: Turn) -> str:
    """Who asked for this run, as the server knows them; not what the answer claims."""
    user = turn.state.runs[turn.run].request.context.get("user_id")
    return user if isinstance(user, str) and user else turn.user


def _pass_over(turn: Turn, call_id: str) -> None:
    """Answers to approvals are not for the tool's own questions."""
    while turn.heard(call_id) < approvals.taken(turn.state, turn.run, call_id):
        turn.hear(call_id)


def _deadline(rule: ApprovalRule) -> str | None:
    if rule.deadline_seconds is None:
        return None
    return stamp(datetime.now(UTC) + timedelta(seconds=rule.deadline_seconds))


# ── rules ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def wants(rule: ApprovalRule, tool: str, args: Json, turn: Turn) -> bool:
    """Whether a rule has a call wait for a person."""
    return applies(rule, tool, args) and not _had(rule, tool, turn)


def applies(rule: ApprovalRule, tool: str, args: Json) -> bool:
    """Whether a rule is about a call: by the tool's name, and what is in the arguments. Of several arguments, all must
    match.
    """
    if not fnmatchcase(tool, rule.tool):
        return False
    if rule.match is None:
        return True
    wanted = rule.match if isinstance(rule.match, Mapping) else {None: rule.match}
    return all(_found(expression, args if name is None else args.get(name)) for name, expression in wanted.items())


def _found(expression: str, value: Any) -> bool:
    return any(re.search(expression, text) for text in _texts(value))


def _texts(value: Any) -> Iterator[str]:
    """Every text in a value, however deep; numbers and booleans as in JSON."""
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


def _had(rule: ApprovalRule, tool: str, turn: Turn) -> bool:
    """Whether a person has approved such a call before, where once is enough. Such: of the same tool, and one that the
    rule is about too.
    """
    if rule.when == "always":
        return False
    state = turn.state
    runs = {run.id for run in approvals.chain(state, turn.run)} if rule.when == "once_per_run" else state.runs.keys()
    return any(
        one.run in runs and one.request.tool == tool and applies(rule, tool, one.request.args) and _approved(state, one)
        for one in state.approvals.values()
    )


def _approved(state: ThreadState, approval: Approval) -> bool:
    resolved = approvals.settled(state, approval)
    return resolved is not None and resolved.decision == "approve"


# ── what is said about it ────────────────────────────────────────────────────────────────────────────────────────────


def _told(asked: ApprovalRequested, resolved: ApprovalResolved) -> str:
    """What happened, for people and for the model."""
    tool, why = asked.tool, f" They said: {resolved.message}" if resolved.message else ""
    match resolved.decision:
        case "expire":
            return f"nobody approved this call of {tool} by {asked.deadline}, so it was not made."
        case "reject":
            advice = why or " Do not make it again unless you are asked to."
            return f"the user ({resolved.by}) rejected this call of {tool}, so it was not made.{advice}"
        case "edit":
            return f"the user ({resolved.by}) changed the arguments of this call of {tool}.{why}"
    return f"the user ({resolved.by}) approved this call of {tool}.{why}"


def _noted(asked: ApprovalRequested, resolved: ApprovalResolved) -> dict[str, Any]:
    """How the decision is recorded: with the call, and the model is told what it cannot see in the result."""
    if resolved.decision != "edit":
        return {"call_id": asked.call_id}
    args = msgspec.json.encode(resolved.args).decode()
    note = f"{_told(asked, resolved)} It was made on purpose, not with yours, but with these: {args}"
    return {"call_id": asked.call_id, "note": note}
