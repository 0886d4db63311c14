"""Messages and events of runs, page by page, from the log: what was summarised since is still there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from channels.http.deerflow import journal
from channels.http.deerflow.goals import Goal, goal_of
from channels.http.deerflow.journal import Cursor, Row
from channels.http.deerflow.run_summaries import RunSummary, summary_of
from channels.http.endpoints.call import Call, OwnedRun, OwnedThread, ReadableThread
from channels.http.endpoints.endpoint import Routes
from channels.http.runs.run_request import checkpoint_seq
from channels.http.server.routes import API
from core.errors import Invalid
from core.events import thread as events_of
from core.files.workspace import Changed
from core.ids import checkpoint_id as checkpoint_of
from core.thread.numbers import PLACES
from core.thread.state import Feedback, ThreadState
from core.thread.values import REMOVE_ALL


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


class Branches(msgspec.Struct):
    """The alternatives to a message: `index` of the one that is shown, and a checkpoint of each."""

    index: int
    count: int
    checkpoint_ids: list[str]


class ShownRow(RatedRow):
    branches: Branches | msgspec.UnsetType = msgspec.UNSET
    """Set on the first message of a step that has alternatives: an answer given again, a question in other words."""


class ThreadPage(msgspec.Struct):
    """`runs`: of the rows, by id. `checkpoint_id`: a run goes on from here if what is shown is another branch. `title`
    and `goal`: of the thread as it stands.
    """

    data: list[ShownRow]
    has_more: bool
    next_before_seq: int | None
    """The `before_seq` of the next page; null on the last."""
    runs: dict[str, RunSummary]
    checkpoint_id: str | None
    title: str | None
    goal: Goal | None


ROUTES = Routes(mounts=API)
_T = "/threads/{thread_id}"
Seq = Annotated[int, msgspec.Meta(ge=0, le=journal.LAST)]
Limit = Annotated[int, msgspec.Meta(ge=1, le=200), "How many rows at most"]
Before = Annotated[Seq | None, "Only rows before this `seq`"]
After = Annotated[Seq | None, "Only rows after this `seq`"]


@ROUTES("GET", f"{_T}/runs/{{run_id}}/messages", "threads:read")
@ROUTES("GET", "/runs/{run_id}/messages", "threads:read")
async def of_run(
    call: Call, of: OwnedRun, *, limit: Limit = 50, before_seq: Before = None, after_seq: After = None
) -> Page:
    """Messages of a run, ascending. With `after_seq` the first after that row, else the last (before `before_seq`)."""
    cursor = Cursor(limit, before_seq, after_seq)
    data, more = await journal.page(
        call.live.reading.read, events_of(of.thread_id), of.state, journal.of_run(of.state, of.run), cursor
    )
    return Page(data, more)


@ROUTES("GET", f"{_T}/runs/{{run_id}}/events", "threads:read")
async def events(
    call: Call,
    of: OwnedRun,
    *,
    event_types: Annotated[Sequence[str], "Only these, separated by commas or repeated"] = (),
    limit: Annotated[int, msgspec.Meta(ge=1, le=2000), "How many rows at most"] = 500,
) -> list[Row]:
    """Everything that happened in a run, ascending: its messages, and what led to them."""
    kinds = {kind for name in event_types for kind in name.split(",") if kind}
    return await journal.events(call.live.reading.read, of.thread_id, of.state, of.run, kinds, limit)


@ROUTES("GET", f"{_T}/messages", "threads:read")
async def of_thread(
    call: Call, thread: OwnedThread, *, limit: Limit = 50, before_seq: Before = None, after_seq: After = None
) -> list[RatedRow]:
    """Messages of all runs of a thread, on all its branches, ascending; what was rolled back is gone."""
    state, cursor = thread.state, Cursor(limit, before_seq, after_seq)
    data, _ = await journal.page(call.live.reading.read, events_of(thread.id), state, journal.of_all(state), cursor)
    return _rated(data, state, call.user)


@ROUTES("GET", f"{_T}/messages/page", "threads:read")
async def page(
    call: Call,
    thread: ReadableThread,
    *,
    limit: Limit = 50,
    before_seq: Before = None,
    checkpoint_id: Annotated[str | None, "Show the newest conversation that leads through it"] = None,
) -> ThreadPage:
    """The conversation as it stands, newest page first: other branches are left out, summarised messages are not. A
    thread that is not there has none. With a summary of each run, so that a page of history is one request.
    """
    state, cursor = thread.state, Cursor(limit, before_seq, None)
    tip = state.head if checkpoint_id is None else journal.newest_through(state, _commit(state, checkpoint_id))
    steps = journal.of_branch(state, tip)
    data, more = await journal.page(call.live.reading.read, events_of(thread.id), state, steps, cursor)
    gone = journal.removed(state, steps) if data else {}
    first = data[0].seq if data else 0
    more = more and first >= PLACES * gone.get(REMOVE_ALL, 0)
    data = journal.left(data, gone)
    branches = journal.branches_of(state, tip) if data else {}
    rated = [_row_with_branches(row, branches) for row in _rated(data, state, call.user)]
    changed = await call.live.changes.load(thread.id) if data else Changed()
    runs = {row.run_id for row in rated if row.run_id is not None}
    summaries = {name: summary_of(state, state.runs[name], changed, call.config) for name in runs if name in state.runs}
    at = checkpoint_of(state.commits[tip].seq) if tip >= 0 else None
    before, title = first if more else None, state.values.get("title")
    return ThreadPage(rated, more, before, summaries, at, title if isinstance(title, str) else None, goal_of(state))


def _commit(state: ThreadState, name: str) -> int:
    seq = checkpoint_seq(name, "checkpoint_id")
    if seq is None or (index := state.commit_at(seq)) < 0:
        raise Invalid(f"checkpoint_id: not a checkpoint of this thread: {name[:40]!r}")
    return index


def _row_with_branches(row: RatedRow, branches: dict[int, journal.Branches]) -> ShownRow:
    """The first row of a step takes its alternatives."""
    fields = msgspec.structs.asdict(row)
    if (alternatives := branches.pop(row.seq // PLACES, None)) is None:
        return ShownRow(**fields)
    names = alternatives.checkpoint_ids
    return ShownRow(**fields, branches=Branches(alternatives.shown, len(names), names))


def _rated(data: list[Row], state: ThreadState, user: str) -> list[RatedRow]:
    mine = [feedback for feedback in state.feedback.values() if feedback.user == user]
    runs = {feedback.run: feedback for feedback in mine if feedback.message_id is None}
    messages = {(feedback.run, feedback.message_id): feedback for feedback in mine if feedback.message_id is not None}
    shown = {row.run_id or "" for row in data} & runs.keys() & state.runs.keys()
    last = {run: journal.last_answer(state, state.runs[run]) for run in shown}

    def of(row: Row) -> Feedback | None:
        run = row.run_id or ""
        if row.event_type == journal.TYPES["ai"] and run in runs and row.seq // PLACES == last.get(run):
            return runs[run]
        return messages.get((run, row.content.get("id")))

    return [RatedRow(**msgspec.structs.asdict(row), feedback=_rating(of(row))) for row in data]


def _rating(feedback: Feedback | None) -> Rating | None:
    return Rating(feedback.id, feedback.rating, feedback.comment) if feedback else None
