"""Replays of what a running system has recorded."""

from __future__ import annotations

from actors.debugging import rehearsal
from actors.wiring.options import Options
from core.events import RunStarted
from core.log.reader import Read
from core.replay.source import LogSource
from core.runs.prompts import PARTS, content
from core.runs.replay import Report
from core.runtime.system import System


async def replay(running: System, thread_id: str, until: int | None, options: Options) -> Report:
    """Executes a thread's recorded runs again on their recorded outcomes, without network."""
    return await rehearsal.replay(LogSource(running.log), thread_id, until, options, log=running.log)


async def sent(read: Read, started: RunStarted) -> dict[str, str]:
    """The recorded contents of a run that are there, by part. Raises `Invalid`."""
    parts = [part for part in PARTS if part in started.setup]
    contents = {part: await content(read, started.setup[part], started.setup_thread) for part in parts}
    return {part: text for part, text in contents.items() if isinstance(text, str)}
