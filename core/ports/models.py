"""The duties of an adapter of models to the run that calls it: a look at the log right before a request leaves, and a
bound on what comes back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar

BEFORE_REQUEST: ContextVar[Callable[[], Awaitable[None]] | None] = ContextVar("before_request", default=None)
"""Awaited by the adapter as late as it can be, for each try of its own, too. Raises `OwnershipLost` or `Unavailable`:
then nothing may be sent. Between the decision to ask and the request a process may be frozen for longer than its lease,
and the answer be recorded by another.
"""

ANSWER_BYTES = 16 << 20
"""Limit of an answer, as JSON of its chunks: some 200 000 tokens that come one by one, more than any model writes."""


class AnswerTooLong(Exception):
    """A model sends more than an answer may have. What came of it is dropped, as of an answer that broke off, but
    nothing is asked again: the next one would be as long.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(f"the model's answer has more than {limit} bytes, so it was dropped")
