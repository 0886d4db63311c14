"""When a schedule is due, and what its facts amount to."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import Invalid
from core.events import Event, Record, encode, written
from core.ids import stamp
from core.user import schedules
from core.user.schedules import (
    Job,
    Plan,
    Schedule,
    ScheduleCreated,
    ScheduleFailed,
    ScheduleFired,
    SchedulePaused,
    ScheduleRemoved,
    ScheduleResumed,
    ScheduleRevised,
    Schedules,
    SchedulesFired,
    ScheduleSkipped,
    Timing,
    fold,
    next_after,
)

BERLIN = "Europe/Berlin"
START = "2026-06-01T00:00:00.000000+00:00"


def moments(cron: str, timezone: str, after: str, count: int) -> list[str]:
    """The next moments, in local time with the offset."""
    zone = ZoneInfo(timezone)
    moment = datetime.fromisoformat(after).replace(tzinfo=zone)
    found = []
    for _ in range(count):
        following = next_after(cron, timezone, moment)
        assert following is not None
        assert following > moment.astimezone(UTC)
        moment = following
        found.append(moment.astimezone(zone).strftime("%m-%d %H:%M %z"))
    return found


@pytest.mark.parametrize(
    ("cron", "timezone", "after", "expected"),
    [
        ("0 9 * * *", "UTC", "2026-01-01T09:00", ["01-02 09:00 +0000", "01-03 09:00 +0000"]),
        ("*/15 * * * *", "UTC", "2026-01-01T09:00", ["01-01 09:15 +0000", "01-01 09:30 +0000"]),
        ("0 9 * * mon", "Asia/Tokyo", "2026-01-01T00:00", ["01-05 09:00 +0900", "01-12 09:00 +0900"]),
        ("0 0 29 2 *", "UTC", "2026-01-01T00:00", ["02-29 00:00 +0000", "02-29 00:00 +0000"]),
        ("0 0 L * *", "UTC", "2026-01-01T00:00", ["01-31 00:00 +0000", "02-28 00:00 +0000"]),
        # On 29 March 2026 in Berlin it is 03:00 after 01:59.
        ("30 2 * * *", BERLIN, "2026-03-28T03:00", ["03-29 03:00 +0200", "03-30 02:30 +0200"]),
        ("0 2,3 * * *", BERLIN, "2026-03-28T04:00", ["03-29 03:00 +0200", "03-30 02:00 +0200"]),
        ("0 * * * *", BERLIN, "2026-03-29T00:30", ["03-29 01:00 +0100", "03-29 03:00 +0200"]),
        ("0 3 * * *", BERLIN, "2026-03-28T03:00", ["03-29 03:00 +0200", "03-30 03:00 +0200"]),
        # On 25 October 2026 the hour from 02:00 comes twice.
        ("30 2 * * *", BERLIN, "2026-10-24T03:00", ["10-25 02:30 +0200", "10-26 02:30 +0100"]),
        ("15,45 2 * * *", BERLIN, "2026-10-25T02:20", ["10-25 02:45 +0200", "10-26 02:15 +0100"]),
        ("0 * * * *", BERLIN, "2026-10-25T01:30", ["10-25 02:00 +0200", "10-25 02:00 +0100"]),
        # Lord Howe Island changes by half an hour: 02:00 is 02:30.
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T03:00", ["10-04 02:30 +1100", "10-05 02:15 +1100"]),
        # Samoa had no 30 December 2011.
        ("0 12 * * *", "Pacific/Apia", "2011-12-29T13:00", ["12-31 00:00 +1400", "12-31 12:00 +1400"]),
    ],
)
def test_the_next_moment(cron: str, timezone: str, after: str, expected: list[str]) -> None:
    assert moments(cron, timezone, after, len(expected)) == expected


@given(
    st.sampled_from(["30 2 * * *", "15,45 1,2,3 * * *", "*/7 * * * *", "0 2 * * sun", "5 4 1 * *"]),
    st.sampled_from([BERLIN, "America/New_York", "UTC", "Australia/Lord_Howe"]),
    st.datetimes(datetime(2025, 1, 1), datetime(2027, 12, 31), timezones=st.just(UTC)),
)
def test_moments_only_go_forward_and_none_is_left_out(cron: str, timezone: str, after: datetime) -> None:
    first = next_after(cron, timezone, after)
    assert first is not None
    assert first > after
    between = after + (first - after) / 2
    assert next_after(cron, timezone, between) == first


@pytest.mark.parametrize(
    "cron",
    [
        *("", "* * * *", "* * * * * *", "@daily", "61 * * * *", "* * 31 2 *", "a b c d e", "MON#1/2 * * * *"),
        *("*/0 * * * *", "* * * * 1#1,L/2", "1" * 300 + " * * * *", "\0 * * * *", "¹ * * * *", "-1 * * * *"),
    ],
)
def test_what_is_no_cron_expression_is_refused(cron: str) -> None:
    with pytest.raises(Invalid, match="schedule: "):
        schedules.check_cron(cron, "UTC")
    assert next_after(cron, "UTC", datetime.now(UTC)) is None


@pytest.mark.parametrize(
    "name", ["", "Mars/Base", "../etc/passwd", "/etc/localtime", "Europe", "a" * 500, "\0", "UTC+1"]
)
def test_what_is_no_time_zone_is_refused(name: str) -> None:
    with pytest.raises(Invalid, match="timezone: "):
        schedules.zone(name)


@pytest.mark.parametrize(
    ("text", "timezone", "expected"),
    [
        ("2026-07-01T09:00:00", BERLIN, "2026-07-01T07:00:00.000000+00:00"),
        ("2026-07-01T09:00:00+09:00", BERLIN, "2026-07-01T00:00:00.000000+00:00"),
        ("2026-07-01T09:00:00Z", BERLIN, "2026-07-01T09:00:00.000000+00:00"),
        ("2026-07-01", "UTC", "2026-07-01T00:00:00.000000+00:00"),
        ("soon", "UTC", None),
        ("0001-01-01T00:00:00+14:00", "UTC", None),
        ("9999-12-31T23:59:59-14:00", "UTC", None),
        ("1970-01-01", "UTC", None),
    ],
)
def test_a_time_that_somebody_named(text: str, timezone: str, expected: str | None) -> None:
    if expected is None:
        with pytest.raises(Invalid, match="at: "):
            schedules.when(text, timezone, "at")
    else:
        assert schedules.when(text, timezone, "at") == expected


# ── the fold ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def plan(cron: str | None = "0 * * * *", at: str | None = None, **more: object) -> Plan:
    end = more.pop("end", None)
    timing = Timing(cron=cron, at=at, end=end if isinstance(end, str) else None)
    return Plan(timing=timing, job=Job(input={"messages": [{"type": "human", "content": "hi"}]}), **more)  # type: ignore[arg-type]


def at(hours: float) -> str:
    return stamp(datetime.fromisoformat(START) + timedelta(hours=hours))


def story(*facts: tuple[float, Event]) -> list[Record]:
    """Facts at so many hours after the start."""
    return [
        Record(
            n, encode(event, written(event, id=f"e{n}", kind="schedules", aggregate_id="u", actor="t", at=at(hours)))
        )
        for n, (hours, event) in enumerate(facts, 1)
    ]


def told(*facts: tuple[float, Event]) -> Schedule:
    return fold(story(*facts), Schedules())["s"]


def created(plan_: Plan) -> tuple[float, Event]:
    return 0, ScheduleCreated(schedule="s", plan=plan_)


def fired(hours: float, *, manual: bool = False) -> Event:
    return ScheduleFired(schedule="s", due=at(hours), run_id=f"r{hours:g}", thread_id="t", manual=manual)


HOURLY, ONCE = created(plan()), created(plan(cron=None, at=at(5)))
LATER = plan(cron="30 * * * *")


@pytest.mark.parametrize(
    ("facts", "due"),
    [
        ([HOURLY], 1),
        ([HOURLY, (1, fired(1))], 2),
        ([HOURLY, (1.1, ScheduleSkipped(schedule="s", due=at(1), reason="r"))], 2),
        # After an outage: what was missed came once, and then what comes after now.
        ([HOURLY, (7.5, fired(1))], 8),
        # A clock that is behind: what was fired for a moment is not fired for it again.
        ([HOURLY, (0.9, fired(1))], 2),
        ([HOURLY, (0.5, fired(0.5, manual=True))], 1),
        ([HOURLY, (0.5, SchedulePaused(schedule="s"))], None),
        ([HOURLY, (0.5, SchedulePaused(schedule="s")), (3.5, ScheduleResumed(schedule="s"))], 4),
        # A clock that was ahead: it goes on when the clock is right again; not for a small difference.
        ([HOURLY, (8000.5, fired(1)), (2.5, ScheduleResumed(schedule="s"))], 3),
        ([HOURLY, (8000.5, fired(8000)), (2.5, ScheduleResumed(schedule="s"))], 3),
        ([HOURLY, (1, fired(1)), (0.99, ScheduleResumed(schedule="s"))], 2),
        ([HOURLY, (0.2, ScheduleRevised(schedule="s", plan=LATER))], 0.5),
        ([HOURLY, (0.7, ScheduleRevised(schedule="s", plan=LATER))], 1.5),
        ([HOURLY, (1.2, ScheduleRevised(schedule="s", plan=plan(title="other")))], 1),
        ([created(plan(end=at(1.5))), (1, fired(1))], None),
        ([created(plan(end=at(2))), (1, fired(1))], 2),
        ([ONCE], 5),
        ([ONCE, (5, fired(5))], None),
        ([ONCE, (4, fired(4, manual=True))], 5),
        ([ONCE, (1, SchedulePaused(schedule="s")), (6, ScheduleResumed(schedule="s"))], 5),
        ([ONCE, (5, fired(5)), (6, ScheduleRevised(schedule="s", plan=plan(cron=None, at=at(9))))], 9),
        ([ONCE, (5, fired(5)), (6, ScheduleRevised(schedule="s", plan=plan(cron=None, at=at(5), title="x")))], None),
        ([created(plan(cron="no cron"))], None),
        ([created(plan(cron=None, at="no time"))], None),
    ],
)
def test_when_it_is_due_next(facts: list[tuple[float, Event]], due: float | None) -> None:
    found = told(*facts).next
    assert (stamp(found) if found else None) == (None if due is None else at(due))


def test_a_due_time_that_comes_again_has_one_firing() -> None:
    """The clock was ahead by two hours, and set back."""
    schedule = told(HOURLY)
    events = [(3.0, schedule.fire(at(hour))) for hour in (1, 2)]
    again = told(HOURLY, *events, (1.5, ScheduleResumed(schedule="s")), (2, schedule.fire(at(2))))
    assert [firing.due for firing in again.firings] == [at(1), at(2)]
    assert again.runs == 2
    assert again.next == datetime.fromisoformat(at(3))


def test_ids_follow_from_the_schedule_and_the_moment() -> None:
    one = told(HOURLY)
    event = one.fire(at(1))
    assert event == one.fire(at(1))
    others = [one.fire(at(2)), one.trigger(at(1), "r"), told(created(plan(thread="mine"))).fire(at(2))]
    assert len({event.run_id, *(other.run_id for other in others)}) == 3  # the last is of the same schedule and moment
    assert len({event.thread_id, *(other.thread_id for other in others)}) == 4
    assert others[-1].thread_id == "mine"


def test_messages_are_new_ones_each_time_and_the_same_for_one() -> None:
    one = told(HOURLY, (1, fired(1)), (2, fired(2)))
    asked = [schedules.request(one, firing) for firing in one.firings]
    ids = [request.input["messages"][0]["id"] for request in asked if request.input]
    assert len(set(ids)) == 2
    assert asked[0] == schedules.request(one, one.firings[0])
    assert asked[0].metadata == {"schedule_id": "s", "scheduled_for": at(1)}


def test_only_a_thread_that_was_made_for_a_run_goes_with_it() -> None:
    passing = Plan(timing=Timing(cron="0 * * * *"), job=Job(on_completion="delete"))
    one = told(created(passing))
    own = one.fire(at(1))
    moved = msgspec.structs.replace(passing, thread="mine")
    then = told(created(passing), (1, own), (1.5, ScheduleRevised(schedule="s", plan=moved)))
    later = told(created(moved), (1, told(created(moved)).fire(at(1))))
    assert [schedules.request(s, s.firings[0]).on_completion for s in (then, later)] == ["delete", "keep"]


def test_the_last_firings_are_remembered() -> None:
    facts = [(float(n), fired(float(n))) for n in range(1, schedules.MOST_FIRINGS + 20)]
    one = told(HOURLY, *facts, (200, ScheduleSkipped(schedule="s", due=at(200), reason="busy")))
    assert len(one.firings) == schedules.MOST_FIRINGS
    assert one.runs == len(facts)
    assert (one.firings[-1].run, one.firings[-1].failed) == (None, "busy")
    assert one.last is not None
    assert one.last.due == at(len(facts))


_PLANS = st.builds(
    Plan,
    timing=st.builds(
        Timing,
        cron=st.none() | st.sampled_from(["* * * * *", "x", "0 0 1 1 *"]),
        at=st.none() | st.sampled_from([at(3), "x", "2026-01-01"]),
        end=st.none() | st.sampled_from([at(4), ""]),
        timezone=st.sampled_from(["UTC", BERLIN, "Nowhere"]),
    ),
    job=st.just(Job()),
)
_IDS = st.sampled_from(["a", "b"])
_DUE = st.sampled_from([at(1), at(2), "never", ""])
_DECISIONS = st.one_of(
    st.builds(ScheduleFired, schedule=_IDS, due=_DUE, run_id=_IDS, thread_id=_IDS),
    st.builds(ScheduleSkipped, schedule=_IDS, due=_DUE, reason=st.just("r")),
)
_EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(ScheduleCreated, schedule=_IDS, plan=_PLANS, enabled=st.booleans()),
    st.builds(ScheduleRevised, schedule=_IDS, plan=_PLANS),
    st.builds(SchedulePaused, schedule=_IDS),
    st.builds(ScheduleResumed, schedule=_IDS),
    st.builds(ScheduleFired, schedule=_IDS, due=_DUE, run_id=_IDS, thread_id=_IDS, manual=st.booleans()),
    st.builds(ScheduleSkipped, schedule=_IDS, due=_DUE, reason=st.just("r")),
    st.builds(SchedulesFired, decisions=st.lists(_DECISIONS, max_size=3)),
    st.builds(ScheduleFailed, schedule=_IDS, run_id=_IDS, reason=st.just("r")),
    st.builds(ScheduleRemoved, schedule=_IDS),
)


@given(st.lists(_EVENTS, max_size=25), st.integers(0, 25))
def test_the_fold_is_total_incremental_and_pure(events: Sequence[Event], cut: int) -> None:
    records = story(*[(n / 10, event) for n, event in enumerate(events)])
    first: Schedules = fold(records[:cut], Schedules())
    before = dict(first)
    assert fold(records[cut:], first) == fold(records, Schedules())
    assert first == before
    whole = fold(records, Schedules())
    for one in whole.values():
        assert one.next is None or one.enabled
    kept = fold(story((100, whole.snapshot())), Schedules(unrelated=told(created(plan()))))
    assert kept == whole
    assert list(kept) == list(whole)
