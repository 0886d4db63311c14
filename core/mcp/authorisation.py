"""The headers by which an MCP server lets a call in.

Theory of operation
-------------------
Tokens are facts (`core.mcp.grants`), sealed, with an absolute time of expiry: any process can use and renew them, also
after a restart. A token is renewed before it expires, and once the server refuses it. Authorisation servers that rotate
refresh tokens revoke all of them when an old one comes back, so over all processes one renews at a time. It appends
`grant.requested` under the log's guard; the others use the present token while it is valid, else wait for the fact that
follows. If the process dies between the server's answer and that fact, the token is lost: the next attempt may be
refused, and a person has to log in again.

No failure is retried without end. A token that was just issued and is refused, and an error that no retry heals, demand
a login. Other failures are tried again after growing pauses; until then the reason is raised at once. A grant of the
configuration (`client_credentials`, `refresh_token`) is always tried again, as its cause may be repaired elsewhere.

Guarantees: at most one token request at a time for a grant, as long as the processes' clocks agree to within a lease of
`REQUEST_SECONDS`. A token is used for the server and the settings that it was issued for, and for no other.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Literal, NamedTuple, Protocol
from urllib.parse import urlsplit

import structlog
from anyio import to_thread

from core.config.mcp_oauth import OAuth
from core.egress import may_be_public
from core.errors import Refused, SikaError, Unavailable
from core.events import Aggregate, Event
from core.identity.seal import Seal, Unsealable
from core.ids import stamp
from core.log.repository import Repository
from core.log.store import EventLog
from core.mcp import grants, oauth
from core.mcp.grants import (
    EVERYBODY,
    NONE,
    PERSONS,
    SERVERS,
    ClientForgotten,
    Grant,
    GrantFailed,
    GrantIssued,
    GrantRequested,
    Grants,
    LoginDemanded,
    OAuthClient,
    OAuthIssuer,
)

log = structlog.get_logger("sika.mcp")

ACTOR = "mcp"
REQUEST_SECONDS = 30.0
"""Lease of a token request: longer than its HTTP request can take."""
MOST_EVENTS = 100
"""Events of a person's access, after which they are made one. A renewal has two."""
WAIT_SECONDS = 45.0
"""Limit of a call's wait for headers."""
JITTER_SECONDS = 10.0
FRESH = timedelta(seconds=60)
"""A token that was renewed because the server refused the one before, and is refused at this age, is not renewed."""
PAUSE_SECONDS, MOST_PAUSE_SECONDS = 5.0, 300.0
BY_LOGIN = OAuth(grant_type="authorization_code")
"""The settings of servers that have none."""

Step = Literal["use", "request", "wait", "fail", "login"]


class NeedsLogin(Refused):
    """The server lets nobody in without a login, or not any more. A person must log in (HTTP 409)."""

    code = "mcp_login_required"

    def __init__(self, server: str, reason: str) -> None:
        super().__init__(f"needs login: {server}: {reason}; log in with `sika mcp login {server}`, or in the settings")
        self.server = server


class Http(Protocol):
    """Sends requests to authorisation servers; `adapters.mcp.oauth_http` implements it."""

    async def send(self, request: oauth.Request, *, private: bool) -> oauth.Response:
        """Returns the response, whatever its status; does not follow redirects. Raises `Unavailable` if there is none
        in time, `Invalid` if the address may not be connected to: without `private` only public ones may.
        """
        ...


class Server(NamedTuple):
    """An MCP server, as far as authorisation goes. `oauth`: None without settings."""

    name: str
    url: str
    oauth: OAuth | None = None

    @property
    def settings(self) -> OAuth:
        return self.oauth if self.oauth is not None and self.oauth.enabled else BY_LOGIN

    @property
    def personal(self) -> bool:
        """True if each person has an account of their own there."""
        return self.settings.grant_type == "authorization_code"

    @property
    def private(self) -> bool:
        """True if its authorisation server may be inside the network."""
        return self.settings.allow_private or not may_be_public(urlsplit(self.url).hostname or "")


Servers = Callable[[str, str], Awaitable[Server]]
"""Returns the server of a name for a user. Raises `NotFound`."""


class Authorisation:
    """Access to MCP servers. One per process. `clock` is for tests."""

    def __init__(
        self,
        log: EventLog,
        seal: Seal,
        http: Http,
        servers: Servers,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.log, self.http, self.servers, self.now = log, http, servers, clock
        self._seal = seal
        self.persons = Repository(log, PERSONS, grants.fold, Grants())
        self.clients = Repository(log, SERVERS, grants.fold, Grants())
        self._settling: set[asyncio.Task[None]] = set()
        """Requests that are under way: each ends with its lease, whether or not its caller is still there."""
        self._jitter = random.uniform(0, JITTER_SECONDS)

    async def bearer(self, server: str, user: str, *, rejected: Mapping[str, str] | None = None) -> Mapping[str, str]:
        """Returns the headers for a server's calls: none for a server that demands none. `rejected`: headers that it
        has just refused with 401.

        Raises `NeedsLogin`, and `Unavailable` while no token can be got.
        """
        target = await self.servers(server, user)
        if target.oauth is not None and not target.oauth.enabled:
            return {}
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                return await self._headers(target, user, rejected)
        except TimeoutError as error:
            raise Unavailable(f"{server}: no access token within {WAIT_SECONDS:g} s") from error

    async def lacks(self, server: str, user: str, scope: str) -> NeedsLogin:
        """Records that a person's access lacks scopes (`insufficient_scope`). Returns the error for the call."""
        target = await self.servers(server, user)
        reason = f"the server demands more access: {scope or 'without saying which'}"
        if not target.personal:
            return NeedsLogin(server, f"{reason}; it is configured (oauth.scope)")
        event = LoginDemanded(server=server, reason=reason, scope=scope)

        def decide(state: Grants) -> Sequence[Event]:
            grant = state.servers.get(server, NONE)
            return [event] if (grant.demanded, grant.lacks) != (reason, scope) else []

        await self.persons.decide(user, decide, actor=ACTOR)
        return NeedsLogin(server, reason)

    async def _headers(self, server: Server, user: str, rejected: Mapping[str, str] | None) -> Mapping[str, str]:
        states, identity = self.where(server, user)
        with self.log.listen(Aggregate(states.kind, identity)) as listener:
            while True:
                grant = (await states.load(identity)).servers.get(server.name, NONE)
                headers = await self._authorization_header(server, grant)
                refused = rejected is not None and (not headers or headers == rejected)
                match self.step(server, grant, refused):
                    case "use":
                        return headers
                    case "request":
                        await self._request(server, user, grant if refused else None)
                    case "wait":
                        with suppress(TimeoutError):
                            async with asyncio.timeout((self.time(grant.requested_until) - self.now()).total_seconds()):
                                await listener.take()
                    case "fail":
                        raise Unavailable(f"{server.name}: no access token: {grant.failure or 'it was refused'}")
                    case "login" if server.oauth is None and not (refused or grant.demanded or grant.token):
                        return {}
                    case "login":
                        await self._demand(server, user, grant, refused=refused)

    def step(self, server: Server, grant: Grant, refused: bool) -> Step:
        """Returns what is to be done for a call. Pure, but for the time."""
        now, seed = self.now(), self.seed(server)
        token = grant.token if grant.token is not None and grant.token.seed == seed else None
        ends = self.time(token.expires_at) if token is not None and token.expires_at else None
        valid = token is not None and not refused and (ends is None or now < ends)
        early = timedelta(seconds=server.settings.refresh_skew_seconds + self._jitter)
        if valid and (ends is None or now < ends - min(early, (ends - self.time(grant.issued_at)) / 2)):
            return "use"
        if grant.requested_until and now < self.time(grant.requested_until):
            return "use" if valid else "wait"
        if grant.retry_at and now < self.time(grant.retry_at) and grant.seed == seed:
            return "use" if valid else "fail"
        renewable = not server.personal or (token is not None and token.refresh is not None)
        fresh = grant.refused and token is not None and now < self.time(grant.issued_at) + FRESH
        if renewable and not (refused and fresh):
            return "request"
        if valid:
            return "use"
        return "login" if server.personal else "fail"

    async def _demand(self, server: Server, user: str, grant: Grant, *, refused: bool) -> None:
        """Records that a login is needed and raises `NeedsLogin`; returns if somebody has logged in meanwhile."""
        reason = grant.demanded or (
            "the server refuses the access token" if grant.token else "nobody has logged in yet"
        )
        if grant.token is not None and not refused:
            same = grant.token.seed == self.seed(server)
            reason = "the access has expired" if same else "the access was given for other settings of the server"
        if not grant.demanded and (refused or grant.token is not None):

            def decide(state: Grants) -> Sequence[Event]:
                current = state.servers.get(server.name, NONE)
                changed = current.token != grant.token or current.demanded
                return [] if changed else [LoginDemanded(server=server.name, reason=reason)]

            state, records = await self.persons.decide(user, decide, actor=ACTOR)
            if not records and state.servers.get(server.name, NONE).token is not None:
                return  # somebody has just logged in: the caller looks again
        raise NeedsLogin(server.name, reason)

    # ── token requests ──────────────────────────────────────────────────────────────────────────────────────────────

    async def _request(self, server: Server, user: str, refused: Grant | None) -> None:
        """Requests a token, unless another process does. Its outcome becomes a fact also if the caller is cancelled.
        `refused`: the grant whose token the server has refused, if so.
        """
        states, identity = self.where(server, user)
        until = stamp(self.now() + timedelta(seconds=REQUEST_SECONDS))

        def begin(state: Grants) -> Sequence[Event]:
            grant = state.servers.get(server.name, NONE)
            again = refused is not None and grant.token == refused.token
            step = self.step(server, grant, again)
            return [GrantRequested(server=server.name, until=until, refused=again)] if step == "request" else []

        state, records = await states.decide(identity, begin, actor=ACTOR)
        if not records:
            return  # another process was first: the caller looks again
        settling = asyncio.create_task(self._settle(server, user, state.servers[server.name]))
        self._settling.add(settling)
        settling.add_done_callback(self._settling.discard)
        await asyncio.shield(settling)

    async def _settle(self, server: Server, user: str, grant: Grant) -> None:
        """Requests the token, and records the outcome if the request is still the one that counts."""
        states, identity = self.where(server, user)
        event = await self._outcome(server, grant)

        def settle(state: Grants) -> Sequence[Event]:
            current = state.servers.get(server.name)
            return [event] if current is not None and current.requested_until == grant.requested_until else []

        state, settled = await states.decide(identity, settle, actor=ACTOR)
        if not settled and isinstance(event, GrantIssued):
            await self.revoke(server, event)  # access was given up meanwhile
        if state.events >= MOST_EVENTS:
            await self._prune(states, identity)

    async def _prune(self, states: Repository[Grants], identity: str) -> None:
        """States all access in one event, and purges those before it."""

        def restate(state: Grants) -> Sequence[Event]:
            return [grants.snapshot(state)] if state.events >= MOST_EVENTS else []

        try:
            _, records = await states.decide(identity, restate, actor=ACTOR)
            for record in records:
                await self.log.purge(Aggregate(states.kind, identity), before=record.seq)
        except Unavailable as error:
            log.info("old grants not purged", error=str(error))

    async def _outcome(self, server: Server, grant: Grant) -> GrantIssued | GrantFailed:
        """Returns what becomes of a token request."""
        try:
            token = await self._renewed(server, grant)
            return await self.issued(server, token, grant.token)
        except oauth.Refusal as error:
            final = server.personal and error.error in oauth.GONE
            known = grant.token
            if error.error == "invalid_client" and known is not None and known.issuer and known.client:
                await self.forget_client(known.issuer, known.client)
            return self._failed(server, grant, error, final=final)
        except Unsealable as error:
            return self._failed(server, grant, error, final=server.personal)
        except SikaError as error:
            return self._failed(server, grant, error, final=False)

    async def _renewed(self, server: Server, grant: Grant) -> oauth.Token:
        settings, token = server.settings, grant.token
        if not server.personal:
            refresh = None
            if token is not None and token.seed == self.seed(server):
                refresh = await self.opened(token.refresh)
            first = settings.refresh_token.reveal() if settings.refresh_token else None
            request = oauth.configured(settings, refresh or first)
            return oauth.token_of(await self.http.send(request, private=server.private), settings)
        if token is None or token.issuer is None or token.client is None:
            raise oauth.Refusal("invalid_grant", "nobody has logged in")
        secret, refresh = await self.opened(token.client.secret), await self.opened(token.refresh)
        request = oauth.refreshing(token.issuer, token.client, secret, refresh or "", token.resource, token.scope)
        return oauth.token_of(await self.http.send(request, private=server.private), BY_LOGIN)

    async def issued(self, server: Server, token: oauth.Token, before: GrantIssued | None) -> GrantIssued:
        """Returns the fact of a token. What its response does not say stays as it was `before`."""
        seconds = token.seconds
        if seconds is None and (token.refresh or before or not server.personal):
            seconds = oauth.DEFAULT_SECONDS
        former = before if before is not None and before.seed == self.seed(server) else None
        return GrantIssued(
            server=server.name,
            access=await self.sealed(token.access),
            token_type=token.type,
            refresh=await self.sealed(token.refresh) if token.refresh else former.refresh if former else None,
            expires_at=None if seconds is None else stamp(self.now() + timedelta(seconds=seconds)),
            scope=token.scope or (former.scope if former else None),
            resource=former.resource if former else None,
            issuer=former.issuer if former else None,
            client=former.client if former else None,
            seed=self.seed(server),
        )

    def _failed(self, server: Server, grant: Grant, error: SikaError, *, final: bool) -> GrantFailed:
        pause = min(PAUSE_SECONDS * 2 ** min(grant.failures, 10), MOST_PAUSE_SECONDS)
        retry = None if final else stamp(self.now() + timedelta(seconds=pause))
        return GrantFailed(server=server.name, reason=str(error), retry_at=retry, seed=self.seed(server))

    async def revoke(self, server: Server, token: GrantIssued) -> str:
        """Gives the tokens back to their issuer (RFC 7009). Returns the reason if it was not told."""
        if token.issuer is None or token.client is None:
            return "the server's authorisation server is not known"
        try:
            secret = await self.opened(token.client.secret)
            for sealed, kind in ((token.refresh, "refresh_token"), (token.access, "access_token")):
                text = await self.opened(sealed)
                request = oauth.revocation(token.issuer, token.client, secret, text or "", kind) if text else None
                if request is None:
                    if token.issuer.revocation_endpoint is None:
                        return "its authorisation server offers no revocation"
                    continue
                response = await self.http.send(request, private=server.private)
                if response.status >= 400:
                    return f"its authorisation server answers {response.status}"
        except SikaError as error:
            return str(error)
        return ""

    async def forget_client(self, issuer: OAuthIssuer, client: OAuthClient) -> None:
        """Forgets a client that its issuer does not know any more: the next login registers another."""
        event = ClientForgotten(issuer=issuer.issuer, client=client.id)

        def decide(state: Grants) -> Sequence[Event]:
            return [event] if client.id in {known.id for known in state.clients.values()} else []

        await self.clients.decide(EVERYBODY, decide, actor=ACTOR)

    # ── parts ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def where(self, server: Server, user: str) -> tuple[Repository[Grants], str]:
        """Returns where the grant for a server is kept: with the person, or with the installation."""
        return (self.persons, user) if server.personal else (self.clients, EVERYBODY)

    def seed(self, server: Server) -> str:
        """Returns what a token must have been issued for: the settings, or the server's address."""
        return oauth.seed_of(server.settings, server.url)

    async def sealed(self, text: str) -> str:
        return await to_thread.run_sync(self._seal.seal, text, "mcp")

    async def opened(self, sealed: str | None) -> str | None:
        """Raises `Unsealable`."""
        if sealed is None:
            return None
        return await to_thread.run_sync(partial(self._seal.open, sealed, "mcp", seconds=oauth.REFRESH_SECONDS))

    async def _authorization_header(self, server: Server, grant: Grant) -> Mapping[str, str]:
        token = grant.token
        if token is None or token.seed != self.seed(server):
            return {}
        try:
            return {"Authorization": f"{token.token_type} {await self.opened(token.access)}"}
        except Unsealable:
            return {}

    @staticmethod
    def time(text: str) -> datetime:
        return datetime.fromisoformat(text)
