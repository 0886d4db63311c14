"""Signing in and out, accounts of people: the contract's `/api/v1/auth`."""

from __future__ import annotations

import contextlib
import functools
import re
import time
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import structlog
from aiohttp import web
from aiohttp.http import HttpProcessingError

from channels.http import live as alive
from channels.http.access import ENTRY, GATE, Gate, presented, unauthenticated
from channels.http.accounts import cookies
from channels.http.accounts.oidc import Oidc, Pending, Rejection, UnknownProvider
from channels.http.bodies import body, plain
from channels.http.errors import Forbidden
from channels.http.guard import SEEN
from channels.http.routes import API, Form, Handler, Param, Route
from channels.http.shapes import Unauthorized
from core.config.settings import Auth, OidcProvider
from core.errors import Invalid, NotFound, Refused, SikaError
from core.identity import accounts, lockout, sessions
from core.identity.accounts import Account
from core.identity.errors import EmailTaken, Unauthenticated, WrongPassword
from core.identity.passwords import strong
from core.identity.principal import LOCAL

log = structlog.get_logger("sika.http")

OIDC: web.AppKey[Oidc] = web.AppKey("oidc", Oidc)
DAY = 24 * 3600
"""Seconds; also the longest that a session lasts which the browser is not to keep."""
MOST_OF_PATH = 1000
SETUP_CACHE = "private, max-age=60"
_PATH = re.compile(r"/(?![/\\])[\x21-\x5b\x5d-\x7e]*")
"""A place on this server: neither another host (`//evil.example`, `/\\evil.example`) nor what is no address at all."""


class Disabled(Refused):
    """There are no accounts."""

    code = "auth_disabled"


class Credentials(msgspec.Struct):
    """`remember_me`: false ends the session with the browser."""

    email: str
    password: str
    remember_me: bool | None = None


class ChangeBody(msgspec.Struct):
    """`remember_me`: null leaves it as it was."""

    current_password: str
    new_password: str
    new_email: str | None = None
    remember_me: bool | None = None


class SignedIn(msgspec.Struct):
    """`expires_in`: seconds until the session ends, whatever the browser does. `needs_setup`: the password was made for
    the person, who should choose another.
    """

    expires_in: int
    needs_setup: bool


class User(msgspec.Struct):
    id: str
    email: str
    system_role: Literal["admin", "user"]
    needs_setup: bool


class Note(msgspec.Struct):
    message: str


class Setup(msgspec.Struct):
    needs_setup: bool


class Provider(msgspec.Struct):
    id: str
    display_name: str
    type: Literal["oidc"] = "oidc"


class Providers(msgspec.Struct):
    providers: list[Provider]


_STATUSES: Mapping[type[SikaError], int] = {
    EmailTaken: 400,
    WrongPassword: 400,
    Rejection: 401,
    UnknownProvider: 404,
    Refused: 409,
}


def _contract(handler: Handler) -> Handler:
    """Answers are not kept by anybody, and errors are `{"detail": {"code", "message"}}`."""

    @functools.wraps(handler)
    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            response = await handler(request)
        except tuple(_STATUSES) as error:
            return unauthenticated(error, next(_STATUSES[kind] for kind in type(error).__mro__ if kind in _STATUSES))
        response.headers.setdefault("Cache-Control", "no-store")
        return response

    return handle


# ── passwords ────────────────────────────────────────────────────────────────────────────────────────────────────────


@_contract
async def login(request: web.Request) -> web.Response:
    """Sign in with an address and a password. Sets the cookies `access_token` and `csrf_token`. With `remember_me` off
    the session ends with the browser, and after a day; over plain HTTP from another machine browsers never keep it.
    After five failures nobody may try from there, or as that account, for five minutes.
    """
    gate = _gate(request)
    form = await _form(request)
    name, password = form.get("username", ""), form.get("password", "")
    if not name or not password:
        raise Invalid("username and password: expected as fields of a form")
    tried = (lockout.of_address(request[SEEN].ip), lockout.of_account(name.strip().lower()))
    await gate.lockout.check(*tried)
    account = await gate.directory.check(name, password)
    await gate.lockout.check(*tried)
    if account is None:
        await gate.lockout.failed(*tried)
        log.info("sign-in failed", ip=request[SEEN].ip)
        raise Unauthenticated("invalid_credentials", "Incorrect email or password")
    await gate.lockout.succeeded(tried[1])
    remember = form.get("remember_me", "true").lower() not in ("false", "0", "off", "no")
    response = plain(SignedIn(_seconds(request, remember), account.temporary))
    _sign_in(request, response, account, remember=remember)
    return response


@_contract
async def register(request: web.Request) -> web.Response:
    """Make an account for oneself, and sign in with it. Closed, unless the operator has opened it
    (`auth.registration`). After five nobody may make another one from there for five minutes.
    """
    gate, given = _gate(request), await body(request, Credentials)
    if not _config(request).registration:
        raise Closed("Registration is closed here; ask an administrator for an account")
    tried = lockout.of_registration(request[SEEN].ip)
    await gate.lockout.check(tried)
    accounts.email(given.email)
    strong(given.password)
    await gate.lockout.failed(tried)
    account = await gate.directory.create(given.email, given.password)
    return _created(request, account, given.remember_me)


@_contract
async def initialize(request: web.Request) -> web.Response:
    """Make the first administrator, and sign in as them. Only as long as there is none."""
    gate, given = _gate(request), await body(request, Credentials)
    account = await gate.directory.initialize(given.email, given.password)
    log.info("first administrator", user=account.id)
    return _created(request, account, given.remember_me)


@_contract
async def change_password(request: web.Request) -> web.Response:
    """Choose another password, and perhaps another address. All sessions end but this one, which gets a new cookie.

    API keys stay, and may not do this: only the operator makes and revokes them (`sika key`), so whoever knew the old
    password could not have made one.
    """
    gate, given = _gate(request), await body(request, ChangeBody)
    session = request[ENTRY].session
    if session is None:
        raise Forbidden("An API key may not change the password; sign in")
    user = alive.user(request)
    account = (await gate.directory.accounts(now=True)).by_id.get(user)
    if account is None:
        raise WrongPassword("This user has no password")
    tried = lockout.of_account(account.email)
    await gate.lockout.check(tried)
    checked = await gate.directory.check(account.email, given.current_password)
    await gate.lockout.check(tried)
    if checked is None:
        await gate.lockout.failed(tried)
        raise WrongPassword("The current password is wrong")
    gate.leave(request)  # its own session ends by this; it must not be cut off for that
    changed = await gate.directory.change_password(checked, given.new_password, given.new_email)
    response = plain(Note("Password changed"))
    if request[ENTRY].browser:
        _sign_in(request, response, changed, remember=session.kept if given.remember_me is None else given.remember_me)
    return response


@_contract
async def logout(request: web.Request) -> web.Response:
    """End this session: its token works nowhere any more."""
    gate, response = request.app[GATE], plain(Note("Signed out"))
    if gate.accounts:
        for token in (presented(request), request.cookies.get(cookies.SESSION)):
            with contextlib.suppress(Unauthenticated):  # it is over already, or no session
                await gate.directory.end_session(token or "", actor="http")
        cookies.end_session(request, response, gate.directory)
    return response


@_contract
async def me(request: web.Request) -> web.Response:
    """Who is signed in. A browser that lost its CSRF token gets another."""
    gate, principal = request.app[GATE], alive.principal(request)
    account = (await gate.directory.accounts()).by_id.get(principal.user) if principal is not LOCAL else None
    if account is None:
        shown: Literal["admin", "user"] = "admin" if principal.role == "admin" else "user"
        return plain(User(principal.user, f"{principal.user}@localhost", shown, False))
    response = plain(_user(account))
    if request[ENTRY].browser and not cookies.is_of(gate.directory, request.cookies.get(cookies.CSRF, ""), account.id):
        session = request[ENTRY].session
        left = int(session.exp - time.time()) if session is not None and session.kept else None
        cookies.set_csrf(request, response, gate.directory, account.id, left)
    return response


@_contract
async def setup_status(request: web.Request) -> web.Response:
    """Whether the first administrator is still to be made."""
    gate = request.app[GATE]
    needed = gate.accounts and not (await gate.directory.accounts()).has_admin
    response = plain(Setup(needed))
    response.headers["Cache-Control"] = "no-store" if needed else SETUP_CACHE
    return response


# ── elsewhere ────────────────────────────────────────────────────────────────────────────────────────────────────────


@_contract
async def providers(request: web.Request) -> web.Response:
    """The identity providers that one can sign in with."""
    found = _config(request).oidc if request.app[GATE].accounts else ()
    return plain(Providers([Provider(one.name, one.display_name or one.name) for one in found]))


@_contract
async def oauth(request: web.Request) -> web.Response:
    """Begin to sign in at an identity provider: redirects there. `next` is where to be afterwards, on this server."""
    gate, provider = _gate(request), _provider(request)
    wanted = request.query.get("next", "/")
    after = wanted if len(wanted) <= MOST_OF_PATH and _PATH.fullmatch(wanted) else "/"
    where, pending = await request.app[OIDC].begin(provider, _callback(request, provider), after)
    response = _redirect(where)
    cookies.set_pending(request, response, sessions.sign(pending, gate.directory.installation.derived("oidc")))
    return response


@_contract
async def callback(request: web.Request) -> web.Response:
    """Where an identity provider sends people back to: signs them in."""
    gate, provider = _gate(request), _provider(request)
    secret = gate.directory.installation.derived("oidc")
    pending = sessions.read(request.cookies.get(cookies.PENDING, ""), secret, Pending)
    who = await request.app[OIDC].finish(provider, _callback(request, provider), pending, request.query)
    may_create = _config(request).registration or bool(provider.allowed_domains)
    try:
        account = await gate.directory.signed_in(provider.issuer, who.subject, who.email, may_create=may_create)
    except NotFound as error:
        raise Closed(str(error)) from None
    response = _redirect(pending.next)
    cookies.end_pending(request, response)
    _sign_in(request, response, account)
    return response


class Closed(Forbidden):
    """Nobody gets an account without the operator."""

    code = "registration_closed"


# ── how ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _gate(request: web.Request) -> Gate:
    gate = request.app[GATE]
    if not gate.accounts:
        raise Disabled("There are no accounts here (auth.enabled)")
    return gate


def _config(request: web.Request) -> Auth:
    return alive.of(request).services.config().auth


def _seconds(request: web.Request, remember: bool) -> int:
    seconds = int(_config(request).session_days * DAY)
    return seconds if remember else min(seconds, DAY)


def _provider(request: web.Request) -> OidcProvider:
    name = request.match_info["provider"]
    for provider in _config(request).oidc:
        if provider.name == name:
            return provider
    raise UnknownProvider(f"There is no identity provider {name[:80]!r}")


def _callback(request: web.Request, provider: OidcProvider) -> str:
    public = alive.of(request).services.config().http.public_url
    return f"{public or request[SEEN].origin}/api/v1/auth/callback/{provider.name}"


def _redirect(where: str) -> web.Response:
    return web.Response(status=302, headers={"Location": where})


def _sign_in(request: web.Request, response: web.Response, account: Account, *, remember: bool = True) -> None:
    """Always a new token, whatever the browser brought."""
    directory, seconds = request.app[GATE].directory, _seconds(request, remember)
    token = directory.session(account, seconds, persistent=remember)
    cookies.set_session(request, response, directory, account.id, token, seconds if remember else None)


def _created(request: web.Request, account: Account, remember: bool | None) -> web.Response:
    response = plain(_user(account))
    response.set_status(201)
    _sign_in(request, response, account, remember=remember is not False)
    return response


def _user(account: Account) -> User:
    return User(account.id, account.email, account.role, account.temporary)


async def _form(request: web.Request) -> dict[str, str]:
    """The text fields of a form."""
    try:
        return {key: value for key, value in (await request.post()).items() if isinstance(value, str)}
    except web.HTTPException:
        raise
    except (ValueError, LookupError, AssertionError, RuntimeError, HttpProcessingError) as error:
        raise Invalid(f"malformed form: {type(error).__name__}") from None


_A = "/v1/auth"
_PUBLIC: Any = {"public": True, "mounts": API}
_FAILURES: Any = {400: Unauthorized, 409: Unauthorized}
_ELSEWHERE: Any = {302: None, 400: Unauthorized, 401: Unauthorized, 404: Unauthorized, 409: Unauthorized}
_LOGIN = Form(
    fields=("username", "password", "remember_me"),
    media="application/x-www-form-urlencoded",
    required=("username", "password"),
)
ROUTES = (
    Route("POST", f"{_A}/login/local", login, {200: SignedIn, 401: Unauthorized, 409: Unauthorized}, _LOGIN, **_PUBLIC),
    Route("POST", f"{_A}/register", register, {201: User, **_FAILURES}, Credentials, **_PUBLIC),
    Route("POST", f"{_A}/initialize", initialize, {201: User, **_FAILURES}, Credentials, **_PUBLIC),
    Route("POST", f"{_A}/logout", logout, {200: Note}, **_PUBLIC),
    Route("POST", f"{_A}/change-password", change_password, {200: Note, **_FAILURES}, ChangeBody, mounts=API),
    Route("GET", f"{_A}/me", me, {200: User}, mounts=API),
    Route("GET", f"{_A}/setup-status", setup_status, {200: Setup}, **_PUBLIC),
    Route("GET", f"{_A}/providers", providers, {200: Providers}, **_PUBLIC),
    Route(
        "GET",
        f"{_A}/oauth/{{provider}}",
        oauth,
        _ELSEWHERE,
        query=(Param("next", str, "A path of this server"),),
        headers={"Location": "The identity provider"},
        **_PUBLIC,
    ),
    Route(
        "GET",
        f"{_A}/callback/{{provider}}",
        callback,
        _ELSEWHERE,
        query=(Param("code"), Param("state")),
        headers={"Location": "Where the person wanted to be"},
        **_PUBLIC,
    ),
)
