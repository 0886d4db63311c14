"""A process with actors that may end it: `python -m tests.core.deadly URL PREFIX VIEWS KIND`."""

from __future__ import annotations

import asyncio
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from core.actor import Actor, Context
from core.bus.endpoint import Endpoint
from core.events import Aggregate, Event, ThreadAnnotated
from core.observe import logs
from core.runs.owned import OwnedRun
from core.runs.run import Prepared, RunActor
from core.runtime import system

DIED = 13


class MarkPlaced(Event, frozen=True):
    """The answer of the actor."""


class Deadly(Actor[ThreadAnnotated]):
    """Answers annotations, and dies of those that say so; for others it takes a while, or until there is a file."""

    name = "deadly"

    async def handle(self, event: ThreadAnnotated, ctx: Context) -> None:
        if event.metadata.get("die"):
            os._exit(DIED)
        print("begun", flush=True)
        await asyncio.sleep(event.metadata.get("seconds", 0))
        while not Path(event.metadata.get("until", "/")).exists():  # noqa: ASYNC110  (of another process)
            await asyncio.sleep(0.05)
        await ctx.append(MarkPlaced())
        print("done", flush=True)

    async def given_up(self, aggregate: Aggregate, ctx: Context) -> None:
        """Dies of this, too."""
        os._exit(DIED)


class InTurn(Deadly):
    name = "inturn"
    ordered = True

    async def given_up(self, aggregate: Aggregate, ctx: Context) -> None:
        await ctx.append(MarkPlaced())


class Timed(Deadly):
    """Dies of what no event led to."""

    name = "timed"

    async def wake(self, aggregate: Aggregate, ctx: Context) -> None:
        os._exit(DIED)


class Preparing(RunActor):
    """Dies before it begins with a run."""

    name = "lead"

    async def prepare(self, run: OwnedRun) -> Prepared[Any]:
        if (run.request.input or {}).get("die"):
            os._exit(DIED)
        return Prepared(None)

    async def perform(self, run: OwnedRun, prepared: Prepared[Any]) -> None:
        return None


KINDS: dict[str, type[Actor[Any]]] = {"deadly": Deadly, "inturn": InTurn, "timed": Timed, "lead": Preparing}


async def main(url: str, prefix: str, views: str, kind: str) -> None:
    endpoint = Endpoint(url, prefix=prefix)
    async with (
        system.start(endpoint, Path(views), lease_seconds=2, slots=8) as running,
        anyio.create_task_group() as tasks,
    ):
        await tasks.start(partial(running.serve, [KINDS[kind]()], alone=True))
        print("ready", flush=True)


if __name__ == "__main__":
    logs.configure("critical", sys.stderr)
    asyncio.run(main(*sys.argv[1:]))
