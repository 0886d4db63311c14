"""Two servers on one nats-server, killed and frozen while people talk to them: what the log, the models, the commands
and the clients say of every run afterwards.

`python -m tests.chaos.freezes --runs 300` prints the tally of a long storm; `test_freezes.py` is a short one.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from functools import partial
from itertools import cycle, pairwise, repeat
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import msgspec

from tests.e2e.servers import Browser, Frame, Server, browser, last_id, run_of, serving, texts
from tests.support.model_server import ModelServer, Script, ToolCall, Turn
from tests.support.nats import Nats, own
from tests.support.workers import configure

LEASE = 2
AT_ONCE = 12
"""Conversations at a time."""
QUIET_SECONDS = 180.0
"""How long everything may take to end after the storm."""
Fault = Callable[[], Awaitable[None]]
COMMAND = "echo mark >> marks.txt; sleep 0.3; echo real output"
WORDS = [" ".join(f"{part}{n}" for n in range(30)) for part in "abc"]
CALL = ToolCall("bash", {"description": "leave a mark", "command": COMMAND})
SCRIPT = Script(
    (
        Turn(text=WORDS[0], tool_calls=(CALL,), delay_ms=15),
        Turn(text=WORDS[1], tool_calls=(CALL,), delay_ms=15),
        Turn(text=WORDS[2], delay_ms=15),
    )
)


class Pace(NamedTuple):
    """Seconds, from and to: between two faults of a server, between two deaths of NATS, of a freeze. On a machine that
    takes longer than `START` to start a server, the times between faults are longer, too: a run whose workers have less
    time than one of its steps takes gets nowhere, and is failed at last.
    """

    server: tuple[float, float]
    nats: tuple[float, float]
    frozen: tuple[float, float]


START = 1.0
"""Seconds in which a machine with nothing else to do starts a server."""
SHORT = Pace((0.5, 2.0), (5.0, 15.0), (1.2 * LEASE, 4.0 * LEASE))
LONG = Pace((2.0, 6.0), (15.0, 40.0), (5.0, 20.0))


class Tally(msgspec.Struct):
    """What was seen; all but the first group must be 0."""

    runs: int = 0
    starts: int = 0
    taken_over: int = 0
    kills: int = 0
    freezes: int = 0
    nats_kills: int = 0

    not_completed: int = 0
    stalled: int = 0
    taken_over_from_itself: int = 0
    asked_after_the_answer: int = 0
    marks_wrong: int = 0
    outcomes_in_error: int = 0
    wrong_texts: int = 0
    frame_ids_twice: int = 0

    stories: list[str] = []
    """What the log says of conversations with a fault: seconds, since the late request if there was one."""

    def faults(self) -> dict[str, int]:
        names = self.__struct_fields__[self.__struct_fields__.index("not_completed") :]
        return {name: value for name in names if (value := getattr(self, name))}


class Storm:
    """Freezes and kills of two servers and their NATS, each on a clock of its own."""

    def __init__(self, servers: Sequence[Server], nats: Nats, dice: random.Random, tally: Tally, pace: Pace) -> None:
        self._servers, self._nats, self._dice, self._tally, self._pace = servers, nats, dice, tally, pace
        self._start = START
        """Seconds that the last start took."""

    async def rage(self, until: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as tasks:
            for server in self._servers:
                faults = cycle(
                    [partial(self._freeze, server), partial(self._freeze, server), partial(self._kill, server)]
                )
                tasks.create_task(self._repeat(faults, self._pace.server, until))
            tasks.create_task(self._repeat(repeat(self._kill_nats), self._pace.nats, until))

    async def _repeat(self, faults: Iterable[Fault], pause: tuple[float, float], until: asyncio.Event) -> None:
        for fault in faults:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._dice.uniform(*pause) * max(1.0, self._start / START)):
                    await until.wait()
                    return
            await fault()

    async def _freeze(self, server: Server) -> None:
        os.kill(server.process.pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(self._dice.uniform(*self._pace.frozen))
        finally:
            os.kill(server.process.pid, signal.SIGCONT)
        self._tally.freezes += 1

    async def _kill(self, server: Server) -> None:
        await server.kill()
        begun = time.monotonic()
        await server.start()
        self._start = time.monotonic() - begun
        self._tally.kills += 1

    async def _kill_nats(self) -> None:
        await self._nats.kill()
        await self._nats.restart()
        self._tally.nats_kills += 1


async def converse(
    client: Browser, servers: Sequence[Server], dice: random.Random, number: int
) -> tuple[str, list[Frame]]:
    """One conversation as a page has it: it comes back wherever it was cut off, at either server."""
    frames: list[Frame] = []
    thread_id = ""
    while not thread_id:
        with suppress(aiohttp.ClientError, AssertionError, TimeoutError):
            thread_id = await client.thread(dice.choice(servers))
    while not (frames and frames[-1].event in ("end", "error")):
        server = dice.choice(servers)
        try:
            if frames:
                await client.resume(server, thread_id, run_of(frames), frames, last_id(frames))
            elif run := await _run_of(client, server, thread_id):
                await client.resume(server, thread_id, run, frames, "-1")
            else:
                await client.start(server, thread_id, _about(number), "marks", frames)
        except (aiohttp.ClientError, AssertionError, TimeoutError):
            await asyncio.sleep(0.2)
    return thread_id, frames


async def _run_of(client: Browser, server: Server, thread_id: str) -> str | None:
    """The run that was asked for, if the request arrived although its answer did not."""
    runs = await client.get(server, f"/threads/{thread_id}/runs")
    return str(runs[0]["run_id"]) if runs else None


async def judge(tally: Tally, client: Browser, server: Server, models: ModelServer, number: int, told: Any) -> None:
    """Add what the log, the models, the workspace and the client say of one conversation."""
    thread_id, frames = told
    log = await client.log(server, thread_id)
    types = Counter(event["type"] for event in log)
    starts = [event for event in log if event["type"] == "run.started"]
    workers = [event["worker"] for event in starts]
    pairs = list(pairwise(workers))
    tally.runs += types["run.requested"]
    tally.starts += len(starts)
    tally.taken_over += sum(a != b for a, b in pairs)
    suspended = types["run.suspended"]
    tally.taken_over_from_itself += max(0, sum(a == b for a, b in pairs) - suspended)
    tally.not_completed += types["run.requested"] - types["run.completed"]
    tally.stalled += sum(event.get("error") == "Stalled" for event in log)
    answers = [_seconds(event["at"]) for event in log if event["type"] == "model.completed"]
    for request in models.requests:
        asked_of = request.turn < len(answers) and _about(number) in str(request.body["messages"])
        if asked_of and request.at > answers[request.turn]:
            tally.asked_after_the_answer += 1
            tally.stories.append(f"turn {request.turn} {request.outcome}: {_story(log, request.at)}")
    marks = server.home / f"users/default/threads/{thread_id}/user-data/workspace/marks.txt"
    outcomes = [event["message"]["content"] for event in log if event["type"] == "tool.completed"]
    if (left := marks.read_text() if marks.exists() else "") != "mark\n" * 2:
        tally.marks_wrong += 1
        tally.stories.append(f"{left!r} {outcomes}: {_story(log, _seconds(log[0]['at']))}")
    if outcomes != ["real output"] * 2:
        tally.outcomes_in_error += 1
        tally.stories.append(f"{outcomes}: {_story(log, _seconds(log[0]['at']))}")
    final = {m["id"]: m["content"] for m in await client.messages(server, thread_id) if m["type"] == "ai"}
    seen = texts(frames)
    tally.wrong_texts += {name: seen.get(name) for name in final} != final or list(final.values()) != WORDS
    ids = Counter(frame.id for frame in frames if frame.id)
    tally.frame_ids_twice += sum(count > 1 for count in ids.values())


def _story(log: Sequence[Any], since: float) -> str:
    return " ".join(f"{_seconds(event['at']) - since:+.3f}:{event['type']}" for event in log)


def _about(number: int) -> str:
    return f"conversation {number:05}"


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


@asynccontextmanager
async def two_servers(path: Path) -> AsyncIterator[tuple[list[Server], Browser, ModelServer, Nats]]:
    async with ModelServer({"marks": SCRIPT}) as models, browser() as client, own(path / "nats") as nats:
        about: dict[str, Any] = {"runs": {"lease_seconds": LEASE}, "nats": {"url": nats.url}}
        config = configure(path / "config.yaml", models, **about)
        async with serving(path / "home", config, name="a") as a, serving(path / "home", config, name="b") as b:
            yield [a, b], client, models, nats


async def storm(path: Path, runs: int, seed: int, pace: Pace = SHORT) -> Tally:
    """The storm lasts for as long as there are conversations to begin."""
    dice, tally, over = random.Random(seed), Tally(), asyncio.Event()
    async with two_servers(path) as (servers, client, models, nats), asyncio.TaskGroup() as tasks:
        places = asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> tuple[str, list[Frame]]:
            async with places:
                return await converse(client, servers, dice, number)

        talks = [tasks.create_task(one(number)) for number in range(runs)]
        raging = tasks.create_task(Storm(servers, nats, random.Random(dice.random()), tally, pace).rage(over))
        await asyncio.wait(talks[: max(1, runs - AT_ONCE)])
        over.set()
        await raging
        async with asyncio.timeout(QUIET_SECONDS):
            for number, talk in enumerate(talks):
                await judge(tally, client, servers[0], models, number, await talk)
    return tally


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=20261122)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tally = asyncio.run(storm(Path(folder), options.runs, options.seed, LONG))
    for name in tally.__struct_fields__[:-1]:
        print(f"{name.replace('_', ' '):<26}{getattr(tally, name):>6}")
    print(*tally.stories, sep="\n")
    sys.exit(bool(tally.faults()))


if __name__ == "__main__":
    main()
