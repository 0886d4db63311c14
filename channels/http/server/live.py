"""The application's state: services, the followers of open streams, work that outlives a request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import structlog
from aiohttp import web

from channels.http.server import guard
from channels.http.server.reading import Reading
from core.bus.queue import WorkQueue
from core.chat.account import Accounts
from core.config.load import Additions, Config, Written
from core.config.settings import Model
from core.errors import SikaError, Unavailable
from core.events import Aggregate, Json, Record
from core.files import workspace
from core.identity.principal import Principal
from core.identity.seal import Seal
from core.log.store import EventLog
from core.mcp.servers import Directory
from core.memory.facts import Memories
from core.models.added import AddedModels
from core.plugins import Listed
from core.replay.exports.exporting import Reader
from core.replay.exports.pins import Packed
from core.replay.fork import Forked
from core.replay.moments.marks import Moments
from core.replay.whatif.running import Changes, Experiment
from core.runs.commands import Commands
from core.runs.follow import Follower, Followers
from core.runs.intake import Intake
from core.runs.previews import Pump
from core.runs.replay import Part, Read, Report
from core.runtime.admission import Load
from core.runtime.readiness import Finding, Missing
from core.runtime.system import System
from core.runtime.vitals import ProcessReport
from core.skills.library import Library
from core.thread.threads import Threads
from core.tools import Effect
from core.user.agents import Rosters
from core.user.assistants import DEFAULT, Catalog
from core.user.launch import Launch
from core.user.store import Stores
from core.views.projections import Views

log = structlog.get_logger("sika.http")
T = TypeVar("T")

STALLED_SECONDS = 60.0
"""Time after which a client that does not read is disconnected. It can resume."""
PIECE_BYTES = 256 * 1024
"""The most that is written under one such deadline: a big frame on a slow line is not a client that does not read."""
FITTING_BYTES = 16 * 1024
"""A piece of this size fits into the empty buffer of a connection: it is written without a wait, so without a deadline.
"""
AGAIN_SECONDS = 1.0
"""After how long work that is never done is begun again when it failed."""
ACTOR = "http"
"""The actor of this channel's decisions in the log."""
DESCRIBED = {DEFAULT: "Plans, uses tools, delegates."}
"""The server's agents."""


Ask = Callable[[str, Mapping[str, Any]], Awaitable[Any]]


def _no_problem() -> None:
    return None


async def _nothing() -> Sequence[Missing]:
    return ()


class ToolListing(NamedTuple):
    """A tool of the agent, as it is described to models."""

    name: str
    description: str
    schema: Json
    """Its arguments as JSON schema."""
    effect: Effect


class Trial(msgspec.Struct):
    """`ok`: the model answered, after so many `seconds`. `problem`: why it did not."""

    ok: bool
    problem: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of the process that HTTP needs."""

    log: EventLog
    threads: Threads
    intake: Intake
    queue: WorkQueue
    """The wake-ups of actors, and their dead letters."""
    subagents: Intake
    """The runs of subagents, on logs of their own."""
    commands: Commands
    views: Views
    agents: Rosters
    """The users' custom agents."""
    assistants: Catalog
    launch: Launch
    """The users' schedules, and what fires them."""
    stores: Stores
    memories: Memories
    mcp: Directory
    """The MCP servers."""
    accounts: Accounts
    """The accounts of chat platforms."""
    models: AddedModels
    """The models beside the configuration file."""
    config: Callable[[], Config]
    call: Ask
    """Asks an actor, wherever it runs."""
    home: Path
    skills: Library
    version: str = "0.1.0"
    missing: Callable[[], Awaitable[Sequence[Missing]]] = _nothing
    """Returns what keeps the process from taking work (`core.runtime.readiness`)."""
    tools: Callable[[], Sequence[ToolListing]] = tuple
    """Returns the tools that the configuration declares."""
    written: Callable[[], Mapping[str, Written]] = dict
    """Returns where the configuration file in force has which key."""
    problem: Callable[[], str | None] = _no_problem
    """Says why the configuration as it is now is not in force, for people and without secrets; None if it is."""
    load: Callable[[], Load] | None = None
    """Returns how much this process has to do; None in a process that executes nothing."""
    ahead: Callable[[Aggregate], int | None] = lambda _: None
    """Returns the number of runs that start before an aggregate's; None if it does not wait for a place."""
    pump: Pump | None = None
    """Hands over the previews of this process's runs; None in a process that executes nothing."""
    report: Callable[[], ProcessReport] | None = None
    """Reports the work of this process's actors."""
    examine: Callable[[], Awaitable[Sequence[Finding]]] | None = None
    """Returns what `sika doctor` says of this installation; None in a process without its parts."""
    fork: Callable[[Aggregate, int, str], Coroutine[Any, Any, Forked]] | None = None
    """Makes a thread of another one up to an event, under an id; None in a process without the actors' parts."""
    what_if: Callable[[Changes, bool], Awaitable[Experiment]] | None = None
    """Returns a what-if under changed conditions, and whether effects are allowed; None as above."""
    replay: Callable[[Read, Aggregate, Part], Awaitable[Report]] | None = None
    """Replays a run of a thread, and asks nobody; None as above."""
    pin: Callable[[Reader, Aggregate, Sequence[Record], str], Awaitable[Packed]] | None = None
    """Pins events of a thread (`core.replay.exports.pins.records_to_pin`), under a name; None as above."""
    try_model: Callable[[Additions | Model], Awaitable[Trial]] | None = None
    """Calls a model, also one that is not configured yet; None in a process without the providers' libraries."""
    plugins: Sequence[Listed] = ()
    """The plug-ins of installed packages, those that are left out among them."""

    @classmethod
    def of(cls, system: System, config: Callable[[], Config], home: Path) -> Services:
        """Returns the services of a running system; `home`: its data directory."""
        agents = Rosters(system.log, actor=ACTOR)
        return cls(
            log=system.log,
            threads=system.threads,
            intake=system.intake,
            queue=system.queue,
            subagents=system.subagents,
            commands=Commands(system.threads, system.intake, actor=ACTOR),
            views=system.views,
            agents=agents,
            assistants=Catalog(system.log, DESCRIBED, agents, lambda: config().agents_api.enabled, actor=ACTOR),
            launch=Launch(system.log, system.threads, system.intake),
            stores=Stores(system.stores, actor=ACTOR),
            memories=Memories(system.log, actor=ACTOR),
            mcp=Directory(system.log, config, Seal(home)),
            accounts=Accounts(system.log, config, Seal(home)),
            models=AddedModels(system.log, Seal(home)),
            config=config,
            call=system.call,
            home=home,
            skills=Library(system.log, home),
            report=system.vitals.report,
            load=system.admission.load,
            ahead=system.admission.ahead,
            pump=system.pump,
        )


class Live:
    """One per application."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.reading = Reading(services.log)
        self.moments = Moments(self.reading.read)
        """Threads as they were, for those who look at their past."""
        self.followers = Followers(services.log, self.reading.read, services.ahead, services.pump)
        self.changes = workspace.changes(services.log)
        """Changes of runs to files, by thread."""
        self.on_stop: list[Callable[[], None]] = [self.followers.stop]
        """Called when the process goes down: each ends streams."""
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def listeners(self) -> int:
        """Streams that are open."""
        return len(self.followers)

    @property
    def stopping(self) -> bool:
        """True once the process goes down: a connection that ends now is our doing, not the client's."""
        return self.followers.stopping

    def follow(self, thread_id: str) -> AbstractAsyncContextManager[Follower]:
        """Follow a thread from now on."""
        return self.followers.follow(thread_id)

    def background(self, work: Coroutine[Any, Any, None]) -> None:
        """Work that goes on when its request is over; cancelled when the application stops. A failure is logged."""
        task = asyncio.create_task(work, name=getattr(work, "__qualname__", "work"))
        self._tasks.add(task)
        task.add_done_callback(self._log_failure)

    def _log_failure(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background work failed", work=task.get_name(), exc_info=error)

    def keep_up(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Work that is never done while the application runs: a failure is logged, and it is begun again."""

        async def again() -> None:
            while True:
                try:
                    await work()
                except Exception:
                    log.exception("background work failed, and is begun again", work=work.__qualname__)
                await asyncio.sleep(AGAIN_SECONDS)

        self.background(again())

    async def to_its_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Returns the result of work that goes on also if its client leaves."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        async def run() -> None:
            try:
                result = await work
            except Exception as error:
                if done.cancelled():
                    raise
                done.set_exception(error)
            else:
                if not done.cancelled():
                    done.set_result(result)

        self.background(run())
        return await done

    async def beat(self) -> None:
        """The heartbeat of all streams."""
        await self.followers.beat(lambda: self.services.config().http.heartbeat_seconds)

    def stop(self) -> None:
        """End all streams; their clients resume elsewhere."""
        for end in self.on_stop:
            end()

    async def running(self, _: web.Application) -> AsyncIterator[None]:
        """For `Application.cleanup_ctx`."""
        self.keep_up(self.beat)
        yield
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def left(self, thread_id: str, run_id: str) -> None:
        """The client of a run with `on_disconnect: cancel` is gone. Its handler may be cancelled at any moment now, so
        this is done beside it.
        """
        if not self.stopping:
            self.background(self._cancel(thread_id, run_id))

    async def _cancel(self, thread_id: str, run_id: str) -> None:
        while True:
            try:
                await self.services.intake.cancel(thread_id, run_id)
                return
            except Unavailable as error:
                log.warning("not cancelled yet", run=run_id, reason=str(error))
                await asyncio.sleep(1)
            except SikaError as error:
                log.info("not cancelled", run=run_id, reason=str(error))
                return


LIVE: web.AppKey[Live] = web.AppKey("live", Live)


PRINCIPAL: web.RequestKey[Principal] = web.RequestKey("principal", Principal)


class Outlet:
    """A response that is written piece by piece, to a client that reads it."""

    def __init__(self, request: web.Request, content_type: str, headers: Mapping[str, str]) -> None:
        # a proxy that compresses keeps text back until a block is full: `no-transform` says not to
        always = {"Content-Type": content_type, "Cache-Control": "no-store, no-transform", "X-Accel-Buffering": "no"}
        origin = request.get(guard.ORIGIN)
        self._request = request
        self.response = web.StreamResponse(headers={**always, **headers, **(guard.cors(origin) if origin else {})})

    async def write(self, data: bytes) -> None:
        """Raises `ConnectionError` if the client is gone, or has not read for a minute."""
        if not self.response.prepared:
            await self.response.prepare(self._request)
        if self._request.method == "HEAD":
            return
        if len(data) <= FITTING_BYTES and self._is_drained():
            await self.response.write(data)
            return
        try:
            for begin in range(0, len(data), PIECE_BYTES):
                async with asyncio.timeout(STALLED_SECONDS):
                    await self.response.write(data[begin : begin + PIECE_BYTES])
        except TimeoutError:
            self.abort()
            raise ConnectionResetError("the client does not read") from None

    def _is_drained(self) -> bool:
        transport = self._request.transport
        return transport is not None and not transport.get_write_buffer_size()

    def break_off(self) -> None:
        """Closes without a proper end, after what was written: the client has whole frames, and knows that more follow
        elsewhere.
        """
        if self._request.transport is not None:
            self._request.transport.close()

    def abort(self) -> None:
        """Closes without a proper end, so that the client knows it has not seen all."""
        if self._request.transport is not None:
            self._request.transport.abort()
