"""Ratings of a run: one of the whole, and any of its messages."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from channels.http.endpoints.call import Call, OwnedRun
from channels.http.endpoints.endpoint import Routes
from channels.http.server.errors import BadRequest
from channels.http.server.routes import API
from core.runs.commands import Rating, ratings
from core.thread import state

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


ROUTES = Routes(mounts=API)
_ALL = "/threads/{thread_id}/runs/{run_id}/feedback"
_READ, _WRITE = "threads:read", "threads:write"


@ROUTES("PUT", _ALL, _WRITE, errors=(400, 409))
async def put(call: Call, of: OwnedRun, body: Opinion) -> Feedback:
    """Say what you think of a run, or change it. There is one such opinion of each user; comments are replaced too."""
    rating = await call.services.commands.rate(call.user, of.thread_id, of.run.id, _rating(body))
    return _object(of.thread_id, rating)


@ROUTES("POST", _ALL, _WRITE, errors=(400, 409))
async def post(call: Call, of: OwnedRun, body: MessageOpinion) -> Feedback:
    """Add an opinion on a run or on one of its messages."""
    rating = await call.services.commands.add_rating(call.user, of.thread_id, of.run.id, _rating(body))
    return _object(of.thread_id, rating)


@ROUTES("DELETE", _ALL, _WRITE)
async def delete(call: Call, of: OwnedRun) -> Done:
    """Take back what you think of a run as a whole."""
    await call.services.commands.withdraw_rating(call.user, of.thread_id, of.run.id)
    return Done(success=True)


@ROUTES("DELETE", f"{_ALL}/{{feedback_id}}", _WRITE)
async def delete_one(call: Call, of: OwnedRun, feedback_id: str) -> Done:
    """Take back one opinion on a run or a message."""
    await call.services.commands.remove_rating(call.user, of.thread_id, of.run.id, feedback_id)
    return Done(success=True)


@ROUTES("GET", _ALL, _READ)
@ROUTES("GET", "/runs/{run_id}/feedback", _READ)
async def get_list(of: OwnedRun) -> list[Feedback]:
    """All opinions on a run, oldest first."""
    return [_object(of.thread_id, rating) for rating in ratings(of.state, of.run.id)]


@ROUTES("GET", f"{_ALL}/stats", _READ)
async def stats(of: OwnedRun) -> Stats:
    """Count the ratings of a run by kind."""
    values = [rating.rating for rating in ratings(of.state, of.run.id)]
    return Stats(of.run.id, len(values), values.count(1), values.count(-1))


def _rating(opinion: Opinion) -> Rating:
    if opinion.rating not in (1, -1):
        raise BadRequest(f"rating: 1 or -1, got {opinion.rating}")
    message_id = opinion.message_id if isinstance(opinion, MessageOpinion) else None
    return Rating(opinion.rating, opinion.comment, message_id)


def _object(thread_id: str, fact: state.Feedback) -> Feedback:
    rating: Literal[1, -1] = 1 if fact.rating > 0 else -1
    return Feedback(fact.id, fact.run, thread_id, fact.user, fact.message_id, rating, fact.comment, fact.at)
