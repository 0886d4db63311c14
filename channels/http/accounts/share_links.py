"""Tokens that open what somebody shared of a thread, and the parameters of endpoints that they lead to.

A token is signed, so that guesses cost no look at a thread. What it opens is a fact of the thread: who may use it, up
to where, and whether it is revoked (`core/decisions/0047`, `0055`). Whatever is wrong is one 404.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Self

import msgspec
from anyio import to_thread

from channels.http.accounts.access import GATE
from channels.http.accounts.view_links import GONE, account_of
from channels.http.endpoints.call import Call, OwnedLog
from channels.http.server.guard import SEEN
from core.errors import NotFound
from core.events import Aggregate, Record, ThreadShared, thread
from core.identity import sessions
from core.identity.errors import Unauthenticated
from core.identity.installation import Installation
from core.runs.prompts import OF_THREAD, SETUP
from core.thread import shares
from core.thread.state import Share, ThreadState

FOREVER = 253_402_300_799
"""Unix seconds at the end of the last year that dates have."""
_PURPOSE = "shares"
Audience = Literal["everybody", "accounts"]


class Link(msgspec.Struct, frozen=True):
    """Content of a token: where to look, something that nobody can guess, and when it ends (Unix seconds)."""

    thread: str
    nonce: str
    exp: int


def make_token(home: Path, thread_id: str, expires: int = FOREVER) -> str:
    """Returns a new token for a thread. Blocks: the first one makes the secret that signs it."""
    link = Link(thread_id, secrets.token_urlsafe(32), expires)
    return sessions.sign(link, Installation(home).derived(_PURPOSE))


def thread_of(home: Path, token: str) -> str:
    """Returns the thread that a token names. Raises `NotFound` for one that was not made here, or has ended."""
    try:
        return sessions.read(token, Installation(home).derived(_PURPOSE), Link).thread
    except Unauthenticated:
        raise NotFound(GONE) from None


@dataclass(frozen=True, slots=True)
class Address:
    """A share that the token of the path opens for everybody. `NotFound` whatever is wrong with it, or with what it
    led to. `user`: whose thread it is.
    """

    call: Call
    thread: str
    user: str
    share: Share
    errors: ClassVar = (404,)
    audience: ClassVar[Audience] = "everybody"

    @classmethod
    async def of_call(cls, call: Call) -> Self:
        call.request.app[GATE].limits.admit_stranger(call.request[SEEN].ip)
        return await cls.opened(call)

    @classmethod
    async def opened(cls, call: Call) -> Self:
        token = call.request.match_info["token"]
        thread_id = await to_thread.run_sync(thread_of, call.services.home, token)
        user, share = await shared(call, thread_id, lambda known: shares.share_of(known.values(), token))
        if share.fact.audience != cls.audience:
            raise NotFound(GONE)
        return cls(call, thread_id, user, share)

    @property
    def fact(self) -> ThreadShared:
        return self.share.fact

    async def state(self) -> ThreadState:
        """Returns the thread as it stands. Raises `NotFound`."""
        return await self.call.services.threads.existing(self.thread)


class AccountAddress(Address):
    """A share that the token of the path opens for people with an account here. Without accounts it opens nothing."""

    audience: ClassVar[Audience] = "accounts"

    @classmethod
    async def of_call(cls, call: Call) -> Self:
        if not call.request.app[GATE].accounts:
            raise NotFound(GONE)
        return await cls.opened(call)


async def shared(
    call: Call, thread_id: str, choose: Callable[[Mapping[str, Share]], Share | None]
) -> tuple[str, Share]:
    """Returns the owner of a thread, and one of its shares, which `choose` gets by id. Raises `NotFound` if there is no
    such share (any more), and for an owner who is disabled or gone.
    """
    now = await call.services.threads.shared(thread_id)
    share = choose(now.shares)
    if share is None or await _locked(call, now.user):
        raise NotFound(GONE)
    return now.user, share


async def _locked(call: Call, user: str) -> bool:
    """Tells whether an account may not show anything: it is disabled, or not there (any more)."""
    account = await account_of(call, user)
    return call.request.app[GATE].accounts if account is None else account.disabled


class VisibleLog(OwnedLog):
    """The log of the path's thread; or, if the path has a token, what a share shows of one."""

    @classmethod
    async def of_call(cls, call: Call) -> VisibleLog:
        if "token" not in call.request.match_info:
            owned = await OwnedLog.of_call(call)
            return VisibleLog(owned.id, call)
        address = await AccountAddress.of_call(call)
        if not address.fact.events:
            raise NotFound(GONE)
        return SharedLog(address.thread, call, address.user, address.fact.events)


@dataclass(frozen=True, slots=True)
class SharedLog(VisibleLog):
    """The log of a thread up to the event `upto`, the last one that is shared. Of other logs those are read that belong
    to it: what its models got, and the scans of its files.
    """

    user: str
    upto: int

    async def state(self) -> ThreadState:
        return await self.at(self.upto)

    async def at(self, seq: int) -> ThreadState:
        now = await self.call.services.threads.existing(self.id)
        return await self.call.live.moments.at(self.id, now, min(seq, self.upto))

    async def last(self) -> int:
        return self.upto

    def read(
        self, aggregate: Aggregate, *, after: int = 0, upto: int | None = None, bodies: bool = True
    ) -> AsyncGenerator[Record]:
        if aggregate == thread(self.id):
            upto = min(self.upto if upto is None else upto, self.upto)
        return OwnedLog.read(self, aggregate, after=after, upto=upto, bodies=bodies)

    def back(self, aggregate: Aggregate, *, before: int = 0, bodies: bool = True) -> AsyncGenerator[Record]:
        if aggregate == thread(self.id):
            before = min(before or self.upto + 1, self.upto + 1)
        return OwnedLog.back(self, aggregate, before=before, bodies=bodies)

    async def may_see(self, aggregate: Aggregate) -> bool:
        if aggregate.kind == OF_THREAD:
            return await self.call.services.threads.owner(aggregate.id) == self.user
        return aggregate.kind == SETUP or aggregate == thread(self.id)
