"""The duties of an adapter of models to the run that calls it: a look at the log right before a request leaves, a bound
on what comes back, and the pieces of an answer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol, runtime_checkable

BEFORE_REQUEST: ContextVar[Callable[[], Awaitable[None]] | None] = ContextVar("before_request", default=None)
"""Awaited by the adapter as late as it can be, for each try of its own, too. Raises `OwnershipLost` or `Unavailable`:
then nothing may be sent. Between the decision to ask and the request a process may be frozen for longer than its lease,
and the answer be recorded by another.
"""

CUT = "The stream ended before the answer did."
ANSWER_BYTES = 16 << 20
"""Limit of an answer, as JSON of its chunks: some 200 000 tokens that come one by one, more than any model writes."""


class CallPiece(NamedTuple):
    """A fragment of a tool call. Its number, id and name are empty where the provider gave none with it."""

    number: int | None
    id: str
    name: str
    arguments: str


class Piece(NamedTuple):
    """What one event of a provider's stream adds to an answer."""

    text: str = ""
    reasoning: str = ""
    calls: Sequence[CallPiece] = ()
    extras: Mapping[str, Any] = {}
    """Fields of the provider beside these (LangChain's `additional_kwargs`). Texts add up."""
    usage: Mapping[str, Any] = {}
    """The growth of LangChain's `usage_metadata` since the last piece."""
    about: Mapping[str, Any] = {}
    """LangChain's `response_metadata`. The last value of a key counts."""


@runtime_checkable
class Pieces(Protocol):
    """A model class that gives its answers in pieces, without LangChain's message objects and callbacks."""

    def in_pieces(self, settings: Mapping[str, Any]) -> bool:
        """Tells whether `pieces` can answer requests with these settings."""

    def pieces(self, messages: Sequence[Any], **kwargs: Any) -> AsyncIterator[Piece]:
        """Yields the pieces of an answer. It is whole when the iterator ends; everything else is an exception."""


class AnswerTooLong(Exception):
    """A model sends more than an answer may have. What came of it is dropped, as of an answer that broke off, but
    nothing is asked again: the next one would be as long.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(f"the model's answer has more than {limit} bytes, so it was dropped")
