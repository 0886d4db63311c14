"""The duty of an adapter of models to the run that calls it: a look at the log right before a request leaves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar

BEFORE_REQUEST: ContextVar[Callable[[], Awaitable[None]] | None] = ContextVar("before_request", default=None)
"""Awaited by the adapter as late as it can be, for each try of its own, too. Raises `OwnershipLost` or `Unavailable`:
then nothing may be sent. Between the decision to ask and the request a process may be frozen for longer than its lease,
and the answer be recorded by another.
"""
