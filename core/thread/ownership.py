"""The owner of a thread: the one rule that every channel and every decision of a person goes through."""

from __future__ import annotations

from core.errors import NotFound
from core.thread.state import ThreadState


def missing(thread_id: str) -> NotFound:
    return NotFound(f"Thread {thread_id} not found")


def owned(state: ThreadState, thread_id: str, user: str | None) -> ThreadState:
    """Returns the state of a thread that is there and is the user's (None: anybody's). Raises `NotFound` otherwise: a
    thread of somebody else does not exist for the user.
    """
    if not state.exists or user not in (None, state.user):
        raise missing(thread_id)
    return state


def owned_or_absent(state: ThreadState, thread_id: str, user: str) -> ThreadState:
    """Returns the state like `owned`, or an empty one if the thread is not there (yet, or any more)."""
    return owned(state, thread_id, user) if state.exists else ThreadState(erased=state.erased)
