"""A thread's facts and previews as moments of a conversation. Pure: no clock, no I/O, nothing but what went in before.

Vocabulary, in the order in which it comes for one answer:

* `Missed`: previews before this one are missing; those that are stored may help.
* `Previewed`: a preview of the answer that is being made, also if all of its text is known.
* `Results`: of a subagent only, what its log has between its answer before and this one (results of tools, messages).
* `Grown`: the next characters of the answer, from a preview or, what previews did not bring, from the finished message.
* `GivenUp`: the answer is not going to be finished; another one may take its place.
* `Finished`: the answer is a fact.

A speaker is a run, by its id, or a subagent at work, by its own. A subagent's answers are facts of the thread; what
lies between them is in its own log, which somebody has to read first: `needs` and `learn`. What else happens in a
conversation (a run begins, pauses with questions, ends; a tool begins and ends) is one fact each, and needs no moment.

Whatever happens to previews, the texts of `Grown` are each answer, exactly and once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

from core.events import (
    Message,
    ModelCompleted,
    ModelFailed,
    Record,
    RunStarted,
    SubagentCompleted,
    SubagentProgressed,
    SubagentStarted,
)
from core.lifecycle import RunEnded
from core.runs.previews import Ahead, Piece, Preview, Reader, RunPreview, line_of, rest_of, tag
from core.thread.entries import Delegation
from core.thread.fold import Folding


class Voice(NamedTuple):
    """The run of a subagent, whose previews are followed (`core.runs.follow.Speaker`). It has the subagent's id."""

    id: str
    status: str = "running"


class Missed(NamedTuple):
    message: str


class Previewed(NamedTuple):
    """`begins`: the first of an answer of which nothing is known."""

    preview: Preview
    begins: bool


class Results(NamedTuple):
    """`messages`: none is an answer. `offset`: the characters of the answer after them that a reader has already."""

    speaker: Subagent
    messages: Sequence[Message]
    offset: int


class Grown(NamedTuple):
    """`end`: the offset after the piece in the message's line."""

    speaker: str
    message: str
    piece: Piece
    end: int


class GivenUp(NamedTuple):
    """`reader`: where it was; its message is None if nothing but the beginning is known, from where it was resumed."""

    speaker: str
    reader: Reader


class Finished(NamedTuple):
    speaker: str
    event: ModelCompleted | SubagentProgressed


Moment = Missed | Previewed | Results | Grown | GivenUp | Finished


@dataclass(slots=True)
class Subagent:
    """A subagent at work."""

    id: str
    call_id: str
    name: str
    messages: list[Message]
    """Its conversation, up to its newest finished answer and what follows that."""
    reported: int | None = None
    """Answers that were facts before it was followed, until its log is known."""
    reader: Reader = field(default_factory=Reader)
    after: int = 0
    """The fact of its own log after which the message that is being made began."""
    ahead: Ahead[Preview] = field(default_factory=Ahead)
    log: Sequence[Message] = ()
    """The messages of its own log, as far as they were read."""

    def knows(self, message: str) -> bool:
        """Tells if a message is being made, or finished."""
        return self.reader.message == message or self.has_finished(message)

    def has_finished(self, message: str) -> bool:
        return any(known.get("id") == message for known in self.messages)

    def learn(self, log: Sequence[Message]) -> None:
        """Takes the messages of its own log."""
        self.log = log
        if self.reported is not None:
            answers = [place for place, message in enumerate(log, 1) if message.get("type") == "ai"]
            self.messages = list(
                log[: answers[min(self.reported, len(answers)) - 1] if self.reported and answers else 0]
            )
            self.reported = None

    def take_results(self) -> list[Message]:
        """Takes over what follows the newest known message in its log, up to the next answer."""
        newest = self.messages[-1].get("id") if self.messages else None
        after = (n for n, message in enumerate(self.log, 1) if message.get("id") == newest)
        rest = self.log[next(after, len(self.log)) if self.messages else 0 :]
        results = list(takewhile(lambda message: message.get("type") != "ai", rest))
        self.messages += results
        return results


class Moments:
    """Translates one thread. `folding`: of the thread; each fact is applied to it before it is fed. `with_subagents`:
    whether their answers are followed, too.
    """

    def __init__(self, folding: Folding, *, with_subagents: bool = True) -> None:
        self.with_subagents = with_subagents
        self.positions: dict[str, int] = {}
        """Offsets from which messages of subagents are read that are not open, by tag: a client has what is before."""
        self._folding = folding
        self._readers: dict[str, Reader] = {}
        self._ahead: Ahead[RunPreview] = Ahead()
        run = folding.state.active
        parts = run.subagents.items() if run and with_subagents else ()
        self._subagents = {part.call_id: _followed(name, part) for name, part in parts if not part.ended}
        """By call."""

    def reader(self, run: str) -> Reader:
        """Returns the reader of the answer that a run is making."""
        return self._readers.setdefault(run, Reader())

    @property
    def subagents(self) -> Iterable[Subagent]:
        """The subagents at work."""
        return self._subagents.values()

    def subagent(self, identity: str) -> Subagent | None:
        """Returns a subagent at work by its own id."""
        return next((known for known in self.subagents if known.id == identity), None)

    def resume(self, run: str, offset: int, message_tag: str, positions: Iterable[tuple[str, int]]) -> None:
        """Goes on where a client was: in the answer of a run, and in those of its subagents."""
        self._readers[run] = Reader(None, offset, message_tag)
        self.positions = dict(positions)
        for subagent in self.subagents:
            subagent.reader = Reader()

    def needs(self, item: object) -> str | None:
        """Returns the subagent that `learn` needs before the item is fed, or None."""
        event = item.event if isinstance(item, Record) else None
        if isinstance(item, RunPreview) and isinstance(item.preview, Preview):
            subagent, message = self.subagent(item.run), item.preview.message
        elif isinstance(event, SubagentProgressed):
            subagent, message = self._subagents.get(event.call_id), str(event.message.get("id"))
        else:
            return None
        return None if subagent is None or subagent.knows(message) else subagent.id

    def learn(self, subagent: str, messages: Sequence[Message]) -> None:
        """Takes the messages of a subagent's own log, as it is by now."""
        if (known := self.subagent(subagent)) is not None:
            known.learn(messages)

    # ── previews ────────────────────────────────────────────────────────────────────────────────────────────────────

    def preview(self, run_id: str, preview: Preview) -> Iterator[Moment]:
        """Yields the moments of a preview of a run, or of a subagent."""
        state = self._folding.state
        run = state.runs.get(run_id)
        if run is None and (subagent := self.subagent(run_id)) is not None:
            yield from self._of_subagent(subagent, preview)
        elif preview.after > state.seq:
            self._ahead.put(RunPreview(run_id, preview))
        elif run is not None and run.awaits(preview.after):
            yield from self._of_run(run_id, preview)

    def waiting(self) -> Iterator[Moment]:
        """Yields the moments of previews that came before the facts they follow. For after each fact."""
        for item in self._ahead.take():
            if isinstance(item.preview, Preview):
                yield from self.preview(item.run, item.preview)
        for subagent, preview in [(known, preview) for known in self.subagents for preview in known.ahead.take()]:
            yield from self._of_subagent(subagent, preview)

    def _of_run(self, run: str, preview: Preview) -> Iterator[Moment]:
        reader = self.reader(run)
        if reader.message not in (None, preview.message):
            return
        known = reader.position(preview.message)
        if preview.offset > known:
            yield Missed(preview.message)
            return
        yield Previewed(preview, reader.message is None and not known)
        yield from _grown(run, reader, preview)

    def _of_subagent(self, subagent: Subagent, preview: Preview) -> Iterator[Moment]:
        if subagent.has_finished(preview.message):
            return
        if subagent.reader.message not in (None, preview.message):
            if preview.after > subagent.after:
                subagent.ahead.put(preview)  # the open message comes first, in full; or it was given up: a fact says so
            return
        yield from self._open(subagent, preview.message)
        subagent.after = preview.after
        yield from _grown(subagent.id, subagent.reader, preview)

    # ── facts ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def fact(self, record: Record) -> Iterator[Moment]:
        """Yields the moments of a fact of a run; `waiting` has those that come after it."""
        run = record.run or ""
        match record.event:
            case ModelCompleted() as event:
                yield from self._finish(run, event)
            case RunStarted() | ModelFailed():
                yield from self._give_up(run)
            case SubagentStarted() as event if self.with_subagents:
                prompt = {"type": "human", "id": f"human-{event.subagent}", "content": event.prompt}
                self._subagents[event.call_id] = Subagent(event.subagent, event.call_id, event.name, [prompt])
            case SubagentProgressed() as event if (subagent := self._subagents.get(event.call_id)) is not None:
                yield from self._progress(subagent, event)
            case SubagentCompleted() as event:
                self._subagents.pop(event.call_id, None)
                self.positions = self.positions if self._subagents else {}
            case event if isinstance(event, RunEnded):
                yield from self._give_up(run)
                if self._folding.state.active is None:
                    self._subagents = {}

    def _finish(self, run: str, event: ModelCompleted) -> Iterator[Moment]:
        message, reader = str(event.message.get("id")), self.reader(run)
        position = reader.position(message)
        if reader.message not in (None, message):
            yield GivenUp(run, reader)
        for end, piece in rest_of(line_of(event.message, event.call_texts, event.order), position):
            yield Grown(run, message, piece, end)
        self._readers.pop(run, None)
        yield Finished(run, event)

    def _give_up(self, run: str) -> Iterator[Moment]:
        reader = self._readers.pop(run, None)
        if reader is not None and reader.offset:
            yield GivenUp(run, reader)

    def _progress(self, subagent: Subagent, event: SubagentProgressed) -> Iterator[Moment]:
        message = str(event.message.get("id"))
        if subagent.has_finished(message):
            return
        if subagent.reader.message not in (None, message):
            yield GivenUp(subagent.id, subagent.reader)
            subagent.reader = Reader()
        yield from self._open(subagent, message)
        for end, piece in rest_of(line_of(event.message, {}), subagent.reader.offset):
            subagent.reader.offset = end
            yield Grown(subagent.id, message, piece, end)
        subagent.take_results()
        subagent.messages.append(event.message)
        subagent.reader = Reader()
        self.positions.pop(tag(message), None)
        yield Finished(subagent.id, event)

    def _open(self, subagent: Subagent, message: str) -> Iterator[Moment]:
        """Begins to read a message, from where a client has it."""
        if subagent.reader.message is None:
            subagent.reader = Reader(message, self.positions.pop(tag(message), 0))
            yield Results(subagent, subagent.take_results(), subagent.reader.offset)


def _followed(subagent: str, part: Delegation) -> Subagent:
    return Subagent(subagent, part.call_id, part.name, [], reported=part.messages)


def _grown(speaker: str, reader: Reader, preview: Preview) -> Iterator[Moment]:
    new = reader.take(preview)
    if new is not None:
        piece = Piece(new.part, new.text, new.index, new.call_id, new.name)
        yield Grown(speaker, preview.message, piece, reader.offset)
