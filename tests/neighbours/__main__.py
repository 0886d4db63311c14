"""Prints what ten conversations notice of each nasty thing."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from tests.neighbours.suite import NASTY, ROUNDS_BEFORE, Outcome, beside, others, settled, world


async def main() -> int:
    faults = 0
    with tempfile.TemporaryDirectory() as folder:
        async with world(Path(folder)) as here:
            await others(here)  # warm
            rounds = [await others(here) for _ in range(ROUNDS_BEFORE)]
            before = Outcome([s for r in rounds for s in r.seconds], [e for r in rounds for e in r.errors])
            print(f"{'before':<34}{len(before.errors):>3} errors  p95 {before.p95:6.2f} s")
            for name, nasty in NASTY.items():
                outcome = await beside(here, nasty)
                await settled(here)
                faults += len(outcome.errors)
                ratio = outcome.p95 / before.p95 if outcome.seconds else float("inf")
                print(f"{name:<34}{len(outcome.errors):>3} errors  p95 {ratio:6.2f} x", *outcome.errors, flush=True)
    return faults


if __name__ == "__main__":
    sys.exit(bool(asyncio.run(main())))
