"""People of a chat platform talk to the bot while sockets drop, calls fail, and processes are killed.

`python -m tests.chaos.chats --platform slack --people 200 --turns 5 --kills 60` prints the tally; `test_chats.py` has
small ones.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from core.bus import embedded
from core.bus.connection import Endpoint
from core.chat.facts import ChatReceived, DeliveryFailed, DeliveryPlanned
from core.errors import SikaError
from core.runtime import system
from core.runtime.system import System
from tests.bench.measure import family
from tests.chaos.towns import TOWNS, Town
from tests.e2e.servers import Server, serving
from tests.support.model_server import ModelServer, Turn
from tests.support.workers import configure, wait_for

AT_ONCE = 40
"""People who wait for an answer at the same time."""
LEASE_SECONDS = 6.0
ANSWER_SECONDS = 240.0
"""Time for one answer, however many processes die meanwhile."""
PAUSES, DISTURBANCES = (3.0, 10.0), (0.2, 1.5)
"""Seconds between kills, and between faults of the platform."""
TWICE, FILES, COMMANDS = 0.2, 0.1, 0.15
"""Parts of the messages that are followed by another at once, that are files, and that are commands."""
_QUESTION = re.compile(r"question (\d+)-(\d+)")
_WORDS = "the quick brown fox jumps over a lazy dog while seven wizards brew "


class Tally(msgspec.Struct):
    """Figures, then faults: all of these must be 0."""

    messages: int = 0
    kills: dict[str, int] = {}
    uncertain: int = 0
    """Deliveries of unknown fate, which the log says."""
    connections: int = 0

    unanswered: int = 0
    answered_twice: int = 0
    out_of_order: int = 0
    garbled: int = 0
    problems: int = 0
    wake_ups_left: int = 0
    dead_letters: int = 0
    stories: list[str] = []

    def faults(self) -> int:
        return sum(
            getattr(self, name) for name in self.__struct_fields__[self.__struct_fields__.index("unanswered") : -1]
        )

    def report(self) -> str:
        lines = [f"{name.replace('_', ' '):<20} {getattr(self, name)}" for name in self.__struct_fields__[:-1]]
        return "\n".join([*lines, *self.stories[:40]])


class Question(NamedTuple):
    person: int
    turn: int
    kind: str

    @property
    def text(self) -> str:
        return f"question {self.person}-{self.turn}"


def answer(person: str, turn: str) -> str:
    return f"answer {person}-{turn}: {_WORDS * (1 + int(turn) % 4)}that was {person}-{turn}."


def answering(messages: Sequence[dict[str, Any]]) -> Turn:
    """Answers the last question of a conversation."""
    numbers = [found.groups() for message in messages for found in _QUESTION.finditer(str(message.get("content")))]
    return Turn(text=answer(*numbers[-1]) if numbers else "I have read it.", delay_ms=4)


class Fates:
    """What the log says: the order of the messages, and deliveries that ended without having arrived for certain."""

    def __init__(self, running: System) -> None:
        self._running, self._seq = running, 0
        self._texts: dict[str, str] = {}
        self.failed: dict[str, DeliveryFailed] = {}
        """By plan."""
        self.received: dict[str, int] = {}
        """Sequences of messages, by text: a platform delivers what was not acknowledged after what came later."""

    async def look(self) -> None:
        """Reads the log on."""
        last = await self._running.log.last()
        async for record in self._running.log.between(self._seq, last):
            event = record.event
            if isinstance(event, ChatReceived):
                self.received.setdefault(event.text, record.seq)
            elif isinstance(event, DeliveryPlanned):
                self._texts[event.plan] = event.text
            elif isinstance(event, DeliveryFailed):
                self.failed[event.plan] = event
        self._seq = last

    def uncertain(self, text: str) -> bool:
        """Tells whether the delivery of a text ended with an unknown fate."""
        return any(text in self._texts.get(plan, "") and e.fate == "unknown" for plan, e in self.failed.items())


class Talk:
    """One person's conversation."""

    def __init__(self, town: Town, fates: Fates, person: int, dice: random.Random) -> None:
        self._town, self._fates, self.person, self._dice = town, fates, person, dice
        self.asked: list[Question] = []

    async def go(self, turns: int) -> None:
        waits = False
        for turn in range(turns):
            kind = self._kind()
            question = Question(self.person, turn, kind)
            if kind == "file":
                await self._town.send(self.person, f"{question.text}.txt", b"a file")
            else:
                await self._town.say(self.person, "/status" if kind == "command" else question.text)
            self.asked.append(question)
            waits = self._dice.random() >= TWICE
            if waits:
                await self.answered()
        if not waits:
            await self.answered()

    async def answered(self) -> None:
        """Waits until all questions are answered, or will not be any more."""

        async def done() -> bool:
            return self.lacking() == 0

        with suppress(TimeoutError):
            await wait_for(done, ANSWER_SECONDS, every=0.1)

    def lacking(self) -> int:
        texts = self._town.answers(self.person)
        ends = [f"that was {self.person}-{question.turn}." for question in self._questions()]
        return sum(not any(end in text for text in texts) and not self._fates.uncertain(end) for end in ends)

    def _questions(self) -> list[Question]:
        return [question for question in self.asked if question.kind == "text"]

    def _kind(self) -> str:
        number = self._dice.random()
        return "file" if number < FILES else "command" if number < FILES + COMMANDS else "text"

    def judge(self, tally: Tally) -> None:
        texts = self._town.answers(self.person)
        order = list[tuple[int, int]]()
        for question in self._questions():
            begin = f"answer {self.person}-{question.turn}: "
            there = [number for number, text in enumerate(texts) if begin in text]
            if not there and self._fates.uncertain(begin):
                continue
            if not there:
                tally.unanswered += 1
                tally.stories.append(f"unanswered: {question}; seen: {texts}")
                continue
            if len(there) > 1:
                tally.answered_twice += 1
                tally.stories.append(f"twice: {question}: {[texts[number] for number in there]}")
            if answer(str(self.person), str(question.turn)) not in " ".join(texts[there[0]].split()):
                tally.garbled += 1
                tally.stories.append(f"garbled: {question}: {texts[there[0]]!r}")
            order.append((self._fates.received.get(question.text, 0), there[0]))
        places = [place for _, place in sorted(order)]
        tally.out_of_order += sum(a > b for a, b in pairwise(places))
        if places != sorted(places):
            tally.stories.append(f"out of order: {order}: {texts}")


class Reaper:
    """Kills the account's process, the server and nats-server, and brings back what nobody else does."""

    def __init__(self, server: Server, nats: embedded.Server, dice: random.Random, tally: Tally) -> None:
        self._server, self._nats, self._dice, self._tally = server, nats, dice, tally

    async def reap(self, kills: int) -> None:
        for _ in range(kills):
            await asyncio.sleep(self._dice.uniform(*PAUSES))
            what = self._dice.choices(("account", "server", "nats"), (6, 3, 1))[0]
            match what:
                case "account":
                    for pid in self._accounts():
                        with suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                case "server":
                    await self._server.kill()
                    await self._server.start()
                case "nats":
                    os.kill(self._nats.pid, signal.SIGKILL)
            self._tally.kills[what] = self._tally.kills.get(what, 0) + 1

    def _accounts(self) -> list[int]:
        """Returns the processes of accounts."""
        return [pid for pid in family(self._server.process.pid) if "channel" in command_of(pid)]


def command_of(pid: int) -> list[str]:
    """Returns the command line of a process; empty if there is none."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


@asynccontextmanager
async def place(path: Path, town: Town) -> AsyncIterator[tuple[Server, embedded.Server, System]]:
    async with (
        ModelServer({"m": answering}, record=False) as models,
        town.server,
        embedded.start(path / "nats") as nats,
        asyncio.TaskGroup() as tasks,
    ):
        keeping = tasks.create_task(nats.keep())
        sections: dict[str, Any] = {
            "runs": {"lease_seconds": LEASE_SECONDS},
            "nats": {"url": nats.url, "token": nats.token},
            "channels": {town.name: {"enabled": True, **town.settings()}},
        }
        config = configure(path / "config.yaml", models, **sections)
        async with (
            serving(path / "home", config) as server,
            system.start(
                Endpoint(nats.url, token=nats.token), path / "views.db", lease_seconds=LEASE_SECONDS, slots=1
            ) as running,
        ):
            yield server, nats, running
        keeping.cancel()


async def storm(
    path: Path, town: Town, people: int, turns: int, kills: int, seed: int, *, watch: bool = False
) -> Tally:
    """`watch`: print the progress."""
    dice, tally = random.Random(seed), Tally()
    async with place(path, town) as (server, nats, running):
        fates, room = Fates(running), asyncio.Semaphore(AT_ONCE)
        talks = [Talk(town, fates, number, random.Random(dice.random())) for number in range(people)]

        async def one(talk: Talk) -> None:
            async with room:
                await talk.go(turns)

        async def disturb() -> None:
            while True:
                await asyncio.sleep(dice.uniform(*DISTURBANCES))
                town.disturb(dice)

        async def look() -> None:
            while True:
                with suppress(SikaError):
                    await fates.look()
                await asyncio.sleep(0.5)

        async def tell() -> None:
            while watch:
                await asyncio.sleep(15)
                lacking = {talk.person: talk.lacking() for talk in talks if talk.asked and talk.lacking()}
                asked = sum(len(talk.asked) for talk in talks)
                print(f"{asked} messages, unanswered by person: {lacking}, kills: {tally.kills}", file=sys.stderr)

        async with asyncio.TaskGroup() as tasks:
            telling = tasks.create_task(tell())
            looking = tasks.create_task(look())
            disturbing = tasks.create_task(disturb())
            reaping = tasks.create_task(Reaper(server, nats, dice, tally).reap(kills))
            await asyncio.wait([tasks.create_task(one(talk)) for talk in talks])
            disturbing.cancel()
            reaping.cancel()
            looking.cancel()
            telling.cancel()
        await _idle(running)
        await fates.look()
        for talk in talks:
            tally.messages += len(talk.asked)
            talk.judge(tally)
        tally.connections = town.connections()
        tally.problems = len(town.problems())
        tally.stories += town.problems()
        tally.wake_ups_left = await _left(running, "cmd")
        tally.dead_letters = await _left(running, "dlq")
        tally.uncertain = sum(event.fate == "unknown" for event in fates.failed.values())
        tally.stories += [str(event) for event in fates.failed.values() if event.fate != "unknown"]
    return tally


async def _idle(running: System) -> None:
    async def still() -> bool:
        return not await _left(running, "cmd")

    with suppress(TimeoutError):
        await wait_for(still, 60.0, every=0.5)


async def _left(running: System, plane: str) -> int:
    return int((await running.bus.api(f"STREAM.INFO.{running.bus.names.stream(plane)}"))["state"]["messages"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--platform", choices=TOWNS, required=True)
    parser.add_argument("--people", type=int, default=200)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=20261123)
    parser.add_argument("--folder", type=Path, help="an empty folder that is kept")
    options = parser.parse_args()
    begun = time.monotonic()
    with nullcontext(options.folder) if options.folder else tempfile.TemporaryDirectory() as folder:
        town = TOWNS[options.platform]()
        people, turns, kills = options.people, options.turns, options.kills
        tally = asyncio.run(storm(Path(folder), town, people, turns, kills, options.seed, watch=True))
    print(f"{options.platform}, {time.monotonic() - begun:.0f} s\n{tally.report()}")
    sys.exit(bool(tally.faults()))


if __name__ == "__main__":
    main()
