"""Story of a thread: a line of text per event. Pure; a new event type in `core.events` needs a line in `_LINES`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import msgspec

from channels.terminal.text import Style, about, clean, one_line
from channels.terminal.undecoded import fields_of, problem_of
from core.channel import ConversationBegun, ReplyDelivered
from core.chat import account as bots
from core.chat import connections
from core.chat import facts as chats
from core.events import (
    ApprovalRequested,
    ApprovalResolved,
    ArtifactReplaced,
    ContextCompacted,
    Decision,
    Event,
    FeedbackGiven,
    FeedbackRemoved,
    FileConverted,
    FileRejected,
    FileRemoved,
    FileUploaded,
    GoalCleared,
    GoalContinued,
    GoalEvaluated,
    GoalPaused,
    GoalReached,
    GoalSet,
    Message,
    MessageAdded,
    ModelCompleted,
    ModelFailed,
    ModelSampled,
    NetworkAccess,
    NetworkAccessed,
    Opaque,
    QuestionsSuggested,
    Record,
    RunCancelled,
    RunCancelRequested,
    RunCompleted,
    RunFailed,
    RunPaused,
    RunRemoved,
    RunRequested,
    RunRolledBack,
    RunStarted,
    RunSteered,
    RunSuspended,
    SetupErased,
    SetupRecorded,
    StatePatched,
    SubagentCompleted,
    SubagentProgressed,
    SubagentStarted,
    ThreadAnnotated,
    ThreadCreated,
    ThreadErased,
    ThreadExpirySet,
    ThreadForked,
    ThreadPruned,
    ThreadTitled,
    ToolCompleted,
    ToolRequested,
    WebhookDelivered,
    WebhookFailed,
)
from core.identity import accounts as people
from core.identity.limits import RunAdmitted, RunRefused
from core.identity.lockout import SigninFailed, SigninLocked, SigninSucceeded
from core.mcp import grants
from core.mcp import servers as mcp
from core.memory import facts as memories
from core.replay.evaluation import facts as evaluations
from core.sandbox import facts as sandboxes
from core.skills import facts as skills
from core.thread.ledger import TokensSpent
from core.thread.previews import text_of
from core.thread.workspace import WorkspaceForgotten, WorkspaceScanned
from core.user.agents import AgentDefined, AgentRemoved, ProfileWritten
from core.user.assistants import AssistantCreated, AssistantRemoved, AssistantReverted, AssistantRevised
from core.user.schedules import (
    Plan,
    ScheduleCreated,
    ScheduleFailed,
    ScheduleFired,
    SchedulePaused,
    ScheduleRemoved,
    ScheduleResumed,
    ScheduleRevised,
    SchedulesFired,
    SchedulesKept,
    ScheduleSkipped,
)
from core.user.store import ItemPut, ItemRemoved

WIDTH = 160
WORDS = 90
UNCUT = 1 << 40
"""Width of lines that are not cut: those in a pipe."""
_cut: ContextVar[bool] = ContextVar("cut", default=True)
"""Tells whether texts in a line are shortened."""


def cut_for(width: int) -> None:
    """Sets whether texts in lines are shortened: not for lines of the width `UNCUT`."""
    _cut.set(width < UNCUT)


def _words(limit: int = WORDS) -> int:
    return limit if _cut.get() else UNCUT


class Story:
    """Story of a thread, event by event. It remembers the tool calls, to show the arguments of an intent."""

    def __init__(self, style: Style | None = None, width: int = WIDTH) -> None:
        self._style = style or Style()
        self._width = width
        self._calls: dict[str, str] = {}
        self._run: str | None = None
        self.numbers: Numbers = Numbers()

    def lines(self, record: Record) -> list[str]:
        """Returns the event's line, with a heading before it where another run begins."""
        heading = []
        if record.run is not None and record.run != self._run:
            self._run = record.run
            heading = [self._style.dim(f"── run {one_line(record.run, 60)} ──")]
        return [*heading, self.line(record)]

    def rest(self) -> list[str]:
        """Returns the lines held back: none."""
        return []

    def line(self, record: Record) -> str:
        """Returns the event's line."""
        event = record.event
        cut_for(self._width)
        if isinstance(event, ModelCompleted):
            self._calls |= {str(c.get("id")): about(c.get("args") or {}, _words()) for c in _calls(event.message)}
        problem = problem_of(record)
        if problem:
            text = f"does not decode: {problem}"
        else:
            text = fields_of(record) if isinstance(event, Opaque) else tell(event, self._calls)
        actor, kind = one_line(record.head.actor, 12), one_line(record.type, 28)
        head = f"{self.numbers.of(record):>6}  {_clock(record.at)}  {actor:<9} {kind:<20} "
        line = head + one_line(text, max(20, self._width - len(head)))
        failed = bool(problem) or isinstance(event, RunFailed | ModelFailed) or is_error(event)
        return self._style.red(line) if failed else line


class Numbers:
    """Numbers of the events of a log, from 1. An event that was not counted has its sequence as its number."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._numbers = {record.seq: number for number, record in enumerate(records, 1)}

    def of(self, record: Record) -> int:
        return self._numbers.get(record.seq, record.seq)

    def count(self, record: Record) -> None:
        """Counts the next event of the log."""
        self._numbers.setdefault(record.seq, len(self._numbers) + 1)


def tell(event: Event, calls: Mapping[str, str] | None = None) -> str:
    """Returns an event as text. `calls` has the subjects of tool calls, by id."""
    if isinstance(event, ToolRequested) and event.args is None:
        return f"{event.name} [{event.effect}] {(calls or {}).get(event.call_id, '')}"
    line = _LINES.get(type(event))
    return line(event) if line else _fields(event)


def described_types() -> frozenset[type[Event]]:
    """Returns the event types that have a line of their own."""
    return frozenset(_LINES)


def seconds(milliseconds: int) -> str:
    return f"{milliseconds} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"


def quote(message: Message, limit: int = 0) -> str:
    """Returns the text of a message, shortened (default: as the line is), in quotes."""
    text = text_of(message.get("content", ""))
    return f"“{one_line(text, limit or _words())}”" if text.strip() else ""


# ── one function per type that needs more than a phrase ─────────────────────────────────────────────────────────────


def _run_requested(event: RunRequested) -> str:
    messages = (event.input or {}).get("messages") or []
    summary = "; ".join(quote(message) for message in messages[-2:]) or ("input" if event.input else "go on")
    extras: list[str] = [event.multitask] if event.multitask != "reject" else []
    extras += [f"from checkpoint {event.base}"] if event.base is not None else []
    extras += [f"not before {event.not_before}"] if event.not_before else []
    return summary + (f" ({', '.join(extras)})" if extras else "")


def _run_started(event: RunStarted) -> str:
    again = f"attempt {event.attempt} " if event.attempt > 1 else ""
    return f"{again}by {event.worker}" + (f", model {event.model}" if event.model else "")


def _model_completed(event: ModelCompleted) -> str:
    usage = event.message.get("usage_metadata") or {}
    tokens = f", {usage.get('input_tokens', 0)}+{usage.get('output_tokens', 0)} tokens" if usage else ""
    calls = [f"→ {call.get('name')}({about(call.get('args') or {}, _words(50))})" for call in _calls(event.message)]
    parts = [f"[{seconds(event.duration_ms)}{tokens}]", *_decisions(event.decisions)]
    return " ".join([*parts, *filter(None, [quote(event.message)]), *calls])


def _model_failed(event: ModelFailed) -> str:
    last = event.attempt >= event.max_attempts
    again = "then another model" if last else f"again in {seconds(event.wait_ms or 0)}"
    then = "given up" if event.wait_ms is None else again
    model = f"{event.model}: " if event.model else ""
    return f"{model}try {event.attempt} of {event.max_attempts}, {event.reason}, {then}: {event.error}: {event.text}"


def _tool_completed(event: ToolCompleted) -> str:
    failed, code = event.message.get("status") == "error", event.exit_code
    facts = (("error", failed), (f"exit {code}", bool(code)), ("outcome unknown", event.unknown))
    marks = [mark for mark, holds in facts if holds]
    changed = f", sets {' '.join(event.update)}" if event.update else ""
    result = quote(event.message)
    head = f"{event.message.get('name', '')} [{', '.join([*marks, seconds(event.duration_ms)])}{changed}]"
    return " ".join([head, *_decisions(event.decisions), result])


def _decisions(decisions: Sequence[Decision]) -> list[str]:
    """Returns the decisions of policies with their reasons: they precede the text, which may be cut off."""
    return [f"⟨{decision.policy} {decision.action}: {one_line(decision.text, _words())}⟩" for decision in decisions]


def _subagent_completed(event: SubagentCompleted) -> str:
    used = (
        f" [{event.usage.get('input_tokens', 0)}+{event.usage.get('output_tokens', 0)} tokens]" if event.usage else ""
    )
    limit = f" ({event.stop_reason})" if event.stop_reason else ""
    text = event.result if event.status == "completed" else event.error or ""
    return f"{event.status}{limit}{used}" + (f" “{one_line(text, _words())}”" if text else "")


def _subagent_progressed(event: SubagentProgressed) -> str:
    calls = [f"→ {call.get('name')}({about(call.get('args') or {}, _words(50))})" for call in _calls(event.message)]
    return " ".join([f"answer {event.index}", *filter(None, [quote(event.message)]), *calls])


def _compacted(event: ContextCompacted) -> str:
    sizes = f"{event.tokens_before} → {event.tokens_after} tokens" if event.tokens_before else ""
    return f"{event.reason} [{sizes}], {len(event.kept)} messages kept: {quote(event.summary)}"


def _host(access: NetworkAccess) -> str:
    what = f"refused: {access.refused}" if access.refused else f"{access.sent} bytes out, {access.received} in"
    return f"{access.host}:{access.port} ×{access.connections} ({what})"


def _approval_requested(event: ApprovalRequested) -> str:
    until = f", until {event.deadline}" if event.deadline else ""
    args = {name: value for name, value in event.args.items() if name != "description"}
    return f"{event.tool} {about(args, _words())} waits for a person{until}" + (f": {event.text}" if event.text else "")


def _approval_resolved(event: ApprovalResolved) -> str:
    words = {"approve": "approved", "edit": "approved with changes", "reject": "rejected", "expire": "expired"}
    by = f" by {event.by}" if event.by else ""
    return f"{words[event.decision]}{by}" + (f": {event.message}" if event.message else "")


def _received(event: chats.ChatReceived) -> str:
    parts = [f"“{one_line(event.text, _words())}”"] if event.text else []
    parts += [f"presses {event.choice.button}"] if event.choice else []
    parts += [f"quotes “{one_line(event.quoted.text, _words())}”"] if event.quoted else []
    return ", ".join([*parts, *(attachment.name for attachment in event.attachments)])


def _said(event: chats.DeliveryPlanned) -> str:
    buttons = [f"[{button.label}]" for button in event.buttons]
    return " ".join([f"“{one_line(event.text, _words())}”", *buttons, *(artifact.name for artifact in event.artifacts)])


def _question(value: Any) -> str:
    """Returns a question that a paused run waits on."""
    match value:
        case {"type": "approval", "action_requests": [*calls]}:
            described = [f"{call.get('name')} {about(call.get('args') or {}, _words())}".rstrip() for call in calls]
            return f"for approval of {', '.join(described)}"
        case str():
            return f"“{one_line(value, _words())}”"
    return one_line(msgspec.json.encode(value).decode(), _words())


def _state_patched(event: StatePatched) -> str:
    base = f" on checkpoint {event.base}" if event.base is not None else ""
    return f"{_keys(event.values)}{f' as {event.as_node}' if event.as_node else ''}{base}"


def _fact(fact: memories.Fact) -> str:
    return f"{fact.id} “{one_line(fact.content, _words())}”"


def _plan(plan: Plan) -> str:
    timing = plan.timing
    when = f"once at {timing.at}" if timing.at else f"{timing.cron} {timing.timezone}"
    return when + (f" on thread {plan.thread}" if plan.thread else "")


_LINES: Mapping[type[Event], Callable[[Any], str]] = {
    ThreadCreated: lambda e: f"for {e.user}" + (f" {_keys(e.metadata)}" if e.metadata else ""),
    ThreadAnnotated: lambda e: msgspec.json.encode(e.metadata).decode(),
    ThreadTitled: lambda e: f"“{one_line(e.title, _words())}”" + (f" by {e.model}" if e.model else f": {e.reason}"),
    GoalSet: lambda e: f"“{one_line(e.objective, _words())}” by {e.by}, at most {e.max_continuations} continuations",
    QuestionsSuggested: lambda e: " · ".join(e.suggestions),
    GoalEvaluated: lambda e: f"{'reached' if e.satisfied else e.blocker}: {e.reason}",
    GoalContinued: lambda e: "in a new run",
    GoalPaused: lambda e: e.reason,
    GoalReached: lambda e: e.reason,
    GoalCleared: lambda e: f"by {e.by}",
    ThreadForked: lambda e: f"from thread {e.source} at {e.source_seq}, {len(e.patches)} steps",
    ThreadErased: lambda e: f"by {e.by}",
    ThreadExpirySet: lambda e: "stays" if e.minutes is None else f"{e.strategy} after {e.minutes:g} idle minutes",
    ThreadPruned: lambda e: f"only the newest state stays: {_keys(e.values)}",
    StatePatched: _state_patched,
    RunRequested: _run_requested,
    RunStarted: _run_started,
    SetupRecorded: lambda e: f"{e.part}, {len(e.content)} characters",
    SetupErased: lambda e: "",
    RunSuspended: lambda e: f"given back, taken up again after a pause: {e.reason}",
    RunCancelRequested: lambda e: "stop and keep" if e.action == "interrupt" else "stop and undo",
    RunCompleted: lambda e: "done",
    SubagentStarted: lambda e: (
        f"{e.name} for {e.call_id}: {one_line(e.description, _words(60))} “{one_line(e.prompt, _words())}”"
    ),
    SubagentProgressed: _subagent_progressed,
    SubagentCompleted: _subagent_completed,
    RunPaused: lambda e: f"before {', '.join(e.next)}" + "".join(f"; asks {_question(i.value)}" for i in e.interrupts),
    ModelSampled: lambda e: f"{e.model} for {e.call_id}: “{one_line(e.text, WORDS)}”",
    RunSteered: lambda e: quote(e.message),
    MessageAdded: lambda e: "; ".join(quote(message) for message in e.messages),
    RunRemoved: lambda e: "its record is not shown any more",
    ConversationBegun: lambda e: f"its messages go to thread {e.thread}",
    ReplyDelivered: lambda e: "delivered to the conversation",
    FeedbackGiven: lambda e: (
        f"{e.rating:+d} by {e.user}" + (f" “{one_line(e.comment, _words())}”" if e.comment else "")
    ),
    FeedbackRemoved: lambda e: e.feedback_id,
    FileUploaded: lambda e: f"{e.name}, {e.size} bytes",
    NetworkAccessed: lambda e: ", ".join(map(_host, e.hosts)),
    FileConverted: lambda e: f"{e.name} → {e.markdown}" + (f", {e.pages} pages" if e.pages else ""),
    FileRejected: lambda e: f"{e.name}: {e.reason}",
    FileRemoved: lambda e: e.name,
    ArtifactReplaced: lambda e: f"{e.path}, {e.size} bytes",
    AgentDefined: lambda e: f"{e.name}: {one_line(e.description, _words())}",
    AgentRemoved: lambda e: e.name,
    ProfileWritten: lambda e: f"“{one_line(e.content, _words())}”" if e.content else "",
    WebhookDelivered: lambda e: f"{e.status} at try {e.attempt}",
    WebhookFailed: lambda e: f"try {e.attempt}: {e.reason}; {f'again at {e.again_at}' if e.again_at else 'given up'}",
    RunFailed: lambda e: f"{e.error}: {e.text}",
    sandboxes.SandboxClaimed: lambda e: f"by {e.worker} until {e.until}, for thread {e.thread}",
    sandboxes.SandboxAcquired: lambda e: f"{e.provider} {e.machine}" + (f" at {e.address}" if e.address else ""),
    sandboxes.SandboxFailed: lambda e: e.reason,
    sandboxes.SandboxUsed: lambda e: f"by {e.worker} until {e.until}",
    sandboxes.SandboxReleased: lambda e: f"{e.machine}: {e.reason}",
    sandboxes.CommandStarted: lambda e: f"{e.command} in the background, until {e.until} at the longest",
    sandboxes.CommandRead: lambda e: f"{e.command}: bytes {e.after} to {e.place}",
    sandboxes.CommandEnded: lambda e: f"{e.command}: {e.ended if e.exit_code is None else f'exit code {e.exit_code}'}",
    evaluations.EvaluationStarted: lambda e: f"{e.suite}: {len(e.cases)} cases, {e.samples} samples",
    evaluations.EvaluationSampled: lambda e: f"{e.case} {e.model}/{e.prompt} sample {e.sample}: {e.outcome}",
    evaluations.EvaluationCompleted: lambda e: f"{e.outcome}" + (f": {'; '.join(e.reasons)}" if e.reasons else ""),
    evaluations.SampleRecorded: lambda e: str(e.future.get("end", "")),
    ContextCompacted: _compacted,
    ApprovalRequested: _approval_requested,
    ApprovalResolved: _approval_resolved,
    RunCancelled: lambda e: "stopped; what it did stays",
    RunRolledBack: lambda e: "undone",
    ModelCompleted: _model_completed,
    ModelFailed: _model_failed,
    ToolRequested: lambda e: f"{e.name} [{e.effect}] {about(e.args or {}, _words())}",
    ToolCompleted: _tool_completed,
    memories.FactRemembered: lambda e: _fact(e.fact),
    memories.FactReplaced: lambda e: f"{e.replaced} by {_fact(e.fact)}",
    memories.FactReinforced: lambda e: f"{e.fact}, confidence {e.confidence:g}",
    memories.FactRevised: lambda e: _fact(e.fact),
    memories.FactRetired: lambda e: f"{e.fact}: {e.reason}",
    memories.FactForgotten: lambda e: e.fact,
    memories.SummaryWritten: lambda e: f"{e.section}: “{one_line(e.text, _words())}”",
    memories.MemoryExtracted: lambda e: f"thread {e.thread} up to {e.upto}" + (f", by {e.model}" if e.model else ""),
    memories.MemoryFailed: lambda e: f"thread {e.thread}, attempt {e.attempt}: {e.reason}",
    memories.MemoryCleared: lambda e: "",
    memories.MemoryImported: lambda e: f"{e.facts} facts",
    memories.MemoryKept: lambda e: f"{len(e.facts)} facts, {len(e.summaries)} summaries",
    grants.LoginBegun: lambda e: f"{e.server} at {e.issuer.issuer}",
    grants.LoginReturned: lambda e: e.server,
    grants.LoginFailed: lambda e: f"{e.server}: {e.reason}",
    grants.LoginDemanded: lambda e: f"{e.server}: {e.reason}",
    grants.GrantRequested: lambda e: e.server,
    grants.GrantIssued: lambda e: e.server + (f", until {e.expires_at}" if e.expires_at else ""),
    grants.GrantFailed: lambda e: f"{e.server}: {e.reason}; {f'again at {e.retry_at}' if e.retry_at else 'given up'}",
    grants.GrantsKept: lambda e: f"access to {', '.join(e.servers) or 'no server'}",
    grants.GrantRevoked: lambda e: e.server + (f": {e.reason}" if e.reason else ""),
    grants.ClientRegistered: lambda e: f"{e.client.id} at {e.issuer}",
    grants.ClientForgotten: lambda e: f"{e.client} at {e.issuer}",
    mcp.McpConfigured: lambda e: _keys(e.servers) or "as in the files",
    mcp.McpListed: lambda e: f"{e.server}: {len(e.tools)} tools, {len(e.resources) + len(e.prompts)} others",
    mcp.McpFailed: lambda e: f"{e.server}: {e.reason}" + (f"; again at {e.again_at}" if e.again_at else ""),
    mcp.McpForgotten: lambda e: e.server or "all servers",
    skills.SkillEnabled: lambda e: e.name,
    skills.SkillDisabled: lambda e: e.name,
    skills.SkillWritten: lambda e: f"{e.name}: {e.action} {e.path}",
    skills.SkillRemoved: lambda e: e.name,
    skills.SkillRefused: lambda e: f"{e.name}: {e.action}: {e.reason}",
    people.AccountCreated: lambda e: f"{e.user}: {e.email}, {e.role}",
    people.AccountRenamed: lambda e: f"{e.user}: {e.email}",
    people.AccountAppointed: lambda e: f"{e.user}: {e.role}",
    people.AccountDisabled: lambda e: e.user,
    people.AccountEnabled: lambda e: e.user,
    people.PasswordSet: lambda e: e.user + (", to be changed" if e.temporary else ""),
    people.KeyCreated: lambda e: f"{e.key} of {e.user}: {', '.join(e.scopes) if e.scopes else 'all'}",
    people.KeyRevoked: lambda e: e.key,
    people.SubjectLinked: lambda e: f"{e.user}: {e.subject} at {e.issuer}",
    people.SessionEnded: lambda e: f"{e.user} signed out",
    RunAdmitted: lambda e: f"{len(e.open)} at a time",
    RunRefused: lambda e: f"its place is free again; {len(e.open)} at a time",
    TokensSpent: lambda e: f"{e.day}: {len(e.used)} brought up to date",
    SigninFailed: lambda e: "",
    SigninLocked: lambda e: f"until {e.until}",
    SigninSucceeded: lambda e: "",
    chats.ChatReceived: lambda e: f"{e.sender_name or e.sender}: {_received(e)}",
    chats.ChatFetched: lambda e: ", ".join(f"{f.name} ({f.error})" if f.error else f.name for f in e.files),
    chats.ChatRouted: lambda e: (
        e.outcome + (f", run {e.run_id}" if e.run_id else "") + (f": {e.reason}" if e.reason else "")
    ),
    chats.ChatBegun: lambda e: f"thread {e.thread} of {e.user}",
    chats.DeliveryPlanned: lambda e: f"{e.purpose}{' in place of another' if e.replaces else ''}: {_said(e)}",
    chats.DeliveryDrafted: lambda e: f"the answer grows in message {e.message}",
    chats.DeliveryAttempted: lambda e: f"part {e.part + 1}",
    chats.DeliverySent: lambda e: f"part {e.part + 1} of {e.parts}" + (f", message {e.message}" if e.message else ""),
    chats.DeliveryFailed: lambda e: f"part {e.part + 1}, {e.fate}: {e.reason}",
    chats.ChatErased: lambda e: f"words of {', '.join(e.threads)}",
    chats.TopicNoted: lambda e: e.topic,
    bots.AccountConfigured: lambda e: f"{e.account}: {_keys(e.values)}",
    bots.AccountReset: lambda e: e.account,
    connections.ConnectionOffered: lambda e: f"{e.provider}, to {e.user}, until {e.expires}",
    connections.ConnectionBound: lambda e: f"{e.name or e.external} on {e.account} is {e.user}",
    connections.ConnectionRevoked: lambda e: e.connection,
    AssistantCreated: lambda e: f"{e.assistant}: {e.settings.name}",
    AssistantRevised: lambda e: f"{e.assistant}: {e.settings.name}",
    AssistantReverted: lambda e: f"{e.assistant}: version {e.number} is in force",
    AssistantRemoved: lambda e: e.assistant,
    ItemPut: lambda e: f"{'.'.join(e.namespace)} {e.key}" + (f", until {e.expires}" if e.expires else ""),
    ItemRemoved: lambda e: f"{'.'.join(e.namespace)} {e.key}",
    ScheduleCreated: lambda e: f"{e.schedule}: {_plan(e.plan)}",
    ScheduleRevised: lambda e: f"{e.schedule}: {_plan(e.plan)}",
    SchedulePaused: lambda e: e.schedule + (f": {e.reason}" if e.reason else ""),
    ScheduleResumed: lambda e: e.schedule,
    ScheduleFired: lambda e: f"{e.schedule}: {'triggered' if e.manual else f'due {e.due}'}, thread {e.thread_id}",
    ScheduleSkipped: lambda e: f"{e.schedule}: due {e.due}, {e.reason}",
    SchedulesFired: lambda e: "; ".join(f"{decision.schedule}: due {decision.due}" for decision in e.decisions),
    SchedulesKept: lambda e: f"{len(e.schedules)} schedules; what was before may be forgotten",
    ScheduleFailed: lambda e: f"{e.schedule}: {e.reason}",
    ScheduleRemoved: lambda e: e.schedule,
    WorkspaceScanned: lambda e: f"{len(e.changes)} files changed by the run",
    WorkspaceForgotten: lambda e: "",
}


def _fields(event: Event) -> str:
    """Returns the own fields of an event of an actor or a plug-in."""
    fields = msgspec.to_builtins(event)
    fields.pop("type", None)
    return clean(msgspec.json.encode(fields).decode()) if fields else ""


def _calls(message: Message) -> list[dict[str, Any]]:
    return message.get("tool_calls") or []


def _keys(values: Mapping[str, Any]) -> str:
    return ", ".join(values)


def is_error(event: Event | Opaque) -> bool:
    """True if a tool call failed, or the command that it ran."""
    return isinstance(event, ToolCompleted) and (event.message.get("status") == "error" or bool(event.exit_code))


def _clock(at: str) -> str:
    """Returns `23:10:05.123` for `2026-11-20T23:10:05.123456+00:00`."""
    return at[11:23]
