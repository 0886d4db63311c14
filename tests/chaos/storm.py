"""Servers whose actors die between their effects and the acknowledgements, while they work on many threads.

`python -m tests.chaos.storm --threads 500 --each 100` prints the tally; `test_storm.py` is a small one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from core.bus import embedded
from core.bus.endpoint import Endpoint
from core.events import GoalSet
from core.runtime import system
from tests.chaos.doomed import DOOM, MOMENTS, Doom
from tests.chaos.judge import FACT, RUNS, Judge, Tally
from tests.e2e.servers import Server, serving
from tests.support.model_server import ModelServer, Script, ToolCall, Turn
from tests.support.workers import LEASE, Client, configure, wait_for

AT_ONCE, USERS = 16, 10
FEWEST, AHEAD = 8, 16
"""Threads at work if any are left, and threads that may begin before their time."""
IDLE_LOOKS = 10
"""Looks, each half a second after the other, at which nothing is to be done: what has ended is heard of by then."""
QUIET_SECONDS = 240.0
"""Time for everything to end after the storm."""
COMMAND = "echo mark >> marks.txt; sleep 0.2; echo real output"
TASK = ToolCall("task", {"description": "mark", "prompt": "Sign, and mark.", "subagent_type": "general-purpose"})
SIGN, BASH = ToolCall("sign", {"note": "it"}), ToolCall("bash", {"description": "mark", "command": COMMAND})
GOAL = GoalSet(objective="Otters counted", by="ada", max_continuations=RUNS - 1, max_no_progress_continuations=9)


FACTS, PATIENCE = (4, 20), (10.0, 20.0)
"""Facts that a server appends before it may meet its doom, and seconds until it is killed if it has not. A run whose
workers have less time than one of its steps takes gets nowhere, and is failed at last.
"""
OUTSIDE = 0.1
"""The part of the lives that only end from outside."""


def scripts(threads: int) -> dict[str, Script]:
    """Returns the models. A thread says `step-<its number>`, by which its fact is known."""
    facts = [{"newFacts": [{"content": FACT.format(n), "confidence": 0.9, "turn": 1}]} for n in range(threads)]
    answers = [{}, *facts]
    lead = Turn(text="I delegate.", tool_calls=(TASK,)), Turn(text="It is marked.", delay_ms=20), Turn(text="Still so.")
    sub = Turn(text="Marking.", tool_calls=(SIGN, BASH)), Turn(text="I have marked it.", delay_ms=30)
    return {
        "lead": Script(lead, count="total"),
        "sub": Script(sub),
        "title": Script((Turn(text="Otter Homes", delay_ms=100),)),
        "judge": Script((Turn(text='{"verdict": "not_met", "reason": "no otter"}', delay_ms=40),)),
        "mem": Script(tuple(Turn(text=json.dumps(answer), delay_ms=10) for answer in answers), count="marker"),
    }


class Target(NamedTuple):
    """The end of a storm: so many kills in all, and deaths of `each` actor at its own moments, within `seconds`."""

    kills: int
    each: int = 0
    seconds: float = 3600.0


class Reaper:
    """Restarts servers, each with the next doom, until the target is met. Lets threads begin at that pace."""

    def __init__(self, folder: Path, dice: random.Random, target: Target, threads: int) -> None:
        self._target, self._threads = target, threads
        self.kills = self.ended = self._begun = 0
        self._deaths, self._dice = folder / "deaths.txt", dice
        self._until = time.monotonic() + target.seconds

    def deaths(self) -> Counter[str]:
        """Counts the deaths at moments of actors; all other kills came from outside."""
        return Counter(self._deaths.read_text().splitlines() if self._deaths.exists() else [])

    def _of_actors(self) -> Counter[str]:
        return Counter(actor for line, count in self.deaths().items() for actor in [line.split()[0]] * count)

    def _parts(self) -> list[float]:
        """Returns the parts of the target that are met: with 1, all of it."""
        parts, deaths = [self.kills / self._target.kills], self._of_actors()
        if self._target.each:
            parts += [deaths[actor] / self._target.each for actor in MOMENTS]
        return [min(1.0, part) for part in parts]

    def _is_late(self) -> bool:
        return time.monotonic() > self._until

    def _is_over(self) -> bool:
        return min(self._parts()) == 1 or self.ended == self._threads or self._is_late()

    async def begin(self) -> bool:
        """Returns True when the next thread may begin: not so early that none is left for the last kills. Returns False
        if it is too late for that.
        """

        async def due() -> bool:
            few = self._begun - self.ended < FEWEST
            return few or self._is_over() or self._begun < AHEAD + self._threads * fmean(self._parts())

        await wait_for(due, 2 * self._target.seconds, every=0.1)
        if self._is_late():
            return False
        self._begun += 1
        return True

    def _none(self) -> Doom:
        return Doom("none", "0", str(self._deaths))

    def _doom(self) -> Doom:
        """Returns a random moment of each actor that has not died often enough."""
        if self._dice.random() < OUTSIDE:
            return self._none()
        deaths = self._of_actors()
        lacking = [actor for actor in MOMENTS if deaths[actor] < self._target.each] or list(MOMENTS)
        moments = ",".join(f"{actor}:{self._dice.choice(MOMENTS[actor])}" for actor in lacking)
        return Doom(moments, str(self._dice.randint(*FACTS)), str(self._deaths))

    async def reap(self, server: Server) -> None:
        while not self._is_over():
            await server.kill()
            self.kills += 1
            with suppress(AssertionError):  # it has died before it was ready
                await server.start("tests.chaos.doomed", **{DOOM: str(self._doom())})
            with suppress(TimeoutError):
                async with asyncio.timeout(self._dice.uniform(*PATIENCE)):
                    await server.process.waited()
        await server.kill()
        await server.start("tests.chaos.doomed", **{DOOM: str(self._none())})
        self.kills += 1


class Thread(NamedTuple):
    number: int

    @property
    def id(self) -> str:
        return f"t{self.number:04}"

    @property
    def user(self) -> str:
        return f"user{self.number % USERS}"


async def converse(client: Client, thread: Thread) -> None:
    """A thread with a goal, until its runs are done and it has a title."""
    await client.thread(thread.id, thread.user)
    await client.system.threads.decide(thread.id, lambda _: [GOAL], actor="http")
    context = {"subagent_enabled": True}
    await client.ask(thread.id, f"Where do otters live? step-{thread.number}", "lead", context=context)
    seconds = 3600.0  # the storm's own deadline is before that
    await client.until(thread.id, lambda state, _: bool(state.title and state.goal and state.goal.paused), seconds)


@asynccontextmanager
async def several(path: Path, threads: int, count: int) -> AsyncIterator[tuple[list[Server], Client, ModelServer]]:
    async with (
        ModelServer(scripts(threads), record=False) as models,
        embedded.start(path / "nats") as nats,
        AsyncExitStack() as stack,
    ):
        sections: dict[str, Any] = {
            "runs": {"lease_seconds": LEASE},
            "nats": {"url": nats.url, "token": nats.token},
            "title": {"model_name": "title"},
            "goals": {"model_name": "judge"},
            "memory": {"model_name": "mem", "debounce_seconds": 1, "max_facts": 10_000},
            "subagents": {"agents": {"general-purpose": {"model": "sub"}}},
        }
        config, endpoint = configure(path / "config.yaml", models, **sections), Endpoint(nats.url, token=nats.token)
        starting = (serving(path / "home", config, name=f"server-{number}") for number in range(count))
        servers = [await stack.enter_async_context(server) for server in starting]
        running = await stack.enter_async_context(
            system.start(endpoint, path / "views.db", lease_seconds=LEASE, slots=1)
        )
        yield servers, Client(running), models


async def storm(path: Path, threads: int, target: Target, seed: int, *, servers: int = 2) -> Tally:
    dice = random.Random(seed)
    all_threads, begun = [Thread(number) for number in range(threads)], list[Thread]()
    async with several(path, threads, servers) as (mortals, client, models):
        reaper, places = Reaper(path, dice, target, threads), asyncio.Semaphore(AT_ONCE)

        async def one(thread: Thread) -> None:
            async with places:
                if await reaper.begin():
                    begun.append(thread)
                    await converse(client, thread)
                    reaper.ended += 1

        talks = [asyncio.create_task(one(thread)) for thread in all_threads]
        async with asyncio.TaskGroup() as tasks:
            for server in mortals:
                tasks.create_task(reaper.reap(server))
        await asyncio.wait(talks, timeout=QUIET_SECONDS)
        with suppress(TimeoutError):
            await quiet(client)
        for talk in talks:
            talk.cancel()
        tally = Tally(threads=len(begun), kills=reaper.kills, deaths=reaper.deaths(), answers=dict(models.counts))
        await judge(tally, client, mortals[0], begun)
    return tally


async def judge(tally: Tally, client: Client, server: Server, threads: Sequence[Thread]) -> None:
    signed = Counter(server.signed())
    deciding = Judge(tally, client, signed)
    for thread in threads:
        marks = server.home / f"users/{thread.user}/threads/{thread.id}/user-data/workspace/marks.txt"
        await deciding.hear(thread.id, marks.read_text() if marks.exists() else "")
    tally.add("signatures_of_nobody", sum((signed - Counter(deciding.signatures)).values()), "ledger")
    for user, numbers in by_user(threads):
        await deciding.remember(user, numbers)
    tally.add("wake_ups_left", await left(client, "cmd"), "queue")
    tally.add("timers_left", await left(client, "timer"), "timers")
    tally.add("dead_letters", await left(client, "dlq"), "dead letters")


async def quiet(client: Client) -> None:
    """Returns when there was nothing to do for some time."""
    idle = 0

    async def still() -> bool:
        nonlocal idle
        idle = 0 if any([await left(client, plane) for plane in ("cmd", "timer")]) else idle + 1
        return idle == IDLE_LOOKS

    await wait_for(still, QUIET_SECONDS, every=0.5)


async def left(client: Client, plane: str) -> int:
    bus = client.system.bus
    return int((await bus.api(f"STREAM.INFO.{bus.names.stream(plane)}"))["state"]["messages"])


def by_user(threads: Sequence[Thread]) -> Iterator[tuple[str, list[int]]]:
    for user in sorted({thread.user for thread in threads}):
        yield user, [thread.number for thread in threads if thread.user == user]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=500)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--each", type=int, default=0, help="deaths of each actor at moments of its own")
    parser.add_argument("--minutes", type=float, default=60, help="time after which nothing is killed any more")
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=20261122)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        target = Target(options.kills, options.each, 60 * options.minutes)
        tally = asyncio.run(storm(Path(folder), options.threads, target, options.seed, servers=options.servers))
    print(tally.report())
    sys.exit(bool(tally.faults()))


if __name__ == "__main__":
    main()
