"""Places at work for runs, and the fair queue of those that wait for one.

Theory of operation
-------------------
A process takes up to `HELD` wake-ups of runs from the bus, more than it works on, so that it can choose. A share
(`core.runs.share`) says whose a run is, and each share gets its turns: the first run that it asks for has the number of
the newest run that was started, each further one the next number, and the lowest number starts, of several the one that
came first. So who asks for three hundred runs waits for their own, and somebody else's first run is the next. A
configured number of runs is kept to; without one the governor says whether there is a place. One run is started in a
turn of the event loop, so that those under way go on between.

What waits here has begun nothing. Its lease is extended like any other; if the process dies, others get it. A process
in which runs wait asks the others each `ASK_SECONDS` whether one has room. If so, it stops pulling, and gives them back
what could begin there at once; else it goes on pulling, as its queue is fairer than that of the bus. A process that is
late asks, too, and pulls nothing while another is not: the other takes what comes.

Places in the queue are published to all processes each second while somebody waits, so that each can show them.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Literal

import anyio
import msgspec
import structlog

from core.bus.connection import Bus, Handler
from core.bus.pull import Room
from core.bus.queue import Wakeup
from core.errors import Overloaded, Unavailable
from core.events import Aggregate
from core.phrases import counted
from core.runtime.governor import FLOOR, Governor, Level

if TYPE_CHECKING:
    from nats.aio.msg import Msg

log = structlog.get_logger("sika.system")

HELD = 10_000
"""Wake-ups of one actor that a process holds, besides a configured number at work."""
SHARES = 1_000
"""Shares whose next turn is kept, and more only while it is ahead."""
MOST_WAITING = 5_000
"""Runs that wait for a place, from which on others are refused."""
ASK_SECONDS = 0.25
"""Interval at which others are asked for room, and time that they have to answer."""
TURNS_TO_HEAR = 8
"""Turns of the event loop until an answer is heard: who is late waits for longer."""
TELL_SECONDS = 1.0
KEPT_SECONDS = 3 * TELL_SECONDS
"""Age at which what another process published counts no more."""
PLACES = 5_000
"""Places in the queue that are published: the first ones, as a message has a limit."""
RATE_STARTS = 100
"""Newest starts of which the rate is taken."""
RETRY_SECONDS = (5, 600)
"""The shortest and the longest time after which one who was refused should come again."""


class GivenBack(Exception):
    """The wake-up goes to a process that has room."""


class QueueReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a process tells the others of its queue: runs before each waiting one, by its aggregate."""

    process: str
    ahead: Mapping[str, int]


class Offer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Runs of an actor that a process could begin now. `late`: it would begin them late, as it is at a bound."""

    process: str
    room: int
    late: bool = False


By = Literal["number", "memory", "lag", "starts"]
"""A bound that keeps runs waiting: the configured number of runs, memory, the late event loop, the start of others."""


class Load(msgspec.Struct, frozen=True):
    """How much a process has to do. `bound`: what keeps runs waiting, `by`: the same in a word, and `change`: what to
    do for fewer of them; null if none waits. `reached`: the part of each bound that is reached, from 1 on runs wait.
    """

    at_work: int
    waiting: int
    lag_ms: int
    """How late the event loop is: the median of the last second."""
    bound: str | None
    change: str | None
    by: By | None
    reached: Mapping[str, float]


class _Waiting:
    """A wake-up that waits for a place."""

    __slots__ = ("place", "share", "started", "wakeup")

    def __init__(self, wakeup: Wakeup, share: str, place: tuple[int, int]) -> None:
        self.wakeup = wakeup
        self.share = share
        self.place = place
        """Its turn, and the number of its arrival."""
        self.started: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def has_place(self) -> bool:
        return self.started.done() and not self.started.cancelled() and self.started.exception() is None


class Place:
    """A place at work, which is lent to others while its run waits for them."""

    def __init__(self, line: Line, share: str) -> None:
        self.line, self._share = line, share

    def take(self) -> None:
        self.line.at_work[self._share] += 1
        self.line.admission.governor.took()

    def free(self) -> None:
        at_work = self.line.at_work
        at_work[self._share] -= 1
        if not at_work[self._share]:
            del at_work[self._share]
        self.line.admission.changed()


class Line:
    """The runs of one actor: those at work by share, and those that wait."""

    def __init__(self, admission: Admission, actor: str, slots: int | None) -> None:
        self.admission = admission
        self.actor = actor
        self.slots = slots
        self.room = Room(HELD + (slots or 0))
        """For the wake-ups that are held."""
        self.at_work: Counter[str] = Counter()
        self.waiting: dict[str, deque[_Waiting]] = {}
        """By share, oldest first; no empty ones."""
        self._turn = 0
        """The turn of the newest run that was started."""
        self._next: dict[str, int] = {}
        """The next turn of each share that is ahead of that."""

    @property
    def working(self) -> int:
        return self.at_work.total()

    def __len__(self) -> int:
        return sum(map(len, self.waiting.values()))

    def turn(self, share: str) -> int:
        """Returns the turn of a share's next run."""
        turn = max(self._turn, self._next.get(share, 0))
        self._next[share] = turn + 1
        return turn

    def started(self, turn: int) -> None:
        """A run was started in its turn."""
        self._turn = max(self._turn, turn)
        if len(self._next) > SHARES:
            self._next = {share: ahead for share, ahead in self._next.items() if ahead > self._turn}

    def put(self, waiting: _Waiting) -> None:
        self.waiting.setdefault(waiting.share, deque()).append(waiting)

    def remove(self, waiting: _Waiting) -> None:
        """Removes one, which may have left the line."""
        line = self.waiting.get(waiting.share)
        if line is not None and waiting in line:
            line.remove(waiting)
            if not line:
                del self.waiting[waiting.share]

    def first(self, may: Callable[[str], bool]) -> _Waiting | None:
        """Returns the one whose turn it is, of the shares that may start one."""
        first = (line[0] for share, line in self.waiting.items() if may(share))
        return min(first, key=lambda waiting: waiting.place, default=None)

    def in_turn(self) -> list[_Waiting]:
        """Returns all that wait, in the order of their turns."""
        return sorted((each for line in self.waiting.values() for each in line), key=lambda waiting: waiting.place)


class Admission:
    """The places and the queue of one process. `slots`: the configured number of runs of an actor, None for as many as
    the governor lets. `most`: runs that wait from which on new ones are refused.
    """

    def __init__(self, bus: Bus, process: str, slots: int | None, governor: Governor, most: int) -> None:
        self.governor = governor
        self.slots = slots
        self._bus = bus
        self._process = process
        self._most = most
        self._lines: dict[str, Line] = {}
        self._arrivals = 0
        self._turn = asyncio.Event()
        self._waits = asyncio.Event()
        self._pressed = asyncio.Event()
        """Set while runs wait, or the governor says that the process is at a bound: others may have room."""
        self._started: deque[float] = deque(maxlen=RATE_STARTS)
        self._reports: dict[str, tuple[float, QueueReport]] = {}
        """The newest word of each process, with its time."""

    # ── places ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def line(self, actor: str, slots: int | None) -> Line:
        """Returns the line of an actor that runs begin to wait in. `slots`: the actor's own number of runs."""
        if actor not in self._lines:
            self._lines[actor] = Line(self, actor, slots or self.slots)
        return self._lines[actor]

    @asynccontextmanager
    async def place(self, line: Line, wakeup: Wakeup, share: str) -> AsyncIterator[None]:
        """Waits for the turn of a wake-up in a share, and gives it a place. Raises `GivenBack` if another process takes
        it.
        """
        place = Place(line, share)
        turn = line.turn(share)
        if not line.waiting and self._may(line, share) and not self._turn.is_set():
            self._start(place, turn)
        else:
            self._arrivals += 1
            waiting = _Waiting(wakeup, share, (turn, self._arrivals))
            line.put(waiting)
            self._turn.set()
            self._waits.set()
            self._pressed.set()
            try:
                await waiting.started
            except asyncio.CancelledError:
                if waiting.has_place:
                    place.free()  # cancelled in the turn in which it was started
                raise
            finally:
                line.remove(waiting)
        wakeup.rooms.append(place)
        try:
            yield
        finally:
            wakeup.rooms.remove(place)
            place.free()

    def _start(self, place: Place, turn: int) -> None:
        place.take()
        place.line.started(turn)
        self._started.append(anyio.current_time())
        self._turn.set()  # whoever comes in this turn of the event loop starts in a later one

    def _may(self, line: Line, share: str) -> bool:
        """Tells whether a run of a share may start."""
        if line.slots is not None:
            return line.working < line.slots
        working = sum(line.working for line in self._lines.values())
        level = self.governor.level
        if working < FLOOR or level == Level.FREE:
            return True
        if level == Level.FULL:
            return False
        shares = {share}.union(*(line.at_work for line in self._lines.values()))
        return sum(line.at_work[share] for line in self._lines.values()) * len(shares) < working

    def changed(self) -> None:
        """A place may be free now."""
        if self._waits.is_set():
            self._turn.set()
        if self.is_late:
            self._pressed.set()

    @property
    def is_late(self) -> bool:
        """Tells whether what begins here now begins late: the event loop is, or memory is nearly used up."""
        return self.governor.level != Level.FREE

    @property
    def waiting(self) -> int:
        """The number of runs that wait for a place here."""
        return sum(map(len, self._lines.values()))

    @property
    def working(self) -> int:
        """The number of runs at work here."""
        return sum(line.working for line in self._lines.values())

    @property
    def by(self) -> By | None:
        """Returns what keeps runs waiting here; None if none waits."""
        if not self.waiting:
            return None
        return "number" if self._numbers() else self.governor.by or "starts"

    @property
    def reached(self) -> dict[str, float]:
        """Returns the part of each bound that is reached: from 1 on, it keeps runs waiting."""
        numbers = [line.working / line.slots for line in self._lines.values() if line.slots is not None]
        return {**({"number": max(numbers)} if numbers else {}), **self.governor.reached}

    @property
    def bound(self) -> str | None:
        """Says what keeps runs waiting here, for people; None if none waits."""
        if not self.waiting:
            return None
        if numbers := self._numbers():
            return f"the configuration: {counted(numbers[0], 'run')} at a time"
        return self.governor.bound or "the start of other runs"

    @property
    def change(self) -> str | None:
        """Says what to change for fewer runs that wait; None if nothing is to be changed."""
        if not self.waiting:
            return None
        if self._numbers():
            return "raise `runs.max_concurrent` or leave it out, or start another process of the server"
        return self.governor.change

    def _numbers(self) -> list[int]:
        """Returns the numbers of runs that are kept to and keep others waiting."""
        return [line.slots for line in self._lines.values() if line.waiting and line.slots is not None]

    def load(self) -> Load:
        """Returns how much this process has to do now."""
        lag = round(1000 * self.governor.lag_seconds)
        return Load(self.working, self.waiting, lag, self.bound, self.change, self.by, self.reached)

    # ── for people ────────────────────────────────────────────────────────────────────────────────────────

    def ahead(self, aggregate: Aggregate) -> int | None:
        """Returns the number of runs that start before the aggregate's, here or in another process; None if it does not
        wait for a place.
        """
        now = anyio.current_time()
        for at, report in self._reports.values():
            if now - at < KEPT_SECONDS and (ahead := report.ahead.get(str(aggregate))) is not None:
                return ahead
        return None

    def admit(self) -> None:
        """Raises `Overloaded` if so many runs wait that one more would be no use."""
        now = anyio.current_time()
        others = (len(report.ahead) for at, report in self._reports.values() if now - at < KEPT_SECONDS)
        waiting = max(self.waiting, sum(others))
        if waiting >= self._most:
            raise Overloaded(f"{counted(waiting, 'run')} waiting for a place", self._seconds(waiting - self._most + 1))

    def _seconds(self, runs: int) -> int:
        """Returns the time in which so many runs will start, as the newest ones did."""
        shortest, longest = RETRY_SECONDS
        if len(self._started) < 2:
            return longest
        took = anyio.current_time() - self._started[0]
        return min(max(math.ceil(runs * took / len(self._started)), shortest), longest)

    # ── loops ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Runs for as long as the process: starts what waits, and tells of it."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.governor.run, self.changed)
            tasks.start_soon(self._starts)
            tasks.start_soon(self._tells)
            tasks.start_soon(self._hears)
            tasks.start_soon(self._offers)
            tasks.start_soon(self._shares)

    async def _starts(self) -> None:
        while True:
            await self._turn.wait()
            while self._start_one():  # noqa: ASYNC110
                await asyncio.sleep(0)  # those under way go on
            self._turn.clear()

    def _start_one(self) -> bool:
        """Starts a run whose turn it is in any line."""
        for line in self._lines.values():
            waiting = line.first(partial(self._may, line))
            if waiting is not None:
                line.remove(waiting)
                if not waiting.started.done():
                    self._start(Place(line, waiting.share), waiting.place[0])
                    waiting.started.set_result(None)
                return True
        return False

    async def _tells(self) -> None:
        """Tells all processes, this one too, of the places of what waits here."""
        while True:
            await self._waits.wait()
            await asyncio.sleep(TELL_SECONDS)
            ahead = {
                str(each.wakeup.aggregate): number
                for line in self._lines.values()
                for number, each in enumerate(line.in_turn())
            }
            if not ahead:
                self._waits.clear()
            report = QueueReport(self._process, dict(islice(ahead.items(), PLACES)))
            try:
                await self._bus.publish(self._bus.names.waiting, msgspec.json.encode(report))
            except Unavailable as error:
                log.debug("the report on the queue was not sent", error=str(error))

    async def _hears(self) -> None:
        async def on_message(msg: Msg) -> None:
            try:
                report = msgspec.json.decode(msg.data, type=QueueReport)
            except msgspec.DecodeError as error:
                log.warning("not the queue of a process", error=str(error))
                return
            self._reports[report.process] = (anyio.current_time(), report)
            for process, (at, _) in list(self._reports.items()):
                if anyio.current_time() - at > KEPT_SECONDS:
                    del self._reports[process]

        await _subscribed(self._bus, self._bus.names.waiting, on_message)

    # ── other processes ─────────────────────────────────────────────────────────────────────────────────────────────

    async def _offers(self) -> None:
        """Answers whoever asks for room."""

        async def on_request(msg: Msg) -> None:
            line = self._lines.get(msg.data.decode("utf-8", "replace"))
            if line is not None and (room := self._room(line)):
                offer = Offer(self._process, room, late=line.slots is None and self.is_late)
                await self._bus.publish(msg.reply, msgspec.json.encode(offer))

        await _subscribed(self._bus, self._bus.names.room, on_request)

    def _room(self, line: Line) -> int:
        """Returns how many runs of a line could begin now."""
        if line.waiting:
            return 0
        if line.slots is not None:
            return max(0, line.slots - line.working)
        free = FLOOR if self.governor.level == Level.FREE else FLOOR - self.working
        return max(0, free)

    async def _shares(self) -> None:
        """Gives what waits to processes that have room, and pulls nothing while there are such; nor does a process that
        is late, while another is not.
        """
        while True:
            await self._pressed.wait()
            await asyncio.sleep(ASK_SECONDS)
            for line in self._lines.values():
                late = line.slots is None and self.is_late
                offers = await self._offers_of(line.actor) if line.waiting or late else []
                room = sum(offer.room for offer in offers)
                if not (room if line.waiting else any(not offer.late for offer in offers)):
                    line.room.reopen()
                    continue
                await line.room.shut()
                for waiting in line.in_turn()[:room]:
                    if not waiting.started.done():
                        line.remove(waiting)
                        waiting.started.set_exception(GivenBack())
            if not self.waiting and not self.is_late:
                self._pressed.clear()
                for line in self._lines.values():
                    line.room.reopen()

    async def _offers_of(self, actor: str) -> Sequence[Offer]:
        """Returns the offers of other processes that have room for runs of an actor."""
        offers: list[Offer] = []
        try:
            async with self._bus.ask_many(self._bus.names.room, actor.encode()) as replies:
                with anyio.move_on_after(ASK_SECONDS + TURNS_TO_HEAR * self.governor.lag_seconds):
                    while True:
                        msg = await replies.get()
                        if msg.headers is not None and msg.headers.get("Status") == "503":
                            break
                        offers.append(msgspec.json.decode(msg.data, type=Offer))
        except (Unavailable, msgspec.DecodeError) as error:
            log.debug("the question for room was not sent", error=str(error))
        return [offer for offer in offers if offer.process != self._process]


async def _subscribed(bus: Bus, subject: str, handler: Handler) -> None:
    subscription = await bus.subscribe(subject, handler)
    try:
        await anyio.sleep_forever()
    finally:
        await subscription.unsubscribe()
