"""Phrases of events that need more than a few words, and the parts of which views of a log make their lines. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

import msgspec

from channels.terminal.text import about, one_line, seconds
from core.chat import facts as chats
from core.events import (
    ApprovalRequested,
    ApprovalResolved,
    ContextCompacted,
    Event,
    Message,
    ModelCompleted,
    ModelFailed,
    NetworkAccess,
    Opaque,
    RunPaused,
    RunRequested,
    RunStarted,
    StatePatched,
    SubagentCompleted,
    SubagentProgressed,
    ToolCompleted,
)
from core.memory import facts as memories
from core.thread.messages import text_of
from core.user.schedules import Plan

LIMIT = 90
"""Limit of the characters of a text in a line that is cut."""
UNCUT = 1 << 40
"""Width of lines that are not cut: those in a pipe."""
_cut: ContextVar[bool] = ContextVar("cut", default=True)
"""Tells whether texts in a line are shortened."""


def cut_for(width: int) -> None:
    """Sets whether texts in lines are shortened: not for lines of the width `UNCUT`."""
    _cut.set(width < UNCUT)


def short(text: str, limit: int = LIMIT) -> str:
    """Returns a text on one line, shortened if lines are cut."""
    return one_line(text, limit if _cut.get() else UNCUT)


def quote(text: str, limit: int = LIMIT) -> str:
    """Returns a text as `short` does, in quotes."""
    return f"“{short(text, limit)}”"


def quote_message(message: Message, limit: int = LIMIT) -> str:
    """Returns the text of a message as `quote` does; empty for none."""
    text = text_of(message.get("content", ""))
    return quote(text, limit) if text.strip() else ""


def subject(args: Mapping[str, Any], limit: int = LIMIT) -> str:
    """Returns the subject of a tool call (`text.about`), shortened if lines are cut."""
    return about(args, limit if _cut.get() else UNCUT)


def calls_of(message: Message) -> list[dict[str, Any]]:
    return message.get("tool_calls") or []


def decisions_of(event: ModelCompleted | ToolCompleted, limit: int = LIMIT) -> list[str]:
    """Returns the decisions of policies on an answer or a call, with their reasons as `short` returns them."""
    return [f"⟨{decision.policy} {decision.action}: {short(decision.text, limit)}⟩" for decision in event.decisions]


def is_error(event: Event | Opaque) -> bool:
    """Tells whether an event is the outcome of a tool call that failed, or whose command did."""
    return isinstance(event, ToolCompleted) and (event.message.get("status") == "error" or bool(event.exit_code))


def keys(values: Mapping[str, Any]) -> str:
    return ", ".join(values)


# ── one function per type of event that needs more than a phrase ────────────────────────────────────────────────────


def run_requested(event: RunRequested) -> str:
    messages = (event.input or {}).get("messages") or []
    summary = "; ".join(quote_message(message) for message in messages[-2:]) or ("input" if event.input else "go on")
    extras: list[str] = [event.multitask] if event.multitask != "reject" else []
    extras += [f"from checkpoint {event.base}"] if event.base is not None else []
    extras += [f"not before {event.not_before}"] if event.not_before else []
    return summary + (f" ({', '.join(extras)})" if extras else "")


def run_started(event: RunStarted) -> str:
    again = f"attempt {event.attempt} " if event.attempt > 1 else ""
    return f"{again}by {event.worker}" + (f", model {event.model}" if event.model else "")


def _requests(message: Message) -> list[str]:
    """Returns the tool calls that a message requests: `→ bash(ls)`."""
    return [f"→ {call.get('name')}({subject(call.get('args') or {}, 50)})" for call in calls_of(message)]


def model_completed(event: ModelCompleted) -> str:
    usage = event.message.get("usage_metadata") or {}
    tokens = f", {usage.get('input_tokens', 0)}+{usage.get('output_tokens', 0)} tokens" if usage else ""
    parts = [f"[{seconds(event.duration_ms)}{tokens}]", *decisions_of(event)]
    return " ".join([*parts, *filter(None, [quote_message(event.message)]), *_requests(event.message)])


def model_failed(event: ModelFailed) -> str:
    last = event.attempt >= event.max_attempts
    again = "then another model" if last else f"again in {seconds(event.wait_ms or 0)}"
    then = "given up" if event.wait_ms is None else again
    model = f"{event.model}: " if event.model else ""
    return f"{model}try {event.attempt} of {event.max_attempts}, {event.reason}, {then}: {event.text}"


def tool_completed(event: ToolCompleted) -> str:
    failed, code = event.message.get("status") == "error", event.exit_code
    facts = (("error", failed), (f"exit {code}", bool(code)), ("outcome unknown", event.unknown))
    marks = [mark for mark, holds in facts if holds]
    changed = f", sets {' '.join(event.update)}" if event.update else ""
    result = quote_message(event.message)
    head = f"{event.message.get('name', '')} [{', '.join([*marks, seconds(event.duration_ms)])}{changed}]"
    return " ".join([head, *decisions_of(event), result])


def subagent_completed(event: SubagentCompleted) -> str:
    used = (
        f" [{event.usage.get('input_tokens', 0)}+{event.usage.get('output_tokens', 0)} tokens]" if event.usage else ""
    )
    limit = f" ({event.stop_reason})" if event.stop_reason else ""
    text = event.result if event.status == "completed" else event.error or ""
    again = ", to be tried again" if event.retried else ""
    pause = f", the batch pauses {seconds(round(event.pause_seconds * 1000))}" if event.pause_seconds else ""
    return f"{event.status}{limit}{again}{pause}{used}" + (f" {quote(text)}" if text else "")


def subagent_progressed(event: SubagentProgressed) -> str:
    return " ".join([f"answer {event.index}", *filter(None, [quote_message(event.message)]), *_requests(event.message)])


def compacted(event: ContextCompacted) -> str:
    sizes = f"{event.tokens_before} → {event.tokens_after} tokens" if event.tokens_before else ""
    return f"{event.reason} [{sizes}], {len(event.kept)} messages kept: {quote_message(event.summary)}"


def network_access(access: NetworkAccess) -> str:
    result = f"refused: {access.refused}" if access.refused else f"{access.sent} bytes out, {access.received} in"
    return f"{access.host}:{access.port} ×{access.connections} ({result})"


def approval_requested(event: ApprovalRequested) -> str:
    until = f", until {event.deadline}" if event.deadline else ""
    args = {name: value for name, value in event.args.items() if name != "description"}
    return f"{event.tool} {subject(args)} waits for a person{until}" + (f": {event.text}" if event.text else "")


def approval_resolved(event: ApprovalResolved) -> str:
    outcomes = {"approve": "approved", "edit": "approved with changes", "reject": "rejected", "expire": "expired"}
    by = f" by {event.by}" if event.by else ""
    return f"{outcomes[event.decision]}{by}" + (f": {event.message}" if event.message else "")


def chat_message(event: chats.ChatReceived) -> str:
    parts = [quote(event.text)] if event.text else []
    parts += [f"presses {event.choice.button}"] if event.choice else []
    parts += [f"quotes {quote(event.quoted.text)}"] if event.quoted else []
    return ", ".join([*parts, *(attachment.name for attachment in event.attachments)])


def delivery_planned(event: chats.DeliveryPlanned) -> str:
    head = f"{event.purpose}{' in place of another' if event.replaces else ''}:"
    buttons = [f"[{button.label}]" for button in event.buttons]
    return " ".join([head, quote(event.text), *buttons, *(artifact.name for artifact in event.artifacts)])


def run_paused(event: RunPaused) -> str:
    return f"before {', '.join(event.next)}" + "".join(f"; asks {question(i.value)}" for i in event.interrupts)


def question(value: Any) -> str:
    """Returns a question that a paused run waits on."""
    match value:
        case {"type": "approval", "action_requests": [*calls]}:
            described = [f"{call.get('name')} {subject(call.get('args') or {})}".rstrip() for call in calls]
            return f"for approval of {', '.join(described)}"
        case str():
            return quote(value)
    return short(msgspec.json.encode(value).decode())


def state_patched(event: StatePatched) -> str:
    base = f" on checkpoint {event.base}" if event.base is not None else ""
    return f"{keys(event.values)}{f' as {event.as_node}' if event.as_node else ''}{base}"


def memory_fact(fact: memories.Fact) -> str:
    return f"{fact.id} {quote(fact.content)}"


def schedule_plan(plan: Plan) -> str:
    timing = plan.timing
    when = f"once at {timing.at}" if timing.at else f"{timing.cron} {timing.timezone}"
    return when + (f" on thread {plan.thread}" if plan.thread else "")
