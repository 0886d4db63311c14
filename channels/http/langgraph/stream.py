"""A run's stream, live: a follower's items through `frames`, to one client.

If the client is too slow, previews are lost; what they would have shown comes with the facts.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from channels.http import sse
from channels.http.behind import informed
from channels.http.call import Call
from channels.http.langgraph.frames import LAST_SLOT, Cursor, Frames
from channels.http.langgraph.modes import Slot
from channels.http.live import Live, Outlet
from channels.http.routes import SSE
from channels.http.sse import Frame
from core.events import Record, thread
from core.thread.follow import Follower
from core.thread.rewind import state_before
from core.thread.state import Run, ThreadState


async def play(
    call: Call,
    follower: Follower,
    thread_id: str,
    frames: Frames,
    missed: Sequence[Record],
    *,
    cancel: bool,
) -> web.StreamResponse:
    """Send what was missed, then whatever comes until the run ends. `cancel`: the run ends if the client goes."""
    outlet = Outlet(call.request, sse.CONTENT_TYPE, locations(thread_id, frames.run_id))

    def gone() -> None:
        if cancel and not frames.ended:
            call.live.left(thread_id, frames.run_id)

    async with sse.sending(outlet, "stream", gone, run=frames.run_id):
        if frames.ended:
            run = frames.state.runs[frames.run_id]
            await outlet.write(Frame("end", b"null", f"{run.ended_seq}-0-{Slot.END:d}").encoded())
        seq = missed[-1].seq if missed else frames.seq
        batches = follower.since(seq, frames.audible, heard=True)
        await sse.play(outlet, frames, batches, missed, informed(call.live, frames))
    return outlet.response


def seen_all(run: Run, last_event_id: str | None) -> web.Response | None:
    """Returns the answer to a client that has a run's last frame: 204, at which an `EventSource` does not come again.
    None if something is left to be sent. The media type is for clients that check it whatever the status.
    """
    cursor = Cursor.parse(last_event_id or "")
    if cursor is None or run.ended_seq is None or (cursor.seq, cursor.slot) < (run.ended_seq, Slot.END):
        return None
    return web.Response(status=204, headers={"Content-Type": SSE}) if cursor.seq == run.ended_seq else None


def locations(thread_id: str, run_id: str, what: str = "stream") -> dict[str, str]:
    """Paths without the mount's prefix: clients put their own base before them."""
    run = f"/threads/{thread_id}/runs/{run_id}"
    return {"Location": f"{run}/{what}", "Content-Location": run}


async def late(
    live: Live, thread_id: str, state: ThreadState, run: Run, modes: Sequence[str], last_event_id: str | None
) -> tuple[Frames, Sequence[Record]]:
    """A translator for a run of a thread that is there, and the facts the client has missed. Call it while following.

    A client that resumes is told from the run's request on, and not from the thread's beginning. So is one that comes
    while subagents are at work: what they did is not in the thread's state. It is shown what comes from now on.
    """
    log, first = live.services.log, run.requested_seq - 1
    cursor = None if last_event_id is None else Cursor.parse(last_event_id)
    if last_event_id is None:
        state = await live.services.threads.load(thread_id)
        run = state.runs.get(run.id, run)
        if not delegates(run):
            return Frames(state, thread_id, run.id, modes), []
        cursor = Cursor(state.seq, slot=LAST_SLOT)
    async with live.catching_up:
        records = [record async for record in log.read(thread(thread_id), after=first, upto=run.ended_seq)]
        if cursor is not None and all(record.seq != cursor.seq for record in records):
            cursor = None  # not an id of this run: from the beginning
        before = await state_before(log, thread_id, state, run, first)
        return Frames(before, thread_id, run.id, modes, after=cursor), records


def delegates(run: Run) -> bool:
    """Tells if subagents of a run are at work, and are to be shown in namespaces."""
    return run.open and run.request.subgraphs and any(not part.ended for part in run.subagents.values())
