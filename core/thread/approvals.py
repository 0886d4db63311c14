"""Approvals of tool calls: their identity, the answers to them, and the run that resumes the thread. Pure functions.

An approval is identified by the tool call and the hash of its arguments, so that a crash cannot ask twice, and no
answer can reach another call than the one that was shown. Its id is the id of the interrupt that the run is paused at:
every client that can resume a run can answer it.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Literal, NamedTuple

import msgspec

from core import forms
from core.errors import Invalid, Refused
from core.events import ApprovalRequested, ApprovalResolved, Interrupt, Json, Resume, RunRequested
from core.thread.state import Approval, Run, ThreadState
from core.thread.values import unanswered

Word = Literal["approve", "edit", "reject", "expire"]
Status = Literal["pending", "approved", "edited", "rejected", "expired", "abandoned"]
"""`abandoned`: the conversation went on without an answer, so the call is not made any more."""

STATUS: Mapping[str, Status] = {
    "approve": "approved",
    "edit": "edited",
    "reject": "rejected",
    "expire": "expired",
}
EXPIRE: Json = {"decision": "expire"}
"""The answer when the deadline has passed."""
NO_ANSWER = msgspec.UNSET
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
"""Decisions in answers. The log has an answer as its client sent it: all spellings that clients have are read here."""
_SPACE = uuid.UUID("6c8f1f0e-0f5b-4c55-9a35-3c1f1c3b6a0d")


class Verdict(NamedTuple):
    """A decision. `args`: the arguments of an edit."""

    decision: Word
    args: Json | None = None
    message: str = ""


# ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def digest(tool: str, args: Json) -> str:
    """Hash of a call: its tool and arguments."""
    return _hash(msgspec.json.encode([tool, args], order="deterministic"))


def approval_id(call: str, digest: str) -> str:
    """Returns the id of the approval of a call. `call`: its key (`core.runs.journal.CallRef`)."""
    return _hash(f"{call}-{digest}".encode())


def question(request: ApprovalRequested, error: str = "") -> Interrupt:
    """Returns the interrupt shown to the person. The log keeps its value, which clients read as a `HITLRequest`.
    `error` says why the last answer was refused.
    """
    value: Json = {
        "type": "approval",
        "approval_id": request.approval,
        "deadline": request.deadline,
        "action_requests": [{"name": request.tool, "args": request.args, "description": request.text}],
        "review_configs": [{"action_name": request.tool, "allowed_decisions": list(request.allowed)}],
    }
    if request.form is not None:
        value |= {"form": request.form, "question": request.text}
    return Interrupt(id=request.approval, value={**value, "error": error} if error else value, call_id=request.call_id)


def over(request: ApprovalRequested, at: str) -> bool:
    """Tells if the deadline has passed at a time. Every later decision counts as a rejection."""
    return request.deadline is not None and datetime.fromisoformat(request.deadline) <= datetime.fromisoformat(at)


# ── answers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def read(answer: Any, request: ApprovalRequested) -> Verdict:
    """Parses a person's answer. Raises `Invalid` if it is malformed, or its decision is not allowed."""
    verdict = _verdict(answer, request.tool) if request.form is None else _filled(answer, request)
    if verdict.decision not in request.allowed:
        raise Invalid(f"{verdict.decision} is not allowed here, but {', '.join(request.allowed)}")
    return verdict


def _verdict(answer: Any, tool: str) -> Verdict:
    match answer:
        case [decision] | {"decisions": [decision]}:
            return _single(decision, tool)
    return _single(answer, tool)


def _filled(answer: Any, request: ApprovalRequested) -> Verdict:
    """Parses the answer to a form: its content, a text, or a decision as about a call.

    Raises `Invalid` for content that does not fit.
    """
    form = request.form or {}
    match answer:
        case [single] | {"decisions": [single]}:
            return _filled(single, request)
        case str():
            content = forms.typed(form, answer)
            return Verdict("edit", content) if content is not None else Verdict("reject")
        case {"action": "accept", **rest}:
            return Verdict("edit", forms.valid_content(form, _args(rest.get("content") or {})))
        case {"action": "decline" | "cancel"}:
            return Verdict("reject")
        case {"type": "response" | "respond", "args": str(text)}:
            return _filled(text, request)
        case bool() | {"decision": _} | {"type": _}:
            verdict = _single(answer, request.tool)
            if verdict.decision not in ("approve", "edit"):
                return verdict
            return Verdict("edit", forms.valid_content(form, verdict.args or {}), verdict.message)
        case dict():
            return Verdict("edit", forms.valid_content(form, answer))
    raise Invalid("expected the content of the form, a text, or decline")


def _single(answer: Any, tool: str) -> Verdict:
    match answer:
        case bool():
            return Verdict("approve" if answer else "reject")
        case str():
            word = _word(answer.strip().lower())
            return Verdict(word, _args(None) if word == "edit" else None)
        case {"decision": name}:
            word = _word(name)
            return Verdict(word, _args(answer.get("args")) if word == "edit" else None, _text(answer.get("message")))
        case {"type": name}:
            return _inbox(_word(name), answer, tool)
    raise Invalid('expected {"decisions": [one decision]}, or approve, edit or reject')


def _inbox(word: Word, answer: Json, tool: str) -> Verdict:
    """Parses a decision that has a `type`, or that carries everything in `args`."""
    args = answer.get("args")
    if word != "edit":
        return Verdict(word, None, _text(answer.get("message") or (args if isinstance(args, str) else None)))
    match answer.get("edited_action", args):
        case {"name": name, "args": edited} | {"action": name, "args": edited}:
            if name != tool:
                raise Invalid(f"edited_action.name: a call of {tool} cannot become another")
            return Verdict(word, _args(edited), _text(answer.get("message")))
    raise Invalid('edited_action: expected {"name", "args"}')


def _word(name: Any) -> Word:
    word = _WORDS.get(name) if isinstance(name, str) else None
    if word is None:
        raise Invalid(f"decision: approve, edit or reject, got {str(name)[:40]!r}")
    return word


def _args(value: Any) -> Json:
    if not isinstance(value, dict):
        raise Invalid("args: expected an object with all arguments of the call")
    return value


def _text(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise Invalid("message: expected text")
    return value


def answer_in(run: Run, approval: str, state: ThreadState) -> Any:
    """Returns the answer to an approval that a run brings, `NO_ANSWER` if it brings none. `None` is a valid answer."""
    paused = run.resumed[0] if run.attempt else state.paused if run.open else None
    interrupts = {interrupt.id for interrupt in paused.interrupts} if paused else set()
    if approval not in interrupts or run.request.resume is None:
        return NO_ANSWER
    value = run.request.resume.value
    each = isinstance(value, dict) and value and value.keys() <= interrupts
    return value.get(approval, NO_ANSWER) if each else value


def answering(state: ThreadState, approval: str) -> Run | None:
    """Returns the newest run, except rolled-back ones, that brought an answer to an approval."""
    for run in reversed(state.runs.values()):
        if run.status != "rolled_back" and answer_in(run, approval, state) is not NO_ANSWER:
            return run
    return None


def answers_to_approval(state: ThreadState, run: str, call_id: str) -> int:
    """Counts the answers to a call that concern its approval. Later answers concern the tool's own questions."""
    if not state.approvals:
        return 0
    for part in chain(state, run):
        paused = part.resumed[0]
        interrupts = paused.interrupts if paused else ()
        if any(interrupt.call_id == call_id and interrupt.id in state.approvals for interrupt in interrupts):
            return len(part.answers.get(call_id, ()))
    return 0


def chain(state: ThreadState, run: str) -> Iterator[Run]:
    """Yields a run and the runs that it resumes, newest first: to a person they are one run."""
    if state.runs[run].request.input is not None:
        yield state.runs[run]
        return
    earlier = [part for part in state.runs.values() if part.started_seq is not None and part.status != "rolled_back"]
    earlier.sort(key=lambda part: part.started_seq or 0, reverse=True)
    newest = state.runs[run].started_seq or 0
    for part in earlier:
        if (part.started_seq or 0) > newest:
            continue
        yield part
        if part.request.input is not None:
            return


# ── outcomes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def settled(state: ThreadState, approval: Approval) -> ApprovalResolved | None:
    """Returns the decision, None if there is none or its run was rolled back."""
    resolved = approval.resolved
    return resolved if resolved is not None and answering(state, approval.request.approval) is not None else None


def status(state: ThreadState, approval: Approval) -> Status:
    """Returns the status of an approval: pending while a run is at work that may still ask, or read the answer."""
    if (resolved := settled(state, approval)) is not None:
        return STATUS[resolved.decision]
    if state.status != "busy":
        return "pending" if waits(state, approval.request.approval) else "abandoned"
    request = approval.request
    of_call = [other.request for other in state.approvals.values() if other.request.call_id == request.call_id]
    is_open = any(call["id"] == request.call_id for call in unanswered(state.messages))
    return "pending" if is_open and of_call[-1].approval == request.approval else "abandoned"


def waits(state: ThreadState, approval: str) -> bool:
    """Tells if the thread is paused at an approval."""
    return state.paused is not None and any(interrupt.id == approval for interrupt in state.paused.interrupts)


def expired(state: ThreadState, at: str) -> list[str]:
    """Returns the approvals that the thread is paused at and whose deadline has passed."""
    if state.status == "busy":
        return []
    return [key for key, approval in state.approvals.items() if over(approval.request, at) and waits(state, key)]


def deadlines(state: ThreadState) -> list[tuple[datetime, str]]:
    """Returns the deadlines of pending approvals, with the approvals' ids."""
    return [
        (datetime.fromisoformat(approval.request.deadline), key)
        for key, approval in state.approvals.items()
        if approval.request.deadline is not None and status(state, approval) == "pending"
    ]


# ── resuming ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def resuming(state: ThreadState, answers: Mapping[str, Any]) -> RunRequested:
    """Returns the request of a run that resumes the paused one with answers by approval, and equals it otherwise.
    Raises `Refused` if no run is paused.
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
        wanted=None,
        fingerprint="",
    )


def expiry_id(state: ThreadState, approval: str) -> str:
    """Returns the id of the run that reports the passed deadline: the same for all who request it, a new one if the
    last had no effect.
    """
    resumes = [run.request.resume.value for run in state.runs.values() if run.request.resume is not None]
    tries = sum(isinstance(value, dict) and value.get(approval) == EXPIRE for value in resumes)
    return str(uuid.uuid5(_SPACE, f"{approval}/{tries}"))


def _hash(value: bytes) -> str:
    return hashlib.blake2b(value, digest_size=16).hexdigest()
