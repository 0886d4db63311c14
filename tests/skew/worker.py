"""A worker that does runs of steps without a model, on whichever version's `core` is on its path. With `--notes` it is
of a newer version still: it notes each step by an event that no other version knows.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.bus.endpoint import Endpoint
from core.events import Event, ModelCompleted
from core.runtime import system

RUNS = "core.runs" if importlib.util.find_spec("core.runs") else "core.thread"
"""Where each version keeps the life of a run."""
if TYPE_CHECKING:
    from core.runs.owned import OwnedRun
    from core.runs.run import Prepared, RunActor
else:
    RunActor, Prepared = (getattr(importlib.import_module(f"{RUNS}.run"), name) for name in ("RunActor", "Prepared"))

STEPS = 4
PAUSE = 0.1


class Steps(RunActor):
    """Does runs of `STEPS` messages."""

    name = "lead"

    def __init__(self, note: Callable[[int], Event] | None) -> None:
        self._note = note

    async def perform(self, run: OwnedRun, prepared: Prepared[Any]) -> None:
        done = sum(str(message["id"]).startswith(f"{run.id}/") for message in run.state.messages)
        for step in range(done, STEPS):
            if self._note is not None:
                await run.append(self._note(step))
            await asyncio.sleep(PAUSE)
            message = {"type": "ai", "id": f"{run.id}/{step}", "name": run.worker, "content": str(step)}
            await run.append(ModelCompleted(message=message))


def newer() -> Callable[[int], Event]:
    """Declares the event type of a newer version."""

    class StepNoted(Event, frozen=True):
        """A step was begun."""

        step: int

    return lambda step: StepNoted(step=step)


async def _serve(options: argparse.Namespace) -> None:
    endpoint = Endpoint(options.url, token=options.token)
    async with system.start(endpoint, options.views, lease_seconds=2, slots=4) as running:
        await running.serve([Steps(newer() if options.notes else None)], alone=False)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--token", required=True)
    parser.add_argument("--views", type=Path, required=True)
    parser.add_argument("--notes", action="store_true")
    asyncio.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
