"""A thousand runs under way at once, on two servers that are killed and frozen, and a NATS that is killed: no effect is
lost or doubled, and every run ends in a stated fate.

`python -m tests.chaos.crowd --runs 1000` prints the tally; `test_crowd.py` has both sizes.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from core.bus.endpoint import Endpoint
from core.errors import SikaError
from core.events import Record, RunStarted, ToolCompleted
from core.lifecycle import RunEnded
from core.runtime import system
from tests.chaos import freezes
from tests.chaos.freezes import LEASE, Pace, Storm
from tests.chaos.storm import SIGN, left, quiet
from tests.e2e.servers import Server, serving
from tests.support.model_server import ModelServer, Script, Turn
from tests.support.nats import Nats, own
from tests.support.workers import Client, configure, wait_for

GATE = "all are under way"
SCRIPT = Script(
    (Turn(text="I sign.", tool_calls=(SIGN,), gate=GATE, gate_after=1), Turn(text="It is signed, I am done."))
)
USERS = 20
PACE = Pace(server=(6.0, 12.0), nats=(10.0, 20.0), frozen=(1.2 * LEASE, 3.0 * LEASE))
RAGE_SECONDS = 40.0
"""Time after which nothing is killed any more: runs whose workers never have the time of a step get nowhere."""
BURST_SECONDS = (0.3, 1.0)
"""Time until a server is killed when all runs sign at once."""
BEGIN_SECONDS, END_SECONDS = 600.0, 900.0


class Tally(msgspec.Struct):
    """Figures, then faults: all of these must be 0."""

    runs: int = 0
    at_once: int = 0
    """Most runs that were begun and had not ended."""
    kills: int = 0
    freezes: int = 0
    nats_kills: int = 0
    starts: int = 0
    fates: dict[str, int] = {}
    """Runs by how they ended: their status, and the error of those that failed."""
    unknown_outcomes: int = 0
    """Calls that a crash hid, and the log says so."""

    not_ended: int = 0
    without_a_reason: int = 0
    signed_twice: int = 0
    signed_unsaid: int = 0
    """Calls of which the log says that they signed, and the ledger does not."""
    signed_for_nobody: int = 0
    said_twice: int = 0
    wake_ups_left: int = 0
    dead_letters: int = 0
    stories: list[str] = []

    def faults(self) -> dict[str, int]:
        names = self.__struct_fields__[self.__struct_fields__.index("not_ended") : -1]
        return {name: value for name in names if (value := getattr(self, name))}

    def report(self) -> str:
        lines = [f"{name.replace('_', ' '):<20} {getattr(self, name)}" for name in self.__struct_fields__[:-1]]
        return "\n".join([*lines, *self.stories[:20]])


class Place(NamedTuple):
    servers: Sequence[Server]
    nats: Nats
    models: ModelServer
    client: Client


class Watch:
    """How many runs are under way, as the log says."""

    def __init__(self, client: Client) -> None:
        self._log, self._seq = client.system.log, 0
        self.begun, self.ended = set[str](), set[str]()
        self.most = 0

    async def look(self) -> None:
        with suppress(SikaError):
            last = await self._log.last()
            async for record in self._log.between(self._seq, last):
                self._take(record)
            self._seq = last

    def _take(self, record: Record) -> None:
        if isinstance(record.event, RunStarted):
            self.begun.add(record.aggregate.id)
        elif isinstance(record.event, RunEnded):
            self.ended.add(record.aggregate.id)
        self.most = max(self.most, len(self.begun - self.ended))

    async def until(self, number: int, *, ended: bool, seconds: float) -> bool:
        """Waits until so many runs have begun, or ended. Returns False after the time."""

        async def there() -> bool:
            await self.look()
            return len(self.ended if ended else self.begun) >= number

        with suppress(TimeoutError):
            await wait_for(there, seconds, every=0.5)
            return True
        return False


@asynccontextmanager
async def place(path: Path, runs: int) -> AsyncIterator[Place]:
    async with ModelServer({"crowd": SCRIPT}, record=False) as models, own(path / "nats") as nats:
        sections: dict[str, Any] = {"runs": {"lease_seconds": LEASE, "max_concurrent": runs}, "nats": {"url": nats.url}}
        config = configure(path / "config.yaml", models, **sections)
        async with (
            serving(path / "home", config, name="a") as a,
            serving(path / "home", config, name="b") as b,
            system.start(Endpoint(nats.url), path / "views.db", lease_seconds=LEASE, slots=1) as running,
        ):
            yield Place([a, b], nats, models, Client(running))


async def storm(path: Path, runs: int, seed: int, pace: Pace = PACE) -> Tally:
    """All runs are under way before the first fault, and wait for their model until one of each kind has come. While
    they sign, each server is killed.
    """
    tally, faults, dice = Tally(runs=runs), freezes.Tally(), random.Random(seed)
    async with place(path, runs) as here:
        watch, threads = Watch(here.client), {f"t{number}": f"user{number % USERS}" for number in range(runs)}
        raging = Storm(here.servers, here.nats, dice, faults, pace)
        for thread, user in threads.items():
            await here.client.ask(await here.client.thread(thread, user), "Sign.", "crowd")
        await watch.until(runs, ended=False, seconds=BEGIN_SECONDS)
        async with _raging(raging):
            with suppress(TimeoutError):
                await wait_for(lambda: _raged(faults), BEGIN_SECONDS, every=0.5)
        here.models.release(GATE)
        for server in here.servers:
            await asyncio.sleep(dice.uniform(*BURST_SECONDS))
            await server.kill()
            await server.start()
            faults.kills += 1
        async with _raging(raging):
            await watch.until(runs, ended=True, seconds=RAGE_SECONDS)
        await watch.until(runs, ended=True, seconds=END_SECONDS)
        with suppress(TimeoutError):
            await quiet(here.client)
        tally.at_once = watch.most
        tally.kills, tally.freezes, tally.nats_kills = faults.kills, faults.freezes, faults.nats_kills
        await judge(tally, here, threads)
    return tally


@asynccontextmanager
async def _raging(raging: Storm) -> AsyncIterator[None]:
    """The storm rages for as long as the block lasts. What it killed is there again afterwards."""
    over = asyncio.Event()
    task = asyncio.create_task(raging.rage(over))
    try:
        yield
    finally:
        over.set()
        await task


async def _raged(faults: freezes.Tally) -> bool:
    return all((faults.kills, faults.freezes, faults.nats_kills))


async def judge(tally: Tally, here: Place, threads: Iterable[str]) -> None:
    signed, said = Counter(here.servers[0].signed()), Counter[str]()
    fates = Counter[str]()
    for thread in threads:
        records = await here.client.records(thread)
        story = f"{thread}: " + " ".join(f"{record.head.at[14:23]}:{record.type}" for record in records)
        [run] = (await here.client.state(thread)).runs.values()
        tally.starts += sum(isinstance(record.event, RunStarted) for record in records)
        fates[f"{run.status} {run.error.error if run.error else ''}".strip()] += 1
        if run.open:
            _add(tally, "not_ended", story)
        elif run.status != "success" and run.error is None:
            _add(tally, "without_a_reason", story)
        for outcome in [record.event for record in records if isinstance(record.event, ToolCompleted)]:
            key = str(outcome.message["id"]).removeprefix("tool-")
            said[key] += 1
            tally.unknown_outcomes += outcome.unknown
            if not signed[key] and not outcome.unknown:
                _add(tally, "signed_unsaid", story)
            if said[key] > 1:
                _add(tally, "said_twice", story)
    tally.fates = dict(fates)
    for key, times in signed.items():
        if times > 1:
            _add(tally, "signed_twice", key)
    tally.signed_for_nobody = len(signed.keys() - said.keys())
    tally.wake_ups_left = await left(here.client, "cmd")
    tally.dead_letters = await left(here.client, "dlq")


def _add(tally: Tally, fault: str, story: str) -> None:
    setattr(tally, fault, getattr(tally, fault) + 1)
    tally.stories.append(f"{fault}: {story}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=20261128)
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        tally = asyncio.run(storm(Path(folder), options.runs, options.seed))
    print(f"{time.monotonic() - began:.0f} s\n{tally.report()}")
    sys.exit(bool(tally.faults()))


if __name__ == "__main__":
    main()
