"""What people think of a run: one opinion on the whole, and any on its messages."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from aiohttp import web

from channels.http import live as alive
from channels.http.bodies import body, plain
from channels.http.deerflow import found
from channels.http.errors import BadRequest
from channels.http.routes import API, Route
from core.thread import state
from core.thread.commands import Rating, ratings

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
    rating = _rating(await body(request, Opinion))
    thread_id, _, run = await found.run(request)
    commands = alive.of(request).services.commands
    return plain(_object(thread_id, await commands.rate(alive.user(request), thread_id, run.id, rating)))


async def post(request: web.Request) -> web.Response:
    """Add an opinion on a run or on one of its messages."""
    rating = _rating(await body(request, MessageOpinion))
    thread_id, _, run = await found.run(request)
    commands = alive.of(request).services.commands
    return plain(_object(thread_id, await commands.add_rating(alive.user(request), thread_id, run.id, rating)))


async def delete(request: web.Request) -> web.Response:
    """Take back what you think of a run as a whole."""
    thread_id, _, run = await found.run(request)
    await alive.of(request).services.commands.withdraw_rating(alive.user(request), thread_id, run.id)
    return plain(Done(success=True))


async def delete_one(request: web.Request) -> web.Response:
    """Take back one opinion on a run or a message."""
    identity, commands = request.match_info["feedback_id"], alive.of(request).services.commands
    thread_id, _, run = await found.run(request)
    await commands.remove_rating(alive.user(request), thread_id, run.id, identity)
    return plain(Done(success=True))


async def get_list(request: web.Request) -> web.Response:
    """All opinions on a run, oldest first."""
    thread_id, now, run = await found.run(request)
    return plain([_object(thread_id, given) for given in ratings(now, run.id)])


async def stats(request: web.Request) -> web.Response:
    """How many opinions there are on a run, and of which kind."""
    _, now, run = await found.run(request)
    values = [given.rating for given in ratings(now, run.id)]
    return plain(Stats(run.id, len(values), values.count(1), values.count(-1)))


def _rating(opinion: Opinion) -> Rating:
    if opinion.rating not in (1, -1):
        raise BadRequest(f"rating: 1 or -1, got {opinion.rating}")
    message_id = opinion.message_id if isinstance(opinion, MessageOpinion) else None
    return Rating(opinion.rating, opinion.comment, message_id)


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
