"""Record a real run into `tests/golden/`: a whole server, the demo model, the real tools.

    python -m tests.golden.record            # all of STORIES that are not there yet
    python -m tests.golden.record research   # this one, again

Recorded logs are kept as they are, for ever: they are what users of that version have on their disks.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from actors.wiring import compose
from core.events import Record, RunRequested, thread
from core.runtime.system import System
from tests.golden.stories import FOLDER, SCRIPTS, STORIES, configured, snapshot
from tests.support.model_server import ModelServer


async def record(name: str, asked: Sequence[str | RunRequested]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        home, scripts = Path(folder), SCRIPTS.get(name, {})
        async with ModelServer(scripts) as server:
            models = [{"name": one, "model": one, "base_url": server.url, "api_key": "none"} for one in scripts]
            options = compose.Options(home, configured(name, home / "config.yaml", models=models), port=0)
            async with compose.serve(options), compose.attach(options) as running:
                records = await _talk(running, f"golden-{name}", asked)
    (FOLDER / f"{name}.jsonl").write_bytes(b"".join(r.raw + b"\n" for r in records))
    (FOLDER / f"{name}.state.json").write_bytes(snapshot(records))
    print(f"{name}: {len(records)} events")


async def _talk(running: System, name: str, asked: Sequence[str | RunRequested]) -> list[Record]:
    await running.intake.create_thread(name, user="golden")
    for number, what in enumerate(asked):
        message = {"type": "human", "id": f"human-{number}", "content": what}
        request = RunRequested(input={"messages": [message]}) if isinstance(what, str) else what
        run = f"run-{name}-{number}"
        _, requested = await running.intake.request_run(name, run, request)
        async with asyncio.timeout(120):
            async for found in running.log.follow(thread(name), after=requested.seq):
                if found.type in ("run.completed", "run.paused", "run.failed"):
                    print(f"  {found.run}: {msgspec.json.encode(found.event).decode()}")
                    break
    return [r async for r in running.log.read(thread(name))]


async def main() -> None:
    wanted = sys.argv[1:] or [name for name in STORIES if not (FOLDER / f"{name}.jsonl").exists()]
    for name in wanted:
        await record(name, STORIES[name])


if __name__ == "__main__":
    asyncio.run(main())
