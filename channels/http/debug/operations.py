"""Operations: what runs, waits, failed, took long and was configured, of all users; the doctor; and dead letters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal
from weakref import WeakKeyDictionary

import msgspec

from channels.http.accounts.access import names_of
from channels.http.endpoints.call import Call
from channels.http.endpoints.endpoint import Routes
from channels.http.server.live import ACTOR, Live
from channels.http.server.routes import API
from core.bus.streams import message_count
from core.config.redaction import redactor
from core.errors import NotFound
from core.runtime import letters
from core.runtime.letters import Letter
from core.runtime.readiness import Finding
from core.views import operations
from core.views.console import ListedRun

KEPT_SECONDS = 5.0
"""Time for which the findings of the doctor are shared."""
MOST_LETTERS = 200

MOST_SEQ = 2**53 - 1
"""The largest number that every client reads as it is."""

Seq = Annotated[int, msgspec.Meta(ge=1, le=MOST_SEQ)]
Days = Annotated[int, msgspec.Meta(ge=1, le=366), "Of the last days"]
Hours = Annotated[int, msgspec.Meta(ge=1, le=24 * 31), "Of the last hours"]


class OpenRun(msgspec.Struct):
    """`user_name`: the address of its account; null without accounts. `own`: whether it is yours."""

    run_id: str
    thread_id: str
    thread_title: str | None
    user_id: str
    user_name: str | None
    own: bool
    assistant_id: str
    model_name: str | None
    status: str
    created_at: str
    started_at: str | None
    ended_at: str | None


class OpenOfUser(msgspec.Struct):
    """Open runs of a user in a status. `oldest_at`: when the first of them was asked for."""

    user_id: str
    user_name: str | None
    status: Literal["pending", "running"]
    runs: int
    oldest_at: str


class Now(msgspec.Struct):
    """`runs`: the 100 oldest open ones. `waiting`: conversations that wait for a person."""

    pending: int
    running: int
    waiting: int
    by_user: list[OpenOfUser]
    runs: list[OpenRun]


class Failures(msgspec.Struct):
    """Runs that failed for the same reason; numbers and ids in it are left out. `examples`: the newest five."""

    reason: str
    runs: int
    users: int
    models: list[str]
    first_at: str
    last_at: str
    examples: list[OpenRun]


class FailureList(msgspec.Struct):
    """`runs`: the number of failed runs that were grouped, at most 1000."""

    runs: int
    groups: list[Failures]


class CallList(msgspec.Struct):
    """The slowest ones first. Of the newest 20 000 calls."""

    calls: list[operations.Calls]


class Change(msgspec.Struct):
    """`by`: a user, or the part of Sika that recorded it. `by_name`: the address of that user, if it is one."""

    seq: int
    at: str
    type: str
    by: str
    by_name: str | None
    text: str


class Changes(msgspec.Struct):
    """`next_before`: where the next page begins; null on the last one."""

    changes: list[Change]
    next_before: int | None


class Check(msgspec.Struct):
    """A finding. `advice`: the remedy, or empty."""

    name: str
    status: Literal["ok", "warn", "fail"]
    text: str
    advice: str


class Checks(msgspec.Struct):
    """`status`: the worst one."""

    status: Literal["ok", "warn", "fail"]
    checks: list[Check]


class DeadLetter(msgspec.Struct):
    """`event_seq`, `event_type`: of the event that led to it, 0 and empty if there is none. `content`: the beginning of
    a message that could not be read, without secrets. `thread_id`: if it is about a thread. `redrivable`: there is an
    actor to wake.
    """

    letter: int
    at: str
    actor: str
    aggregate: str
    reason: str
    event_seq: int
    event_type: str
    content: str
    thread_id: str | None
    redrivable: bool


class Letters(msgspec.Struct):
    """`next_after`: where the next page begins; null on the last one."""

    letters: list[DeadLetter]
    total: int
    next_after: int | None


class Chosen(msgspec.Struct):
    """`letters`: their numbers."""

    letters: Annotated[list[Seq], msgspec.Meta(max_length=MOST_LETTERS)]


class Redriven(msgspec.Struct):
    """`letters`: those that were there."""

    letters: list[int]


ROUTES = Routes(mounts=API, role="admin", tag="operations")


@ROUTES("GET", "/operations/now", "admin")
async def get_now(call: Call) -> Now:
    """What runs now, by state, age and user; of all users."""
    await call.services.views.current()
    now, names = await operations.now(call.services.views), await names_of(call)
    of_user = [OpenOfUser(one.user, names.get(one.user), one.status, one.runs, one.oldest) for one in now.open]  # type: ignore[arg-type]
    pending = sum(one.runs for one in now.open if one.status == "pending")
    running = sum(one.runs for one in now.open) - pending
    return Now(pending, running, now.waiting, of_user, [_run(call, names, run) for run in now.runs])


@ROUTES("GET", "/operations/failures", "admin")
async def get_failures(call: Call, *, days: Days = 7) -> FailureList:
    """Failed runs by their reason, the most frequent first; of all users."""
    await call.services.views.current()
    groups, names = await operations.failures(call.services.views, _ago(days=days)), await names_of(call)
    listed = [
        Failures(
            group.reason,
            group.runs,
            group.users,
            group.models,
            group.first_at,
            group.last_at,
            [_run(call, names, run) for run in group.examples],
        )
        for group in groups
    ]
    return FailureList(sum(group.runs for group in groups), listed)


@ROUTES("GET", "/operations/calls", "admin")
async def get_calls(call: Call, *, hours: Hours = 24) -> CallList:
    """How long calls of tools and models took: the median, the 95th percentile, and the longest."""
    await call.services.views.current()
    return CallList(await operations.calls(call.services.views, _ago(hours=hours)))


@ROUTES("GET", "/operations/changes", "admin")
async def get_changes(
    call: Call,
    *,
    limit: Annotated[int, msgspec.Meta(ge=1, le=200), "How many at most"] = 50,
    before: Annotated[Seq | None, "Those before this sequence"] = None,
) -> Changes:
    """What was configured when, and by whom, newest first: the configuration, accounts, keys, MCP servers, accounts of
    chat platforms, and decisions about dead letters. Secrets are not shown.
    """
    await call.services.views.current()
    (changes, more), names = await operations.changes(call.services.views, limit, before), await names_of(call)
    listed = [Change(**change._asdict(), by_name=names.get(change.by)) for change in changes]
    return Changes(listed, changes[-1].seq if more else None)


@ROUTES("GET", "/doctor", "admin", errors=(404,))
async def get_doctor(call: Call) -> Checks:
    """What `sika doctor` says: the checks of this installation, each with its remedy. No model is asked. It takes some
    seconds; those who ask meanwhile share the answer.
    """
    findings = await _DOCTORS.setdefault(call.live, _Doctor()).findings(call)
    shown = [Check(one.name, one.status, redactor.text(one.text), redactor.text(one.advice)) for one in findings]
    worst = next((status for status in ("fail", "warn") if any(one.status == status for one in findings)), "ok")
    return Checks(worst, shown)  # type: ignore[arg-type]


@ROUTES("GET", "/dlq", "admin")
async def get_letters(
    call: Call,
    *,
    limit: Annotated[int, msgspec.Meta(ge=1, le=MOST_LETTERS), "How many at most"] = 50,
    after: Annotated[int, msgspec.Meta(ge=0, le=MOST_SEQ), "Those after this one"] = 0,
) -> Letters:
    """Dead letters, oldest first: what could not be processed, and why."""
    bus, page = call.services.log.bus, list[Letter]()
    async for letter in letters.letters(bus, after):
        page.append(letter)
        if len(page) > limit:
            break
    total = await message_count(bus, "dlq")
    return Letters(
        [_letter(letter) for letter in page[:limit]], total, page[limit - 1].seq if len(page) > limit else None
    )


@ROUTES("POST", "/dlq/redrive", "admin")
async def post_redrive(call: Call, body: Chosen) -> Redriven:
    """Wake the actors of these dead letters again, and delete the letters. It is recorded who did it."""
    services, chosen = call.services, body.letters
    if not chosen:
        return Redriven([])
    work = letters.redrive(services.log, services.queue, chosen, by=call.user, actor=ACTOR)
    return Redriven([letter.seq for letter in await call.live.to_its_end(work)])


@ROUTES("POST", "/dlq/discard", "admin")
async def post_discard(call: Call, body: Chosen) -> Redriven:
    """Delete these dead letters, and do nothing about what they say. It is recorded who did it."""
    work = letters.discard(call.services.log, body.letters, by=call.user, actor=ACTOR)
    return Redriven([letter.seq for letter in await call.live.to_its_end(work)])


class _Doctor:
    """Examines once for all who ask at the same time."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._findings: Sequence[Finding] = ()
        self._ended = float("-inf")

    async def findings(self, call: Call) -> Sequence[Finding]:
        examine = call.services.examine
        if examine is None:
            raise NotFound("this process cannot examine its installation")
        async with self._turn:
            if time.monotonic() > self._ended + KEPT_SECONDS:
                self._findings = await examine()
                self._ended = time.monotonic()
            return self._findings


_DOCTORS: WeakKeyDictionary[Live, _Doctor] = WeakKeyDictionary()


def _run(call: Call, names: Mapping[str, str], run: ListedRun) -> OpenRun:
    return OpenRun(
        run_id=run.run_id,
        thread_id=run.thread_id,
        thread_title=run.title,
        user_id=run.user,
        user_name=names.get(run.user),
        own=run.user == call.user,
        assistant_id=run.assistant,
        model_name=run.model,
        status=run.status,
        created_at=run.created_at,
        started_at=run.started_at,
        ended_at=run.ended_at,
    )


def _letter(letter: Letter) -> DeadLetter:
    body = letter.body
    return DeadLetter(
        letter=letter.seq,
        at=body.at,
        actor=letter.actor,
        aggregate=str(letter.aggregate),
        reason=redactor.text(body.reason),
        event_seq=body.hint.seq,
        event_type=body.hint.type,
        content=letter.content,
        thread_id=letter.aggregate.id if letter.aggregate.kind == "thread" else None,
        redrivable=letter.readable,
    )


def _ago(*, days: int = 0, hours: int = 0) -> datetime:
    return datetime.now(UTC) - timedelta(days=days, hours=hours)
