"""Recorded runs executed again: the agent's loop over a journal of records instead of one that is being written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import anyio.lowlevel

from core.errors import Unavailable
from core.events import Aggregate, Json, Record
from core.replay.recorded import RecordedLog
from core.replay.source import Source
from core.runs.replay import Look, Part, Read, ReplayJournal, Report, replay_part
from core.runs.replay import replay as execute

if TYPE_CHECKING:
    from actors.wiring.options import Options
    from core.log.store import EventLog


async def replay(
    source: Source,
    thread_id: str,
    until: int | None,
    options: Options,
    *,
    log: EventLog | None = None,
    look: Look | None = None,
) -> Report:
    """Replays a thread with the present policies and configuration, and asks nobody.

    Raises `NotFound`. `log`: the log that holds agents, skills and memories; without one they are read from `source`.
    """
    from actors.wiring.added import with_added

    log = log or cast("EventLog", RecordedLog(source))
    options = await with_added(options, log)
    return await Rehearsal(source, options, log).replay(thread_id, until, look)


class Rehearsal:
    """The loop of runs and subagents without models; one for many threads."""

    def __init__(self, source: Source, options: Options, log: EventLog | None = None) -> None:
        from actors.agent.setup.environment import remembered
        from actors.lead import Lead
        from actors.subagents.actor import Subagents
        from actors.wiring.parts import Toolset, library
        from adapters.batches import LocalBatchFiles
        from adapters.models.configured import Silent
        from core.runs.intake import Intake
        from core.thread.threads import Threads

        config, home = options.source(), options.home
        log = log or cast("EventLog", RecordedLog(source))
        parts = config, Silent(), Toolset(config.current()), _nobody, log, home
        skills, threads = library(log, config, home), Threads(log)
        intake = Intake(threads, cast(Any, None))  # a replay reads, and wakes nobody
        more: dict[str, Any] = {"skills": skills, "environment": remembered(home)}
        subagents = Subagents(*parts, threads=threads, subagents=intake, batches=LocalBatchFiles(home), **more)
        self._source, self._lead, self._subagents = source, Lead(*parts, **more), subagents

    async def replay(self, thread_id: str, until: int | None = None, look: Look | None = None) -> Report:
        """Replays a thread up to a sequence. Raises `NotFound`."""
        both = self._lead.execute, self._subagents.execute
        return await execute(self._source.read, thread_id, until, *both, look)

    async def replay_part(self, read: Read, aggregate: Aggregate, part: Part, look: Look) -> Report:
        """Replays a run of a thread. `read` reads the logs of its subagents."""
        return await replay_part(read, aggregate, part, self._lead.execute, self._subagents.execute, look)


async def yielding(_: ReplayJournal, record: Record, __: Json) -> Record:
    """Lets the event loop of a server do something else between two steps of a replay (`Look`)."""
    await anyio.lowlevel.checkpoint()
    return record


async def _nobody(actor: str, request: Mapping[str, Any], *more: Any) -> Any:
    raise Unavailable(f"a replay asks nobody, and not the {actor} actor")
