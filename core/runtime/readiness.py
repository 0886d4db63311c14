"""The readiness of this process for work: the missing parts. That the process lives at all is another question.

A look is real (the log's leader answers) and shared: however many ask, there is one a second, and it has a deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Literal, NamedTuple

import anyio
import msgspec

from core.config.load import ConfigSource
from core.errors import Unavailable
from core.phrases import counted
from core.runtime.system import System

KEPT_SECONDS = 1.0
LOOK_SECONDS = 2.0
REFUSED_SECONDS = 10.0
"""Time for which a failed append counts, if no other was tried since."""
BEHIND_SECONDS = 10.0
"""Limit of the time that the views lag behind the log."""


DEGRADING = frozenset({"configuration", "versions", "events", "event loop"})
"""Parts without which the process still takes work."""


class Missing(msgspec.Struct, frozen=True):
    """A part that does not do its work, and why. Shown to anybody: no secrets, no places."""

    part: str
    reason: str


class Finding(NamedTuple):
    """The result of a check by `sika doctor`. `advice` is the remedy, if there is any."""

    name: str
    status: Literal["ok", "warn", "fail"]
    text: str
    advice: str = ""


def _summary(notices: Sequence[str]) -> str | None:
    """Returns the newest notice, and the number of the others."""
    if not notices:
        return None
    others = len(notices) - 1
    return f"{notices[-1]} (and {others} more)" if others else notices[-1]


class Readiness:
    """One per process. `working` is set when the actors take runs."""

    def __init__(self, system: System, config: ConfigSource) -> None:
        self.working = False
        self._draining = False
        self._system = system
        self._config = config
        self._looking = asyncio.Lock()
        self._looked = float("-inf")
        self._missing: Sequence[Missing] = ()
        self._awaited: tuple[float, int] | None = None
        """Since when the views are behind, and the sequence they should have reached."""

    def drain(self) -> None:
        """Says from now on that the process takes no more work."""
        self._draining = True

    async def missing(self) -> Sequence[Missing]:
        """The parts that are not there now, or were not a second ago."""
        if self._draining:
            return [Missing("server", "it is ending, and serves what it has begun")]
        async with self._looking:
            if anyio.current_time() - self._looked >= KEPT_SECONDS:
                self._missing = await self._look()
                self._looked = anyio.current_time()
            return self._missing

    async def _look(self) -> Sequence[Missing]:
        self._config.current()
        reasons = {
            "log": await self._log(),
            "workers": None if self.working else "the actors are not at work yet",
            "views": self._views(),
            "configuration": self._config.problem,
            "versions": _summary(self._system.left.shown()),
            "events": _summary(self._system.log.refused.shown()),
            "event loop": _summary(self._system.stalls.notices.shown()),
            "dispatch": self._system.dispatcher.standing if self._system.dispatcher else None,
        }
        return [Missing(part, reason) for part, reason in reasons.items() if reason]

    async def _log(self) -> str | None:
        bus, log = self._system.bus, self._system.log
        if trouble := bus.trouble():
            return trouble
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                await log.last()
                if log.refused_at is not None:
                    await bus.probe()
        except TimeoutError:
            return f"NATS does not answer within {LOOK_SECONDS:g} s"
        except Unavailable as error:
            return str(error)
        if log.refused_at is not None and anyio.current_time() - log.refused_at < REFUSED_SECONDS:
            return "the last append was not stored"
        return None

    def _views(self) -> str | None:
        views, position, now = self._system.views, self._system.log.position, anyio.current_time()
        if not views.readable:
            return "the search index is being built"
        if self._awaited is None or views.seq >= self._awaited[1]:
            self._awaited = (now, position) if views.seq < position else None
        if self._awaited is not None and now - self._awaited[0] > BEHIND_SECONDS:
            return f"the search index is {counted(position - views.seq, 'event')} behind"
        return None
