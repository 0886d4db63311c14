"""Erasure from memory: of what this or another process erased."""

from __future__ import annotations

from collections.abc import AsyncIterator

import structlog
from aiohttp import web

from channels.http.protocols.langgraph import dumps
from channels.http.server.live import LIVE, Live
from core.errors import SikaError
from core.thread import pages

log = structlog.get_logger("sika.http")

_FORGET = frozenset({"thread.erased", "thread.pruned"})


async def running(app: web.Application) -> AsyncIterator[None]:
    """For `Application.cleanup_ctx`, after `Live.running`."""
    live = app[LIVE]

    async def forgetting() -> None:
        await _forgetting(live)

    live.keep_up(forgetting)
    yield


async def _forgetting(live: Live) -> None:
    """Drop all encoded messages, decoded pages and moments when a thread is erased (they do not know theirs), and its
    kept state.
    """
    services = live.services
    _drop(live)
    with services.log.listen(None, bodies=False) as listener:
        while True:
            records, lost = await listener.take()
            erased = {record.aggregate.id: record.seq for record in records if record.type in _FORGET}
            if erased or lost:
                _drop(live)
            for thread_id, seq in erased.items():
                if services.threads.cached(thread_id) is None:
                    continue
                try:
                    await services.threads.load(thread_id, at_least=seq)
                except SikaError as error:
                    log.warning("not forgotten yet", thread=thread_id, reason=str(error))


def _drop(live: Live) -> None:
    live.moments.forget()
    dumps.forget()
    pages.forget()
