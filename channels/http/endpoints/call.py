"""The parameters of endpoints: the call itself, and the thread or run that its path names."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import ClassVar, Self
from urllib.parse import urlsplit

from aiohttp import web

from channels.http.server.live import LIVE, PRINCIPAL, Live, Services
from core.config.load import Config
from core.errors import NotFound
from core.events import Aggregate, Record, thread
from core.identity.principal import Principal
from core.ids import safe_id
from core.log.kinds import KIND, SUBAGENT
from core.runs.prompts import OF_THREAD, SETUP
from core.thread.ownership import missing
from core.thread.runs import shown_run
from core.thread.state import Run, ThreadState
from core.user.schedules import KIND as SCHEDULES


@dataclass(frozen=True, slots=True)
class Call:
    """A request whose route and principal are known, and what the application has to answer it."""

    request: web.Request

    @property
    def live(self) -> Live:
        return self.request.app[LIVE]

    @property
    def services(self) -> Services:
        return self.live.services

    @property
    def config(self) -> Config:
        """The configuration in force."""
        return self.services.config()

    @property
    def principal(self) -> Principal:
        return self.request[PRINCIPAL]

    @property
    def user(self) -> str:
        """The user of the call, who owns all that it creates; other users' things do not exist for it."""
        return self.principal.user

    @property
    def thread_id(self) -> str:
        """The path's. There need not be such a thread, nor need it be the user's."""
        return safe_id(self.request.match_info["thread_id"], "thread_id")

    @property
    def run_id(self) -> str:
        return safe_id(self.request.match_info["run_id"], "run_id")

    @classmethod
    async def of_call(cls, call: Call) -> Call:
        return call


@dataclass(frozen=True, slots=True)
class OwnedThread:
    """The path's thread as it stands. `NotFound` also if it is somebody else's."""

    id: str
    state: ThreadState
    errors: ClassVar = (404,)

    @classmethod
    async def of_call(cls, call: Call) -> Self:
        return cls(call.thread_id, await call.services.commands.state(call.user, call.thread_id))


@dataclass(frozen=True, slots=True)
class OwnedLog:
    """The log of the path's thread. `NotFound` also if it is somebody else's. Whose it is costs the same, however long
    the log is; the thread itself is folded where a question needs it.
    """

    id: str
    call: Call
    errors: ClassVar = (404,)

    @classmethod
    async def of_call(cls, call: Call) -> OwnedLog:
        await call.services.commands.check_owner(call.user, call.thread_id)
        return cls(call.thread_id, call)

    async def state(self) -> ThreadState:
        """Returns the thread as it stands. Raises `NotFound`."""
        return await self.call.services.commands.state(self.call.user, self.id)

    async def last(self) -> int:
        """Returns the sequence of the last event."""
        return await self.call.services.log.tip(thread(self.id))

    async def at(self, seq: int) -> ThreadState:
        """Returns the thread after the last event up to a sequence. Raises `NotFound` and `Unavailable`."""
        return await self.call.live.moments.at(self.id, await self.state(), seq)

    def read(
        self, aggregate: Aggregate, *, after: int = 0, upto: int | None = None, bodies: bool = True
    ) -> AsyncGenerator[Record]:
        """Yields the events of a log as `Reading.read` does."""
        return self.call.live.reading.read(aggregate, after=after, upto=upto, bodies=bodies)

    def back(self, aggregate: Aggregate, *, before: int = 0, bodies: bool = True) -> AsyncGenerator[Record]:
        """Yields the events of a log newest first, as `Reading.back` does."""
        return self.call.live.reading.back(aggregate, before=before, bodies=bodies)

    async def may_see(self, aggregate: Aggregate) -> bool:
        """Tells whether the person who looks at this log may see another one, which it leads to.

        Subagents are named by the logs that called them only, so they are the user's if those are. What models got is
        the user's if the thread is that it was recorded for; contents without anything of a user are everybody's.
        """
        kind, user = aggregate.kind, self.call.user
        if kind not in (KIND, OF_THREAD):
            return kind in (SUBAGENT, SETUP) or (kind, aggregate.id) == (SCHEDULES, user)
        try:
            await self.call.services.commands.check_owner(user, aggregate.id)
        except NotFound:
            return False
        return True


DEERFLOW, DEERFLOW_PAGE = "/api/langgraph/", "/workspace/"
"""The prefix of requests of DeerFlow's page, and where it is read. Its proxies take the prefix away."""


class ReadableThread(OwnedThread):
    """The path's thread, or a state of nothing if there is none. `NotFound` if it is somebody else's."""

    @classmethod
    async def of_call(cls, call: Call) -> Self:
        return cls(call.thread_id, await call.services.commands.state_or_empty(call.user, call.thread_id))


class ListedThread(OwnedThread):
    """The path's thread. If there is none, DeerFlow's page expects empty lists, and LangGraph's clients a 404."""

    @classmethod
    async def of_call(cls, call: Call) -> Self:
        page = urlsplit(call.request.headers.get("Referer", "")).path
        deerflow = call.request.path.startswith(DEERFLOW) or page.startswith(DEERFLOW_PAGE)
        thread = await (ReadableThread if deerflow else OwnedThread).of_call(call)
        return cls(thread.id, thread.state)


class VisibleThread(ReadableThread):
    """The path's thread, which need not exist (yet). `NotFound` for somebody else's and for those that were deleted."""

    @classmethod
    async def of_call(cls, call: Call) -> Self:
        thread = await super().of_call(call)
        if thread.state.erased:
            raise missing(thread.id)
        return thread


@dataclass(frozen=True, slots=True)
class OwnedRun:
    """The path's run: on the thread it names, or wherever the run is. `NotFound` also if it is not shown any more."""

    thread_id: str
    state: ThreadState
    run: Run
    errors: ClassVar = (404,)

    @classmethod
    async def of_call(cls, call: Call) -> Self:
        run_id = call.run_id
        if "thread_id" in call.request.match_info:
            thread = await OwnedThread.of_call(call)
            return cls(thread.id, thread.state, shown_run(thread.state, run_id))
        try:
            thread_id = await _thread_of(call.services, run_id)
            state = await call.services.commands.state(call.user, thread_id)
        except NotFound:
            raise NotFound(f"Run {run_id} not found") from None
        return cls(thread_id, state, shown_run(state, run_id))


async def _thread_of(services: Services, run_id: str) -> str:
    """The thread of a run. The views may be behind the log: they are asked again once they have caught up."""
    views = services.views
    thread_id = await views.thread_of(run_id)
    if thread_id is None:
        await views.current()
        thread_id = await views.thread_of(run_id)
    if thread_id is None:
        raise NotFound(f"Run {run_id} not found")
    return thread_id
