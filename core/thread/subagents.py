"""Subagents: their identity, what becomes of a call that one answers, and the tool message of it. Pure functions.

A subagent is a conversation on a log of its own with one run, whose id is its own. Both follow from the call: a call
that is asked for again has the same subagent.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from core.events import Aggregate, Json, Message, StopReason, SubagentCompleted
from core.phrases import counted
from core.thread import batches
from core.thread.entries import Delegation
from core.thread.state import Run, ThreadState
from core.thread.tokens import Tokens, tokens_of, usage_of
from core.thread.usage import answer_in, of_subagents, steps_of, summary_in

TOOL, BATCH = "task", "tasks"
TOOLS = frozenset((TOOL, BATCH))
"""The tools whose calls subagents answer."""
MOST_CHARACTERS = 150_000
"""Limit of a result: it fits a message of the bus even if all are escaped. The caller's model sees less of it."""
NO_ANSWER = "The subagent ended without an answer."
NOT_BEGUN = "its caller had no time left, so it was not begun"
UNFINISHED = "its caller had no time left, so it was stopped in the middle of its work"
_FAILED: Mapping[str, StopReason] = {"BudgetSpent": "token_capped", "TooManySteps": "turn_capped"}
STOP_REASONS: Mapping[str, StopReason] = {
    "budgets": "token_capped",
    "call_limit": "turn_capped",
    "loop_detection": "loop_capped",
}
_TIME = "time_limit"
_LIMITS: Mapping[StopReason, str] = {
    "token_capped": "it was stopped by a budget",
    "turn_capped": "it was stopped at its limit of model calls",
    "loop_capped": "it was stopped because it went in circles",
}
_SPACE = uuid.UUID("2f9f7a53-5d1c-4f6e-9c1b-3a4de0b7c1e8")


def identity(caller: Aggregate, run: str, key: str) -> str:
    """Returns the id of the subagent of a call. `key`: the call's name in the caller's run (`CallRef.key`)."""
    return str(uuid.uuid5(_SPACE, f"{caller}/{run}/{key}"))


def answers(state: ThreadState, subagent: str) -> list[Message]:
    """Returns the answers of a subagent's model so far, oldest first."""
    steps = steps_of(state, state.runs[subagent])
    return [answer for step in steps if (answer := answer_in(step)) is not None]


def outcome(state: ThreadState, subagent: str, call_id: str) -> SubagentCompleted:
    """Returns the end of a subagent whose run has ended. At a limit it answers with what it had."""
    run, messages = state.runs[subagent], answers(state, subagent)
    if run.batch is not None:
        return _of_batch(state, run, call_id)
    capped = _FAILED.get(run.error.error) if run.error else STOP_REASONS.get(run.stopped_by)
    text = _newest_text(messages)
    status, error = _ended(state, run)
    if status == "failed" and capped and text:
        status, error = "completed", None
    return SubagentCompleted(
        call_id=call_id,
        status=status,
        result=_result(text, status),
        error=error,
        stop_reason=capped if status == "completed" else None,
        model=run.model,
        usage=usage_of(_used(state, run)) if messages else None,
        failure=None if status == "completed" else batches.failure(run.error, status),
    )


def unfinished(state: ThreadState, subagent: str, call_id: str) -> SubagentCompleted:
    """Returns the end of a subagent that is at work, for a caller that cannot wait any more."""
    run, messages = state.runs[subagent], answers(state, subagent)
    return SubagentCompleted(
        call_id=call_id,
        status="timed_out",
        result=_cut(_newest_text(messages) if run.batch is None else batches.summary(run)),
        error=UNFINISHED,
        model=run.model,
        usage=usage_of(_used(state, run)) if messages or run.batch is not None else None,
        failure="caller_time",
    )


def _newest_text(messages: Sequence[Message]) -> str:
    """Returns the text of the last answer that has one."""
    return next((text for answer in reversed(messages) if (text := text_of(answer.get("content")))), "")


def _result(text: str, status: str) -> str:
    """Returns the result: also of a subagent that failed, what it had to say until then."""
    if status == "cancelled":
        return ""
    return _cut(text or NO_ANSWER) if status == "completed" else _cut(text)


def _of_batch(state: ThreadState, run: Run, call_id: str) -> SubagentCompleted:
    """Returns the end of a batch: a summary, which is short however many items there are."""
    status, error = _ended(state, run)
    text = batches.summary(run)
    return SubagentCompleted(
        call_id=call_id,
        status=status,
        result=text if status == "completed" else "",
        error="\n".join(part for part in (error, text) if part) if status != "completed" else None,
        model=run.model,
        usage=usage_of(_used(state, run)),
    )


def of_item(state: ThreadState, subagent: str) -> Delegation:
    """Returns what became of an attempt at an item of a batch, as its own log has it: the batch forgets those."""
    run = state.runs.get(subagent)
    return Delegation(
        call_id=str(state.metadata["call"]),
        name=str(state.metadata["name"]),
        model=run.model if run else None,
        messages=len(answers(state, subagent)) if run else 0,
        tokens=_used(state, run) if run else Tokens(),
        ended="" if run is None or run.open else outcome(state, subagent, "").status,
    )


def progress(state: ThreadState, subagent: str, reported: int) -> list[tuple[int, Message]]:
    """Returns what a subagent has said beyond the first `reported`, with numbers. A batch says how far it has come."""
    run = state.runs[subagent]
    if run.batch is None:
        return list(enumerate(answers(state, subagent)[reported:], reported + 1))
    percent = batches.percent(run)
    return [(percent, batches.progress(run))] if percent > reported else []


def _ended(state: ThreadState, run: Run) -> tuple[Literal["completed", "failed", "cancelled", "timed_out"], str | None]:
    if run.stopped_by == _TIME:
        return "timed_out", run.stopped
    if run.error is not None:
        return ("timed_out" if run.error.error == "TooLong" else "failed"), run.error.text
    if run.status != "success":
        return "cancelled", None
    if state.paused is not None:
        return "failed", f"it stopped before {', '.join(state.paused.next)}, where nobody lets it go on"
    return "completed", None


def _used(state: ThreadState, run: Run) -> Tokens:
    """Returns the usage of a subagent, with that of its summaries and of its own subagents."""
    messages = [answer_in(step) or summary_in(step) for step in steps_of(state, run)]
    total = Tokens()
    beside = [*of_subagents(run).values(), *run.sampled.values()]
    for tokens in [*(tokens_of(message) for message in messages if message), *beside]:
        total = total.plus(tokens)
    return total


def text_of(content: Any) -> str:
    """Returns the text of an answer: blocks become lines, strings that follow each other are one."""
    if isinstance(content, str):
        return content
    lines: list[str] = []
    joined = False
    for part in content if isinstance(content, list) else ():
        if isinstance(part, str) and joined:
            lines[-1] += part
        elif isinstance(part, str) or (isinstance(part, dict) and isinstance(part.get("text"), str)):
            lines.append(part if isinstance(part, str) else part["text"])
        joined = isinstance(part, str)
    return "\n".join(lines)


def _cut(text: str) -> str:
    left_out = len(text) - MOST_CHARACTERS
    return text if left_out <= 0 else f"{text[:MOST_CHARACTERS]}\n... [{counted(left_out, 'character')} left out]"


def tool_message_of(event: SubagentCompleted) -> tuple[str, Json]:
    """Returns the text of the tool message, and its fields for clients."""
    texts = {
        "completed": _completed(event),
        "failed": f"Task failed. Error: {event.error}{_until_then(event)}",
        "timed_out": f"Task timed out. Error: {event.error}{_until_then(event)}",
        "cancelled": f"Task cancelled by user. {event.error or ''}".rstrip(),
    }
    fields = {
        "subagent_status": event.status,
        "subagent_stop_reason": event.stop_reason,
        "subagent_error": event.error,
        "subagent_model_name": event.model,
        "subagent_token_usage": event.usage,
    }
    return texts[event.status], {name: value for name, value in fields.items() if value is not None}


def _completed(event: SubagentCompleted) -> str:
    """Returns the text of an answer. One that was given at a limit is no success: older pages know the heads by heart,
    so it has that of a failure.
    """
    if event.stop_reason is None:
        return f"Task Succeeded. Result: {event.result}"
    limit = _LIMITS[event.stop_reason]
    return f"Task failed. Error: {limit}, so the work is not finished. What it says of it: {event.result}"


def _until_then(event: SubagentCompleted) -> str:
    return f"\nWhat it had said until then, which is not finished: {event.result}" if event.result else ""


def started_at(state: ThreadState, run: Run) -> datetime | None:
    """Returns the time of a run's first start."""
    if run.started_seq is None:
        return None
    commits: Sequence[Any] = state.commits
    place = state.commits.upto(run.started_seq) - 1
    return datetime.fromisoformat(commits[place].at) if place >= 0 else None
