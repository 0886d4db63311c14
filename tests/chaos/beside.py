"""A process with the actors that work beside runs, to be killed: `python -m tests.chaos.beside --url … --config …`."""

from __future__ import annotations

import argparse
import asyncio
from functools import partial
from pathlib import Path

import anyio

from actors.goals import Goals
from actors.title import Title
from adapters.models.configured import Configured
from core.bus.endpoint import Endpoint
from core.config.load import ConfigSource
from core.runtime import system
from tests.support.workers import LEASE

READY = "ready"
"""The first line of the process, when its actors hear the log."""


async def _serve(options: argparse.Namespace) -> None:
    source = ConfigSource(options.config)
    models = Configured(source)
    endpoint = Endpoint(options.url, token=options.token)
    async with (
        system.start(endpoint, options.views, lease_seconds=LEASE, slots=16) as running,
        anyio.create_task_group() as tasks,
    ):
        await tasks.start(partial(running.serve, [Title(source, models), Goals(source, models)], alone=False))
        print(READY, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--token", required=True)
    parser.add_argument("--views", type=Path, required=True)
    parser.add_argument("--config", type=Path, required=True)
    asyncio.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
