"""Whose share of a process's capacity work counts in: that of who asks, else the user's of the thread, without accounts
a client's, else the thread's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

NOBODY = "default"
"""The user of all threads of a server without accounts."""
CLIENT: ContextVar[str] = ContextVar("client", default="")
"""The share of who asks in this task, by the client's address: a channel sets it."""
ASKER: ContextVar[str] = ContextVar("asker", default="")
"""The share of who asks in this task, whomever the thread belongs to: a run sets it for the runs of its subagents, a
chat for what a person writes in a group.
"""


def share_of(user: str) -> str:
    """Returns the share for a thread's user; "" if only the thread tells one from the other."""
    return ASKER.get() or (f"user {user}" if user and user != NOBODY else CLIENT.get())


@contextmanager
def asking(user: str) -> Iterator[None]:
    """Has what is asked for in the block count in the share of a user."""
    token = ASKER.set(f"user {user}")
    try:
        yield
    finally:
        ASKER.reset(token)
