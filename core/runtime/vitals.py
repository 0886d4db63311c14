"""Vitals of the processes: each measures the work of its actors, and reports it to requests over the bus.

Nothing is stored: a report costs what runs now, however long the history. A process that does not answer within
`WINDOW_SECONDS` is not listed; its actors' wake-ups still are, with those of actors that run nowhere.
"""

from __future__ import annotations

import os
import resource
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
import structlog

from core.actor import Actor
from core.bus.connection import Bus
from core.bus.streams import find
from core.config.redaction import redactor
from core.control import sendable
from core.errors import Unavailable
from core.ids import now

if TYPE_CHECKING:
    from nats.aio.msg import Msg

log = structlog.get_logger("sika.system")

WINDOW_SECONDS = 1.0
"""Time that processes have to report."""
MEASURED = 512
"""Newest durations of an actor, of which the percentiles are taken."""
ERROR_CHARACTERS = 500
LOAD_SECONDS = 0.5
"""Least time over which the use of the processor is measured."""


class Failure(msgspec.Struct, frozen=True):
    """The last error of an actor in a process."""

    text: str
    at: str


class ActorReport(msgspec.Struct, frozen=True):
    """An actor in one process. Counts begin with the process."""

    name: str
    consumes: Sequence[str]
    """Types of the events it handles."""
    only: Sequence[str]
    """Labels and types by which it selects from them."""
    answers: bool
    """True if it answers requests."""
    position: int | None
    """Sequence of the log up to which its events were sent to it; null if it consumes none."""
    in_flight: int
    limit: int
    """Most events that it handles at once in this process."""
    handled: int
    failed: int
    restarts: int
    """Starts of its loop after an error."""
    last_error: Failure | None
    p50_ms: float | None
    p95_ms: float | None
    """Duration of its newest 512 handlings."""


class ProcessReport(msgspec.Struct, frozen=True):
    """A process and its actors."""

    process: str
    host: str
    pid: int
    started_at: str
    actors: Sequence[ActorReport]
    memory_bytes: int | None = None
    """Memory that it has in RAM; null from versions that do not tell."""
    cpu_percent: float | None = None
    """Its share of one processor since its last report."""


class Backlog(msgspec.Struct, frozen=True):
    """Wake-ups of an actor, of all processes."""

    actor: str
    waiting: int
    """Not delivered yet."""
    delivered: int
    """Delivered, and not done yet."""
    lag_seconds: float | None = None
    """For how long the first that was not delivered waits; null if none waits."""


class Overview(msgspec.Struct, frozen=True):
    """The actors at work, by process."""

    position: int
    """Last sequence of the log. An actor's lag is the difference to its own position."""
    processes: Sequence[ProcessReport]
    backlogs: Sequence[Backlog]


class Work:
    """The work of one actor in this process."""

    def __init__(self, actor: Actor[Any], limit: int, position: Callable[[], int] | None) -> None:
        self.actor = actor
        self.limit = limit
        self.in_flight = self.handled = self.failed = self.restarts = 0
        self._position = position
        self._last_error: Failure | None = None
        self._seconds: deque[float] = deque(maxlen=MEASURED)

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Counts and measures one piece of work."""
        began = time.monotonic()
        self.in_flight += 1
        try:
            yield
            self.handled += 1
            self._seconds.append(time.monotonic() - began)
        finally:
            self.in_flight -= 1

    def fail(self, error: str, *, counts: bool = True) -> None:
        """Notes an error; one that does not count is only a delay."""
        self.failed += counts
        self._last_error = Failure(redactor.text(sendable(error))[:ERROR_CHARACTERS], now())

    def report(self) -> ActorReport:
        cls, ordered = type(self.actor), sorted(self._seconds)
        return ActorReport(
            name=self.actor.name,
            consumes=[str(event.__struct_config__.tag) for event in cls.subscription],
            only=sorted(s if isinstance(s, str) else str(s.__struct_config__.tag) for s in self.actor.only),
            answers=cls.answer is not Actor.answer,
            position=self._position() if self._position else None,
            in_flight=self.in_flight,
            limit=self.limit,
            handled=self.handled,
            failed=self.failed,
            restarts=self.restarts,
            last_error=self._last_error,
            p50_ms=_percentile(ordered, 0.5),
            p95_ms=_percentile(ordered, 0.95),
        )


class Load:
    """The share of one processor that this process uses."""

    def __init__(self) -> None:
        self._at, self._used, self._percent = time.monotonic(), time.process_time(), 0.0

    def percent(self) -> float:
        """Returns the share since the last look, which is at least `LOAD_SECONDS` ago."""
        at, used = time.monotonic(), time.process_time()
        if at - self._at >= LOAD_SECONDS:
            self._percent = round(100 * (used - self._used) / (at - self._at), 1)
            self._at, self._used = at, used
        return self._percent


def memory_bytes() -> int:
    """Returns the memory that this process has in RAM; where there is no /proc, the most that it had."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGESIZE")
    except (OSError, ValueError, IndexError):
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


class Vitals:
    """The work of all actors of this process."""

    def __init__(self, process: str) -> None:
        self._process = process
        self._started_at = now()
        self._work: dict[str, Work] = {}
        self._load = Load()

    def watch(self, actor: Actor[Any], limit: int, position: Callable[[], int] | None) -> Work:
        work = self._work[actor.name] = Work(actor, limit, position)
        return work

    def restarted(self, loop: str, error: Exception) -> None:
        """Notes that a loop, whose name begins with its actor's, is started again."""
        if work := self._work.get(loop.partition(" ")[0]):
            work.restarts += 1
            work.fail(f"{type(error).__name__}: {error}", counts=False)

    def report(self) -> ProcessReport:
        actors = [work.report() for work in self._work.values()]
        return ProcessReport(
            process=self._process,
            host=socket.gethostname(),
            pid=os.getpid(),
            started_at=self._started_at,
            actors=actors,
            memory_bytes=memory_bytes(),
            cpu_percent=self._load.percent(),
        )

    async def serve(self, bus: Bus) -> None:
        """Reports to whoever asks, until cancelled."""

        async def on_request(msg: Msg) -> None:
            with suppress(Unavailable):
                await bus.publish(msg.reply, msgspec.json.encode(self.report()))

        subscription = await bus.subscribe(bus.names.processes, on_request)
        try:
            await anyio.sleep_forever()
        finally:
            await subscription.unsubscribe()


async def overview(bus: Bus, position: int) -> Overview:
    """Returns what runs where. `position`: the last sequence of the log. Raises `Unavailable`."""
    return Overview(position, await _reports(bus), await _backlogs(bus))


async def _reports(bus: Bus) -> list[ProcessReport]:
    """Returns the reports that come within the window."""
    reports: list[ProcessReport] = []
    async with bus.ask_many(bus.names.processes, b"") as replies:
        with anyio.move_on_after(WINDOW_SECONDS):
            while not _nobody(msg := await replies.get()):
                try:
                    reports.append(msgspec.json.decode(msg.data, type=ProcessReport))
                except msgspec.DecodeError as error:
                    log.warning("not the report of a process", error=str(error))
    return sorted(reports, key=lambda report: report.process)


def _nobody(msg: Msg) -> bool:
    """Tells whether the server says that there is no process."""
    return msg.headers is not None and msg.headers.get("Status") == "503"


async def _backlogs(bus: Bus) -> list[Backlog]:
    """Returns the wake-ups of each actor that has a consumer, whether or not it runs."""
    backlogs: list[Backlog] = []
    total = 1
    while len(backlogs) < total:
        page = await bus.api(f"CONSUMER.LIST.{bus.names.stream('cmd')}", {"offset": len(backlogs)})
        if not page["consumers"]:
            break
        for each in page["consumers"]:
            waiting = each["num_pending"]
            lag = await _lag(bus, each) if waiting else None
            backlogs.append(Backlog(each["name"], waiting, each["num_ack_pending"], lag))
        total = page["total"]
    return backlogs


async def _lag(bus: Bus, consumer: Mapping[str, Any]) -> float | None:
    """Returns for how many seconds the first wake-up that was not delivered waits; None if none does by now."""
    after = {"seq": consumer["delivered"]["stream_seq"] + 1, "next_by_subj": consumer["config"]["filter_subject"]}
    first = await find(bus, "cmd", after)
    if first is None or first.time is None:
        return None
    return round(max(0.0, (datetime.now(UTC) - first.time).total_seconds()), 3)


def _percentile(ordered: Sequence[float], part: float) -> float | None:
    return round(1000 * ordered[int(len(ordered) * part)], 3) if ordered else None
