"""Dead letters: what could not be processed, with the reason; sent again or discarded by an operator.

A letter lies in its stream until somebody decides about it. A decision is an event of the installation with who made
it, recorded before it is carried out: after a crash in between the letter is still there, and is decided on once more.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from core.bus import streams
from core.bus.connection import Bus
from core.bus.queue import Hint, WorkQueue
from core.config.redaction import redactor
from core.errors import Conflict
from core.events import Aggregate, Event
from core.ids import uuid7
from core.log.store import EventLog
from core.phrases import Phrase

KIND = "letters"
DECISIONS = Aggregate(KIND, "decisions")
UNREADABLE = "unreadable"
"""The kind of the aggregate of a message that no actor can be woken for."""
CONTENT_CHARACTERS = 4000


class LetterRedriven(Event, frozen=True):
    """Somebody had the actor of a dead letter woken again."""

    phrase = Phrase(
        "Dead letter sent again",
        "死信已重新发送",
        "{letter} of {wakes} on {about}, by {by}",
        "{wakes} 的 {letter}，关于 {about}，{by}",
    )
    letter: int
    wakes: str
    """The actor that the letter wakes."""
    about: str
    """The aggregate, as `kind/id`."""
    by: str


class LetterDiscarded(Event, frozen=True):
    """Somebody deleted a dead letter. Nothing is done about what it says."""

    phrase = Phrase(
        "Dead letter discarded",
        "死信已丢弃",
        "{letter} of {wakes} on {about}, by {by}",
        "{wakes} 的 {letter}，关于 {about}，{by}",
    )
    letter: int
    wakes: str
    """The actor that the letter wakes."""
    about: str
    """The aggregate, as `kind/id`."""
    by: str


class Body(msgspec.Struct):
    """The body of a dead letter, as `WorkQueue` writes it."""

    reason: str = ""
    at: str = ""
    hint: Hint = Hint()
    subject: str = ""
    body: str = ""
    """The beginning of an unreadable message, base64."""
    shown: str = ""
    """A message of the log that is no event."""


class Letter(NamedTuple):
    """A dead letter."""

    seq: int
    actor: str
    aggregate: Aggregate
    body: Body

    @property
    def readable(self) -> bool:
        """True if there is an actor to wake."""
        return self.aggregate.kind != UNREADABLE

    @property
    def content(self) -> str:
        """What could not be processed, as far as it was kept; without secrets. Empty for a wake-up: it has no body."""
        with suppress(ValueError):  # of an actor in another language, which wrote no base64
            body = base64.b64decode(self.body.body)
            return redactor.text(self.body.shown or body.decode(errors="replace"))[:CONTENT_CHARACTERS]
        return ""


async def letters(bus: Bus, after: int = 0) -> AsyncIterator[Letter]:
    """Yields the dead letters after a sequence, oldest first. Raises `Unavailable`."""
    async for message in streams.messages(bus, "dlq", ">", after=after):
        yield _letter(bus, message)


async def selected(bus: Bus, seqs: Iterable[int]) -> list[Letter]:
    """Returns these dead letters, without those that are gone. Raises `Unavailable`."""
    stored = [await streams.find(bus, "dlq", {"seq": seq}) for seq in sorted(set(seqs))]
    return [_letter(bus, message) for message in stored if message is not None]


async def redrive(
    log: EventLog, queue: WorkQueue, chosen: Collection[int] = (), *, by: str, actor: str
) -> list[Letter]:
    """Wakes the actors of the letters again (`chosen`: only these), and deletes the letters. Returns those that were
    sent. After a crash in between they are woken twice. Raises `Unavailable`.
    """
    sent = [letter for letter in await _chosen(log.bus, chosen) if letter.readable]
    await _record(log, [_decided(LetterRedriven, letter, by) for letter in sent], actor)
    for letter in sent:
        hint = msgspec.structs.replace(letter.body.hint, again=True)
        await queue.wake(letter.actor, letter.aggregate, hint, key=f"redrive-{uuid7()}")
        await streams.delete(log.bus, "dlq", letter.seq)
    return sent


async def discard(log: EventLog, chosen: Collection[int], *, by: str, actor: str) -> list[Letter]:
    """Erases these letters. Returns those that there were. Raises `Unavailable`."""
    gone = await selected(log.bus, chosen)
    await _record(log, [_decided(LetterDiscarded, letter, by) for letter in gone], actor)
    for letter in gone:
        await streams.erase(log.bus, "dlq", letter.seq)
    return gone


async def _chosen(bus: Bus, chosen: Collection[int]) -> list[Letter]:
    return await selected(bus, chosen) if chosen else [letter async for letter in letters(bus)]


def _decided(kind: type[LetterRedriven | LetterDiscarded], letter: Letter, by: str) -> Event:
    return kind(letter=letter.seq, wakes=letter.actor, about=str(letter.aggregate), by=by)


async def _record(log: EventLog, events: Sequence[Event], actor: str) -> None:
    """Appends decisions. They are read by people only, so nothing is folded."""
    while events:
        try:
            await log.append(DECISIONS, events, expected=await log.tip(DECISIONS), actor=actor)
            return
        except Conflict:  # of another operator
            continue


def _letter(bus: Bus, message: streams.Stored) -> Letter:
    try:
        actor, aggregate = bus.names.target(message.subject)
    except ValueError:
        actor, aggregate = "?", Aggregate(UNREADABLE, message.subject)
    try:
        body = msgspec.json.decode(message.data, type=Body)
    except msgspec.DecodeError:
        body = Body(reason=message.data.decode(errors="replace"))
    return Letter(message.seq, actor, aggregate, body)
