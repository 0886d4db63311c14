"""Whose share of a process's capacity work counts in: a user's, without accounts a client's, else the thread's."""

from __future__ import annotations

from contextvars import ContextVar

NOBODY = "default"
"""The user of all threads of a server without accounts."""
CLIENT: ContextVar[str] = ContextVar("client", default="")
"""The share of who asks in this task: a channel sets it by the client's address, a run for the runs of its subagents.
"""


def share_of(user: str) -> str:
    """Returns the share for a thread's user; "" if only the thread tells one from the other."""
    return f"user {user}" if user and user != NOBODY else CLIENT.get()
