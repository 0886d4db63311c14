"""The pace of calls to a platform: when each may be made, so that no rule of the platform is broken.

Guarantees, at the moment at which `Turns` lets a call pass: no chat gets a message sooner than `Pace.send_seconds`
after the last, no message is edited sooner than its interval after the last edit, no group gets more than
`group_per_minute` calls in a minute, the account makes no more than `per_second` in a second, and no chat is called
before the pause has passed that the platform asked for. People have the account's calls in turn, so that three hundred
answers to one do not hold up the answer to another. Of a person, and of people who had as many turns, edits give way to
messages; they also wait while a message of their chat does, and leave a part of a group's minute to them. A fifth of
the account's second is for people without a call in it, so that their first one does not wait until a second of others'
is over. Signs that somebody is at work take what is left. Non-guarantees: pauses are not remembered over a restart.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio

from core.chat.port import Pace

PATIENCE_SECONDS = 10.0
"""A longer wait for a turn is the caller's: it must not hold what others need."""
SECOND, MINUTE = 1.05, 61.0
"""A platform's second and minute as we count them: calls do not take equally long to arrive."""
KEPT_CHATS = 1000
"""Chats above which those are forgotten to which nothing was sent for a minute."""
EDITS_OF_4 = 3
"""Quarters of a group's calls in a minute that edits may take."""
FIRST_CALLS = 5
"""Part of the account's calls in a second that is for people who have had none in it: one of so many."""
LOOK_SECONDS = 0.1
"""Interval in which an edit looks whether messages wait."""
NEVER = float("-inf")


class Later(Exception):
    """The step is to be repeated after `seconds`, not before."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"again in {seconds:g} s")
        self.seconds = seconds


class UntilConnected(Later):
    """The same, without a timer: a new connection of the account begins with it at once."""


@dataclass(slots=True)
class _Chat:
    """The recent calls of a chat. Times are of the caller's clock."""

    refused_until: float = NEVER
    sent: float = NEVER
    recent: deque[float] = field(default_factory=deque)
    edited: dict[str, float] = field(default_factory=dict)
    """The last edit of each draft."""
    senders: int = 0
    """Messages that wait for their turn."""
    turn: anyio.Lock = field(default_factory=anyio.Lock)


class Schedule:
    """The rules, without a clock: `now` are seconds of any steady clock. Limits of 0 are none."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self._chats: dict[str, _Chat] = {}
        self._calls: deque[tuple[float, str]] = deque()
        """The account's of the last second, with their shares."""
        self._shares: Counter[str] = Counter()

    def chat(self, chat: str) -> _Chat:
        return self._chats.setdefault(chat, _Chat())

    def until_send(self, chat: str, group: bool, now: float, messages: int = 1) -> float:
        """Returns the seconds until messages may be sent by one call, as far as their chat is concerned."""
        known = self.chat(chat)
        times = [known.refused_until, known.sent + self.pace.send_seconds]
        if group and self.pace.group_per_minute > 0:
            before = max(1, self.pace.group_per_minute - messages + 1)
            times.append(_room(known.recent, before, MINUTE, now))
        return max(0.0, max(times) - now)

    def until_edit(self, chat: str, group: bool, draft: str, now: float) -> float:
        """Returns the seconds until a draft may be edited, as far as its chat is concerned."""
        known = self.chat(chat)
        interval = self.pace.group_edit_seconds if group else self.pace.edit_seconds
        times = [known.refused_until, known.edited.get(draft, NEVER) + interval]
        if group and self.pace.group_per_minute > 0:
            share = max(1, self.pace.group_per_minute * EDITS_OF_4 // 4)
            times.append(_room(known.recent, share, MINUTE, now))
        return max(0.0, max(times) - now)

    def until_call(self, now: float, share: str = "") -> float:
        """Returns the seconds until the account may make a call for a share."""
        limit = self.pace.per_second
        if limit <= 0:
            return 0.0
        calls = self._recent(now)
        if share in self._shares:
            limit -= limit // FIRST_CALLS
        return max(0.0, calls[-limit][0] + SECOND - now) if len(calls) >= limit else 0.0

    def is_first(self, now: float, share: str) -> bool:
        """Tells whether a call may be made that is the first one for a share within a second."""
        return not self.until_call(now, share) and share not in self._shares

    def has_spare(self, now: float) -> bool:
        """Tells whether less than half of the account's calls in a second were made."""
        return self.pace.per_second <= 0 or len(self._recent(now)) < self.pace.per_second / 2

    def called(self, now: float, share: str = "") -> None:
        self._recent(now).append((now, share))
        self._shares[share] += 1

    def _recent(self, now: float) -> deque[tuple[float, str]]:
        """Returns the account's calls of the last second."""
        while self._calls and self._calls[0][0] <= now - SECOND:
            _, share = self._calls.popleft()
            self._shares[share] -= 1
            if not self._shares[share]:
                del self._shares[share]
        return self._calls

    def sent(self, chat: str, now: float, messages: int = 1) -> None:
        self._note(chat, now, messages).sent = now

    def edited(self, chat: str, draft: str, now: float) -> None:
        self._note(chat, now).edited[draft] = now

    def refused(self, chat: str, until: float) -> None:
        known = self.chat(chat)
        known.refused_until = max(known.refused_until, until)

    def ended(self, chat: str, draft: str) -> None:
        """Forgets a draft."""
        if chat in self._chats:
            self._chats[chat].edited.pop(draft, None)

    def _note(self, chat: str, now: float, calls: int = 1) -> _Chat:
        if len(self._chats) > KEPT_CHATS:
            self._forget(now)
        known = self.chat(chat)
        _room(known.recent, 1, MINUTE, now)
        known.recent.extend([now] * calls)
        return known

    def _forget(self, now: float) -> None:
        for name, known in list(self._chats.items()):
            last = max(known.refused_until, known.recent[-1] if known.recent else NEVER)
            if last < now - MINUTE and not known.senders and not known.edited:
                del self._chats[name]


def _room(times: deque[float], limit: int, window: float, now: float) -> float:
    """Returns the time from which on there are fewer than `limit` of them in the window. Drops those before it."""
    while times and times[0] <= now - window:
        times.popleft()
    return times[-limit] + window if len(times) >= limit else NEVER


class _Waiting:
    """A call that waits for its turn."""

    __slots__ = ("edit", "passed", "share", "woken")

    def __init__(self, share: str, *, edit: bool) -> None:
        self.share = share
        self.edit = edit
        self.passed = False
        self.woken = anyio.Event()


class _Queue:
    """The calls that wait, by share. The share is next that has had the fewest turns while it
    had calls waiting, of several one with a message, of several the one whose call came first.
    """

    def __init__(self) -> None:
        self._calls: dict[str, tuple[deque[_Waiting], deque[_Waiting]]] = {}
        """Messages and edits of each share that has some."""
        self._turns: dict[str, int] = {}
        """The next turn of each share that is ahead of the newest one."""
        self._turn = 0

    @property
    def has_messages(self) -> bool:
        return any(messages for messages, _ in self._calls.values())

    def put(self, share: str, *, edit: bool) -> _Waiting:
        if share not in self._calls:
            self._calls[share] = (deque(), deque())
            self._turns[share] = max(self._turn, self._turns.get(share, 0))
        call = _Waiting(share, edit=edit)
        self._calls[share][edit].append(call)
        return call

    def remove(self, call: _Waiting) -> None:
        """Removes a call, which may have passed."""
        calls = self._calls.get(call.share)
        if calls is not None and call in calls[call.edit]:
            calls[call.edit].remove(call)
            if not any(calls):
                del self._calls[call.share]

    def first(self, may: Callable[[str], bool] = lambda share: True) -> _Waiting | None:
        """Returns the call whose turn it is, of the shares that may have one."""
        shares = filter(may, self._calls)
        share = min(shares, key=lambda share: (self._turns[share], not self._calls[share][0]), default=None)
        if share is None:
            return None
        messages, edits = self._calls[share]
        return (messages or edits)[0]

    def let_pass(self, call: _Waiting) -> None:
        self.remove(call)
        self._turn = max(self._turn, self._turns[call.share])
        self._turns[call.share] += 1
        if len(self._turns) > KEPT_CHATS:
            self._turns = {s: turn for s, turn in self._turns.items() if turn > self._turn or s in self._calls}
        call.passed = True
        call.woken.set()

    def wake(self) -> None:
        """Wakes one of those that wait."""
        for calls in self._calls.values():
            (calls[0] or calls[1])[0].woken.set()
            return


class Slots:
    """Slots for work that takes long, which people have in turn. Who has some leaves as many free, so that others find
    one, however long the work of one person takes.
    """

    def __init__(self, total: int) -> None:
        self._free = total
        self._taken: Counter[str] = Counter()
        self._queue = _Queue()

    @asynccontextmanager
    async def slot(self, share: str) -> AsyncIterator[None]:
        """Waits for a slot, and has it until the block ends."""
        waiting = self._queue.put(share, edit=False)
        try:
            self._pass()
            await waiting.woken.wait()
            yield
        finally:
            self._queue.remove(waiting)
            if waiting.passed:
                self._free += 1
                self._taken[share] -= 1
                self._taken += Counter()  # forgets those that have none
            self._pass()

    def _pass(self) -> None:
        while (waiting := self._queue.first(self._may)) is not None:
            self._free -= 1
            self._taken[waiting.share] += 1
            self._queue.let_pass(waiting)

    def _may(self, share: str) -> bool:
        return self._taken[share] < self._free


class Turns:
    """Lets calls pass when they may be made. One for each account. `share`: the person for whom a call is."""

    def __init__(self, pace: Pace, clock: Callable[[], float] = time.monotonic) -> None:
        self.schedule = Schedule(pace)
        self._clock = clock
        self._queue = _Queue()
        self._watched = False
        """One of those that wait watches the clock, for all."""

    async def send(self, chat: str, group: bool, share: str = "", messages: int = 1) -> None:
        """Waits for the turn of a message, after those of the same chat that came before. `messages`: those that the
        call makes of it. Raises `Later`."""
        known = self.schedule.chat(chat)
        known.senders += 1
        try:
            async with known.turn:
                while True:
                    if (wait := self.schedule.until_send(chat, group, self._clock(), messages)) > PATIENCE_SECONDS:
                        raise Later(wait)
                    if wait:
                        await anyio.sleep(wait)
                        continue
                    await self.call(share or chat)
                    if not self.schedule.until_send(chat, group, self._clock(), messages):
                        self.schedule.sent(chat, self._clock(), messages)
                        return
        finally:
            known.senders -= 1

    def sent(self, chat: str) -> None:
        """Notes that a message has arrived: the next is counted from there on."""
        self.schedule.chat(chat).sent = self._clock()

    async def edit(self, chat: str, group: bool, draft: str, share: str = "") -> None:
        """Waits for the turn of an edit; may be cancelled."""
        while True:
            if wait := self.schedule.until_edit(chat, group, draft, self._clock()):
                await anyio.sleep(wait)
            elif self.schedule.chat(chat).senders:
                await anyio.sleep(LOOK_SECONDS)
            else:
                await self.call(share or chat, edit=True)
                if not self.schedule.until_edit(chat, group, draft, self._clock()):
                    self.schedule.edited(chat, draft, self._clock())
                    return

    def edited(self, chat: str, draft: str) -> None:
        """Notes that an edit has arrived."""
        self.schedule.chat(chat).edited[draft] = self._clock()

    async def call(self, share: str = "", *, edit: bool = False) -> None:
        """Waits until the account may make a call, in the share's turn. What is free for first calls needs none."""
        call = self._queue.put(share, edit=edit)
        if self.schedule.is_first(self._clock(), share):
            self._pass(call)
        try:
            while not call.passed:
                if self._watched:
                    await call.woken.wait()
                    call.woken = anyio.Event()
                else:
                    await self._watch(call)
        finally:
            self._queue.remove(call)
            if not self._watched:
                self._queue.wake()

    async def _watch(self, call: _Waiting) -> None:
        """Lets calls pass until one has."""
        self._watched = True
        try:
            while not call.passed:
                first = self._queue.first() or call
                if wait := self.schedule.until_call(self._clock(), first.share):
                    await anyio.sleep(wait)
                else:
                    self._pass(first)
        finally:
            self._watched = False

    def _pass(self, call: _Waiting) -> None:
        self.schedule.called(self._clock(), call.share)
        self._queue.let_pass(call)

    def spare(self) -> bool:
        """Takes the turn for a call that can be left out. Returns whether there was one: others have half of it all."""
        now = self._clock()
        if self._queue.has_messages or not self.schedule.has_spare(now):
            return False
        self.schedule.called(now)
        return True

    def pause(self, chat: str) -> float:
        """Returns the rest of the pause that the platform asked for, in seconds."""
        return max(0.0, self.schedule.chat(chat).refused_until - self._clock())

    def refused(self, chat: str, seconds: float) -> None:
        """Notes that the platform wants no calls for a chat for so long."""
        self.schedule.refused(chat, self._clock() + seconds)
