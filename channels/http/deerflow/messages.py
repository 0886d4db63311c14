"""Messages and events of runs, page by page, from the log: what was summarised since is still there."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from aiohttp import web

from channels.http import live as alive
from channels.http.bodies import names, number, plain
from channels.http.deerflow import found, journal
from channels.http.deerflow.journal import Cursor, Row
from channels.http.routes import API, Param, Route
from core.thread.state import Feedback, ThreadState


class Page(msgspec.Struct):
    data: list[Row]
    has_more: bool


class Rating(msgspec.Struct):
    feedback_id: str
    rating: int
    comment: str | None


class RatedRow(Row):
    """A message; with what the user said of the run on the run's last answer, or of this very message."""

    feedback: Rating | None


class ThreadPage(msgspec.Struct):
    data: list[RatedRow]
    has_more: bool
    next_before_seq: int | None
    """The `before_seq` of the next page; null on the last."""


async def of_run(request: web.Request) -> web.Response:
    """Messages of a run, ascending. With `after_seq` the first after that row, else the last (before `before_seq`)."""
    thread_id, state, run = await found.run(request)
    log = alive.of(request).services.log
    data, more = await journal.page(log, thread_id, state, journal.of_run(run.id), _cursor(request))
    return plain(Page(data, more))


async def events(request: web.Request) -> web.Response:
    """Everything that happened in a run, ascending: its messages, and what led to them."""
    limit = number(request, "limit", 500, least=1, most=2000)
    kinds = {kind for name in names(request, "event_types") for kind in name.split(",") if kind}
    thread_id, state, run = await found.run(request)
    return plain(await journal.events(alive.of(request).services.log, thread_id, state, run, kinds, limit))


async def of_thread(request: web.Request) -> web.Response:
    """Messages of all runs of a thread, on all its branches, ascending; what was rolled back is gone."""
    cursor = _cursor(request)
    thread_id, state = await alive.owned(request)
    log = alive.of(request).services.log
    data, _ = await journal.page(log, thread_id, state, journal.of_all(state), cursor)
    return plain(_rated(data, state, alive.user(request)))


async def page(request: web.Request) -> web.Response:
    """The conversation as it stands, newest page first: other branches are left out, summarised messages are not. A
    thread that is not there has none.
    """
    cursor = _cursor(request)._replace(after=None)
    thread_id, state = await alive.readable(request)
    log = alive.of(request).services.log
    data, more = await journal.page(log, thread_id, state, journal.of_branch(state), cursor)
    rated = _rated(data, state, alive.user(request))
    return plain(ThreadPage(rated, more, rated[0].seq if more else None))


def _cursor(request: web.Request) -> Cursor:
    return Cursor(
        number(request, "limit", 50, least=1, most=200), _seq(request, "before_seq"), _seq(request, "after_seq")
    )


def _seq(request: web.Request, name: str) -> int | None:
    return number(request, name, 0, most=journal.LAST) if request.query.get(name) else None


def _rated(data: list[Row], state: ThreadState, user: str) -> list[RatedRow]:
    mine = [given for given in state.feedback.values() if given.user == user]
    runs = {given.run: given for given in mine if given.message_id is None}
    messages = {(given.run, given.message_id): given for given in mine if given.message_id is not None}
    last = journal.last_answers(state) if runs else {}

    def of(row: Row) -> Feedback | None:
        run = row.run_id or ""
        if row.event_type == journal.TYPES["ai"] and run in runs and row.seq // journal.PLACES == last.get(run):
            return runs[run]
        return messages.get((run, row.content.get("id")))

    return [RatedRow(**msgspec.structs.asdict(row), feedback=_rating(of(row))) for row in data]


def _rating(given: Feedback | None) -> Rating | None:
    return Rating(given.id, given.rating, given.comment) if given else None


_T = "/threads/{thread_id}"
_SEQ = Annotated[int, msgspec.Meta(ge=0, le=journal.LAST)]
_LIMIT = Param("limit", Annotated[int, msgspec.Meta(ge=1, le=200)], "How many rows at most; default 50")
_BEFORE = Param("before_seq", _SEQ, "Only rows before this `seq`")
_AFTER = Param("after_seq", _SEQ, "Only rows after this `seq`")
_READ: Any = {"errors": (404,), "scope": "threads:read", "mounts": API}
ROUTES = (
    Route("GET", f"{_T}/runs/{{run_id}}/messages", of_run, {200: Page}, query=(_LIMIT, _BEFORE, _AFTER), **_READ),
    Route("GET", "/runs/{run_id}/messages", of_run, {200: Page}, query=(_LIMIT, _BEFORE, _AFTER), **_READ),
    Route(
        "GET",
        f"{_T}/runs/{{run_id}}/events",
        events,
        {200: list[Row]},
        query=(
            Param("event_types", list[str], "Only these, separated by commas or repeated"),
            Param("limit", Annotated[int, msgspec.Meta(ge=1, le=2000)], "How many rows at most; default 500"),
        ),
        **_READ,
    ),
    Route("GET", f"{_T}/messages", of_thread, {200: list[RatedRow]}, query=(_LIMIT, _BEFORE, _AFTER), **_READ),
    Route("GET", f"{_T}/messages/page", page, {200: ThreadPage}, query=(_LIMIT, _BEFORE), **_READ),
)
