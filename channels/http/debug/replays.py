"""Replays of a thread over HTTP: a run beside its replay, and a run as a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import anyio.to_thread
import msgspec
from aiohttp import web

from channels.http.debug.debugging import prices
from channels.http.debug.readable import Readable
from channels.http.endpoints.call import Call, OwnedLog
from channels.http.endpoints.endpoint import Routes
from channels.http.server.routes import API
from core.errors import Refused, Unavailable
from core.events import Record, thread
from core.ids import safe_id
from core.replay.exports.exporting import LogReader
from core.replay.exports.pins import records_to_pin
from core.replay.replayed import Replayed, replayed
from core.runs.replay import Report, part_of

DEADLINE_SECONDS = 60.0
"""Timeout of a replay. `sika log replay` has none."""
DECIDED = "X-Pin-Decided"
"""Header of a pin: `as-recorded`, or `otherwise` if the policies of today decide otherwise, which is pinned."""
ZIP = "application/zip"
ROUTES = Routes(mounts=API, tag="debugging")

RunText = "A run: its number from 1, or the beginning of its id"
Run = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]


@ROUTES("GET", "/threads/{thread_id}/log/replay", "threads:read", errors=(404, 409, 413))
async def get_replay(call: Call, owned: OwnedLog, *, run: Annotated[Run, RunText]) -> Replayed:
    """Execute a recorded run again on its recorded outcomes, with the policies and the configuration of today, and
    compare the two. No model and no tool is asked, and nothing is written.
    """
    if call.services.replay is None:
        raise Refused("this process replays nothing")
    aggregate = thread(owned.id)
    async with call.live.reading.whole() as whole:
        run_id, records = await _run_id(owned, run), list[Record]()

        def hold(record: Record) -> None:
            whole.hold(record)
            records.append(record)

        part = await part_of(owned.read, aggregate, run_id, hold)
        async with _in_time():
            report = await call.services.replay(whole.read, aggregate, part) if part else Report()
        return await anyio.to_thread.run_sync(replayed, report, owned.id, records, run_id, prices(call))


@ROUTES("GET", "/threads/{thread_id}/log/pin", "threads:export", errors=(404, 409, 413, 422))
async def get_pin(
    call: Call,
    owned: OwnedLog,
    *,
    run: Annotated[Run, RunText],
    name: Annotated[str, msgspec.Meta(max_length=64), "The name of the test; by default the id of the thread"] = "",
) -> Annotated[web.Response, ZIP]:
    """Pin a run as a test: what `sika log pin` writes, as an archive. The test fails when the policies of its day
    decide the run otherwise; a run that is decided otherwise already is pinned so (`X-Pin-Decided: otherwise`).

    Secrets, users and addresses are replaced by placeholders. An API key needs the scope `threads:export`.
    """
    if call.services.pin is None:
        raise Refused("this process pins nothing")
    name = safe_id(name or owned.id, "name")
    aggregate = thread(owned.id)
    async with call.live.reading.whole() as whole:
        run_id = await _run_id(owned, run)
        records = await records_to_pin(owned.read, aggregate, run=run_id, hold=whole.hold)
        async with _in_time():
            reader = LogReader(call.services.log, call.live.reading.read)
            pin = await call.services.pin(reader, aggregate, records, name)
    decided = "as-recorded" if pin.difference is None else "otherwise"
    headers = {"Content-Disposition": f'attachment; filename="{name}.zip"', DECIDED: decided}
    return web.Response(body=pin.data, content_type=ZIP, headers={**headers, "Cache-Control": "private, no-store"})


async def _run_id(owned: OwnedLog, name: str) -> str:
    """Returns the id of a run by its name. Raises `NotFound` and `Invalid`."""
    return (await (await Readable(owned).past(owned.id)).run_named(name)).id


@asynccontextmanager
async def _in_time() -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            yield
    except TimeoutError:
        text = f"the replay takes longer than {DEADLINE_SECONDS:g} s; `sika log` on the server has no such limit"
        raise Unavailable(text) from None
