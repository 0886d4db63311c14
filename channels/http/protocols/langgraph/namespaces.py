"""The subagents behind the namespaces of a thread: `tools:<id of the call>`, of nested ones `tools:<id>|tools:<id>`."""

from __future__ import annotations

from channels.http.streams.tasks import delegation
from core.errors import NotFound
from core.thread.state import ThreadState
from core.thread.threads import Threads


def called(state: ThreadState, call_id: str) -> str | None:
    """Returns the id of the newest subagent that was given a call. Some models repeat the ids of calls."""
    for run in reversed(state.runs.values()):
        if (known := delegation(run, call_id)) is not None:
            return known[0]
    return None


async def in_namespace(subagents: Threads, state: ThreadState, namespace: str) -> ThreadState:
    """Returns the state of the subagent of a namespace; that of the thread for "". Raises `NotFound`."""
    for part in namespace.split("|") if namespace else ():
        node, _, call_id = part.partition(":")
        subagent = called(state, call_id) if node == "tools" else None
        if subagent is None:
            raise NotFound(f"checkpoint_ns: there is no subagent {namespace[:80]!r}")
        state = await subagents.load(subagent)
    return state
