"""Erasure from memory: of what this or another process erased."""

from __future__ import annotations

from collections.abc import AsyncIterator

import structlog
from aiohttp import web

from channels.http.protocols.langgraph import dumps
from channels.http.server.live import LIVE, Services
from core.errors import SikaError
from core.thread import pages

log = structlog.get_logger("sika.http")

_FORGET = frozenset({"thread.erased", "thread.pruned"})


async def running(app: web.Application) -> AsyncIterator[None]:
    """For `Application.cleanup_ctx`, after `Live.running`."""
    services = app[LIVE].services

    async def forgetting() -> None:
        await _forgetting(services)

    app[LIVE].keep_up(forgetting)
    yield


async def _forgetting(services: Services) -> None:
    """Drop all encoded messages and decoded pages when a thread is erased (they do not know theirs), and its kept
    state.
    """
    _drop()
    with services.log.listen(None, bodies=False) as listener:
        while True:
            records, lost = await listener.take()
            erased = {record.aggregate.id: record.seq for record in records if record.type in _FORGET}
            if erased or lost:
                _drop()
            for thread_id, seq in erased.items():
                if services.threads.kept(thread_id) is None:
                    continue
                try:
                    await services.threads.load(thread_id, at_least=seq)
                except SikaError as error:
                    log.warning("not forgotten yet", thread=thread_id, reason=str(error))


def _drop() -> None:
    dumps.forget()
    pages.forget()
