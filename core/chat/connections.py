"""Connections of users with people on chat platforms, made by codes (DeerFlow's channel connections).

All connections of an installation are one aggregate: a code is looked up without knowing whose it is, and at most one
user may have a person's connection.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from core.chat.account import platform_of
from core.errors import NotFound, Refused
from core.events import Aggregate, Event, Record
from core.ids import now, stamp, uuid7
from core.log.repository import Repository
from core.log.store import EventLog
from core.phrases import Phrase

CONNECTIONS = Aggregate("connections", "all")
CODE_SECONDS = 600
"""The life of a code (DeerFlow's channel connections)."""
MOST_PENDING = 5
"""Limit of the unused codes that a user has for a provider."""


class TooManyCodes(Refused):
    """A user has `MOST_PENDING` codes for a provider that are neither used nor expired."""

    code = "too_many_codes"


class ConnectionOffered(Event, frozen=True):
    """A user got a code for a provider (a platform). Of the code only its hash is kept."""

    phrase = Phrase(
        "Connection code issued",
        "连接码已发出",
        "{provider}, to {user}, until {expires}",
        "{provider}，{user}，有效至 {expires}",
    )
    code: str
    user: str
    provider: str
    expires: str
    """ISO 8601."""


class ConnectionBound(Event, frozen=True):
    """The person `external` of an account sent the code: from here on they are the user `user`."""

    phrase = Phrase(
        "Chat person connected",
        "聊天用户已连接",
        "<{name}><!name?{external}> on {account} is {user}",
        "{account} 上的 <{name}><!name?{external}> 是 {user}",
    )
    connection: str
    code: str
    """The hash of the code, which is used up."""
    user: str
    account: str
    external: str
    """The platform's id of the person."""
    name: str = ""


class ConnectionRevoked(Event, frozen=True):
    """A connection does not count any more: its user ended it, or the person connected anew."""

    phrase = Phrase("Connection ended", "连接已结束", "{connection}")
    connection: str


class Connection(NamedTuple):
    """A person on a platform who is known as a user."""

    id: str
    user: str
    account: str
    external: str
    name: str
    code: str
    at: str

    @property
    def provider(self) -> str:
        """The platform."""
        return platform_of(self.account)


class State(msgspec.Struct, frozen=True):
    """`offers`: by the hash of the code; `bound`: by id; `people`: ids of connections by account and person."""

    offers: Mapping[str, ConnectionOffered] = {}
    bound: Mapping[str, Connection] = {}
    people: Mapping[tuple[str, str], str] = {}

    def of_person(self, account: str, external: str) -> Connection | None:
        """Returns the connection of a person."""
        known = self.people.get((account, external))
        return self.bound[known] if known else None

    def of_user(self, user: str) -> list[Connection]:
        """Returns the connections of a user, oldest first."""
        return [connection for connection in self.bound.values() if connection.user == user]


def fold(records: Iterable[Record], state: State) -> State:
    """Pure and total. Expired codes are forgotten with the next new one."""
    offers, bound, people = dict(state.offers), dict(state.bound), dict(state.people)
    for record in records:
        match record.event:
            case ConnectionOffered() as event:
                offers = {code: offer for code, offer in offers.items() if offer.expires > record.at}
                offers[event.code] = event
            case ConnectionBound() as event:
                offers.pop(event.code, None)
                person = (event.account, event.external)
                bound.pop(people.get(person, ""), None)
                bound[event.connection] = Connection(
                    event.connection, event.user, *person, event.name, event.code, record.at
                )
                people[person] = event.connection
            case ConnectionRevoked(connection=identity):
                gone = bound.pop(identity, None)
                if gone is not None:
                    people.pop((gone.account, gone.external), None)
    return State(offers, bound, people)


class Connections:
    """The connections of an installation, read and decided on by one part of the server (`actor`)."""

    def __init__(self, log: EventLog, *, actor: str) -> None:
        self._states = Repository(log, CONNECTIONS.kind, fold, State())
        self._actor = actor

    async def state(self) -> State:
        """Raises `Unavailable`."""
        return await self._states.load(CONNECTIONS.id)

    async def offer(self, user: str, provider: str) -> str:
        """Returns a new code. Raises `TooManyCodes`."""
        code = secrets.token_urlsafe(16)
        at = now()
        expires = stamp(datetime.fromisoformat(at) + timedelta(seconds=CODE_SECONDS))
        event = ConnectionOffered(code=_hash(code), user=user, provider=provider, expires=expires)

        def decide(state: State) -> Sequence[Event]:
            pending = [
                offer
                for offer in state.offers.values()
                if (offer.user, offer.provider) == (user, provider) and offer.expires > at
            ]
            if len(pending) >= MOST_PENDING:
                raise TooManyCodes(
                    f"{provider}: {MOST_PENDING} codes are not used yet; use one, or wait until they expire"
                )
            return [event]

        await self._states.decide(CONNECTIONS.id, decide, actor=self._actor)
        return code

    async def offered(self, code: str, account: str) -> str | None:
        """Returns the user who got a code that still counts for an account; None for others. Raises `Unavailable`."""
        offer = (await self.state()).offers.get(_hash(code))
        usable = offer is not None and offer.expires > now() and offer.provider == platform_of(account)
        return offer.user if offer is not None and usable else None

    async def bind(self, code: str, account: str, external: str, name: str = "") -> Connection | None:
        """Connects a person by a code; None if it does not count (any more). Idempotent for the same person."""
        code, at, identity = _hash(code), now(), uuid7()

        def decide(state: State) -> Sequence[Event]:
            before, offer = state.of_person(account, external), state.offers.get(code)
            if (before is not None and before.code == code) or offer is None or offer.expires <= at:
                return []
            if offer.provider != platform_of(account):
                return []
            revoked = [ConnectionRevoked(connection=before.id)] if before else []
            bound = ConnectionBound(
                connection=identity, code=code, user=offer.user, account=account, external=external, name=name
            )
            return [*revoked, bound]

        state, _ = await self._states.decide(CONNECTIONS.id, decide, actor=self._actor)
        connection = state.of_person(account, external)
        return connection if connection is not None and connection.code == code else None

    async def revoke(self, user: str, connection: str) -> None:
        """Ends a user's connection, and erases who it was. Raises `NotFound`."""

        def decide(state: State) -> Sequence[Event]:
            known = state.bound.get(connection)
            if known is None or known.user != user:
                raise NotFound(f"Connection {connection[:80]} not found")
            return [ConnectionRevoked(connection=connection)]

        state, _ = await self._states.decide(CONNECTIONS.id, decide, actor=self._actor)
        await self._forget(state)

    async def _forget(self, state: State) -> None:
        """Erases the events of connections that do not count any more, also those that a crash left."""
        codes = {bound.code for bound in state.bound.values()} | state.offers.keys()
        log = self._states.log
        tip = await log.tip(CONNECTIONS)  # the last event stays: writers expect it

        def is_over(event: object) -> bool:
            match event:
                case ConnectionBound(connection=connection):
                    return connection not in state.bound
                case ConnectionOffered(code=code):
                    return code not in codes
            return False

        over = [record async for record in log.read(CONNECTIONS, upto=tip - 1) if is_over(record.event)]

        async def records() -> AsyncIterator[Record]:
            for record in over:
                yield record

        await log.erase_records(records())


def _hash(code: str) -> str:
    return hashlib.sha256(code.encode("utf-8", "replace")).hexdigest()
