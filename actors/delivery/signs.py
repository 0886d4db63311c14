"""Signs of life: a message that is for the agent is acknowledged at once, in the platform's own way
(`Platform.working`), before it is known what becomes of it. Where it becomes a run, `drafts.py` keeps the sign until
the answer stands there.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

import anyio
from cachetools import FIFOCache

from actors.delivery.fetcher import Admits
from actors.delivery.outlet import Outlet, person
from core.actor import Actor, Context
from core.chat.facts import KIND, ChatReceived, ChatRouted, Target, key_of
from core.chat.state import REMEMBERED

TIMEOUT = 10.0
"""Timeout of a sign, in seconds: it is only decoration."""
MOST = 4
"""Signs of a person that wait. Who writes faster sees no more of them, and does not hold up those of others."""
PAUSE = 0.1
"""Seconds after which it is tried again where there was no call to spare."""


async def sign(outlet: Outlet, target: Target, on: bool) -> bool:
    """Shows that somebody is at work, or takes that away. Failures are ignored. Returns False, and shows nothing, while
    the account's calls are needed for words."""
    if on and (outlet.turns.pause(target.chat) or not outlet.turns.spare()):
        return False
    if not on:
        await outlet.turns.call(person(target))
    with suppress(Exception), anyio.move_on_after(TIMEOUT):
        await outlet.platform.working(target, on)
    return True


class Signs(Actor[ChatReceived | ChatRouted]):
    """Acknowledges messages as soon as they are in the log. `awaits`: tells whether one is for the agent."""

    kind = KIND
    prompt = True
    concurrency = 256

    def __init__(self, outlet: Outlet, awaits: Admits) -> None:
        self.name = f"signs-{outlet.account}"  # type: ignore[misc]  # one for each account
        self.only = (outlet.account,)  # type: ignore[misc]
        self._outlet = outlet
        self._awaits = awaits
        self._shown: FIFOCache[str, Target] = FIFOCache(REMEMBERED)
        """The signs of messages that were not routed yet, by conversation and key."""
        self._waiting: Counter[str] = Counter()
        """Signs that wait, by person."""

    async def handle(self, event: ChatReceived | ChatRouted, ctx: Context) -> None:
        conversation = ctx.record.aggregate.id
        if isinstance(event, ChatRouted):
            shown = self._shown.pop(f"{conversation}/{event.message}", None)
            if shown is not None and not event.run_id:
                await sign(self._outlet, shown, False)
            return
        key = key_of(event)
        state = await ctx.load(self._outlet.chats)
        heard = state.heard.get(key)
        if heard is None or heard.outcome or not await self._awaits(event, state):
            return
        place = f"{conversation}/{key}"
        if self._waiting[event.sender] >= MOST:
            return
        self._shown[place] = event.target
        self._waiting[event.sender] += 1
        try:
            with anyio.move_on_after(TIMEOUT):
                while place in self._shown and not await sign(self._outlet, event.target, True):  # noqa: ASYNC110
                    await anyio.sleep(PAUSE)
        finally:
            self._waiting[event.sender] -= 1
            self._waiting += Counter()  # forgets those that have none
