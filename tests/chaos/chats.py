"""People of a chat platform talk to the bot, alone and in groups, in pieces and in floods, while sockets drop, calls
fail, and processes are killed: each message is answered, once, in order, and with nobody else's memory.

`python -m tests.chaos.chats --platform slack` prints the tally; `test_chats.py` has small ones.
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
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from actors.chat.runs import QUEUED
from core.bus import embedded
from core.bus.endpoint import Endpoint
from core.chat import platforms
from core.chat.status import Status, request
from core.config.load import Config
from core.errors import SikaError
from core.runtime import system
from core.runtime.letters import letters
from core.runtime.system import System
from tests.bench.measure import family
from tests.chaos.people import APPROVED, Fates, Model, Talk, Tally
from tests.chaos.towns import TOWNS, Town
from tests.e2e.servers import Server, serving
from tests.support.model_server import ModelServer
from tests.support.workers import configure, wait_for

AT_ONCE = 40
"""People who wait for an answer at the same time."""
LEASE_SECONDS = 6.0
PAUSES, DISTURBANCES = (3.0, 10.0), (0.2, 1.5)
"""Seconds between kills, and between faults of the platform."""
STILL_SECONDS = 2.0
"""Time without a wake-up and without an event after which nothing is left to do."""
RECOVERED = 0.8
"""Part of the kills that come after the account is connected."""


class Reaper:
    """Kills the account's process, the server and nats-server, and brings back what nobody else does."""

    def __init__(
        self, town: Town, servers: Sequence[Server], nats: embedded.Server, dice: random.Random, tally: Tally
    ) -> None:
        self._town, self._servers, self._nats, self._dice, self._tally = town, servers, nats, dice, tally

    async def reap(self, kills: int, pauses: tuple[float, float]) -> None:
        """Kills, mostly when the account is connected again: else a slow machine would see nothing but starts."""

        async def connected() -> bool:
            return self._town.connected()

        for _ in range(kills):
            if self._dice.random() < RECOVERED:
                with suppress(TimeoutError):
                    await wait_for(connected, 60.0, every=0.1)
            await asyncio.sleep(self._dice.uniform(*pauses))
            what = self._dice.choices(("account", "server", "nats"), (6, 3, 1))[0]
            match what:
                case "account":
                    for pid in self._accounts():
                        with suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                case "server":
                    server = self._dice.choice(self._servers)
                    await server.kill()
                    await server.start()
                case "nats":
                    os.kill(self._nats.pid, signal.SIGKILL)
            self._tally.kills[what] = self._tally.kills.get(what, 0) + 1

    def _accounts(self) -> list[int]:
        """Returns the processes of accounts."""
        children = [pid for server in self._servers for pid in family(server.process.pid)]
        return [pid for pid in children if "channel" in command_of(pid)]


def command_of(pid: int) -> list[str]:
    """Returns the command line of a process; empty if there is none."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


@asynccontextmanager
async def place(
    path: Path, town: Town, servers: int = 1, model: Model | None = None, **account: Any
) -> AsyncIterator[tuple[list[Server], embedded.Server, System]]:
    """`account`: further settings of the account."""
    model = model or Model()
    async with (
        ModelServer({"m": model.answer, "mem": model.remember}, record=False) as models,
        town.server,
        embedded.start(path / "nats") as nats,
        asyncio.TaskGroup() as tasks,
    ):
        keeping = tasks.create_task(nats.keep())
        sections: dict[str, Any] = {
            "runs": {"lease_seconds": LEASE_SECONDS},
            "nats": {"url": nats.url, "token": nats.token},
            "approvals": [{"tool": APPROVED}],
            "memory": {"model_name": "mem", "debounce_seconds": 1},
            "channels": {town.name: {"enabled": True, **town.settings(), **account}},
        }
        config = configure(path / "config.yaml", models, **sections)
        async with (
            AsyncExitStack() as stack,
            system.start(
                Endpoint(nats.url, token=nats.token), path / "views.db", lease_seconds=LEASE_SECONDS, slots=1
            ) as running,
        ):
            starting = [serving(path / "home", config, name=f"sika-{number}") for number in range(servers)]
            yield [await stack.enter_async_context(server) for server in starting], nats, running
        keeping.cancel()


async def storm(
    path: Path,
    town: Town,
    people: int,
    turns: int,
    kills: int,
    seed: int,
    *,
    servers: int = 1,
    pauses: tuple[float, float] = PAUSES,
    watch: bool = False,
) -> Tally:
    """`servers`: replicas, each with a process for the account. `pauses`: seconds between kills. `watch`: print the
    progress, and write the log and the calls of the platform into the folder."""
    dice, tally, model = random.Random(seed), Tally(), Model()
    async with place(path, town, servers, model) as (mortals, nats, running):
        fates, room = Fates(running), asyncio.Semaphore(AT_ONCE)
        talks = [Talk(town, fates, number, random.Random(dice.random())) for number in range(people)]

        async def one(talk: Talk) -> None:
            async with room:
                await talk.go(turns)

        async def disturb() -> None:
            while True:
                await asyncio.sleep(dice.uniform(*DISTURBANCES))
                if town.connected() and (fault := town.disturb(dice)):  # else it reconnects, and is let in
                    tally.disturbances[fault] = tally.disturbances.get(fault, 0) + 1

        async def look() -> None:
            while True:
                with suppress(SikaError):
                    await fates.look()
                await asyncio.sleep(0.5)

        async def tell() -> None:
            while watch:
                await asyncio.sleep(15)
                missing = [each for talk in talks for each in talk.missing()]
                asked = sum(len(talk.asked) for talk in talks)
                print(
                    f"{asked} messages, {len(missing)} unanswered: {missing[:9]}, kills: {tally.kills}", file=sys.stderr
                )

        async with asyncio.TaskGroup() as tasks:
            telling = tasks.create_task(tell())
            looking = tasks.create_task(look())
            disturbing = tasks.create_task(disturb())
            reaping = tasks.create_task(Reaper(town, mortals, nats, dice, tally).reap(kills, pauses))
            await asyncio.wait([tasks.create_task(one(talk)) for talk in talks])
            disturbing.cancel()
            reaping.cancel()
            looking.cancel()
            telling.cancel()
        if servers > 1:
            tally.fail_over_seconds = await _fail_over(running, town, mortals, fates, people)
        await _idle(running)
        await fates.look()
        for talk in talks:
            talk.judge(tally, model)
        tally.over = len(fates.over) + sum(_waiting(town, fates, talk.person) for talk in talks)
        tally.leaks, tally.remembered = len(model.leaks), len(model.remembered)
        tally.stories += [*fates.over, *model.leaks]
        tally.connections = town.connections()
        tally.connections_beside = max(0, tally.connections - 1)
        tally.problems = len(town.problems())
        tally.stories += town.problems()
        left, dead = await subjects(running, "cmd"), [letter async for letter in letters(running.bus)]
        tally.wake_ups_left, tally.dead_letters = len(left), len(dead)
        tally.stories += [f"left: {subject}" for subject in left]
        tally.stories += [f"dead: {letter.actor} on {letter.aggregate}: {letter.body}" for letter in dead]
        tally.uncertain = sum(event.fate == "unknown" for event in fates.failed.values())
        tally.stories += [str(event) for event in fates.failed.values() if event.fate != "unknown"]
        if watch:
            await _write_down(path, running, town)
    return tally


async def _write_down(path: Path, running: System, town: Town) -> None:
    """Writes what can explain a fault: the events of the log, and the calls that the platform has got."""
    log = running.log
    records = [f"{r.seq} {r.at} {r.aggregate} {r.head.actor} {r.event}" async for r in log.between(0, await log.last())]
    (path / "log.txt").write_text("\n".join(records))
    clock = f"It is {datetime.now(UTC).isoformat()} at {time.monotonic()} of the calls' clock."
    (path / "calls.txt").write_text("\n".join([clock, *map(str, getattr(town.server, "calls", ()))]))


async def _fail_over(running: System, town: Town, servers: Sequence[Server], fates: Fates, person: int) -> float | None:
    """Kills the process that holds the account together with its server, for good, and has a new person write.
    Returns the seconds until the other replica has taken the message; None if it has not."""
    status: Status | None = None

    async def connected() -> bool:
        nonlocal status
        with suppress(SikaError):
            status = msgspec.convert(await request(running.bus, town.name, "status"), Status)
        return status is not None and status.state == "connected"

    async def taken() -> bool:
        await fates.look()
        return any(number.person == person for number in fates.received)

    with suppress(TimeoutError):
        await wait_for(connected, 60.0, every=0.5)
        holder = int(re.search(r"pid (\d+)", status.process)[1])  # type: ignore[union-attr,index]
        await next(server for server in servers if holder in family(server.process.pid)).kill()
        with suppress(ProcessLookupError):
            os.kill(holder, signal.SIGKILL)
        began = time.monotonic()
        await town.say(person, f"question {person}-0")
        await wait_for(taken, 60.0, every=0.1)
        return time.monotonic() - began
    return None


def _waiting(town: Town, fates: Fates, person: int) -> int:
    """Returns how many messages say that the bot is at work, after all is done, where they can be changed: a copy of
    unknown fate cannot where nobody can look for it."""
    traits = platforms.traits(town.name, Config())
    if not traits.edits_are_free:
        return 0
    shown = sum(QUEUED.strip("_") in text for text in town.answers(person))
    return max(0, shown - (0 if traits.answers_can_be_found else fates.copies(person, QUEUED)))


async def _idle(running: System) -> None:
    """Waits until nothing is left to do: no wake-ups are in the queue, and nothing comes into the log, for as long as a
    busy machine may need to make the one of the other."""
    last, since = 0, time.monotonic()

    async def still() -> bool:
        nonlocal last, since
        at = await running.log.last()
        if await subjects(running, "cmd") or at != last:
            last, since = at, time.monotonic()
        return time.monotonic() - since > STILL_SECONDS

    with suppress(TimeoutError):
        await wait_for(still, 60.0, every=0.5)


async def subjects(running: System, plane: str) -> list[str]:
    """Returns the subjects of what is in a stream."""
    stream = running.bus.names.stream(plane)
    about = await running.bus.api(f"STREAM.INFO.{stream}", {"subjects_filter": ">"})
    return list(about["state"].get("subjects") or ())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--platform", choices=TOWNS, required=True)
    parser.add_argument("--people", type=int, default=200)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=20261123)
    parser.add_argument("--folder", type=Path, help="an empty folder that is kept")
    options = parser.parse_args()
    begun = time.monotonic()
    with nullcontext(options.folder) if options.folder else tempfile.TemporaryDirectory() as folder:
        town = TOWNS[options.platform]()
        people, turns, kills = options.people, options.turns, options.kills
        about: Any = {"servers": options.servers, "watch": True}
        tally = asyncio.run(storm(Path(folder), town, people, turns, kills, options.seed, **about))
    print(f"{options.platform}, {time.monotonic() - begun:.0f} s\n{tally.report()}")
    sys.exit(bool(tally.faults()))


if __name__ == "__main__":
    main()
