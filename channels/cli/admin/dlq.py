"""`sika dlq`: lists and retries wake-ups that could not be processed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncIterator, Collection
from typing import NamedTuple

import msgspec

from channels.cli.common import FAILED, OK, count, options_of
from channels.cli.verbs import Parser
from channels.terminal.text import one_line
from core.bus import streams
from core.bus.connection import Bus
from core.bus.queue import Hint, WorkQueue
from core.events import Aggregate
from core.ids import uuid7


def arguments(parser: Parser) -> None:
    add = parser.below()
    add("list", _dlq_list, "the letters and their reasons")
    again = add("redrive", _dlq_redrive, "wake their actors again, and delete the letters")
    again.add_argument("letters", nargs="*", type=count, metavar="SEQ", help="only these (default: all)")


async def _dlq_list(arguments: argparse.Namespace) -> int:
    from actors.wiring import compose

    total = 0
    async with compose.attach(options_of(arguments)) as system:
        async for letter in letters(system.bus):
            total += 1
            print(letter.line())
    print(f"{total} dead letters" if total else "no dead letters", file=sys.stderr)
    return OK


async def _dlq_redrive(arguments: argparse.Namespace) -> int:
    from actors.wiring import compose

    async with compose.attach(options_of(arguments)) as system:
        sent = await redrive(system.bus, system.queue, arguments.letters)
    for letter in sent:
        print(letter.line())
    print(f"{len(sent)} sent again", file=sys.stderr)
    return FAILED if set(arguments.letters) - {letter.seq for letter in sent} else OK


class Body(msgspec.Struct):
    """The body of a dead letter, as `WorkQueue.bury` writes it."""

    reason: str = ""
    at: str = ""
    hint: Hint = Hint()


class Letter(NamedTuple):
    """A dead letter."""

    seq: int
    actor: str
    aggregate: Aggregate
    body: Body

    def line(self) -> str:
        what = f"{self.actor} on {self.aggregate}" + (f" ({self.body.hint.type})" if self.body.hint.type else "")
        when = self.body.at[:19].replace("T", " ")
        return f"{self.seq:>5}  {when}  {one_line(what, 90)}: {one_line(self.body.reason, 160)}"


async def letters(bus: Bus) -> AsyncIterator[Letter]:
    """Yields the dead letters, oldest first."""
    async for message in streams.messages(bus, "dlq", ">"):
        yield _letter(bus, message)


async def redrive(bus: Bus, queue: WorkQueue, selected: Collection[int] = ()) -> list[Letter]:
    """Wakes the actors again (`selected`: only these letters), and deletes the letters. After a crash in between they
    are woken twice.
    """
    sent = []
    async for letter in letters(bus):
        if (selected and letter.seq not in selected) or letter.aggregate.kind == "unreadable":
            continue  # there is no actor for what cannot be read
        hint = msgspec.structs.replace(letter.body.hint, again=True)
        await queue.wake(letter.actor, letter.aggregate, hint, key=f"redrive-{uuid7()}")
        await streams.delete(bus, "dlq", letter.seq)
        sent.append(letter)
    return sent


def _letter(bus: Bus, message: streams.Stored) -> Letter:
    try:
        actor, aggregate = bus.names.target(message.subject)
    except ValueError:
        actor, aggregate = "?", Aggregate("unreadable", message.subject)
    try:
        body = msgspec.json.decode(message.data, type=Body)
    except msgspec.DecodeError:
        body = Body(reason=message.data.decode(errors="replace"))
    return Letter(message.seq, actor, aggregate, body)
