"""Actors that kill their process at random points between an effect and its acknowledgement."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import msgspec

from core.actor import Actor, Context
from core.events import Event, ThreadAnnotated

CHANCE = 0.1
DEATHS = 6
"""Limit of deaths: a server that starts takes as long as its machine takes."""


class NumbersAdded(Event, frozen=True):
    """The sum of a thread's numbers so far, and how many there were."""

    total: int
    count: int


class Sum(msgspec.Struct, frozen=True):
    total: int = 0
    count: int = 0


class Steps(Actor[ThreadAnnotated]):
    """Writes each number of a thread into the ledger, in their order."""

    name = "steps"
    ordered = True

    async def handle(self, event: ThreadAnnotated, ctx: Context) -> None:
        line = f"{ctx.record.aggregate.id} {event.metadata['n']}\n"
        first = _write(line) == 1
        _perhaps_die(certainly=first and line == "t1 2\n")


class Sums(Actor[ThreadAnnotated]):
    """Adds the numbers of a thread, in any order."""

    name = "sums"
    initial = Sum()

    @staticmethod
    def apply(state: Sum, event: Event) -> Sum:
        return Sum(event.total, event.count) if isinstance(event, NumbersAdded) else state

    async def handle(self, event: ThreadAnnotated, ctx: Context) -> None:
        _perhaps_die()
        await ctx.update(lambda state: [NumbersAdded(state.total + event.metadata["n"], state.count + 1)])
        _perhaps_die()


def _write(line: str) -> int:
    """Returns how often the line is in the ledger now."""
    path = Path(os.environ["SIKA_TEST_LEDGER"])
    with path.open("a") as ledger:
        ledger.write(line)
    return path.read_text().count(line)


def _perhaps_die(*, certainly: bool = False) -> None:
    if not certainly and random.random() >= CHANCE:
        return
    with Path(os.environ["SIKA_TEST_LEDGER"]).with_suffix(".deaths").open("a+b") as deaths:
        deaths.write(b".")
        if deaths.tell() <= DEATHS:
            deaths.flush()
            os.kill(os.getpid(), signal.SIGKILL)
