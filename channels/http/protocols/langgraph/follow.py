"""A thread's stream: the frames of all its runs, one run after the other, without end.

A run's frames have the same ids here as in the run's own stream, so they go on after any of them. A frame about
something else that comes in the middle of a message has that message's place in its id (see `frames`), as the run's own
have. In place of a run's `end` comes `metadata` with `run_done`: here `end` would be the end of the stream.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Annotated, Literal
from urllib.parse import urlencode

from aiohttp import web

from channels.http.endpoints.call import Call, OwnedThread
from channels.http.endpoints.endpoint import LastEventId, Routes
from channels.http.protocols.langgraph import dumps
from channels.http.protocols.langgraph.frames import LAST_SLOT, Cursor, Frames
from channels.http.protocols.langgraph.modes import wants_previews
from channels.http.protocols.langgraph.snapshots import snapshot
from channels.http.protocols.langgraph.stream import delegates
from channels.http.server.live import Live, Outlet
from channels.http.server.routes import SSE
from channels.http.streams import sse
from channels.http.streams.sse import Frame
from channels.http.streams.subagent_logs import informed
from core.events import (
    ContextCompacted,
    Message,
    Record,
    RunRequested,
    StatePatched,
    ThreadErased,
    ThreadTitled,
    thread,
)
from core.runs.follow import Item, Speaker
from core.runs.previews import Preview, Progress, RunPreview
from core.thread.fold import Folding
from core.thread.rewind import newest_begun, state_before, state_upto
from core.thread.state import ThreadState

MODES = ("run_modes", "lifecycle", "state_update")
STATE_UPDATE = 100
"""Slot of that frame among those of a fact: after all of `modes.Slot`, and as permanent."""


class ThreadFrames:
    """Translates a thread. Feed it every fact after `state`, in order, and the previews of the runs in `audible`."""

    def __init__(
        self, state: ThreadState, thread_id: str, modes: Collection[str], *, after: Cursor | None = None
    ) -> None:
        self._folding = Folding(state)
        self._thread = thread_id
        self._modes = frozenset(modes)
        self._after = after or Cursor(0)
        self._run: Frames | None = None
        """The frames of the run at work."""
        self.ended = state.erased
        if state.active is not None:
            self._run = self._frames(state.active.id)

    @property
    def state(self) -> ThreadState:
        """The newest state; the next fact changes it."""
        return self._folding.state

    def audible(self) -> list[Speaker]:
        """Returns the open runs whose previews are shown, and the subagents of the one at work."""
        if "run_modes" not in self._modes:
            return []
        runs = [run for run in self.state.runs.open() if wants_previews(run.request.stream_modes)]
        return [*runs, *(self._run.subagents() if self._run else ())]

    def fact(self, record: Record) -> list[Frame]:
        event = record.event
        if self.ended or record.seq <= self.state.seq:
            return []
        frames: list[Frame] = []
        speaker, existed = self._speaker(record), self.state.exists
        self._folding.apply(record)
        if self._run is not None and self._run is not speaker:
            self._run.advance(record)
        if speaker is not None:
            frames = [self._placed(frame) for frame in self._requested(speaker, speaker.advance(record))]
        if speaker is not None and not speaker.ended and speaker.running:
            self._run = speaker
        if self._run is not None and self._run.ended:
            self._run = None
        self.ended = existed and isinstance(event, ThreadErased)  # else of an earlier thread with this id
        outside = isinstance(event, StatePatched | ThreadTitled)
        outside = outside or (isinstance(event, ContextCompacted) and record.run is None)
        if outside and "state_update" in self._modes and self._after.is_before(record.seq, STATE_UPDATE):
            shown = {"state": snapshot(self._thread, self.state, self.state.head), "thread_id": self._thread}
            frames.append(self._placed(Frame("state_update", dumps.encode(shown), f"{record.seq}-0-{STATE_UPDATE}")))
        return frames + (self._run.flush() if self._run is not None else [])

    def behind(self, item: Item) -> str | None:
        return self._run.behind(item) if self._run is not None else None

    def learn(self, subagent: str, messages: Sequence[Message]) -> None:
        if self._run is not None:
            self._run.learn(subagent, messages)

    def run_preview(self, item: RunPreview) -> list[Frame]:
        run = self._run
        if run is None or item.run not in (run.run_id, *(subagent.id for subagent in run.subagents())):
            return []
        return run.run_preview(item)

    def preview(self, run_id: str, preview: Preview | Progress) -> list[Frame]:
        return self.run_preview(RunPreview(run_id, preview))

    def _speaker(self, record: Record) -> Frames | None:
        """Returns the frames that show a fact: of the run at work, or of another run whose fact it is."""
        run_id = record.run
        if run_id is None or (self._run is not None and self._run.run_id == run_id):
            return self._run
        run = self.state.runs.get(run_id)
        if isinstance(record.event, RunRequested) if run is None else run.open:
            return self._frames(run_id, record.event)
        return self._run if isinstance(record.event, ThreadTitled) else None

    def _frames(self, run_id: str, event: object = None) -> Frames:
        request = event if isinstance(event, RunRequested) else self.state.runs[run_id].request
        modes = request.stream_modes if "run_modes" in self._modes else []
        return Frames(self._folding, self._thread, run_id, modes, after=self._after)

    def _requested(self, run: Frames, frames: Sequence[Frame]) -> Iterator[Frame]:
        """Yields the requested frames."""
        every, some = "run_modes" in self._modes, "lifecycle" in self._modes
        for frame in frames:
            if frame.event == "end":
                done = dumps.encode({"status": "run_done", "run_id": run.run_id})
                frame = Frame("metadata", done, frame.id)
            if every or (some and frame.event == "metadata"):
                yield frame

    def _placed(self, frame: Frame) -> Frame:
        """The frame of a fact, with its place in the message that is being made."""
        cursor = Cursor.parse(frame.id)
        if self._run is None or cursor is None or cursor.offset:
            return frame
        return frame._replace(id=self._run.place(cursor.seq, cursor.slot))


# ── live ────────────────────────────────────────────────────────────────────────────────────────────────────────────


ROUTES = Routes(tag="threads", endless="a thread can always get another run")
Modes = Sequence[Literal["run_modes", "lifecycle", "state_update"]]


@ROUTES("GET", "/threads/{thread_id}/stream", "threads:read")
async def follow(
    call: Call,
    owned: OwnedThread,
    *,
    stream_modes: Annotated[Modes, "Repeated, one JSON list, or one mode; default: `run_modes`"] = (),
    stream_mode: Annotated[Modes, "The same"] = (),
    last_event_id: LastEventId = None,
) -> Annotated[web.StreamResponse, SSE]:
    """Follow a thread as server-sent events: all its runs, those to come as well. `run_modes`: what each run's own
    stream shows, with `metadata` `{"status": "run_done", "run_id"}` at its end; `lifecycle`: only beginnings and ends;
    `state_update`: what is written to the state from outside. Without `Last-Event-ID`: from now on.
    """
    # the Python client says `stream_mode`, the reference reads `stream_modes`
    live, thread_id = call.live, owned.id
    modes = list(dict.fromkeys(stream_modes or stream_mode or ["run_modes"]))
    query = urlencode([("stream_mode", mode) for mode in modes])
    outlet = Outlet(call.request, sse.CONTENT_TYPE, {"Location": f"/threads/{thread_id}/stream?{query}"})
    async with sse.sending(outlet, "thread stream", thread=thread_id), live.follow(thread_id) as follower:
        frames, behind = await _begin(live, thread_id, modes, last_event_id)
        seq = frames.state.seq
        missed = follower.past(seq) if behind else None
        batches = follower.since(None if behind else seq, frames.audible, heard=True)
        await sse.play(outlet, frames, batches, missed, informed(live, frames))
    return outlet.response


async def _begin(
    live: Live, thread_id: str, modes: Sequence[str], last_event_id: str | None
) -> tuple[ThreadFrames, bool]:
    """A translator, and whether the client has missed facts after its state."""
    state = await live.services.threads.load(thread_id)
    if last_event_id is None:
        if not (state.active and delegates(state.active)):
            return ThreadFrames(state, thread_id, modes), False
        cursor: Cursor | None = Cursor(state.seq, slot=LAST_SLOT)
    else:
        cursor = Cursor.parse(last_event_id)
    if cursor is None or not 0 < cursor.seq <= state.seq or not await live.reading.holds(thread(thread_id), cursor.seq):
        return ThreadFrames(ThreadState(), thread_id, modes), True  # not an id of this thread: from the beginning
    return ThreadFrames(await _before(live, thread_id, state, cursor.seq), thread_id, modes, after=cursor), True


async def _before(live: Live, thread_id: str, state: ThreadState, seq: int) -> ThreadState:
    """A state before a fact, from which on the same is sent as from the thread's beginning."""
    run = newest_begun(state, seq)
    if run is None or run.started_seq is None:
        return await state_upto(live.reading.read, thread_id, seq - 1)
    return await state_before(live.reading.read, thread_id, state, run, run.started_seq - 1)
