"""Schedules: a user's plans of runs, with their next due time and their last firings, as a fold over events."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Literal
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

from core.errors import Invalid
from core.events import Event, Json, Message, Record, RunRequested
from core.ids import stamp
from core.log.repository import Repository
from core.log.store import EventLog
from core.phrases import Phrase
from core.user.assistants import Assistant

KIND = "schedules"
MOST_SCHEDULES = 1000
"""Limit of schedules of a user."""
MOST_FIRINGS = 100
"""Limit of remembered firings of a schedule."""
ALL_FIRINGS = 10_000
"""Limit of firings of all schedules of a user when the log is cut; each keeps at least `LEAST_FIRINGS`."""
LEAST_FIRINGS = 10
CUT_AFTER = 500
"""Events of a user's after which the log may be cut."""
MOST_CRON = 200
"""Limit of characters of a cron expression."""
AHEAD = timedelta(minutes=5)
"""The clocks of all processes differ by less. A time that lies further ahead is of a clock that was wrong."""
YEARS = range(2000, 2201)
"""The years in which times of users may lie."""
_SPACE = uuid.UUID("b3f0c9e2-5d0c-4a8e-9a39-3f6f0d6c1f75")
"""Namespace of the ids that are derived from a schedule and a due time."""


Multitask = Literal["reject", "enqueue", "interrupt", "rollback"]
OnCompletion = Literal["keep", "delete"]


class Timing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Due times: by `cron` (five fields), or once, `at` a time."""

    cron: str | None = None
    at: str | None = None
    timezone: str = "UTC"
    """IANA name of the time zone of `cron`."""
    end: str | None = None
    """The schedule is not due after it."""


class Job(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The validated run: `RunRequested` without the fields that depend on the due time. Its messages have no ids."""

    assistant: str = "lead_agent"
    input: Json | None = None
    config: Json = {}
    context: Json = {}
    metadata: Json = {}
    multitask: Multitask = "enqueue"
    stream_modes: list[str] = []
    subgraphs: bool = False
    on_completion: OnCompletion = "keep"
    interrupt_before: list[str] = []
    interrupt_after: list[str] = []
    webhook: str | None = None
    feedback_keys: list[str] = []


class Plan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A user's input about a schedule."""

    timing: Timing
    job: Job
    thread: str | None = None
    """The thread of all runs. None: each run has its own."""
    assistant: str | None = None
    """The user's own assistant, whose settings at the due time apply."""
    overlap: Literal["skip", "allow"] = "allow"
    """`skip`: due times while the last run is open are skipped."""
    title: str | None = None
    asked: Json = {}
    """The client's original request without the input: to be shown, and to be changed in part."""


_PLAN = (
    "{schedule}: <once at {plan.timing.at}>"
    "<!plan.timing.at?{plan.timing.cron} {plan.timing.timezone}>< on thread {plan.thread}>",
    "{schedule}：<{plan.timing.at} 一次><!plan.timing.at?{plan.timing.cron} {plan.timing.timezone}>"
    "<，对话 {plan.thread}>",
)


class ScheduleCreated(Event, frozen=True):
    """A user created a schedule."""

    phrase = Phrase("Schedule created", "定时任务已创建", *_PLAN)
    schedule: str
    plan: Plan
    enabled: bool = True


class ScheduleRevised(Event, frozen=True):
    """The plan was replaced. If its timing changed, missed due times of the old one are dropped."""

    phrase = Phrase("Schedule changed", "定时任务已修改", *_PLAN)
    schedule: str
    plan: Plan


class SchedulePaused(Event, frozen=True):
    """The schedule is not due until it is resumed. `reason` is set if the server paused it."""

    phrase = Phrase("Schedule paused", "定时任务已暂停", "{schedule}<: {reason}>")
    schedule: str
    reason: str | None = None


class ScheduleResumed(Event, frozen=True):
    """The schedule is due again: at times from now on, or at its single time, even if it has passed. One that was not
    paused waited for a time ahead: the clock was wrong when it was last due.
    """

    phrase = Phrase("Schedule resumed", "定时任务已恢复", "{schedule}")
    schedule: str


class ScheduleFired(Event, frozen=True):
    """The schedule fired at `due`, or was triggered (`manual`): the reader requests this run on this thread. Both ids
    are derived from the schedule and `due`; that of a run that was triggered is chosen by whoever did it.
    """

    phrase = Phrase(
        "Schedule fired",
        "定时任务已触发",
        "{schedule}: <manual?triggered><!manual?due {due}>, thread {thread_id}",
        "{schedule}：<manual?手动触发><!manual?到期 {due}>，对话 {thread_id}",
    )
    schedule: str
    due: str
    run_id: str
    thread_id: str
    manual: bool = False


class ScheduleSkipped(Event, frozen=True):
    """The schedule was due at `due`, without a run."""

    phrase = Phrase(
        "Schedule skipped",
        "定时任务已跳过",
        "{schedule}: due {due}, {reason}",
        "{schedule}：到期 {due}，{reason}",
    )
    schedule: str
    due: str
    reason: str


class SchedulesFired(Event, frozen=True):
    """Several schedules were due together: the decisions about all of them in one event."""

    phrase = Phrase(
        "Schedules fired together",
        "多个定时任务已触发",
        "{decisions.schedule}<, due {decisions.due}>",
        "{decisions.schedule}<，到期 {decisions.due}>",
    )
    decisions: list[ScheduleFired | ScheduleSkipped]


class ScheduleFailed(Event, frozen=True):
    """The run of a firing could not be requested. `reason` is fit for people."""

    phrase = Phrase("Schedule failed", "定时任务失败", "{schedule}: {reason}")
    schedule: str
    run_id: str
    reason: str


class ScheduleRemoved(Event, frozen=True):
    """The schedule was removed, with its firings. Their runs stay as they are."""

    phrase = Phrase("Schedule removed", "定时任务已移除", "{schedule}")
    schedule: str


class Firing(msgspec.Struct, frozen=True, kw_only=True):
    """A firing of a schedule. The outcome of its run is in its thread."""

    id: str
    due: str
    at: str
    run: str | None = None
    """None: it was skipped."""
    thread: str | None = None
    manual: bool = False
    failed: str | None = None
    """The reason why there is no run."""


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """The current state of a schedule. `SchedulesKept` stores it: its fields change as those of events do."""

    id: str
    plan: Plan
    enabled: bool
    created_at: str
    updated_at: str
    since: str
    """Due times are later than this."""
    spent: bool = False
    """The single time is over."""
    firings: tuple[Firing, ...]
    """The last firings, oldest first."""
    runs: int = 0
    """The number of all firings."""

    @property
    def next(self) -> datetime | None:
        """The next due time, which may have passed. None: never again, or not while it is paused."""
        if not self.enabled:
            return None
        timing = self.plan.timing
        if timing.at is not None:
            time = None if self.spent else _parsed(timing.at)
        else:
            since = _parsed(self.since)
            # Crons come at whole minutes: schedules that fired in the same minute share the cached result.
            minute = since and since.replace(second=0, microsecond=0)
            time = minute and next_after(timing.cron or "", timing.timezone, minute)
        end = _parsed(timing.end) if timing.end is not None else None
        return None if time is None or (end is not None and time > end) else time

    @property
    def last(self) -> Firing | None:
        """The newest firing that was not skipped."""
        return next((firing for firing in reversed(self.firings) if firing.run is not None), None)

    def is_ahead(self, now: datetime) -> bool:
        """True if it waits for due times after a time that has not come: a clock was ahead when it was last due."""
        since = _parsed(self.since)
        return self.enabled and self.plan.timing.at is None and since is not None and since > now + AHEAD

    def firing(self, run: str) -> Firing | None:
        return next((firing for firing in reversed(self.firings) if firing.run == run), None)

    def is_own(self, firing: Firing) -> bool:
        """True if the thread was created for this firing."""
        return firing.run is not None and firing.thread == derived(self.id, "thread", firing.run)

    def fire(self, due: str) -> ScheduleFired:
        """Returns the event that it fires for a due time."""
        run = derived(self.id, "run", due)
        return ScheduleFired(schedule=self.id, due=due, run_id=run, thread_id=self._thread_of(run))

    def trigger(self, due: str, run: str) -> ScheduleFired:
        """Returns the event that somebody fires it, with a run of this id."""
        return ScheduleFired(schedule=self.id, due=due, run_id=run, thread_id=self._thread_of(run), manual=True)

    def _thread_of(self, run: str) -> str:
        return self.plan.thread or derived(self.id, "thread", run)


class SchedulesKept(Event, frozen=True):
    """Snapshot of the user's schedules, oldest first: the events before it may be erased."""

    phrase = Phrase(
        "Schedules summed up",
        "定时任务已汇总",
        "{schedules:count} schedule<schedules:count!=1?s>; what was before may be forgotten",
        "{schedules:count} 个定时任务；之前的可以忘记",
    )
    schedules: list[Schedule]


class Schedules(dict[str, Schedule]):
    """A user's schedules by id, oldest first, and the number of their events since the last snapshot."""

    kept_seq: int = 0
    """Sequence of the last `SchedulesKept`; 0: there is none."""
    kept_at: str = ""
    since_kept: int = 0
    """Events after it."""

    def copy(self) -> Schedules:
        copied = Schedules(self)
        copied.kept_seq, copied.kept_at, copied.since_kept = self.kept_seq, self.kept_at, self.since_kept
        return copied

    def snapshot(self) -> SchedulesKept:
        """Returns all schedules, with their last firings up to `ALL_FIRINGS`."""
        limit = max(LEAST_FIRINGS, min(MOST_FIRINGS, ALL_FIRINGS // max(1, len(self))))
        return SchedulesKept(
            schedules=[msgspec.structs.replace(each, firings=each.firings[-limit:]) for each in self.values()]
        )

    def wants_cut(self) -> bool:
        """True if the log is much longer than its snapshot would be."""
        size = sum(1 + len(schedule.firings) for schedule in self.values())
        return self.since_kept > max(CUT_AFTER, 2 * size)


def fold(records: Iterable[Record], state: Schedules) -> Schedules:
    """Returns the schedules after these records. Pure and total."""
    schedules = state.copy()
    for record in records:
        event, at = record.event, record.at
        schedules.since_kept += len(event.decisions) if isinstance(event, SchedulesFired) else 1
        if isinstance(event, SchedulesFired):
            for decision in event.decisions:
                if decision.schedule in schedules:
                    schedules[decision.schedule] = _changed(schedules[decision.schedule], decision, at)
        elif isinstance(event, SchedulesKept):
            schedules = Schedules({schedule.id: schedule for schedule in event.schedules})
            schedules.kept_seq, schedules.kept_at = record.seq, at
        elif isinstance(event, ScheduleCreated):
            schedules[event.schedule] = Schedule(
                id=event.schedule,
                plan=event.plan,
                enabled=event.enabled,
                created_at=at,
                updated_at=at,
                since=at,
                firings=(),
            )
        elif isinstance(event, ScheduleRemoved):
            schedules.pop(event.schedule, None)
        elif isinstance(event, _CHANGES) and event.schedule in schedules:
            schedules[event.schedule] = _changed(schedules[event.schedule], event, at)
    return schedules


_CHANGES = ScheduleRevised | SchedulePaused | ScheduleResumed | ScheduleFired | ScheduleSkipped | ScheduleFailed


def _changed(schedule: Schedule, event: Event, at: str) -> Schedule:
    replace = msgspec.structs.replace
    match event:
        case ScheduleRevised(plan=plan):
            same = plan.timing == schedule.plan.timing
            schedule = replace(schedule, plan=plan, updated_at=at)
            return schedule if same else replace(schedule, since=at, spent=False)
        case SchedulePaused():
            return replace(schedule, enabled=False, updated_at=at)
        case ScheduleResumed():
            return replace(schedule, enabled=True, updated_at=at, since=_resumed(schedule.since, at))
        case ScheduleFired():
            run, thread = event.run_id, event.thread_id
            if schedule.firing(run) is None:  # else the clock was set back, and its due time came again
                firing = Firing(id=run, due=event.due, at=at, run=run, thread=thread, manual=event.manual)
                schedule = replace(schedule, firings=_last(schedule, firing), runs=schedule.runs + 1)
            return schedule if event.manual else replace(schedule, since=max(event.due, at), spent=True)
        case ScheduleSkipped():
            identity = derived(schedule.id, "skipped", event.due)
            firing = Firing(id=identity, due=event.due, at=at, failed=event.reason)
            return replace(schedule, firings=_last(schedule, firing), since=max(event.due, at), spent=True)
        case ScheduleFailed():
            firings = [replace(f, failed=event.reason) if f.run == event.run_id else f for f in schedule.firings]
            return replace(schedule, firings=tuple(firings))
    return schedule


def _resumed(since: str, at: str) -> str:
    """Returns the time after which a schedule is due that was resumed `at` a time. By a clock that is behind by less
    than `AHEAD`, it is not due again for the time that it was fired for.
    """
    before, now = _parsed(since), _parsed(at)
    return at if before is None or now is None or before > now + AHEAD else max(since, at)


def _last(schedule: Schedule, firing: Firing) -> tuple[Firing, ...]:
    return (*schedule.firings[-MOST_FIRINGS + 1 :], firing)


def aggregates(log: EventLog) -> Repository[Schedules]:
    """Returns the repository of the users' schedules, by user."""
    return Repository(log, KIND, fold, Schedules())


def job(run: RunRequested, assistant: Assistant, *, multitask: Multitask, on_completion: OnCompletion) -> Job:
    """Returns the job of a run that was validated as a request for the default agent.

    The settings of a user's own assistant apply at the due time. A custom agent is named at once.
    """
    fields = {name: getattr(run, name) for name in Job.__struct_fields__}
    fields["assistant"] = assistant.graph_id if assistant.own else assistant.name
    fields["input"] = _without_ids(run.input)
    fields["context"] = {**({} if assistant.own else assistant.settings.context), **run.context}
    return Job(**{**fields, "multitask": multitask, "on_completion": on_completion})


def _without_ids(run_input: Json | None) -> Json | None:
    """Returns the input without ids of messages, as each run has new ones. A removal keeps the id of its message."""
    if run_input is None or "messages" not in run_input:
        return run_input
    messages: list[Message] = run_input["messages"]
    return {**run_input, "messages": [m if m["type"] == "remove" else _without_id(m) for m in messages]}


def _without_id(message: Message) -> Message:
    return {name: value for name, value in message.items() if name != "id"}


def request(schedule: Schedule, firing: Firing) -> RunRequested:
    """Returns the run of a firing. The ids of its messages are derived: the same at every call."""
    job = schedule.plan.job
    run = firing.run or ""
    fields = {name: getattr(job, name) for name in Job.__struct_fields__}
    if not schedule.is_own(firing):
        fields["on_completion"] = "keep"  # a run deletes only a thread that was created for it
    fields["metadata"] = {**job.metadata, "schedule_id": schedule.id, "scheduled_for": firing.due}
    if job.input is not None and "messages" in job.input:
        fields["input"] = {**job.input, "messages": _with_ids(job.input["messages"], run)}
    return RunRequested(**fields)


def derived(schedule: str, *parts: str) -> str:
    """Returns an id that is derived from a schedule and its purpose."""
    return str(uuid.uuid5(_SPACE, "/".join([schedule, *parts])))


def _with_ids(messages: list[Message], run: str) -> list[Message]:
    return [{"id": derived(run, "message", str(n)), **message} for n, message in enumerate(messages)]


# ── times ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@lru_cache(maxsize=10_000)
def next_after(cron: str, timezone: str, after: datetime) -> datetime | None:
    """Returns the next time of a cron expression after a time; None if there is none in 50 years, or if it is invalid.

    Behaves as Debian's cron where the clocks change. A fixed hour and minute in the skipped hour comes at its end; in
    the repeated hour it comes once, at first. Expressions of every hour or of minute steps (`*`) follow real time.
    """
    try:
        moments = CronSim(_five(cron), after.astimezone(zone(timezone)))
        for moment in moments:
            if (time := moment.astimezone(UTC)) > after:
                return time
    except (Invalid, OverflowError):
        pass
    return None


def check_cron(cron: str, timezone: str, where: str = "schedule") -> str:
    """Returns the expression with single spaces. Raises `Invalid` if it is invalid, or never comes."""
    tidy = " ".join(cron.split())
    if next_after(_five(tidy, where), timezone, datetime.now(UTC)) is None:
        raise Invalid(f"{where}: {tidy!r} never comes")
    return tidy


def _five(cron: str, where: str = "schedule") -> str:
    if len(cron) > MOST_CRON:
        raise Invalid(f"{where}: at most {MOST_CRON} characters, got {len(cron)}")
    if len(cron.split()) != 5:
        raise Invalid(f"{where}: five fields (minute hour day month weekday), got {cron[:80]!r}")
    try:
        CronSim(cron, datetime(2000, 1, 1, tzinfo=UTC))
    except (CronSimError, AssertionError, TypeError, ValueError) as error:
        reason = f": {error}" if isinstance(error, CronSimError) else ""
        raise Invalid(f"{where}: not a cron expression{reason}, got {cron[:80]!r}") from None
    return cron


@lru_cache(maxsize=1000)
def zone(name: str) -> ZoneInfo:
    """Returns the time zone. Raises `Invalid`."""
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError):
        raise Invalid(f"timezone: no IANA time zone {name[:80]!r}") from None


def when(text: str, timezone: str, where: str) -> str:
    """Parses a user's time (ISO 8601; `timezone` applies if it has none) and returns it as UTC. Raises `Invalid`."""
    try:
        named = datetime.fromisoformat(text)
        moment = (named if named.tzinfo else named.replace(tzinfo=zone(timezone))).astimezone(UTC)
    except (ValueError, OverflowError):
        raise Invalid(f"{where}: expected a time (ISO 8601), got {text[:40]!r}") from None
    if moment.year not in YEARS:
        raise Invalid(f"{where}: from the year {YEARS[0]} to {YEARS[-1]}, got {text[:40]!r}")
    return stamp(moment)


def _parsed(text: str) -> datetime | None:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
