"""Story of a thread: a line of text per event. Pure; a new type of event needs a line in `_LINES`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from channels.terminal.log import phrases
from channels.terminal.log.numbers import Numbers
from channels.terminal.text import Style, clean, one_line
from core.chat import account as bots
from core.chat import connections
from core.chat import facts as chats
from core.events import (
    ApprovalRequested,
    ApprovalResolved,
    ArtifactReplaced,
    ContextCompacted,
    Event,
    FeedbackGiven,
    FeedbackRemoved,
    FileConverted,
    FileRejected,
    FileRemoved,
    FileUploaded,
    FolderAttached,
    FolderDetached,
    GoalCleared,
    GoalContinued,
    GoalEvaluated,
    GoalPaused,
    GoalReached,
    GoalSet,
    MessageAdded,
    ModelCompleted,
    ModelFailed,
    ModelSampled,
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
    ThreadShared,
    ThreadTitled,
    ThreadUnshared,
    ToolCompleted,
    ToolRequested,
    VariableRemoved,
    VariableSet,
    WebhookDelivered,
    WebhookFailed,
)
from core.files.workspace import WorkspaceForgotten, WorkspaceScanned, WorkspaceUndone
from core.identity import accounts as people
from core.identity import activity
from core.identity.limits import RunAdmitted, RunRefused
from core.identity.lockout import SigninFailed, SigninLocked, SigninSucceeded
from core.mcp import grants
from core.mcp import servers as mcp
from core.memory import facts as memories
from core.models import added as models
from core.replay.evaluation import facts as evaluations
from core.replay.undecoded import fields_of, problem_of
from core.runs.ledger import TokensSpent
from core.runs.windows import WindowLearned
from core.runtime import applied, letters
from core.sandbox import facts as sandboxes
from core.skills import facts as skills
from core.user.agents import AgentDefined, AgentRemoved, ProfileWritten
from core.user.assistants import AssistantCreated, AssistantRemoved, AssistantReverted, AssistantRevised
from core.user.schedules import (
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
"""Width of lines where there is no terminal, and no pipe."""


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
        phrases.cut_for(self._width)
        if isinstance(event, ModelCompleted):
            self._calls |= {
                str(call.get("id")): phrases.subject(call.get("args") or {}) for call in phrases.calls_of(event.message)
            }
        problem = problem_of(record)
        if problem:
            text = f"does not decode: {problem}"
        else:
            text = fields_of(record) if isinstance(event, Opaque) else text_of_event(event, self._calls)
        actor, kind = one_line(record.head.actor, 12), one_line(record.type, 28)
        head = f"{self.numbers.of(record):>6}  {_clock(record.at)}  {actor:<9} {kind:<20} "
        line = head + one_line(text, max(20, self._width - len(head)))
        failed = bool(problem) or isinstance(event, RunFailed | ModelFailed) or phrases.is_error(event)
        return self._style.red(line) if failed else line


def text_of_event(event: Event, calls: Mapping[str, str] | None = None) -> str:
    """Returns an event as text. `calls` has the subjects of tool calls, by id."""
    if isinstance(event, ToolRequested) and event.args is None:
        return f"{event.name} [{event.effect}] {(calls or {}).get(event.call_id, '')}"
    line = _LINES.get(type(event))
    return line(event) if line else _fields(event)


def described_types() -> frozenset[type[Event]]:
    """Returns the event types that have a line of their own."""
    return frozenset(_LINES)


def _by(user: str | None) -> str:
    return f", by {user}" if user else ""


_LINES: Mapping[type[Event], Callable[[Any], str]] = {
    ThreadCreated: lambda e: f"for {e.user}" + (f" {phrases.keys(e.metadata)}" if e.metadata else ""),
    ThreadAnnotated: lambda e: " ".join(
        [msgspec.json.encode(e.metadata).decode(), *(f"without {key}" for key in e.removed)]
    ),
    ThreadTitled: lambda e: phrases.quote(e.title) + (f" by {e.model}" if e.model else f": {e.reason}"),
    GoalSet: lambda e: f"{phrases.quote(e.objective)} by {e.by}, at most {e.max_continuations} continuations",
    QuestionsSuggested: lambda e: " · ".join(e.suggestions),
    GoalEvaluated: lambda e: f"{'reached' if e.satisfied else e.blocker}: {e.reason}",
    GoalContinued: lambda e: "in a new run",
    GoalPaused: lambda e: e.reason,
    GoalReached: lambda e: e.reason,
    GoalCleared: lambda e: f"by {e.by}",
    ThreadForked: lambda e: f"from thread {e.source} at {e.source_seq}, {len(e.patches)} steps",
    ThreadShared: lambda e: f"up to {e.upto}, with {len(e.files)} files, by {e.by}",
    ThreadUnshared: lambda e: f"{e.share} by {e.by}",
    ThreadErased: lambda e: f"by {e.by}",
    ThreadExpirySet: lambda e: "stays" if e.minutes is None else f"{e.strategy} after {e.minutes:g} idle minutes",
    ThreadPruned: lambda e: f"only the newest state stays: {phrases.keys(e.values)}",
    StatePatched: phrases.state_patched,
    RunRequested: phrases.run_requested,
    RunStarted: phrases.run_started,
    SetupRecorded: lambda e: f"{e.part}, {len(e.content)} characters",
    SetupErased: lambda e: "",
    RunSuspended: lambda e: f"given back, taken up again after a pause: {e.reason}",
    RunCancelRequested: lambda e: "stop and keep" if e.action == "interrupt" else "stop and undo",
    RunCompleted: lambda e: "done",
    SubagentStarted: lambda e: (
        f"{e.name} for {e.call_id}: {phrases.short(e.description, 60)} {phrases.quote(e.prompt)}"
    ),
    SubagentProgressed: phrases.subagent_progressed,
    SubagentCompleted: phrases.subagent_completed,
    RunPaused: phrases.run_paused,
    ModelSampled: lambda e: f"{e.model} for {e.call_id}: {phrases.quote(e.text)}",
    RunSteered: lambda e: phrases.quote_message(e.message),
    MessageAdded: lambda e: "; ".join(phrases.quote_message(message) for message in e.messages),
    RunRemoved: lambda e: "its record is not shown any more",
    chats.ConversationBegun: lambda e: f"its messages go to thread {e.thread}",
    chats.ReplyDelivered: lambda e: "delivered to the conversation",
    FeedbackGiven: lambda e: f"{e.rating:+d} by {e.user}" + (f" {phrases.quote(e.comment)}" if e.comment else ""),
    FeedbackRemoved: lambda e: e.feedback_id,
    FileUploaded: lambda e: f"{e.name}, {e.size} bytes",
    NetworkAccessed: lambda e: ", ".join(map(phrases.network_access, e.hosts)),
    FileConverted: lambda e: f"{e.name} → {e.markdown}" + (f", {e.pages} pages" if e.pages else ""),
    FileRejected: lambda e: f"{e.name}: {e.reason}",
    FileRemoved: lambda e: e.name,
    FolderAttached: lambda e: f"{e.path}, {e.access}, by {e.by}",
    FolderDetached: lambda e: f"by {e.by}",
    VariableSet: lambda e: f"{e.name} {'(sealed)' if e.sealed else phrases.quote(e.value)}, by {e.by}",
    VariableRemoved: lambda e: f"{e.name}, by {e.by}",
    WorkspaceUndone: lambda e: f"{', '.join(e.paths[:5])}, by {e.by}",
    ArtifactReplaced: lambda e: f"{e.path}, {e.size} bytes",
    AgentDefined: lambda e: f"{e.name}: {phrases.short(e.description)}",
    AgentRemoved: lambda e: e.name,
    ProfileWritten: lambda e: phrases.quote(e.content) if e.content else "",
    WebhookDelivered: lambda e: f"{e.status} at try {e.attempt}",
    WebhookFailed: lambda e: f"try {e.attempt}: {e.reason}; {f'again at {e.again_at}' if e.again_at else 'given up'}",
    RunFailed: lambda e: e.text,
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
    ContextCompacted: phrases.compacted,
    ApprovalRequested: phrases.approval_requested,
    ApprovalResolved: phrases.approval_resolved,
    RunCancelled: lambda e: "stopped; what it did stays",
    RunRolledBack: lambda e: "undone",
    ModelCompleted: phrases.model_completed,
    ModelFailed: phrases.model_failed,
    ToolRequested: lambda e: f"{e.name} [{e.effect}] {phrases.subject(e.args or {})}",
    ToolCompleted: phrases.tool_completed,
    memories.FactRemembered: lambda e: phrases.memory_fact(e.fact),
    memories.FactReplaced: lambda e: f"{e.replaced} by {phrases.memory_fact(e.fact)}",
    memories.FactReinforced: lambda e: f"{e.fact}, confidence {e.confidence:g}",
    memories.FactRevised: lambda e: phrases.memory_fact(e.fact),
    memories.FactRetired: lambda e: f"{e.fact}: {e.reason}",
    memories.FactForgotten: lambda e: e.fact,
    memories.SummaryWritten: lambda e: f"{e.section}: {phrases.quote(e.text)}",
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
    mcp.McpConfigured: lambda e: (phrases.keys(e.servers) or "as in the files") + _by(e.by),
    mcp.McpListed: lambda e: (
        f"{e.server}: {len(e.tools)} tools, {len(e.resources) + len(e.prompts)} others"
        + (f", {len(e.problems)} problems" if e.problems else "")
    ),
    mcp.McpFailed: lambda e: f"{e.server}: {e.reason}" + (f"; again at {e.again_at}" if e.again_at else ""),
    mcp.McpAccepted: lambda e: f"{e.server}: {len(e.versions)} tools" + _by(e.by),
    models.ModelsConfigured: lambda e: (
        (", ".join(model.name for model in e.models) or "none beside the file") + _by(e.by)
    ),
    mcp.McpForgotten: lambda e: (e.server or "all servers") + _by(e.by),
    skills.SkillEnabled: lambda e: e.name + _by(e.by),
    skills.SkillDisabled: lambda e: e.name + _by(e.by),
    skills.SkillWritten: lambda e: f"{e.name}: {e.action} {e.path}",
    skills.SkillRemoved: lambda e: e.name,
    skills.SkillRefused: lambda e: f"{e.name}: {e.action}: {e.reason}",
    applied.ConfigurationApplied: lambda e: f"{e.file}: {', '.join(e.changed)}, by {e.by}",
    letters.LetterRedriven: lambda e: f"{e.letter} of {e.wakes} on {e.about}, by {e.by}",
    letters.LetterDiscarded: lambda e: f"{e.letter} of {e.wakes} on {e.about}, by {e.by}",
    people.AccountCreated: lambda e: f"{e.user}: {e.email}, {e.role}" + _by(e.by),
    people.AccountRenamed: lambda e: f"{e.user}: {e.email}",
    people.AccountAppointed: lambda e: f"{e.user}: {e.role}" + _by(e.by),
    people.AccountDisabled: lambda e: e.user + _by(e.by),
    people.AccountEnabled: lambda e: e.user + _by(e.by),
    people.PasswordSet: lambda e: e.user + (", to be changed" if e.temporary else "") + _by(e.by),
    people.KeyCreated: lambda e: f"{e.key} of {e.user}: {', '.join(e.scopes) if e.scopes else 'all'}" + _by(e.by),
    people.KeyRevoked: lambda e: e.key + _by(e.by),
    people.SubjectLinked: lambda e: f"{e.user}: {e.subject} at {e.issuer}",
    people.SessionEnded: lambda e: f"{e.user} signed out",
    people.AccountSignedOut: lambda e: f"{e.user} signed out everywhere",
    RunAdmitted: lambda e: f"{len(e.open)} at a time",
    RunRefused: lambda e: f"its place is free again; {len(e.open)} at a time",
    TokensSpent: lambda e: f"{e.day}: {len(e.used)} brought up to date",
    WindowLearned: lambda e: f"{e.model}: {e.tokens} tokens",
    activity.SessionOpened: lambda e: f"by {e.method} from {e.ip}",
    activity.SessionRefused: lambda e: f"{e.reason} from {e.ip}",
    activity.KeyUsed: lambda e: f"{e.key} from {e.ip}",
    activity.AccessRefused: lambda e: f"{e.operation}: {e.code} from {e.ip}",
    SigninFailed: lambda e: "",
    SigninLocked: lambda e: f"until {e.until}",
    SigninSucceeded: lambda e: "",
    chats.ChatReceived: lambda e: f"{e.sender_name or e.sender}: {phrases.chat_message(e)}",
    chats.ChatFetched: lambda e: ", ".join(f"{f.name} ({f.error})" if f.error else f.name for f in e.files),
    chats.ChatRouted: lambda e: (
        e.outcome + (f", run {e.run_id}" if e.run_id else "") + (f": {e.reason}" if e.reason else "")
    ),
    chats.ChatBegun: lambda e: f"thread {e.thread} of {e.user}",
    chats.DeliveryPlanned: phrases.delivery_planned,
    chats.DeliveryDrafted: lambda e: f"the answer grows in message {e.message}",
    chats.DeliveryAttempted: lambda e: f"part {e.part + 1}",
    chats.DeliverySent: lambda e: f"part {e.part + 1} of {e.parts}" + (f", message {e.message}" if e.message else ""),
    chats.DeliveryFailed: lambda e: f"part {e.part + 1}, {e.fate}: {e.reason}",
    chats.ChatErased: lambda e: f"words of {', '.join(e.threads)}",
    chats.TopicNoted: lambda e: e.topic,
    bots.AccountConfigured: lambda e: f"{e.account}: {phrases.keys(e.values)}" + _by(e.by),
    bots.AccountReset: lambda e: e.account + _by(e.by),
    connections.ConnectionOffered: lambda e: f"{e.provider}, to {e.user}, until {e.expires}",
    connections.ConnectionBound: lambda e: f"{e.name or e.external} on {e.account} is {e.user}",
    connections.ConnectionRevoked: lambda e: e.connection,
    AssistantCreated: lambda e: f"{e.assistant}: {e.settings.name}",
    AssistantRevised: lambda e: f"{e.assistant}: {e.settings.name}",
    AssistantReverted: lambda e: f"{e.assistant}: version {e.number} is in force",
    AssistantRemoved: lambda e: e.assistant,
    ItemPut: lambda e: f"{'.'.join(e.namespace)} {e.key}" + (f", until {e.expires}" if e.expires else ""),
    ItemRemoved: lambda e: f"{'.'.join(e.namespace)} {e.key}",
    ScheduleCreated: lambda e: f"{e.schedule}: {phrases.schedule_plan(e.plan)}",
    ScheduleRevised: lambda e: f"{e.schedule}: {phrases.schedule_plan(e.plan)}",
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


def _clock(at: str) -> str:
    """Returns `23:10:05.123` for `2026-11-20T23:10:05.123456+00:00`."""
    return at[11:23]
