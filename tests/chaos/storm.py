"""Two servers whose actors die between their effects and the acknowledgements, while they work on many threads.

`python -m tests.chaos.storm --threads 500 --kills 100` prints the tally; `test_storm.py` is a small one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import chain, repeat
from pathlib import Path
from typing import Any, NamedTuple

from core.bus import embedded
from core.bus.connection import Endpoint
from core.events import GoalSet
from core.runtime import system
from tests.chaos.doomed import DOOM, MOMENTS, Doom
from tests.chaos.judge import FACT, RUNS, Judge, Tally
from tests.e2e.servers import Server, serving
from tests.support.model_server import ModelServer, Script, ToolCall, Turn
from tests.support.workers import LEASE, Client, configure, wait_for

AT_ONCE, USERS = 48, 10
IDLE_LOOKS = 10
"""Looks, each half a second after the other, at which nothing is to be done: what has ended is heard of by then."""
QUIET_SECONDS = 240.0
"""Time for everything to end after the storm."""
COMMAND = "echo mark >> marks.txt; sleep 0.2; echo real output"
TASK = ToolCall("task", {"description": "mark", "prompt": "Sign, and mark.", "subagent_type": "general-purpose"})
SIGN, BASH = ToolCall("sign", {"note": "it"}), ToolCall("bash", {"description": "mark", "command": COMMAND})
GOAL = GoalSet(objective="Otters counted", by="ada", max_continuations=RUNS - 1, max_no_progress_continuations=9)


class Pace(NamedTuple):
    """Seconds, from and to: until a server may meet its doom, and until it is killed if it has not. A run whose workers
    have less time than one of its steps takes gets nowhere, and is failed at last.
    """

    life: tuple[float, float]
    patience: tuple[float, float]


SHORT, LONG = Pace((0.0, 0.5), (3.0, 5.0)), Pace((1.0, 4.0), (4.0, 9.0))


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


class Reaper:
    """Restarts servers, each with the next doom, until there were enough kills. Lets threads begin at that pace."""

    def __init__(self, folder: Path, dice: random.Random, kills: int, threads: int, pace: Pace) -> None:
        self._wanted, self._pace, self._places = kills, pace, math.ceil(threads / max(1, kills))
        self.begin = asyncio.Semaphore(2 * self._places)
        self.kills = 0
        self._deaths, self._dice = folder / "deaths.txt", dice
        moments = [(actor, moment) for actor in MOMENTS for moment in MOMENTS[actor]]
        self._moments = chain.from_iterable(dice.sample(moments, len(moments)) for _ in repeat(None))

    def deaths(self) -> Counter[str]:
        """Counts the deaths at moments of actors; all other kills came from outside."""
        return Counter(self._deaths.read_text().splitlines() if self._deaths.exists() else [])

    async def reap(self, server: Server) -> None:
        while self.kills < self._wanted:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._dice.uniform(*self._pace.patience)):
                    await server.process.waited()
            await server.kill()
            self.kills += 1
            for _ in range(self._places):
                self.begin.release()
            after, times = self._dice.uniform(*self._pace.life), self._dice.randint(1, 3)
            doom = Doom(*next(self._moments), str(after), str(times), str(self._deaths))
            with suppress(AssertionError):  # it has died before it was ready
                await server.start("tests.chaos.doomed", **{DOOM: str(doom)})
        await server.kill()
        await server.start()
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
async def two_servers(path: Path, threads: int) -> AsyncIterator[tuple[list[Server], Client, ModelServer]]:
    async with ModelServer(scripts(threads), record=False) as models, embedded.start(path / "nats") as nats:
        sections: dict[str, Any] = {
            "runs": {"lease_seconds": LEASE},
            "nats": {"url": nats.url, "token": nats.token},
            "title": {"model_name": "title"},
            "goals": {"model_name": "judge"},
            "memory": {"model_name": "mem", "debounce_seconds": 1, "max_facts": 10_000},
            "subagents": {"agents": {"general-purpose": {"model": "sub"}}},
        }
        config, endpoint = configure(path / "config.yaml", models, **sections), Endpoint(nats.url, token=nats.token)
        async with (
            serving(path / "home", config, name="a") as a,
            serving(path / "home", config, name="b") as b,
            system.start(endpoint, path / "views.db", lease_seconds=LEASE, slots=1) as running,
        ):
            yield [a, b], Client(running), models


async def storm(path: Path, threads: int, kills: int, seed: int, pace: Pace = SHORT) -> Tally:
    dice = random.Random(seed)
    all_threads = [Thread(number) for number in range(threads)]
    async with two_servers(path, threads) as (servers, client, models):
        reaper, places = Reaper(path, dice, kills, threads, pace), asyncio.Semaphore(AT_ONCE)

        async def one(thread: Thread) -> None:
            await reaper.begin.acquire()
            async with places:
                await converse(client, thread)

        talks = [asyncio.create_task(one(thread)) for thread in all_threads]
        async with asyncio.TaskGroup() as tasks:
            for server in servers:
                tasks.create_task(reaper.reap(server))
        await asyncio.wait(talks, timeout=QUIET_SECONDS)
        with suppress(TimeoutError):
            await quiet(client)
        for talk in talks:
            talk.cancel()
        tally = Tally(kills=reaper.kills, deaths=reaper.deaths(), answers=dict(models.counts))
        await judge(tally, client, servers[0], all_threads)
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
    parser.add_argument("--seed", type=int, default=20261122)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tally = asyncio.run(storm(Path(folder), options.threads, options.kills, options.seed, LONG))
    print(tally.report(options.threads))
    sys.exit(bool(tally.faults()))


if __name__ == "__main__":
    main()
