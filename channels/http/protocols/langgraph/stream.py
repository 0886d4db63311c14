"""A run's stream, live: a follower's items through `frames`, to one client.

If the client is too slow, previews are lost; what they would have shown comes with the facts.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from aiohttp import web

from channels.http.endpoints.call import Call
from channels.http.protocols.langgraph.frames import LAST_SLOT, Cursor, Frames
from channels.http.protocols.langgraph.modes import Slot
from channels.http.protocols.langgraph.titled import TitledEnd, awaits_title
from channels.http.server.live import Live, Outlet
from channels.http.server.routes import SSE
from channels.http.streams import sse
from channels.http.streams.sse import Frame
from channels.http.streams.subagent_logs import informed
from core.events import RunRequested, thread
from core.runs.follow import Batch
from core.thread.rewind import state_before
from core.thread.state import Run, ThreadState


async def play(
    call: Call,
    thread_id: str,
    frames: Frames,
    batches: AsyncGenerator[Batch],
    missed: AsyncGenerator[Batch] | None = None,
    *,
    request: RunRequested,
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
        if awaits_title(call.config, frames, request):
            titled = TitledEnd(frames)
            await sse.play(outlet, titled, titled.until_titled(batches), missed, informed(call.live, frames))
            await outlet.write(sse.encoded(titled.last()))
        else:
            await sse.play(outlet, frames, batches, missed, informed(call.live, frames))
    return outlet.response


def seen_all(request: web.Request, run: Run, last_event_id: str | None) -> web.Response | None:
    """Returns the answer to a client that has a run's last frame: 204, at which an `EventSource` does not come again.
    None if something is left to be sent, and for clients that do not ask for events by their type, as an `EventSource`
    does: LangGraph's in JavaScript takes an answer without a body for an error. The media type is for clients that
    check it whatever the status.
    """
    cursor = Cursor.parse(last_event_id or "")
    if SSE not in request.headers.get("Accept", ""):
        return None
    if cursor is None or run.ended_seq is None or (cursor.seq, cursor.slot) < (run.ended_seq, Slot.END):
        return None
    return web.Response(status=204, headers={"Content-Type": SSE}) if cursor.seq == run.ended_seq else None


def locations(thread_id: str, run_id: str, what: str = "stream") -> dict[str, str]:
    """Paths without the mount's prefix: clients put their own base before them."""
    run = f"/threads/{thread_id}/runs/{run_id}"
    return {"Location": f"{run}/{what}", "Content-Location": run}


async def late(
    live: Live, thread_id: str, state: ThreadState, run: Run, modes: Sequence[str], last_event_id: str | None
) -> tuple[Frames, bool]:
    """A translator for a run of a thread that is there, and whether the client has missed facts after its state. Call
    it while following.

    A client that resumes is served from the run's request on, and not from the thread's beginning. So is one that comes
    while subagents are at work: what they did is not in the thread's state. It is shown what comes from now on.
    """
    read, first = live.reading.read, run.requested_seq - 1
    cursor = None if last_event_id is None else Cursor.parse(last_event_id)
    if last_event_id is None:
        state = await live.services.threads.load(thread_id)
        run = state.runs.get(run.id, run)
        if not delegates(run):
            return Frames(state, thread_id, run.id, modes), False
        cursor = Cursor(state.seq, slot=LAST_SLOT)
    if cursor is not None and not await _is_of(live, thread_id, run, cursor.seq):
        cursor = None  # not an id of this run: from the beginning
    before = await state_before(read, thread_id, state, run, first)
    return Frames(before, thread_id, run.id, modes, after=cursor), True


async def _is_of(live: Live, thread_id: str, run: Run, seq: int) -> bool:
    """Tells whether a fact was written from a run's request to its end."""
    newest = run.ended_seq or (await live.services.threads.load(thread_id)).seq
    return run.requested_seq <= seq <= newest and await live.reading.holds(thread(thread_id), seq)


def delegates(run: Run) -> bool:
    """Tells if subagents of a run are at work, and are to be shown in namespaces."""
    return run.open and run.request.subgraphs and any(not part.ended for part in run.subagents.values())
