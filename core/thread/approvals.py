"""What an approval is bound to, what an answer to it says, and how a thread that waits for it goes on. Pure.

An approval is known by the tool call and the hash of its arguments, so that a crash cannot ask twice, and no answer can
reach a call that is not the one that was shown. Its id is the id of the question (`Interrupt`) the run is paused at:
whoever can resume a run can answer it.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Literal, NamedTuple

import msgspec

from core.errors import Invalid, Refused
from core.events import ApprovalRequested, ApprovalResolved, Interrupt, Json, Resume, RunRequested
from core.thread.state import Approval, Run, ThreadState, unanswered

Word = Literal["approve", "edit", "reject", "expire"]
Status = Literal["pending", "approved", "edited", "rejected", "expired", "abandoned"]
"""`abandoned`: the conversation went on without it, so the call is not made any more."""

STATUS: Mapping[str, Status] = {
    "approve": "approved",
    "edit": "edited",
    "reject": "rejected",
    "expire": "expired",
}
EXPIRE: Json = {"decision": "expire"}
"""The answer of time."""
UNHEARD = msgspec.UNSET
_WORDS: Mapping[Any, Word] = {
    "approve": "approve",
    "accept": "approve",
    "yes": "approve",
    "edit": "edit",
    "reject": "reject",
    "ignore": "reject",
    "response": "reject",
    "respond": "reject",
    "no": "reject",
}
"""Ours, LangChain's (`HumanInTheLoopMiddleware`), and those of older agent inboxes."""
_SPACE = uuid.UUID("6c8f1f0e-0f5b-4c55-9a35-3c1f1c3b6a0d")


class Verdict(NamedTuple):
    """What was decided: `args` are those of an edit."""

    decision: Word
    args: Json | None = None
    message: str = ""


# ── what is asked ────────────────────────────────────────────────────────────────────────────────────────────────────


def digest(tool: str, args: Json) -> str:
    """Hash of a call: its tool and arguments."""
    return _hash(msgspec.json.encode([tool, args], order="deterministic"))


def approval_id(call: str, digest: str) -> str:
    """Returns the id of the approval of a call. `call`: its key (`core.thread.run.CallRef`)."""
    return _hash(f"{call}-{digest}".encode())


def question(asked: ApprovalRequested, error: str = "") -> Interrupt:
    """What the person is asked, in the shape of LangChain's `HITLRequest`. `error`: what was wrong with the last
    answer.
    """
    value: Json = {
        "type": "approval",
        "approval_id": asked.approval,
        "deadline": asked.deadline,
        "action_requests": [{"name": asked.tool, "args": asked.args, "description": asked.text}],
        "review_configs": [{"action_name": asked.tool, "allowed_decisions": list(asked.allowed)}],
    }
    return Interrupt(id=asked.approval, value={**value, "error": error} if error else value, call_id=asked.call_id)


def over(asked: ApprovalRequested, at: str) -> bool:
    """Whether its deadline is over at a time: whatever is decided from then on, it counts as rejected."""
    return asked.deadline is not None and datetime.fromisoformat(asked.deadline) <= datetime.fromisoformat(at)


# ── what is answered ─────────────────────────────────────────────────────────────────────────────────────────────────


def read(answer: Any, asked: ApprovalRequested) -> Verdict:
    """What a person's answer says. Raises `Invalid` if it says nothing, or something that is not allowed."""
    verdict = _verdict(answer, asked.tool)
    if verdict.decision not in asked.allowed:
        raise Invalid(f"{verdict.decision} is not allowed here, but {', '.join(asked.allowed)}")
    return verdict


def _verdict(answer: Any, tool: str) -> Verdict:
    match answer:
        case [one] | {"decisions": [one]}:
            return _single(one, tool)
    return _single(answer, tool)


def _single(answer: Any, tool: str) -> Verdict:
    match answer:
        case bool():
            return Verdict("approve" if answer else "reject")
        case str():
            word = _word(answer.strip().lower())
            return Verdict(word, _args(None) if word == "edit" else None)
        case {"decision": given}:
            word = _word(given)
            return Verdict(word, _args(answer.get("args")) if word == "edit" else None, _text(answer.get("message")))
        case {"type": given}:
            return _inbox(_word(given), answer, tool)
    raise Invalid('expected {"decisions": [one decision]}, or approve, edit or reject')


def _inbox(word: Word, answer: Json, tool: str) -> Verdict:
    """A decision of LangChain's, or of an older inbox, which says everything in `args`."""
    said = answer.get("args")
    if word != "edit":
        return Verdict(word, None, _text(answer.get("message") or (said if isinstance(said, str) else None)))
    match answer.get("edited_action", said):
        case {"name": name, "args": args} | {"action": name, "args": args}:
            if name != tool:
                raise Invalid(f"edited_action.name: a call of {tool} cannot become another")
            return Verdict(word, _args(args), _text(answer.get("message")))
    raise Invalid('edited_action: expected {"name", "args"}')


def _word(given: Any) -> Word:
    word = _WORDS.get(given) if isinstance(given, str) else None
    if word is None:
        raise Invalid(f"decision: approve, edit or reject, got {str(given)[:40]!r}")
    return word


def _args(given: Any) -> Json:
    if not isinstance(given, dict):
        raise Invalid("args: expected an object with all arguments of the call")
    return given


def _text(given: Any) -> str:
    if given is None:
        return ""
    if not isinstance(given, str):
        raise Invalid("message: expected text")
    return given


def answer_in(run: Run, approval: str, state: ThreadState) -> Any:
    """What a run brings as the answer to an approval; `UNHEARD` if nothing. None is an answer."""
    paused = run.resumed[0] if run.attempt else state.paused if run.open else None
    asked = {one.id for one in paused.interrupts} if paused else set()
    if approval not in asked or run.request.resume is None:
        return UNHEARD
    value = run.request.resume.value
    each = isinstance(value, dict) and value and value.keys() <= asked
    return value.get(approval, UNHEARD) if each else value


def answering(state: ThreadState, approval: str) -> Run | None:
    """The newest run that brought an answer to an approval; what was rolled back does not count."""
    for run in reversed(state.runs.values()):
        if run.status != "rolled_back" and answer_in(run, approval, state) is not UNHEARD:
            return run
    return None


def taken(state: ThreadState, run: str, call_id: str) -> int:
    """How many of a call's answers were to its approval: those that follow are to the tool's own questions."""
    if not state.approvals:
        return 0
    for one in chain(state, run):
        paused = one.resumed[0]
        if paused and any(asked.call_id == call_id and asked.id in state.approvals for asked in paused.interrupts):
            return len(one.answers.get(call_id, ()))
    return 0


def chain(state: ThreadState, run: str) -> Iterator[Run]:
    """A run and those it goes on from, newest first: to a person they are one."""
    if state.runs[run].request.input is not None:
        yield state.runs[run]
        return
    runs = [one for one in state.runs.values() if one.started_seq is not None and one.status != "rolled_back"]
    runs.sort(key=lambda one: one.started_seq or 0, reverse=True)
    mine = state.runs[run].started_seq or 0
    for one in runs:
        if (one.started_seq or 0) > mine:
            continue
        yield one
        if one.request.input is not None:
            return


# ── what became of it ────────────────────────────────────────────────────────────────────────────────────────────────


def settled(state: ThreadState, approval: Approval) -> ApprovalResolved | None:
    """What was decided, unless the run that decided it was rolled back."""
    resolved = approval.resolved
    return resolved if resolved is not None and answering(state, approval.request.approval) is not None else None


def status(state: ThreadState, approval: Approval) -> Status:
    """What became of an approval. While a run is at work that may still ask, or hear the answer, it is pending."""
    if (resolved := settled(state, approval)) is not None:
        return STATUS[resolved.decision]
    if state.status != "busy":
        return "pending" if waits(state, approval.request.approval) else "abandoned"
    asked = approval.request
    newest = [one.request.approval for one in state.approvals.values() if one.request.call_id == asked.call_id][-1]
    open_ = any(call["id"] == asked.call_id for call in unanswered(state.messages))
    return "pending" if open_ and newest == asked.approval else "abandoned"


def waits(state: ThreadState, approval: str) -> bool:
    """Whether the thread is paused at an approval."""
    return state.paused is not None and any(one.id == approval for one in state.paused.interrupts)


def due(state: ThreadState, at: str) -> list[str]:
    """The approvals the thread is paused at whose deadline is over."""
    if state.status == "busy":
        return []
    return [key for key, one in state.approvals.items() if over(one.request, at) and waits(state, key)]


def ahead(state: ThreadState) -> list[tuple[datetime, str]]:
    """The deadlines of what is pending, and whose they are."""
    return [
        (datetime.fromisoformat(one.request.deadline), key)
        for key, one in state.approvals.items()
        if one.request.deadline is not None and status(state, one) == "pending"
    ]


# ── going on ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def going_on(state: ThreadState, answers: Mapping[str, Any]) -> RunRequested:
    """The run that goes on from the paused one with answers, by approval: in all else as the paused one. Raises
    `Refused` if there is none.
    """
    ended = [run for run in state.runs.values() if run.attempt and run.ended_seq and run.status != "rolled_back"]
    if state.paused is None or not ended:
        raise Refused("The thread is not interrupted: there is nothing to resume")
    paused = max(ended, key=lambda run: run.ended_seq or 0).request
    return msgspec.structs.replace(
        paused,
        input=None,
        base=None,
        resume=Resume(value=dict(answers)),
        multitask="reject",
        on_disconnect="continue",
        not_before=None,
    )


def expiry_id(state: ThreadState, approval: str) -> str:
    """The id of the run that tells that time is over: the same whoever asks for it, another if that came to nothing."""
    resumes = [run.request.resume.value for run in state.runs.values() if run.request.resume is not None]
    tries = sum(isinstance(value, dict) and value.get(approval) == EXPIRE for value in resumes)
    return str(uuid.uuid5(_SPACE, f"{approval}/{tries}"))


def _hash(value: bytes) -> str:
    return hashlib.blake2b(value, digest_size=16).hexdigest()
