"""A thread's stream: the frames of all its runs, one run after the other, without end.

A run's frames have the same ids here as in the run's own stream, so they go on after any of them. A frame about
something else that comes in the middle of a message has that message's place in its id (see `frames`), as the run's own
have. In place of a run's `end` comes `metadata` with `run_done`: here `end` would be the end of the stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Collection, Iterator, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple
from urllib.parse import urlencode

import nats.errors
import structlog
from aiohttp import web
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from channels.http import live as alive
from channels.http.bodies import names
from channels.http.langgraph import dumps, stream
from channels.http.langgraph.frames import Cursor, Frame, Frames
from channels.http.langgraph.modes import wants_previews
from channels.http.langgraph.snapshots import snapshot
from channels.http.langgraph.stream import HEARTBEAT, Stopped
from channels.http.live import BEAT, STOP, Ear, Live, Outlet
from channels.http.routes import SSE, Param, Route
from core.bus import Handler
from core.errors import Invalid
from core.events import ContextCompacted, Record, RunRequested, StatePatched, ThreadErased, thread
from core.previews import Preview, Progress
from core.state import Folding, ThreadState, fold

log = structlog.get_logger("sika.http")

MODES = ("run_modes", "lifecycle", "state_update")
STATE_UPDATE = 100
"""Slot of that frame among those of a fact: after all of `modes.Slot`, and as permanent."""


class Whisper(NamedTuple):
    """A preview as it was heard, and of which run."""

    run: str
    data: bytes


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
        """Of the run at work."""
        self.ended = state.erased
        if state.active is not None:
            self._run = self._frames(state.active.id)

    @property
    def state(self) -> ThreadState:
        """The newest state; the next fact changes it."""
        return self._folding.state

    @property
    def audible(self) -> set[str]:
        """Runs whose previews are shown."""
        if "run_modes" not in self._modes:
            return set()
        return {run.id for run in self.state.runs.values() if run.open and wants_previews(run.request.stream_modes)}

    @property
    def running(self) -> str | None:
        """The run at work."""
        return self._run.run_id if self._run else None

    def is_open(self, call_id: str) -> bool:
        return self._run is not None and self._run.is_open(call_id)

    def fact(self, record: Record) -> list[Frame]:
        event = record.event
        if self.ended or record.seq <= self.state.seq:
            return []
        frames: list[Frame] = []
        speaker = self._speaker(record)
        self._folding.apply(record)
        if self._run is not None and self._run is not speaker:
            self._run.advance(record)
        if speaker is not None:
            frames = [self._placed(frame) for frame in self._chosen(speaker, speaker.advance(record))]
        if speaker is not None and not speaker.ended and self._is_running(speaker.run_id):
            self._run = speaker
        if self._run is not None and self._run.ended:
            self._run = None
        self.ended = isinstance(event, ThreadErased)
        outside = isinstance(event, StatePatched) or (isinstance(event, ContextCompacted) and record.run is None)
        if outside and "state_update" in self._modes and self._after.is_before(record.seq, STATE_UPDATE):
            shown = {"state": snapshot(self._thread, self.state, self.state.head), "thread_id": self._thread}
            frames.append(self._placed(Frame("state_update", dumps.encode(shown), f"{record.seq}-0-{STATE_UPDATE}")))
        return frames + (self._run.flush() if self._run is not None else [])

    def preview(self, run_id: str, preview: Preview | Progress) -> list[Frame]:
        return self._run.preview(preview) if self._run is not None and self._run.run_id == run_id else []

    def _speaker(self, record: Record) -> Frames | None:
        """Who has to say something about a fact: the run at work, or another one whose fact it is."""
        run_id = record.run
        if run_id is None or (self._run is not None and self._run.run_id == run_id):
            return self._run
        run = self.state.runs.get(run_id)
        if isinstance(record.event, RunRequested) if run is None else run.open:
            return self._frames(run_id, record.event)
        return None

    def _frames(self, run_id: str, event: object = None) -> Frames:
        request = event if isinstance(event, RunRequested) else self.state.runs[run_id].request
        modes = request.stream_modes if "run_modes" in self._modes else []
        return Frames(self._folding, self._thread, run_id, modes, after=self._after)

    def _chosen(self, run: Frames, frames: Sequence[Frame]) -> Iterator[Frame]:
        """Those that are asked for."""
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

    def _is_running(self, run_id: str) -> bool:
        run = self.state.runs.get(run_id)
        return run is not None and run.status == "running"


def resumed(
    records: Sequence[Record], thread_id: str, modes: Collection[str], last_event_id: str
) -> tuple[ThreadFrames, int]:
    """A translator that goes on after a frame, and the index of the first record it has to be fed."""
    cursor = Cursor.parse(last_event_id)
    place = next((i for i, record in enumerate(records) if cursor and record.seq == cursor.seq), None)
    if cursor is None or place is None:  # not an id of this thread: from the beginning
        return ThreadFrames(ThreadState(), thread_id, modes), 0
    then = fold(records[: place + 1])
    begun = [run.started_seq for run in then.runs.values() if run.open or run.ended_seq == cursor.seq]
    first = min([seq for seq in begun if seq is not None], default=cursor.seq)
    start = next(i for i, record in enumerate(records) if record.seq >= min(first, cursor.seq))
    return ThreadFrames(fold(records[:start]), thread_id, modes, after=cursor), start


# ── live ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def follow(request: web.Request) -> web.StreamResponse:
    """Follow a thread as server-sent events: all its runs, those to come as well. `run_modes`: what each run's own
    stream shows, with `metadata` `{"status": "run_done", "run_id"}` at its end; `lifecycle`: only beginnings and ends;
    `state_update`: what is written to the state from outside. Without `Last-Event-ID`: from now on.
    """
    live, modes = alive.of(request), _modes(request)
    thread_id, _ = await alive.owned(request)
    query = urlencode([("stream_mode", mode) for mode in modes])
    outlet = Outlet(request, "text/event-stream; charset=utf-8", {"Location": f"/threads/{thread_id}/stream?{query}"})
    async with (
        stream.sending(outlet, "thread stream", thread=thread_id),
        live.hearing(thread_id, thread_id) as ear,
        _Previews(live, ear) as previews,
    ):
        frames, missed = await _begin(live, previews, thread_id, modes, request.headers.get("Last-Event-ID"))
        async for data in stream.gathered(missed):
            await outlet.write(data)
        if not outlet.response.prepared:
            await outlet.write(HEARTBEAT)
        while not frames.ended:
            await previews.attend(frames.audible)
            items, lost = await ear.take()
            source = live.services.log.read(thread(thread_id), after=frames.state.seq) if lost else stream.each(items)
            async for data in stream.gathered(_told(source, frames)):
                await outlet.write(data)
    return outlet.response


async def _begin(
    live: Live, previews: _Previews, thread_id: str, modes: Sequence[str], last_event_id: str | None
) -> tuple[ThreadFrames, AsyncIterator[bytes]]:
    """A translator, and what the client has missed."""
    if last_event_id is None:
        frames = ThreadFrames(await live.services.threads.load(thread_id), thread_id, modes)
        return frames, _missed(live, previews, frames, [], resumed=False)
    records = [record async for record in live.services.log.read(thread(thread_id))]
    frames, start = await asyncio.to_thread(resumed, records, thread_id, modes, last_event_id)
    return frames, _missed(live, previews, frames, records[start:], resumed=start > 0)


async def _missed(
    live: Live, previews: _Previews, frames: ThreadFrames, records: Sequence[Record], *, resumed: bool
) -> AsyncIterator[bytes]:
    """Facts first, then the previews of the message that is being made, as far as they are kept."""
    for record in records:
        yield stream.encoded(frames.fact(record))
    await previews.attend(frames.audible)
    if frames.running is None or frames.running not in frames.audible:
        return
    for preview in await stream.stored(live, frames.running):
        if isinstance(preview, Preview) or (not resumed and frames.is_open(preview.call_id)):
            yield stream.encoded(frames.preview(frames.running, preview))


async def _told(source: AsyncIterable[Record | Whisper | bytes], frames: ThreadFrames) -> AsyncIterator[bytes]:
    async for item in source:
        match item:
            case Record():
                yield stream.encoded(frames.fact(item))
            case Whisper(run, data):
                preview = stream.decoded(data)
                yield stream.encoded(frames.preview(run, preview) if preview else [])
            case _ if item is BEAT:
                yield HEARTBEAT
            case _ if item is STOP:
                raise Stopped
        if frames.ended:
            return


class _Previews:
    """Subscriptions to the previews of the runs that have not ended; what is heard comes through the ear."""

    def __init__(self, live: Live, ear: Ear) -> None:
        self._bus = live.services.bus
        self._ear = ear
        self._heard: dict[str, Subscription] = {}

    async def __aenter__(self) -> _Previews:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.attend(set())

    async def attend(self, runs: Collection[str]) -> None:
        """Hear these runs, and no others."""
        for run in [run for run in runs if run not in self._heard]:
            self._heard[run] = await self._bus.subscribe(self._bus.names.tok(run), self._listener(run))
        for run in [run for run in self._heard if run not in runs]:
            with suppress(nats.errors.Error, OSError):
                await self._heard.pop(run).unsubscribe()

    def _listener(self, run: str) -> Handler:
        async def hear(msg: Msg) -> None:
            self._ear.put(Whisper(run, msg.data))

        return hear


def _modes(request: web.Request) -> list[str]:
    """The Python client says `stream_mode`, the reference reads `stream_modes`."""
    wanted = names(request, "stream_modes") or names(request, "stream_mode") or ["run_modes"]
    for mode in wanted:
        if mode not in MODES:
            raise Invalid(f"stream_modes: one of {', '.join(MODES)}, got {mode[:40]!r}")
    return list(dict.fromkeys(wanted))


_MODES = list[Literal["run_modes", "lifecycle", "state_update"]]
ROUTES = (
    Route(
        "GET",
        "/threads/{thread_id}/stream",
        follow,
        {200: SSE},
        query=(
            Param("stream_modes", _MODES, "Repeated, one JSON list, or one mode; default: `run_modes`"),
            Param("stream_mode", _MODES, "The same"),
            Param("Last-Event-ID", str, "Send what came after this frame; -1: everything", "header"),
        ),
        errors=(404,),
        scope="threads:read",
        tag="threads",
        endless="a thread can always get another run",
    ),
)
