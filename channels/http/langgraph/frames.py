"""A run's stream as a pure function of facts and previews: no clock, no I/O, nothing but what went in before.

Theory of operation
-------------------
Every frame has an id `<seq>-<offset>-<slot>`, and an id is a position from which the stream can be continued by
anybody who has the log:

* `seq-0-slot`: a frame of the fact `seq`. Slots are fixed places in the order of one fact's frames (see `Slot`),
  whatever modes are asked for; so resuming with other modes, or another build with more of them, still finds its
  place.
* `seq-offset-0`: `seq` is the newest fact, and `offset` characters of the message that is being made have been
  sent. The text that previews did not bring comes with `model.completed`; those frames are given ids of this second
  form too, as if a preview had brought them. So the frames of a fact proper do not depend on which previews were
  lost.

If one preview makes several frames (two modes that carry deltas), only the last has an id: it is the point up to
which all was seen. Tool progress has no id: it is not kept.

Live, late, resumed and replayed streams therefore differ in how the text is cut into chunks, and in nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import NamedTuple

from channels.http.langgraph import dumps
from channels.http.langgraph.modes import END_TYPES, Emit, Modes, Slot
from core.events import ModelCompleted, ModelFailed, Record, RunRequested, RunStarted, ThreadErased
from core.previews import Piece, Preview, Progress, Reader, line_of, rest_of
from core.state import ThreadState, fold

HELD = 256
"""Previews kept while they cannot be shown yet; what is dropped comes with the fact."""

_CURSOR = re.compile(r"(\d{1,18})-(\d{1,12})-(\d{1,4})")
_BREAKS = ((b"\xe2\x80\xa8", rb"\u2028"), (b"\xe2\x80\xa9", rb"\u2029"), (b"\xc2\x85", rb"\u0085"))


class Cursor(NamedTuple):
    """How far a client has seen the stream."""

    seq: int
    offset: int = 0
    slot: int = 0

    @staticmethod
    def parse(text: str) -> Cursor | None:
        """None if it is not one of our ids."""
        found = _CURSOR.fullmatch(text.strip())
        return Cursor(*map(int, found.groups())) if found else None


class Frame(NamedTuple):
    """One SSE event. `data` is JSON on one line; an empty `id` is not sent."""

    event: str
    data: bytes
    id: str = ""

    def encoded(self) -> bytes:
        data = self.data
        if not data.isascii():
            for found, escaped in _BREAKS:
                data = data.replace(found, escaped)
        place = f"\nid: {self.id}\n\n" if self.id else "\n\n"
        return b"event: %b\ndata: %b%b" % (self.event.encode(), data, place.encode())


class Frames:
    """Translates one run. Feed it every fact of the thread after `state`, in order, and previews as they come."""

    def __init__(
        self,
        state: ThreadState,
        thread_id: str,
        run_id: str,
        modes: Collection[str],
        *,
        after: Cursor | None = None,
    ) -> None:
        run = state.runs.get(run_id)
        self.state = state
        self.run_id = run_id
        self.ended = run is not None and not run.open
        """Whether the last frame has been made."""
        self.modes = Modes(thread_id, run_id, modes, run)
        self._after = after or Cursor(0)
        self._running = run is not None and run.status == "running"
        self._reader = Reader()
        self._held: list[Preview] = []
        self._seq = state.seq

    @property
    def seq(self) -> int:
        """The newest fact that was fed."""
        return self._seq

    def is_open(self, call_id: str) -> bool:
        """Whether a tool call is being worked on."""
        run = self.state.runs.get(self.run_id)
        return run is not None and call_id in run.intents

    def fact(self, record: Record) -> list[Frame]:
        """The frames of a fact, those of the text that was still missing first."""
        if self.ended:
            return []
        before = self.state
        if record.seq > before.seq:
            self.state = fold((record,), before)
        previous, self._seq = self._seq, record.seq
        frames: list[Frame] = []
        loud = record.seq > self._after.seq
        if record.run == self.run_id:
            frames = self._of_run(record, before, previous, loud)
        elif isinstance(record.event, ThreadErased):
            self.ended = True
            frames = self._framed(record.seq, [(Slot.END, "end", b"null")])
        elif self._running and record.run is None:
            frames = self._told(record, before)
        if record.seq == self._after.seq and self._after.offset:
            self._reader = Reader(None, self._after.offset)
            self.modes.announced = True
        if self._held and self._running and self._reader.message is None:
            held, self._held = self._held, []
            frames += [frame for preview in held for frame in self.preview(preview)]
        return frames

    def preview(self, preview: Preview | Progress) -> list[Frame]:
        """The frames of what is new in a preview; [] if nothing is, or if something before it is missing."""
        if self.ended:
            return []
        if isinstance(preview, Progress):
            return [Frame(event, data) for event, data in self.modes.progress(preview)] if self._running else []
        if preview.message in self.state.places:
            return []
        if not self._running or self._reader.message not in (None, preview.message):
            if len(self._held) < HELD:
                self._held.append(preview)
            return []
        if self._reader.message is None and preview.offset > self._reader.offset:
            return []
        self.modes.overheard(preview)
        piece = self._reader.take(preview)
        if piece is None:
            return []
        part = Piece(piece.part, piece.text, piece.index, piece.call_id, piece.name)
        return self._delta(preview.message, part, self._reader.offset, self._seq)

    def _of_run(self, record: Record, before: ThreadState, previous: int, loud: bool) -> list[Frame]:
        event = record.event
        frames: list[Frame] = []
        if isinstance(event, RunRequested):
            data = {"run_id": self.run_id, "thread_id": record.head.aggregate, "attempt": 1}
            return self._framed(record.seq, [(Slot.METADATA, "metadata", dumps.encode(data))])
        if isinstance(event, RunStarted):
            self._running = True
        if isinstance(event, ModelCompleted) and loud:
            frames = self._rest(event, previous)
        if isinstance(event, RunStarted | ModelFailed | ModelCompleted):
            self._reader = Reader()
        frames += self._told(record, before)
        if isinstance(event, RunStarted | ModelFailed | ModelCompleted):
            self.modes.opened()
        if isinstance(event, END_TYPES):
            self.ended, self._running = True, False
        return frames

    def _rest(self, event: ModelCompleted, previous: int) -> list[Frame]:
        """The text that previews did not bring."""
        message = str(event.message.get("id"))
        offset = self._reader.offset if self._reader.message in (None, message) else 0
        frames: list[Frame] = []
        for end, piece in rest_of(line_of(event.message, event.call_texts, event.order), offset):
            frames += self._delta(message, piece, end, previous)
        return frames

    def _delta(self, message: str, piece: Piece, end: int, seq: int) -> list[Frame]:
        made = self.modes.delta(message, piece, end, self.state)
        frames = [Frame(event, data) for event, data in made]
        if frames:
            frames[-1] = frames[-1]._replace(id=f"{seq}-{end}-0")
        return frames

    def _told(self, record: Record, before: ThreadState) -> list[Frame]:
        quiet = record.seq < self._after.seq
        return self._framed(record.seq, self.modes.fact(record, before, self.state, quiet=quiet))

    def _framed(self, seq: int, made: Iterable[Emit]) -> list[Frame]:
        after = self._after
        if seq < after.seq or (seq == after.seq and after.offset):
            return []
        first = after.slot + 1 if seq == after.seq else 0
        return [Frame(event, data, f"{seq}-0-{slot:d}") for slot, event, data in made if slot >= first]
