"""Do cases: `python -m tests.conformance.python --url … --models … name …`; a line of JSON for each."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from tests.conformance.python.every import CASES
from tests.conformance.python.lab import SECONDS, Skipped, lab

AT_ONCE = 6
MOST = 600
"""Characters of a value that are shown."""
HERE = Path(__file__).parent


async def done(name: str, urls: Sequence[str], models: str) -> dict[str, object]:
    began = time.monotonic()
    outcome, text = "passed", ""
    try:
        async with asyncio.timeout(2 * SECONDS), lab(urls, models) as given:
            await CASES[name](given)
    except Skipped as reason:
        outcome, text = "skipped", str(reason)
    except Exception as error:
        outcome, text = "failed", told(error)
    return {"case": name, "outcome": outcome, "text": text, "seconds": round(time.monotonic() - began, 2)}


def told(error: BaseException) -> str:
    """Where in the case it happened, and what; and what was known there."""
    steps = [step for step in traceback.walk_tb(error.__traceback__) if str(HERE) in step[0].f_code.co_filename][1:]
    where = traceback.format_list(traceback.StackSummary.extract(steps))
    known = steps[-1][0].f_locals if steps else {}
    said = [f"  {name} = {repr(value)[:MOST]}\n" for name, value in known.items() if name != "lab"]
    return "".join([*where, *traceback.format_exception_only(error), *said])


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", action="append", required=True)
    parser.add_argument("--models", required=True)
    parser.add_argument("cases", nargs="+")
    options = parser.parse_args()
    places = asyncio.Semaphore(AT_ONCE)

    async def one(name: str) -> None:
        async with places:
            print(json.dumps(await done(name, options.url, options.models)), flush=True)

    await asyncio.gather(*(one(name) for name in options.cases))


if __name__ == "__main__":
    asyncio.run(main())
