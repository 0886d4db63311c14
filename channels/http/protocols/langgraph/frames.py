"""A run's stream as a pure function of facts and previews: no clock, no I/O, nothing but what went in before.

Theory of operation
-------------------
Every frame has an id, and an id is a position from which the stream can be continued by anybody who has the log:

* `seq-0-slot`: a frame of the fact `seq`. Slots are fixed places in the order of one fact's frames (see `Slot`),
  whatever modes are asked for; so resuming with other modes, or another build with more of them, still finds its
  place.
* `seq-offset-0-message`: `seq` is the newest fact, and `offset` characters of the message that is being made have
  been sent. The text that previews did not bring comes with `model.completed`; those frames are given ids of this
  second form too, as if a preview had brought them. So the frames of a fact proper do not depend on which previews
  were lost.
* `seq-offset-slot-message`: a frame of a fact in the middle of a message, of which `offset` characters were sent
  before: somebody wrote to the state meanwhile.

While messages of subagents are being made, any of these is followed by `_message-offset` for each of them. Only the
`metadata` of a new attempt have no id then: `seq-0-0` would mean all of the fact.

`message` is eight digits that stand for the message (`previews.tag`). A model may have to be asked again, and then
another message is made in place of the one that the id is from: that one is sent from its beginning. No two messages
have the same id, whatever attempt of the run they are from, so no two frames have. An id without it is from an older
server, and is taken to mean whatever message comes next.

If one preview makes several frames (two modes that carry deltas), only the last has an id: it is the point up to
which all was seen. Tool progress has no id: it is not kept.

Text that was sent and is void, because its answer was given up, is taken back: `values` without it follow, if they
were asked for, and `metadata` say which attempt begins. `values` at a new attempt or a failure of the model do not
depend on whether any text was sent; those at a run's end do, and the position before tells whether it was.

Live, late, resumed and replayed streams therefore differ in how the text is cut into chunks and in what of void text
they show, and in nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from channels.http.protocols.langgraph import dumps
from channels.http.protocols.langgraph.modes import Emit, Modes, Slot, wants_previews
from channels.http.protocols.langgraph.subgraphs import Place, Subgraphs
from channels.http.streams.sse import Frame
from core.events import (
    ContextCompacted,
    Message,
    MessageAdded,
    ModelCompleted,
    ModelFailed,
    Record,
    RunRequested,
    RunStarted,
    StatePatched,
    SubagentStarted,
    ThreadErased,
    ThreadTitled,
)
from core.lifecycle import RunEnded
from core.runs.follow import Item
from core.runs.moments import Finished, GivenUp, Grown, Moment, Moments, Previewed, Results, Voice
from core.runs.previews import Piece, Preview, Progress, RunPreview, tag
from core.thread.entries import Before
from core.thread.fold import Folding
from core.thread.state import Run, ThreadState

_CURSOR = re.compile(r"(\d{1,18})-(\d{1,12})-(\d{1,4})(?:-([0-9a-f]{8}))?((?:_[0-9a-f]{8}-\d{1,12}){0,100})")
_PLACE = re.compile(r"_([0-9a-f]{8})-(\d+)")
LAST_SLOT = 9999
"""A place after all frames of a fact."""
_TURNS = (RunStarted, ModelCompleted, ModelFailed)
"""After these another message is made."""
_OUTSIDE = (StatePatched, MessageAdded, ContextCompacted)
"""Events that change the state under a run and are not the run's own."""


class Cursor(NamedTuple):
    """A client's position in the stream."""

    seq: int
    offset: int = 0
    slot: int = 0
    message: str = ""
    inner: tuple[Place, ...] = ()
    """Positions in the messages of subagents."""

    @staticmethod
    def parse(text: str) -> Cursor | None:
        """None if it is not one of our ids."""
        match = _CURSOR.fullmatch(text.strip())
        if match is None:
            return None
        seq, offset, slot, message, inner = match.groups()
        places = tuple((tag, int(end)) for tag, end in _PLACE.findall(inner))
        return Cursor(int(seq), int(offset), int(slot), message or "", places)

    def __str__(self) -> str:
        inner = "".join(f"_{tag}-{end}" for tag, end in self.inner)
        return f"{self.seq}-{self.offset}-{self.slot}" + (f"-{self.message}" if self.message else "") + inner

    def is_before(self, seq: int, slot: int) -> bool:
        """Tells whether a frame of a fact comes after this position."""
        if seq != self.seq:
            return seq > self.seq
        return slot > self.slot and (self.slot > 0 or not (self.offset or self.inner))


class Frames:
    """Translates one run. Feed it every fact of the thread after `state`, in order, and previews as they come.

    A folding is shared: whoever gave it may apply a fact first.
    """

    def __init__(
        self,
        state: ThreadState | Folding,
        thread_id: str,
        run_id: str,
        modes: Collection[str],
        *,
        after: Cursor | None = None,
    ) -> None:
        self._folding = state if isinstance(state, Folding) else Folding(state)
        run = self.state.runs.get(run_id)
        self.run_id = run_id
        self.ended = run is not None and not run.open
        """True if the last frame has been made."""
        self.modes = Modes(thread_id, run_id, modes, run)
        self._wants_previews = wants_previews(modes)
        self._subgraphs = Subgraphs(thread_id, run_id, modes)
        self._moments = Moments(self._folding, with_subagents=run is not None and run.request.subgraphs)
        self._after = after or Cursor(0)
        self._seq = self.state.seq

    @property
    def state(self) -> ThreadState:
        """The newest state; the next fact changes it."""
        return self._folding.state

    @property
    def seq(self) -> int:
        """The newest fact that was fed."""
        return self._seq

    @property
    def running(self) -> bool:
        """Tells whether the run is being worked on."""
        active = self.state.active
        return active is not None and active.id == self.run_id

    def is_open(self, call_id: str) -> bool:
        """Tells whether a tool call is being worked on."""
        run = self.state.runs.get(self.run_id)
        return run is not None and call_id in run.intents

    def audible(self) -> list[Run | Voice]:
        """Returns the run and its subagents, if their previews are shown."""
        run = self.state.runs.get(self.run_id)
        return [run, *self.subagents()] if run is not None and run.open and self._wants_previews else []

    def subagents(self) -> list[Voice]:
        """Returns the subagents whose previews are shown."""
        shown = self._subgraphs.shows_previews and not self.ended
        return [Voice(subagent.id) for subagent in self._moments.subagents] if shown else []

    def behind(self, item: Item) -> str | None:
        """Returns the subagent that `learn` needs before the item is fed, or None."""
        return None if self.ended else self._moments.needs(item)

    def learn(self, subagent: str, messages: Sequence[Message]) -> None:
        """Takes the messages of a subagent's own log, as it is by now."""
        self._moments.learn(subagent, messages)

    def place(self, seq: int, slot: int) -> str:
        """The id of a frame of a fact."""
        reader = self._moments.reader(self.run_id)
        return str(Cursor(seq, reader.offset, slot, reader.tag if reader.offset else "", self._places()))

    def _places(self) -> tuple[Place, ...]:
        """Returns the positions in the messages of subagents."""
        readers = [subagent.reader for subagent in self._moments.subagents]
        begun = [(reader.tag, reader.offset) for reader in readers if reader.offset]
        return tuple(sorted([*begun, *self._moments.positions.items()]))

    def fact(self, record: Record) -> list[Frame]:
        """The frames of a fact, those of the text that was still missing first; then of previews that waited for it."""
        return [*self.advance(record), *self.flush()]

    def flush(self) -> list[Frame]:
        """The frames of previews that came before the facts they follow."""
        waiting = self._moments.waiting() if not self.ended else ()
        return [frame for moment in waiting for frame in self._print(moment, self._seq, self.state)]

    def advance(self, record: Record) -> list[Frame]:
        """The frames of a fact, without previews that waited for it."""
        if self.ended:
            return []
        before = self._folding.apply(record)
        previous, self._seq = self._seq, record.seq
        frames: list[Frame] = []
        resumes = record.seq == self._after.seq
        if resumes:
            self._resume(record)
        if record.run == self.run_id:
            frames = self._of_run(record, before, previous)
        elif isinstance(record.event, ThreadErased):
            self.ended = True
            frames = self._framed(record.seq, [(Slot.END, "end", b"null")])
        elif self.running and (_is_outside(record) or isinstance(record.event, ThreadTitled)):
            frames = self._frames_of(record, before)
        if resumes:
            self._resume(record)
        return frames

    def titled(self, record: Record) -> list[Frame]:
        """Returns the frames of a title that came after the run's end. They have no ids: they belong to no run, and a
        client that resumes goes on at its end.
        """
        before = self._folding.apply(record)
        return [frame._replace(id="") for frame in self._frames_of(record, before)]

    def run_preview(self, item: RunPreview) -> list[Frame]:
        """Returns the frames of a preview. Of a tool's stored progress, only what a client that does not resume has
        missed.
        """
        preview = item.preview
        if item.run != self.run_id:
            return [] if item.stored and isinstance(preview, Progress) else self._of_subagent(item.run, preview)
        if item.stored and isinstance(preview, Progress) and (self._after.seq or not self.is_open(preview.call_id)):
            return []
        return self.preview(preview)

    def preview(self, preview: Preview | Progress) -> list[Frame]:
        """The frames of what is new in a preview; [] if nothing is, or if something before it is missing."""
        if self.ended:
            return []
        if isinstance(preview, Progress):
            return [Frame(event, data) for event, data in self.modes.progress(preview)] if self.running else []
        moments = self._moments.preview(self.run_id, preview) if self.modes.shows_text else ()
        return [frame for moment in moments for frame in self._print(moment, self._seq, self.state)]

    def _of_subagent(self, run_id: str, preview: Preview | Progress) -> list[Frame]:
        if self.ended or (subagent := self._moments.subagent(run_id)) is None:
            return []
        if isinstance(preview, Progress):
            return [Frame(event, data) for event, data in self._subgraphs.progress(subagent, preview)]
        moments = self._moments.preview(run_id, preview) if self._subgraphs.shows_text else ()
        return [frame for moment in moments for frame in self._print(moment, self._seq, self.state)]

    def _print(self, moment: Moment, seq: int, state: ThreadState | Before) -> list[Frame]:
        """Returns the frames of a moment. `seq`: the newest fact before it. `state`: what the answer is made on."""
        match moment:
            case Previewed(preview, begins):
                if begins:
                    self.modes.opened()
                self.modes.overheard(preview)
            case Grown(self.run_id, message, piece, end):
                return self._delta(message, piece, end, seq, state)
            case Grown(speaker) if (subagent := self._moments.subagent(speaker)) is not None:
                return [Frame(*sent, self.place(seq, 0)) for sent in self._subgraphs.grown(subagent, moment)]
            case Results():
                return [Frame(event, data) for event, data in self._subgraphs.results(moment)]
            case GivenUp(speaker, reader) if speaker != self.run_id:
                self._moments.positions[reader.tag] = reader.offset
        return []

    def _resume(self, record: Record) -> None:
        """Go on where the client was. A place in a message that is finished is none, whoever made it up."""
        after = self._after
        finished = after.slot and isinstance(record.event, (*_TURNS, RunEnded))
        if not after.offset or finished or any(tag(message) == after.message for message in self.state.places):
            after = Cursor(after.seq)
        self._moments.resume(self.run_id, after.offset, after.message, self._after.inner)
        self.modes.announced = after.offset > 0

    def _of_run(self, record: Record, before: Before, previous: int) -> list[Frame]:
        event = record.event
        frames: list[Frame] = []
        inner: list[Emit] = []
        void = False
        if isinstance(event, RunRequested):
            self._moments.with_subagents = event.subgraphs
            return self._framed(record.seq, [self._metadata(record, 1)])
        for moment in self._moments.fact(record):
            shown = self._print(moment, previous, before)
            frames += shown if record.seq > self._after.seq else []
            void = void or (isinstance(moment, GivenUp) and moment.speaker == self.run_id)
            if isinstance(moment, Finished) and (subagent := self._moments.subagent(moment.speaker)) is not None:
                inner += self._subgraphs.finished(subagent, moment.event.message)
        if isinstance(event, SubagentStarted) and (subagent := self._moments.subagent(event.subagent)) is not None:
            inner += self._subgraphs.values(subagent)
        if isinstance(event, RunStarted) and before.runs[self.run_id].attempt:
            frames += self._framed(record.seq, [self._metadata(record, event.attempt)])
        frames += self._frames_of(record, before, inner, void=void)
        if isinstance(event, _TURNS):
            self.modes.opened()
        if isinstance(event, RunEnded):
            self.ended = True
        return frames

    def _metadata(self, record: Record, attempt: int) -> Emit:
        data = {"run_id": self.run_id, "thread_id": record.aggregate.id, "attempt": attempt}
        return Slot.METADATA, "metadata", dumps.encode(data)

    def _delta(self, message: str, piece: Piece, end: int, seq: int, state: ThreadState | Before) -> list[Frame]:
        frames = [Frame(event, data) for event, data in self.modes.delta(message, piece, end, state)]
        if frames:
            frames[-1] = frames[-1]._replace(id=str(Cursor(seq, end, 0, tag(message), self._places())))
        return frames

    def _frames_of(
        self, record: Record, before: Before, inner: Sequence[Emit] = (), *, void: bool = False
    ) -> list[Frame]:
        quiet = record.seq < self._after.seq
        emits = self.modes.fact(record, before, self.state, quiet=quiet, void=void)
        if inner:
            emits = sorted([*emits, *inner], key=lambda emit: emit[0]) if not quiet else []
        return self._framed(record.seq, emits)

    def _framed(self, seq: int, emits: Iterable[Emit]) -> list[Frame]:
        return [
            Frame(event, data, self._place_of(seq, slot))
            for slot, event, data in emits
            if self._after.is_before(seq, slot)
        ]

    def _place_of(self, seq: int, slot: int) -> str:
        return "" if slot == Slot.METADATA and self._places() else self.place(seq, slot)


def _is_outside(record: Record) -> bool:
    return record.run is None and isinstance(record.event, _OUTSIDE)
