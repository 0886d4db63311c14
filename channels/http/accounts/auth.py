"""Signing in and out, accounts of people: DeerFlow's `/api/v1/auth`."""

from __future__ import annotations

import contextlib
import functools
import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

import msgspec
import structlog
from aiohttp import web
from aiohttp.http import HttpProcessingError
from anyio.to_thread import run_sync

from channels.http.accounts import cookies
from channels.http.accounts.access import ENTRY, GATE, Gate, presented, unauthenticated
from channels.http.accounts.oidc import Oidc, Pending, Rejection, UnknownProvider
from channels.http.endpoints.call import Call
from channels.http.endpoints.endpoint import Created, Reply, Routes
from channels.http.endpoints.shapes import Unauthorized
from channels.http.server.errors import Forbidden
from channels.http.server.guard import SEEN
from channels.http.server.parsing import plain
from channels.http.server.routes import API, Form, Handler
from core.config.settings import OidcProvider
from core.errors import Invalid, NotFound, Refused, SikaError
from core.events import type_of
from core.identity import accounts, activity, lockout, sessions
from core.identity.accounts import Account, Key
from core.identity.activity import SessionOpened, SessionRefused
from core.identity.errors import EmailTaken, Unauthenticated, WrongPassword
from core.identity.passwords import strong
from core.identity.principal import LOCAL
from core.ids import stamp

log = structlog.get_logger("sika.http")

OIDC: web.AppKey[Oidc] = web.AppKey("oidc", Oidc)
DAY = 24 * 3600
"""Seconds; also the longest that a session lasts which the browser is not to keep."""
MOST_OF_PATH = 1000
SETUP_CACHE = "private, max-age=60"
_PATH = re.compile(r"/(?![/\\])[\x21-\x5b\x5d-\x7e]*")
"""A place on this server: neither another host (`//evil.example`, `/\\evil.example`) nor what is no address at all."""


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


class Me(User):
    """`expires_at`: when the session ends; null for an API key, and where there are no accounts. `has_password`: false
    for who signs in by an identity provider only.
    """

    expires_at: str | None = None
    has_password: bool = False


class KeyBody(msgspec.Struct):
    """`scopes`: null for all that you may do. `current_password`: of an account that has one."""

    scopes: Annotated[list[str], msgspec.Meta(max_length=100)] | None = None
    expires_in_days: Annotated[int, msgspec.Meta(ge=1, le=3660)] | None = None
    current_password: str = ""


class KeyAnswer(msgspec.Struct):
    """`own`: you made it here; others were made by the operator."""

    id: str
    scopes: list[str] | None
    created_at: str
    expires_at: str | None
    own: bool


class NewKey(KeyAnswer):
    """`key`: shown this once."""

    key: str


class Keys(msgspec.Struct):
    keys: list[KeyAnswer]


class Note(msgspec.Struct):
    message: str


class ActivityEntry(msgspec.Struct):
    """`type`: `session.opened`, `session.refused`, `key.used` or `access.refused`, with its own fields in `about`."""

    at: str
    type: str
    about: dict[str, str]


class Entries(msgspec.Struct):
    entries: list[ActivityEntry]


class Setup(msgspec.Struct):
    """`registration`: people may make accounts for themselves."""

    needs_setup: bool
    registration: bool


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


ROUTES = Routes(mounts=API, through=_contract, secret=True)
_A = "/v1/auth"
_FAILURES: Any = {400: Unauthorized, 409: Unauthorized}
_ELSEWHERE: Any = {"public": True, "answers": {302: None, 401: Unauthorized, 404: Unauthorized, **_FAILURES}}
_LOGIN = Form(
    fields=("username", "password", "remember_me"),
    media="application/x-www-form-urlencoded",
    required=("username", "password"),
)


# ── passwords ────────────────────────────────────────────────────────────────────────────────────────────────────────


@ROUTES("POST", f"{_A}/login/local", public=True, body=_LOGIN, answers={401: Unauthorized, 409: Unauthorized})
async def login(call: Call, gate: Gate) -> Annotated[web.Response, SignedIn]:
    """Sign in with an address and a password. Sets the cookies `access_token` and `csrf_token`. With `remember_me` off
    the session ends with the browser, and after a day; over plain HTTP from another machine browsers never keep it.
    After five failures nobody may try from there, or as that account, for five minutes.
    """
    form = await _form(call.request)
    name, password = form.get("username", ""), form.get("password", "")
    if not name or not password:
        raise Invalid("username and password: expected as fields of a form")
    tried = (lockout.of_address(call.request[SEEN].ip), lockout.of_account(name.strip().lower()))
    await gate.lockout.check(*tried)
    account = await gate.directory.check(name, password)
    await gate.lockout.check(*tried)
    if account is None:
        await gate.lockout.failed(*tried)
        refused = SessionRefused(reason="invalid_credentials", ip=call.request[SEEN].ip)
        known = (await gate.directory.accounts()).by_email.get(name.strip().lower(), activity.UNKNOWN)
        await gate.directory.activities.note(known, refused)
        raise Unauthenticated("invalid_credentials", "Incorrect email or password")
    await gate.lockout.succeeded(tried[1])
    remember = form.get("remember_me", "true").lower() not in ("false", "0", "off", "no")
    response = plain(SignedIn(_seconds(call, remember), account.temporary))
    await _sign_in(call, response, account, "password", remember=remember)
    return response


@ROUTES("POST", f"{_A}/register", public=True, answers=_FAILURES)
async def register(call: Call, gate: Gate, body: Credentials) -> Annotated[web.Response, 201, User]:
    """Make an account for oneself, and sign in with it. Closed, unless the operator has opened it
    (`auth.registration`). After five nobody may make another one from there for five minutes.
    """
    if not call.config.auth.registration:
        raise Closed("Registration is closed here; ask an administrator for an account")
    tried = lockout.of_registration(call.request[SEEN].ip)
    await gate.lockout.check(tried)
    accounts.email(body.email)
    await run_sync(functools.partial(strong, body.password, body.email))
    await gate.lockout.failed(tried)
    account = await gate.directory.create(body.email, body.password)
    return await _created(call, account, body.remember_me)


@ROUTES("POST", f"{_A}/initialize", public=True, answers=_FAILURES)
async def initialize(call: Call, gate: Gate, body: Credentials) -> Annotated[web.Response, 201, User]:
    """Make the first administrator, and sign in as them. Only as long as there is none."""
    account = await gate.directory.initialize(body.email, body.password)
    log.info("first administrator", user=account.id)
    return await _created(call, account, body.remember_me)


@ROUTES("POST", f"{_A}/change-password", answers=_FAILURES)
async def change_password(call: Call, gate: Gate, body: ChangeBody) -> Annotated[web.Response, Note]:
    """Choose another password, and perhaps another address. All sessions end but this one, which gets a new cookie.

    So do the API keys that the account made for itself, as whoever knew the old password could have made them. Those
    that the operator made (`sika key`) stay. API keys may not do this.
    """
    session = call.request[ENTRY].session
    if session is None:
        raise Forbidden("An API key may not change the password; sign in")
    checked = await _confirmed(call, gate, body.current_password)
    gate.leave(call.request)  # its own session ends by this; it must not be cut off for that
    changed = await gate.directory.change_password(checked, body.new_password, body.new_email)
    response = plain(Note("Password changed"))
    if call.request[ENTRY].browser:
        remember = session.kept if body.remember_me is None else body.remember_me
        await _sign_in(call, response, changed, "password", remember=remember)
    return response


async def _confirmed(call: Call, gate: Gate, password: str) -> Account:
    """Returns the caller's account if this is its password. Raises `WrongPassword`, and `TooMany` after failures."""
    account = (await gate.directory.accounts(now=True)).by_id.get(call.user)
    if account is None:
        raise WrongPassword("This user has no password")
    tried = lockout.of_account(account.email)
    await gate.lockout.check(tried)
    checked = await gate.directory.check(account.email, password)
    await gate.lockout.check(tried)
    if checked is None:
        await gate.lockout.failed(tried)
        raise WrongPassword("The current password is wrong")
    return checked


# ── keys of one's own ────────────────────────────────────────────────────────────────────────────────────────────────


@ROUTES("GET", f"{_A}/keys", answers={409: Unauthorized})
async def get_keys(call: Call, gate: Gate) -> Keys:
    """The API keys of one's account that work, newest first; not their text."""
    known = (await gate.directory.accounts(now=True)).keys_of(call.user)
    return Keys([_key(key) for key in sorted(known.values(), key=lambda key: key.created_at, reverse=True)])


@ROUTES("POST", f"{_A}/keys", answers=_FAILURES)
async def make_key(call: Call, gate: Gate, body: KeyBody) -> Created[NewKey]:
    """Make an API key for oneself, which may do what one may do, or less. At most 20; they end with the password.

    An API key may not do this: it would outlive itself.
    """
    _by_session(call)
    account = (await gate.directory.accounts(now=True)).by_id.get(call.user)
    if account is not None and account.password is not None:
        await _confirmed(call, gate, body.current_password)
    days = body.expires_in_days
    expires = datetime.now(UTC) + timedelta(days=days) if days is not None else None
    key, text = await gate.directory.create_key(call.user, body.scopes, expires, actor="http", own=True)
    return NewKey(**msgspec.structs.asdict(_key(key)), key=text.reveal())


@ROUTES("DELETE", f"{_A}/keys/{{key_id}}", errors=(404,), answers={409: Unauthorized})
async def revoke_key(call: Call, gate: Gate, key_id: str) -> None:
    """End an API key of one's own."""
    _by_session(call)
    await gate.directory.revoke_key(key_id, actor="http", owner=call.user)


def _by_session(call: Call) -> None:
    if call.request[ENTRY].session is None:
        raise Forbidden("An API key may not make or end keys; sign in")


def _key(key: Key) -> KeyAnswer:
    scopes = None if key.scopes is None else sorted(key.scopes)
    return KeyAnswer(key.id, scopes, key.created_at, key.expires_at, key.own)


@ROUTES("POST", f"{_A}/logout", public=True)
async def logout(call: Call) -> Annotated[web.Response, Note]:
    """End this session: its token works nowhere any more."""
    gate, response = call.request.app[GATE], plain(Note("Signed out"))
    if gate.accounts:
        for token in (presented(call.request), call.request.cookies.get(cookies.SESSION)):
            with contextlib.suppress(Unauthenticated):  # it is over already, or no session
                await gate.directory.end_session(token or "", actor="http")
        cookies.end_session(call.request, response, gate.directory)
    return response


@ROUTES("POST", f"{_A}/logout-all", answers=_FAILURES)
async def logout_all(call: Call, gate: Gate) -> Annotated[web.Response, Note]:
    """End all of one's sessions, this one too, on whatever machine. API keys stay, and may not do this."""
    if call.request[ENTRY].session is None:
        raise Forbidden("An API key may not end sessions; sign in")
    gate.leave(call.request)  # its own session ends by this; it must not be cut off for that
    await gate.directory.end_sessions(call.user, actor="http")
    response = plain(Note("Signed out everywhere"))
    cookies.end_session(call.request, response, gate.directory)
    return response


@ROUTES("GET", f"{_A}/me")
async def me(call: Call) -> Annotated[web.Response, Me]:
    """The account that is signed in, and when its session ends. A browser that lost its CSRF token gets another."""
    gate, principal = call.request.app[GATE], call.principal
    account = (await gate.directory.accounts()).by_id.get(principal.user) if principal is not LOCAL else None
    if account is None:
        shown: Literal["admin", "user"] = "admin" if principal.role == "admin" else "user"
        return plain(Me(principal.user, f"{principal.user}@localhost", shown, False))
    about = Me(account.id, account.email, account.role, account.temporary, _ends_at(call), account.password is not None)
    response = plain(about)
    if call.request[ENTRY].browser and not cookies.is_of(
        gate.directory, call.request.cookies.get(cookies.CSRF, ""), account.id
    ):
        session = call.request[ENTRY].session
        left = int(session.exp - time.time()) if session is not None and session.kept else None
        cookies.set_csrf(call.request, response, gate.directory, account.id, left)
    return response


@ROUTES("GET", f"{_A}/activity", errors=(404,), answers={409: Unauthorized})
async def get_activity(
    call: Call, gate: Gate, *, user: Annotated[str, "An administrator may name another"] = ""
) -> Entries:
    """The latest sign-ins, uses of keys and refusals of one's account, newest first. `unknown` lists attempts for
    addresses without an account.
    """
    if user and user != call.user and not call.principal.is_admin:
        raise Forbidden("Only an administrator may look at the activity of other users")
    name = user or call.user
    known = name if name == activity.UNKNOWN else (await gate.directory.accounts()).find(name).id
    return Entries([_entry_of(each) for each in await gate.directory.activities.of(known)])


@ROUTES("GET", f"{_A}/setup-status", public=True)
async def setup_status(call: Call) -> Reply[Setup]:
    """Tells whether the first administrator is still to be made, and whether people may register."""
    gate = call.request.app[GATE]
    needed = gate.accounts and not (await gate.directory.accounts()).has_admin
    return Reply(
        Setup(needed, gate.accounts and call.config.auth.registration),
        headers={"Cache-Control": "no-store" if needed else SETUP_CACHE},
    )


# ── elsewhere ────────────────────────────────────────────────────────────────────────────────────────────────────────


@ROUTES("GET", f"{_A}/providers", public=True)
async def providers(call: Call) -> Providers:
    """The identity providers that one can sign in with."""
    providers = call.config.auth.oidc if call.request.app[GATE].accounts else ()
    return Providers([Provider(entry.name, entry.display_name or entry.name) for entry in providers])


@ROUTES("GET", f"{_A}/oauth/{{provider}}", headers={"Location": "The identity provider"}, **_ELSEWHERE)
async def oauth(
    call: Call, gate: Gate, provider: str, *, next: Annotated[str, "A path of this server"] = "/"
) -> web.Response:
    """Begin to sign in at an identity provider: redirects there. `next` is where to be afterwards, on this server."""
    chosen = _provider(call, provider)
    after = next if len(next) <= MOST_OF_PATH and _PATH.fullmatch(next) else "/"
    where, pending = await call.request.app[OIDC].begin(chosen, _callback(call, chosen), after)
    response = _redirect(where)
    cookies.set_pending(call.request, response, sessions.sign(pending, gate.directory.installation.derived("oidc")))
    return response


@ROUTES("GET", f"{_A}/callback/{{provider}}", headers={"Location": "Where the person wanted to be"}, **_ELSEWHERE)
async def callback(call: Call, gate: Gate, provider: str, *, code: str = "", state: str = "") -> web.Response:
    """Where an identity provider sends people back to: signs them in."""
    chosen = _provider(call, provider)
    secret = gate.directory.installation.derived("oidc")
    pending = sessions.read(call.request.cookies.get(cookies.PENDING, ""), secret, Pending)
    who = await call.request.app[OIDC].finish(chosen, _callback(call, chosen), pending, call.request.query)
    may_create = call.config.auth.registration or bool(chosen.allowed_domains)
    try:
        account = await gate.directory.signed_in(chosen.issuer, who.subject, who.email, may_create=may_create)
    except NotFound as error:
        raise Closed(str(error)) from None
    response = _redirect(pending.next)
    cookies.end_pending(call.request, response)
    await _sign_in(call, response, account, chosen.name)
    return response


class Closed(Forbidden):
    """Nobody gets an account without the operator."""

    code = "registration_closed"


# ── how ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _seconds(call: Call, remember: bool) -> int:
    seconds = int(call.config.auth.session_days * DAY)
    return seconds if remember else min(seconds, DAY)


def _provider(call: Call, name: str) -> OidcProvider:
    for provider in call.config.auth.oidc:
        if provider.name == name:
            return provider
    raise UnknownProvider(f"There is no identity provider {name[:80]!r}")


def _callback(call: Call, provider: OidcProvider) -> str:
    public = call.config.http.public_url
    return f"{public or call.request[SEEN].origin}/api/v1/auth/callback/{provider.name}"


def _redirect(where: str) -> web.Response:
    return web.Response(status=302, headers={"Location": where})


async def _sign_in(call: Call, response: web.Response, account: Account, method: str, *, remember: bool = True) -> None:
    """Always a new token, whatever the browser brought."""
    gate, seconds = call.request.app[GATE], _seconds(call, remember)
    directory = gate.directory
    await gate.directory.activities.note(account.id, SessionOpened(method=method, ip=call.request[SEEN].ip))
    token = directory.session(account, seconds, persistent=remember)
    cookies.set_session(call.request, response, directory, account.id, token, seconds if remember else None)


async def _created(call: Call, account: Account, remember: bool | None) -> web.Response:
    response = plain(_user(account), 201)
    await _sign_in(call, response, account, "registration", remember=remember is not False)
    return response


def _entry_of(listed: activity.Listed) -> ActivityEntry:
    fields = {name: str(getattr(listed.entry, name)) for name in listed.entry.__struct_fields__}
    return ActivityEntry(listed.at, type_of(type(listed.entry).__name__), fields)


def _ends_at(call: Call) -> str | None:
    session = call.request[ENTRY].session
    return stamp(datetime.fromtimestamp(session.exp, UTC)) if session is not None else None


def _user(account: Account) -> User:
    return User(account.id, account.email, account.role, account.temporary)


async def _form(request: web.Request) -> dict[str, str]:
    """The text fields of a form."""
    try:
        return {key: value for key, value in (await request.post()).items() if isinstance(value, str)}
    except web.HTTPException:
        raise
    except (ValueError, LookupError, AssertionError, RuntimeError, HttpProcessingError):
        raise Invalid("malformed form") from None
