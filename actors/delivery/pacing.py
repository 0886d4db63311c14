"""The pace of calls to a platform: when each may be made, so that no rule of the platform is broken.

Guarantees, at the moment at which `Turns` lets a call pass: no chat gets a message sooner than `Pace.send_seconds`
after the last, no message is edited sooner than its interval after the last edit, no group gets more than
`group_per_minute` calls in a minute, the account makes no more than `per_second` in a second, and no chat is called
before the pause has passed that the platform asked for. Edits give way to messages: they wait while one does, and
leave a part of a group's minute to them. Signs that somebody is at work take what is left. Non-guarantees: pauses are
not remembered over a restart.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
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
LOOK_SECONDS = 0.1
"""Interval in which an edit looks whether messages wait."""
NEVER = float("-inf")


class Later(Exception):
    """The step is to be repeated after `seconds`, not before."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"again in {seconds:g} s")
        self.seconds = seconds


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
        self._calls: deque[float] = deque()

    def chat(self, chat: str) -> _Chat:
        return self._chats.setdefault(chat, _Chat())

    def until_send(self, chat: str, group: bool, now: float) -> float:
        """Returns the seconds until a message may be sent, as far as its chat is concerned."""
        known = self.chat(chat)
        times = [known.refused_until, known.sent + self.pace.send_seconds]
        if group and self.pace.group_per_minute > 0:
            times.append(_room(known.recent, self.pace.group_per_minute, MINUTE, now))
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

    def until_call(self, now: float) -> float:
        """Returns the seconds until the account may make any call."""
        if self.pace.per_second <= 0:
            return 0.0
        return max(0.0, _room(self._calls, self.pace.per_second, SECOND, now) - now)

    def has_spare(self, now: float) -> bool:
        """Tells whether less than half of the account's calls in a second were made."""
        _room(self._calls, 1, SECOND, now)
        return self.pace.per_second <= 0 or len(self._calls) < self.pace.per_second / 2

    def called(self, now: float) -> None:
        self._calls.append(now)

    def sent(self, chat: str, now: float) -> None:
        self._note(chat, now).sent = now

    def edited(self, chat: str, draft: str, now: float) -> None:
        self._note(chat, now).edited[draft] = now

    def refused(self, chat: str, until: float) -> None:
        known = self.chat(chat)
        known.refused_until = max(known.refused_until, until)

    def ended(self, chat: str, draft: str) -> None:
        """Forgets a draft."""
        if chat in self._chats:
            self._chats[chat].edited.pop(draft, None)

    def _note(self, chat: str, now: float) -> _Chat:
        if len(self._chats) > KEPT_CHATS:
            self._forget(now)
        known = self.chat(chat)
        _room(known.recent, 1, MINUTE, now)
        known.recent.append(now)
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


class Turns:
    """Lets calls pass when they may be made. One for each account."""

    def __init__(self, pace: Pace, clock: Callable[[], float] = time.monotonic) -> None:
        self.schedule = Schedule(pace)
        self._clock = clock
        self._calls = anyio.Lock()
        self._edits = anyio.Lock()
        self._waiting = 0
        """Calls that wait for the account's turn, other than edits."""

    async def send(self, chat: str, group: bool) -> None:
        """Waits for the turn of a message, after those of the same chat that came before. Raises `Later`."""
        known = self.schedule.chat(chat)
        known.senders += 1
        try:
            async with known.turn:
                while True:
                    if (wait := self.schedule.until_send(chat, group, self._clock())) > PATIENCE_SECONDS:
                        raise Later(wait)
                    if wait:
                        await anyio.sleep(wait)
                        continue
                    await self.call()
                    if not self.schedule.until_send(chat, group, self._clock()):
                        self.schedule.sent(chat, self._clock())
                        return
        finally:
            known.senders -= 1

    def sent(self, chat: str) -> None:
        """Notes that a message has arrived: the next is counted from there on."""
        self.schedule.chat(chat).sent = self._clock()

    async def edit(self, chat: str, group: bool, draft: str) -> None:
        """Waits for the turn of an edit; may be cancelled."""
        while True:
            if wait := self.schedule.until_edit(chat, group, draft, self._clock()):
                await anyio.sleep(wait)
            elif self.schedule.chat(chat).senders:
                await anyio.sleep(LOOK_SECONDS)
            else:
                await self._call_for_edit()
                if not self.schedule.until_edit(chat, group, draft, self._clock()):
                    self.schedule.edited(chat, draft, self._clock())
                    return

    def edited(self, chat: str, draft: str) -> None:
        """Notes that an edit has arrived."""
        self.schedule.chat(chat).edited[draft] = self._clock()

    async def call(self) -> None:
        """Waits until the account may make a call; first come, first served."""
        self._waiting += 1
        try:
            async with self._calls:
                while True:
                    if not (wait := self.schedule.until_call(self._clock())):
                        break
                    await anyio.sleep(wait)
                self.schedule.called(self._clock())
        finally:
            self._waiting -= 1

    async def _call_for_edit(self) -> None:
        """Waits until the account may make a call that no message waits for."""
        async with self._edits:
            while True:
                wait = self.schedule.until_call(self._clock())
                if not wait and not self._waiting:
                    break
                await anyio.sleep(max(wait, LOOK_SECONDS))
            self.schedule.called(self._clock())

    def spare(self) -> bool:
        """Takes the turn for a call that can be left out. Returns whether there was one: others have half of it all."""
        now = self._clock()
        if self._waiting or not self.schedule.has_spare(now):
            return False
        self.schedule.called(now)
        return True

    def pause(self, chat: str) -> float:
        """Returns the rest of the pause that the platform asked for, in seconds."""
        return max(0.0, self.schedule.chat(chat).refused_until - self._clock())

    def refused(self, chat: str, seconds: float) -> None:
        """Notes that the platform wants no calls for a chat for so long."""
        self.schedule.refused(chat, self._clock() + seconds)
