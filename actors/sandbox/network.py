"""Records in a thread's log where its commands connected to."""

from __future__ import annotations

from core.events import Event, NetworkAccess, NetworkAccessed
from core.ports.sandbox import RecordsNetwork, Sandbox
from core.thread.state import ThreadState
from core.thread.threads import Threads

ACTOR = "sandbox"


async def record(threads: Threads, thread: str, run: str, call_id: str, key: str, sandbox: Sandbox) -> None:
    """Appends the connections of a command so far, unless the run has recorded the same. `key` names the command in its
    sandbox.
    """
    accesses = await sandbox.accesses(key) if isinstance(sandbox, RecordsNetwork) else ()
    if not accesses:
        return
    hosts = [
        NetworkAccess(
            host=access.host,
            port=access.port,
            connections=access.connections,
            sent=access.sent,
            received=access.received,
            refused=access.reason,
        )
        for access in accesses
    ]

    def decision(state: ThreadState) -> list[Event]:
        return [] if state.erased or not state.exists else [NetworkAccessed(call_id=call_id, hosts=hosts)]

    if hosts != await _recorded(threads, thread, run, call_id):
        await threads.decide(thread, decision, actor=ACTOR, run=run)


async def _recorded(threads: Threads, thread: str, run: str, call_id: str) -> list[NetworkAccess] | None:
    """Returns what the run has recorded of a command last."""
    state = await threads.load(thread)
    hosts = None
    if run in state.runs:
        async for entry in threads.log.read(threads.aggregate(thread), after=state.runs[run].requested_seq):
            if isinstance(entry.event, NetworkAccessed) and entry.event.call_id == call_id:
                hosts = entry.event.hosts
    return hosts
