"""Schedules: runs at times that a user set; when the next is due, and what became of the last, as a fold over facts."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
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
from core.user.assistants import Assistant

KIND = "schedules"
MOST_SCHEDULES = 1000
"""Of one user."""
MOST_FIRINGS = 100
"""How many of a schedule's last firings are remembered."""
ALL_FIRINGS = 10_000
"""How many firings of all schedules of a user are remembered when the log is cut; of each at least `LEAST_FIRINGS`."""
LEAST_FIRINGS = 10
CUT_AFTER = 500
"""Events of a user's after which the log may be cut."""
MOST_CRON = 200
"""Characters of a cron expression."""
YEARS = range(2000, 2201)
"""In which times that people name may lie."""
_SPACE = uuid.UUID("b3f0c9e2-5d0c-4a8e-9a39-3f6f0d6c1f75")
"""Namespace of the ids that are derived from a schedule and a moment."""


Multitask = Literal["reject", "enqueue", "interrupt", "rollback"]
OnCompletion = Literal["keep", "delete"]


class Timing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When: by `cron` (five fields), or once, `at` a time."""

    cron: str | None = None
    at: str | None = None
    timezone: str = "UTC"
    """In which `cron` is read, by IANA name."""
    end: str | None = None
    """Nothing is due after it."""


class Job(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The run to ask for, checked: `RunRequested` without what only its moment can say. Its messages have no ids."""

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
    """All that a user says about a schedule."""

    timing: Timing
    job: Job
    thread: str | None = None
    """The thread all runs are on. None: each has its own."""
    assistant: str | None = None
    """The user's own assistant whose settings a run begins with, as they are when it is due."""
    overlap: Literal["skip", "allow"] = "allow"
    """`skip`: what comes due while the last run is still going is left out."""
    title: str | None = None
    asked: Json = {}
    """What a client asked for beside the input, as it was: to be shown, and to be changed in part."""


class ScheduleCreated(Event, frozen=True):
    """A user has a schedule from here on."""

    schedule: str
    plan: Plan
    enabled: bool = True


class ScheduleRevised(Event, frozen=True):
    """The plan is another one. If its timing is, what the old one would have made due since the last time is not."""

    schedule: str
    plan: Plan


class SchedulePaused(Event, frozen=True):
    """Nothing is due until it is resumed. `reason`, if nobody asked for that."""

    schedule: str
    reason: str | None = None


class ScheduleResumed(Event, frozen=True):
    """Things are due again: those from now on, and a single time that has passed."""

    schedule: str


class ScheduleFired(Event, frozen=True):
    """It was due at `due`, or somebody pulled the trigger (`manual`): this run on this thread is to be asked for, by
    whoever reads this. Both ids follow from the schedule and `due`.
    """

    schedule: str
    due: str
    run_id: str
    thread_id: str
    manual: bool = False


class ScheduleSkipped(Event, frozen=True):
    """It was due at `due`, and there is no run for that."""

    schedule: str
    due: str
    reason: str


class SchedulesFired(Event, frozen=True):
    """Several were due together: what was decided about each of them, in one fact."""

    decisions: list[ScheduleFired | ScheduleSkipped]


class ScheduleFailed(Event, frozen=True):
    """The run it was fired for could not be asked for. `reason` is fit for people."""

    schedule: str
    run_id: str
    reason: str


class ScheduleRemoved(Event, frozen=True):
    """The schedule is gone, and what is remembered of its firings. Their runs stay as they are."""

    schedule: str


class Firing(msgspec.Struct, frozen=True, kw_only=True):
    """One time that it was due. What became of the run is in its thread."""

    id: str
    due: str
    at: str
    run: str | None = None
    """None: it was skipped."""
    thread: str | None = None
    manual: bool = False
    failed: str | None = None
    """Why there is no run."""


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as it is now. `SchedulesKept` stores it: its fields change as those of events do."""

    id: str
    plan: Plan
    enabled: bool
    created_at: str
    updated_at: str
    since: str
    """What is due is sought after this time."""
    spent: bool = False
    """The single time is over."""
    firings: tuple[Firing, ...]
    """The last ones, oldest first."""
    runs: int = 0
    """How often it was fired, ever."""

    @property
    def next(self) -> datetime | None:
        """When it is due next, or was due if that has passed. None: never again, or not while it is paused."""
        if not self.enabled:
            return None
        timing = self.plan.timing
        if timing.at is not None:
            found = None if self.spent else _moment(timing.at)
        else:
            since = _moment(self.since)
            # Crons come at whole minutes: so many schedules that fired in the same one have their answer in common.
            minute = since and since.replace(second=0, microsecond=0)
            found = minute and next_after(timing.cron or "", timing.timezone, minute)
        end = _moment(timing.end) if timing.end is not None else None
        return None if found is None or (end is not None and found > end) else found

    @property
    def last(self) -> Firing | None:
        """The newest firing that was not skipped."""
        return next((firing for firing in reversed(self.firings) if firing.run is not None), None)

    def firing(self, run: str) -> Firing | None:
        return next((firing for firing in reversed(self.firings) if firing.run == run), None)

    def is_own(self, firing: Firing) -> bool:
        """Whether the firing's thread was thought of for it alone."""
        return firing.run is not None and firing.thread == derived(self.id, "thread", firing.run)

    def fire(self, due: str, *, manual: bool = False) -> ScheduleFired:
        """The fact that it fires for a moment."""
        run = derived(self.id, "trigger" if manual else "run", due)
        thread = self.plan.thread or derived(self.id, "thread", run)
        return ScheduleFired(schedule=self.id, due=due, run_id=run, thread_id=thread, manual=manual)


class SchedulesKept(Event, frozen=True):
    """All of the user's schedules as they are, oldest first: what was before may be forgotten."""

    schedules: list[Schedule]


class Schedules(dict[str, Schedule]):
    """A user's schedules by id, oldest first; and how many events of the log they are read from."""

    kept_seq: int = 0
    """Sequence of the last `SchedulesKept`; 0: there is none."""
    kept_at: str = ""
    since_kept: int = 0
    """Events after it."""

    def copy(self) -> Schedules:
        copied = Schedules(self)
        copied.kept_seq, copied.kept_at, copied.since_kept = self.kept_seq, self.kept_at, self.since_kept
        return copied

    def kept(self) -> SchedulesKept:
        """All of them, with as many of the last firings as there is room for."""
        most = max(LEAST_FIRINGS, min(MOST_FIRINGS, ALL_FIRINGS // max(1, len(self))))
        return SchedulesKept(
            schedules=[msgspec.structs.replace(one, firings=one.firings[-most:]) for one in self.values()]
        )

    def wants_cut(self) -> bool:
        """Whether the log is much longer than what it amounts to."""
        return self.since_kept > CUT_AFTER and self.since_kept > 2 * sum(1 + len(one.firings) for one in self.values())


def fold(records: Iterable[Record], state: Schedules) -> Schedules:
    """The schedules after these records. Pure and total."""
    found = state.copy()
    for record in records:
        event, at = record.event, record.at
        found.since_kept += len(event.decisions) if isinstance(event, SchedulesFired) else 1
        if isinstance(event, SchedulesFired):
            for decision in event.decisions:
                if decision.schedule in found:
                    found[decision.schedule] = _changed(found[decision.schedule], decision, at)
        elif isinstance(event, SchedulesKept):
            found = Schedules({one.id: one for one in event.schedules})
            found.kept_seq, found.kept_at = record.seq, at
        elif isinstance(event, ScheduleCreated):
            found[event.schedule] = Schedule(
                id=event.schedule,
                plan=event.plan,
                enabled=event.enabled,
                created_at=at,
                updated_at=at,
                since=at,
                firings=(),
            )
        elif isinstance(event, ScheduleRemoved):
            found.pop(event.schedule, None)
        elif isinstance(event, _CHANGES) and event.schedule in found:
            found[event.schedule] = _changed(found[event.schedule], event, at)
    return found


_CHANGES = ScheduleRevised | SchedulePaused | ScheduleResumed | ScheduleFired | ScheduleSkipped | ScheduleFailed


def _changed(one: Schedule, event: Event, at: str) -> Schedule:
    replace = msgspec.structs.replace
    match event:
        case ScheduleRevised(plan=plan):
            same = plan.timing == one.plan.timing
            return replace(
                one, plan=plan, updated_at=at, since=one.since if same else at, spent=one.spent if same else False
            )
        case SchedulePaused():
            return replace(one, enabled=False, updated_at=at)
        case ScheduleResumed():
            return replace(one, enabled=True, updated_at=at, since=max(one.since, at))
        case ScheduleFired():
            run, thread = event.run_id, event.thread_id
            firing = Firing(id=run, due=event.due, at=at, run=run, thread=thread, manual=event.manual)
            one = replace(one, firings=_last(one, firing), runs=one.runs + 1)
            return one if event.manual else replace(one, since=max(event.due, at), spent=True)
        case ScheduleSkipped():
            identity = derived(one.id, "skipped", event.due)
            firing = Firing(id=identity, due=event.due, at=at, failed=event.reason)
            return replace(one, firings=_last(one, firing), since=max(event.due, at), spent=True)
        case ScheduleFailed():
            firings = [replace(f, failed=event.reason) if f.run == event.run_id else f for f in one.firings]
            return replace(one, firings=tuple(firings))
    return one


def _last(one: Schedule, firing: Firing) -> tuple[Firing, ...]:
    return (*one.firings[-MOST_FIRINGS + 1 :], firing)


def aggregates(log: EventLog) -> Repository[Schedules]:
    """The users' schedules, by user."""
    return Repository(log, KIND, fold, Schedules())


def job(run: RunRequested, assistant: Assistant, *, multitask: Multitask, on_completion: OnCompletion) -> Job:
    """The job of a run that was checked as if it were asked for now, on the default agent.

    The settings of a user's own assistant come in when it is due, as they are then. A custom agent is named at once.
    """
    fields = {name: getattr(run, name) for name in Job.__struct_fields__}
    fields["assistant"] = assistant.graph_id if assistant.own else assistant.name
    fields["input"] = _unnamed(run.input)
    fields["context"] = {**({} if assistant.own else assistant.settings.context), **run.context}
    return Job(**{**fields, "multitask": multitask, "on_completion": on_completion})


def _unnamed(run_input: Json | None) -> Json | None:
    """The input with messages without ids: each time they are new ones. What removes a message needs its id."""
    if run_input is None or "messages" not in run_input:
        return run_input
    messages: list[Message] = run_input["messages"]
    return {**run_input, "messages": [m if m["type"] == "remove" else _without_id(m) for m in messages]}


def _without_id(message: Message) -> Message:
    return {name: value for name, value in message.items() if name != "id"}


def request(schedule: Schedule, firing: Firing) -> RunRequested:
    """The run of a firing. Its messages get ids of their own, the same however often this is asked."""
    job = schedule.plan.job
    run = firing.run or ""
    given = {name: getattr(job, name) for name in Job.__struct_fields__}
    if not schedule.is_own(firing):
        given["on_completion"] = "keep"  # nobody's thread goes with a run but one that was made for it
    given["metadata"] = {**job.metadata, "schedule_id": schedule.id, "scheduled_for": firing.due}
    if job.input is not None and "messages" in job.input:
        given["input"] = {**job.input, "messages": _named(job.input["messages"], run)}
    return RunRequested(**given)


def derived(schedule: str, *parts: str) -> str:
    """An id that follows from what it is for."""
    return str(uuid.uuid5(_SPACE, "/".join([schedule, *parts])))


def _named(messages: list[Message], run: str) -> list[Message]:
    return [{"id": derived(run, "message", str(n)), **message} for n, message in enumerate(messages)]


# ── times ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@lru_cache(maxsize=10_000)
def next_after(cron: str, timezone: str, after: datetime) -> datetime | None:
    """The next moment of a cron expression after a time; None if there is none in 50 years, or no such expression.

    As Debian's cron, where the clocks change: what has a fixed hour and minute and would be in the hour that is left
    out comes at its end, and in the hour that comes twice it comes once, at first. What comes every hour, or at every
    so many minutes (`*`), follows real time.
    """
    try:
        moments = CronSim(_five(cron), after.astimezone(zone(timezone)))
        for moment in moments:
            if (found := moment.astimezone(UTC)) > after:
                return found
    except (Invalid, OverflowError):
        pass
    return None


def check_cron(cron: str, timezone: str, where: str = "schedule") -> str:
    """The expression itself, tidied. Raises `Invalid` if it is none, or never comes."""
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
    """The time zone. Raises `Invalid`."""
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError):
        raise Invalid(f"timezone: no IANA time zone {name[:80]!r}") from None


def when(text: str, timezone: str, where: str) -> str:
    """A time that somebody named (ISO 8601; without a zone: in this one), as UTC. Raises `Invalid`."""
    try:
        named = datetime.fromisoformat(text)
        moment = (named if named.tzinfo else named.replace(tzinfo=zone(timezone))).astimezone(UTC)
    except (ValueError, OverflowError):
        raise Invalid(f"{where}: expected a time (ISO 8601), got {text[:40]!r}") from None
    if moment.year not in YEARS:
        raise Invalid(f"{where}: from the year {YEARS[0]} to {YEARS[-1]}, got {text[:40]!r}")
    return stamp(moment)


def _moment(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
