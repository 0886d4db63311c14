"""What people think of a run: one opinion on the whole, and any on its messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import msgspec
from aiohttp import web

from channels.http import live as alive
from channels.http.bodies import body, plain
from channels.http.errors import BadRequest
from channels.http.gateway import found
from channels.http.langgraph.runs import known
from channels.http.routes import API, Route
from core import state
from core.errors import NotFound, Refused
from core.events import Event, FeedbackGiven, FeedbackRemoved
from core.ids import uuid7
from core.state import ThreadState

MOST = 100
"""Opinions on one run."""

Comment = Annotated[str, msgspec.Meta(max_length=10_000)]


class Opinion(msgspec.Struct):
    """`rating` is 1 or -1."""

    rating: int
    comment: Comment | None = None


class MessageOpinion(Opinion):
    message_id: Annotated[str, msgspec.Meta(max_length=200)] | None = None


class Feedback(msgspec.Struct):
    feedback_id: str
    run_id: str
    thread_id: str
    user_id: str
    message_id: str | None
    rating: Literal[1, -1]
    comment: str | None
    created_at: str


class Stats(msgspec.Struct):
    run_id: str
    total: int
    positive: int
    negative: int


class Done(msgspec.Struct):
    success: bool


async def put(request: web.Request) -> web.Response:
    """Say what you think of a run, or change it. There is one such opinion of each user; comments are replaced too."""
    wanted = _checked(await body(request, Opinion))
    user = alive.user(request)

    def decide(now: ThreadState, run_id: str) -> Sequence[Event]:
        mine = [given.id for given in _of(now, run_id) if given.user == user and given.message_id is None]
        return [_given(now, run_id, wanted, user, mine[-1] if mine else uuid7())]

    return await _changed(request, decide)


async def post(request: web.Request) -> web.Response:
    """Add an opinion on a run or on one of its messages."""
    wanted = _checked(await body(request, MessageOpinion))
    user, identity = alive.user(request), uuid7()
    return await _changed(request, lambda now, run_id: [_given(now, run_id, wanted, user, identity)])


async def delete(request: web.Request) -> web.Response:
    """Take back what you think of a run as a whole."""
    user = alive.user(request)

    def decide(now: ThreadState, run_id: str) -> Sequence[Event]:
        mine = [given.id for given in _of(now, run_id) if given.user == user and given.message_id is None]
        if not mine:
            raise NotFound(f"Run {run_id} has no feedback of yours")
        return [FeedbackRemoved(feedback_id=identity) for identity in mine]

    await _decide(request, decide)
    return plain(Done(success=True))


async def delete_one(request: web.Request) -> web.Response:
    """Take back one opinion on a run or a message."""
    identity = request.match_info["feedback_id"]

    def decide(now: ThreadState, run_id: str) -> Sequence[Event]:
        if identity not in (given.id for given in _of(now, run_id)):
            raise NotFound(f"Feedback {identity[:80]} not found")
        return [FeedbackRemoved(feedback_id=identity)]

    await _decide(request, decide)
    return plain(Done(success=True))


async def get_list(request: web.Request) -> web.Response:
    """All opinions on a run, oldest first."""
    thread_id, now, run = await found.run(request)
    return plain([_object(thread_id, given) for given in _of(now, run.id)])


async def stats(request: web.Request) -> web.Response:
    """How many opinions there are on a run, and of which kind."""
    _, now, run = await found.run(request)
    ratings = [given.rating for given in _of(now, run.id)]
    return plain(Stats(run.id, len(ratings), ratings.count(1), ratings.count(-1)))


Decide = Callable[[ThreadState, str], Sequence[Event]]


async def _changed(request: web.Request, decide: Decide) -> web.Response:
    thread_id, now, event = await _decide(request, decide)
    assert isinstance(event, FeedbackGiven)
    return plain(_object(thread_id, now.feedback[event.feedback_id]))


async def _decide(request: web.Request, decide: Decide) -> tuple[str, ThreadState, Any]:
    thread_id, _, run = await found.run(request)
    user = alive.user(request)

    def decision(now: ThreadState) -> Sequence[Event]:
        if not now.exists or now.user != user:
            raise NotFound(f"Thread {thread_id} not found")
        return decide(now, known(now, run.id).id)

    threads = alive.of(request).services.threads
    now, records = await threads.decide(thread_id, decision, actor="http", run=run.id)
    return thread_id, now, records[-1].event


def _checked(wanted: Opinion) -> Opinion:
    if wanted.rating not in (1, -1):
        raise BadRequest(f"rating: 1 or -1, got {wanted.rating}")
    return wanted


def _given(now: ThreadState, run_id: str, wanted: Opinion, user: str, identity: str) -> Event:
    if identity not in now.feedback and len(_of(now, run_id)) >= MOST:
        raise Refused(f"Run {run_id} has {MOST} pieces of feedback already; remove one first")
    message_id = wanted.message_id if isinstance(wanted, MessageOpinion) else None
    return FeedbackGiven(
        feedback_id=identity, rating=wanted.rating, user=user, comment=wanted.comment, message_id=message_id
    )


def _of(now: ThreadState, run_id: str) -> list[state.Feedback]:
    return [given for given in now.feedback.values() if given.run == run_id]


def _object(thread_id: str, given: state.Feedback) -> Feedback:
    rating: Literal[1, -1] = 1 if given.rating > 0 else -1
    return Feedback(given.id, given.run, thread_id, given.user, given.message_id, rating, given.comment, given.at)


_F = "/threads/{thread_id}/runs/{run_id}/feedback"
_READ: Any = {"errors": (404,), "scope": "threads:read", "mounts": API}
_WRITE: Any = {"scope": "threads:write", "mounts": API}
ROUTES = (
    Route("PUT", _F, put, {200: Feedback}, Opinion, errors=(400, 404, 409), **_WRITE),
    Route("POST", _F, post, {200: Feedback}, MessageOpinion, errors=(400, 404, 409), **_WRITE),
    Route("DELETE", _F, delete, {200: Done}, errors=(404,), **_WRITE),
    Route("GET", _F, get_list, {200: list[Feedback]}, **_READ),
    Route("GET", f"{_F}/stats", stats, {200: Stats}, **_READ),
    Route("DELETE", f"{_F}/{{feedback_id}}", delete_one, {200: Done}, errors=(404,), **_WRITE),
    Route("GET", "/runs/{run_id}/feedback", get_list, {200: list[Feedback]}, **_READ),
)
