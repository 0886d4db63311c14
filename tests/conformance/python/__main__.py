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
    """Where in the case it happened, and what."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if str(HERE) in frame.filename]
    return "".join([*traceback.format_list(frames[1:]), *traceback.format_exception_only(error)])


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
