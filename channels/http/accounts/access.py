"""Authentication and authorization: every request has a principal with the route's scope before a handler sees it.

Without accounts everybody is the local user. With them, a request that is not for a public route shows the token of
our own processes, an API key (or the token of a session) in a header, or the session cookie of a browser; in that
order, and the first that is there decides. What is revoked ends within about a second, also answers that are still
being sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

import msgspec
import structlog
from aiohttp import web
from aiohttp.typedefs import Middleware

from channels.http.accounts import cookies
from channels.http.endpoints.call import Call
from channels.http.endpoints.shapes import Refusal, Unauthorized
from channels.http.runs.idempotency import fingerprint
from channels.http.server.errors import Forbidden, answer
from channels.http.server.guard import SEEN
from channels.http.server.live import PRINCIPAL, Services
from channels.http.server.parsing import plain
from channels.http.server.routes import MOUNTED, ROUTE, Handler, Route, changes
from channels.http.server.traces import traced
from core.config.settings import Config
from core.errors import Refused, SikaError, Unavailable
from core.events import Record, RunRequested
from core.identity import sessions
from core.identity.accounts import ACCOUNTS
from core.identity.activity import AccessRefused, KeyUsed
from core.identity.directory import Directory
from core.identity.errors import TooMany, Unauthenticated
from core.identity.installation import Installation
from core.identity.limits import Limits
from core.identity.lockout import Lockout
from core.identity.principal import LOCAL, Principal
from core.thread.state import ThreadState

log = structlog.get_logger("sika.http")

INTERNAL_HEADERS = ("X-Sika-Internal-Token", "X-DeerFlow-Internal-Token")
USER_HEADER = "X-Sika-User"
EXPIRY_SECONDS = 30.0
"""Interval at which open responses are checked for expired sessions and keys."""
PAUSE_SECONDS = 1.0
"""Until the accounts are read again, if they could not be."""


class Csrf(Forbidden):
    """A browser's request lacks the token against cross-site requests."""

    code = "csrf"


class Disabled(Refused):
    """There are no accounts."""

    code = "auth_disabled"


class Entry(NamedTuple):
    """Somebody who was let in; `browser` if by a cookie, which is sent whoever made the page that asks."""

    principal: Principal
    session: sessions.Session | None = None
    browser: bool = False


class Gate:
    """One per application."""

    def __init__(self, services: Services) -> None:
        self._config: Callable[[], Config] = services.config
        self._log = services.log
        self._forced = services.config().auth.enabled
        self.directory = Directory(services.log, Installation(services.home))
        self.lockout = Lockout(services.log)
        self.limits = Limits(services.log, services.threads, lambda: self._config().limits)
        self._inside: dict[int, tuple[web.Request, Entry]] = {}

    @classmethod
    async def of_call(cls, call: Call) -> Gate:
        """The gate of a server that has accounts. Raises `Disabled`."""
        gate = call.request.app[GATE]
        if not gate.accounts:
            raise Disabled("There are no accounts here (auth.enabled)")
        return gate

    @property
    def accounts(self) -> bool:
        """Tells whether one must sign in. Turned on it is at once; turned off only by a restart: perhaps other machines
        reach us.
        """
        return self._forced or self._config().auth.enabled

    async def running(self, _: web.Application) -> AsyncIterator[None]:
        """For `Application.cleanup_ctx`. Raises `Invalid` if there are accounts and the secrets cannot be used."""
        if self.accounts:
            await self._prepare()
        watching = asyncio.create_task(self._keep_watching())
        yield
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)

    async def _prepare(self) -> None:
        installation = self.directory.installation
        await asyncio.to_thread(lambda: (installation.sessions, installation.internal))
        try:
            if not (await self.directory.accounts()).has_admin:
                text = "there is no administrator yet: who asks first becomes one"
                log.warning(text, see="sika user create --role admin")
        except Unavailable as error:
            log.warning("accounts not read", error=str(error))

    async def admit(self, request: web.Request, route: Route) -> Entry | None:
        """Returns the principal; None on a public route. Raises `Unauthenticated`, `Forbidden`, `TooMany`."""
        if route.public or (route.opened is not None and route.opened(self._config())):
            return None if self.accounts else Entry(LOCAL)
        entry = await self._identify(request)
        try:
            self._permit(request, route, entry)
        except Forbidden as error:
            await self._note_refusal(request, route, entry.principal, error)
            raise
        if key := entry.principal.key:
            await self.directory.activities.note(entry.principal.user, KeyUsed(key=key, ip=request[SEEN].ip))
        return entry

    def _permit(self, request: web.Request, route: Route, entry: Entry) -> None:
        """Raises `Forbidden` and `TooMany`."""
        principal = entry.principal
        if changes(request):
            self.check_csrf(request, entry)
        if route.role == "admin" and not principal.is_admin:
            raise Forbidden("This needs an administrator")
        for scope in route.scope.split():
            demand(principal, scope)
        self.limits.admit_request(principal)

    async def _note_refusal(self, request: web.Request, route: Route, who: Principal, error: Forbidden) -> None:
        if self.accounts:
            operation, ip = f"{route.method} {route.path}", request[SEEN].ip
            refused = AccessRefused(operation=operation, code=error.code, ip=ip, key=who.key or "")
            await self.directory.activities.note(who.user, refused)

    def check_csrf(self, request: web.Request, entry: Entry) -> None:
        """Raises `Csrf` if a browser may have been tricked into the request."""
        if entry.browser:
            problem = cookies.csrf_problem(request, self.directory, entry.principal.user)
            if problem is not None:
                raise Csrf(problem)

    async def _identify(self, request: web.Request) -> Entry:
        headers = request.headers
        for name in INTERNAL_HEADERS:
            if name in headers:
                user = headers.get(USER_HEADER) or LOCAL.user
                principal = self.directory.of_internal(headers[name], user)
                if not await self.directory.still(principal, None):
                    raise Unauthenticated("user_not_found", "The account is disabled")
                return Entry(principal)
        if not self.accounts:
            return Entry(LOCAL)
        if (key := presented(request)) is not None:
            if key.count(".") == 2:  # a JSON Web Token
                return Entry(*await self.directory.of_session(key))
            return Entry(await self.directory.of_key(key))
        if token := request.cookies.get(cookies.SESSION):
            return Entry(*await self.directory.of_session(token), browser=True)
        raise Unauthenticated("not_authenticated", "Sign in, or send an API key")

    # ── those who are inside ────────────────────────────────────────────────────────────────────────────────────────

    def enter(self, request: web.Request, entry: Entry) -> None:
        self._inside[id(request)] = (request, entry)

    def leave(self, request: web.Request) -> None:
        self._inside.pop(id(request), None)

    async def _keep_watching(self) -> None:
        """Runs for as long as the application: whatever ends the watch, it begins again."""
        while True:
            try:
                await self._watch()
            except SikaError as error:
                log.warning("accounts not read", error=str(error))
            except Exception as error:
                log.error("watch of the accounts failed", again_in=PAUSE_SECONDS, error=str(error), exc_info=True)
            await asyncio.sleep(PAUSE_SECONDS)

    async def _watch(self) -> None:
        """Ends what is still being sent to those who may not have it any more."""
        with self._log.listen(ACCOUNTS) as listener:
            while True:
                await self._sweep()
                with suppress(TimeoutError):
                    async with asyncio.timeout(EXPIRY_SECONDS):
                        await listener.take()

    async def _sweep(self) -> None:
        if not self._inside:
            return
        await self.directory.accounts(now=True)
        for request, entry in list(self._inside.values()):
            if not await self._is_still_valid(entry) and request.transport:
                request.transport.abort()

    async def _is_still_valid(self, entry: Entry) -> bool:
        if entry.principal is LOCAL:
            return not self.accounts
        return await self.directory.still(entry.principal, entry.session)


GATE: web.AppKey[Gate] = web.AppKey("gate", Gate)
ENTRY: web.RequestKey[Entry] = web.RequestKey("entry", Entry)


async def request_run(
    call: Call, thread_id: str, run_id: str, request: RunRequested, *, replaces: bool = False
) -> tuple[ThreadState, Record]:
    """Requests a run for the caller, within their limits, as part of the trace that the call names. Of a request that
    is repeated (`idempotency`) returns the first one's record, and the state of now. What both have in common is all
    that was sent, unless the request says it (`fingerprint`).
    """
    if not request.fingerprint:
        request = msgspec.structs.replace(request, fingerprint=fingerprint(call, await call.request.read()))
    intake, traced_request = call.services.intake, traced(call.request, request)
    if request.fingerprint and run_id in (await call.services.commands.state(call.user, thread_id)).runs:
        return await intake.request_run(thread_id, run_id, traced_request, user=call.user)
    async with call.request.app[GATE].limits.admitted(call.principal, thread_id, run_id, replaces=replaces):
        return await intake.request_run(thread_id, run_id, traced_request, user=call.user)


async def names_of(call: Call) -> Mapping[str, str]:
    """Returns the addresses of accounts by user; none without accounts. For answers to administrators."""
    gate = call.request.app[GATE]
    if not gate.accounts:
        return {}
    return {user: account.email for user, account in (await gate.directory.accounts()).by_id.items()}


def demand(principal: Principal, scope: str) -> None:
    """Raises `Forbidden` if a key was not granted this."""
    if not principal.may(scope):
        raise Forbidden(f"The API key was not granted {scope}")


def middleware() -> Middleware:
    """Establishes the request's route and principal."""

    @web.middleware
    async def handle(request: web.Request, handler: Handler) -> web.StreamResponse:
        route = request.app[MOUNTED].get(request.match_info.route)
        if route is None:
            return await handler(request)  # there is no such route, and it says so
        request[ROUTE] = route
        gate = request.app[GATE]
        try:
            entry = await gate.admit(request, route)
            if entry is None:
                return await handler(request)
            request[ENTRY], request[PRINCIPAL] = entry, entry.principal
            gate.enter(request, entry)
            try:
                return await handler(request)
            finally:
                gate.leave(request)
        except Unauthenticated as error:
            return unauthenticated(error, metadata=route.metadata and request[SEEN].origin + route.metadata)
        except TooMany as error:
            return answer(429, str(error), error.code, {"Retry-After": str(error.retry_after)})

    return handle


def unauthenticated(error: SikaError, status: int = 401, metadata: str = "") -> web.Response:
    """DeerFlow's form of what goes wrong with signing in. `metadata`: where the authorisation is described."""
    challenge = 'Bearer realm="sika"' + (f', resource_metadata="{metadata}"' if metadata else "")
    headers = {"Cache-Control": "no-store", **({"WWW-Authenticate": challenge} if status == 401 else {})}
    return plain(Unauthorized(Refusal(error.code, str(error))), status, headers)


def presented(request: web.Request) -> str | None:
    """A request's API key, or the token of a session in its place. Never from its address: those get into logs."""
    if (key := request.headers.get("X-Api-Key")) is not None:
        return key.strip()
    kind, _, value = request.headers.get("Authorization", "").partition(" ")
    return value.strip() if kind.lower() == "bearer" else None
