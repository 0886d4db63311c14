"""Sign-in at an identity provider: OpenID Connect's authorization code flow with PKCE, state and nonce.

What must come back with the person (state, nonce, PKCE verifier) is in a signed cookie of their browser, so any replica
can finish what another one began. Everything the provider says is checked: the issuer of its discovery document, the
signature and the claims of its token (with the keys it publishes), and that it vouches for the address.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec
import structlog
from aiohttp import web

from channels.http.accounts.cookies import PENDING_SECONDS
from core import reasons
from core.config.settings import OidcProvider
from core.errors import Invalid, NotFound, SikaError, Unavailable
from core.identity import accounts

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

    from channels.http.server.openid import Discovery

T = TypeVar("T")
log = structlog.get_logger("sika.http")

ASK_SECONDS = 10.0
MOST_BYTES = 1 << 20
"""Limit of one response of a provider."""
KNOWN_SECONDS = 3600.0
"""Lifetime of a discovery document and keys in memory; an unknown key makes the keys be fetched again at once."""
KEYS_SECONDS = 10.0
"""But no more often than this."""


class Rejection(SikaError):
    """The sign-in elsewhere did not succeed (HTTP 401). Try again from the start."""

    code = "invalid_credentials"


class UnknownProvider(NotFound):
    """There is no such identity provider in the configuration."""

    code = "provider_not_found"


class Pending(msgspec.Struct, frozen=True):
    """A sign-in that was begun; signed, in a cookie. `exp` in Unix seconds."""

    provider: str
    state: str
    nonce: str
    verifier: str
    next: str
    exp: int


class Who(NamedTuple):
    subject: str
    email: str


class _Known(NamedTuple):
    discovery: Discovery
    keys: KeySet
    at: float


class _Failure(NamedTuple):
    reason: str
    at: float


class Oidc:
    """One per application."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._known: dict[str, _Known] = {}
        self._failures: dict[str, _Failure] = {}
        """The last one of each issuer."""
        self._asking: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def running(self, _: web.Application) -> AsyncIterator[None]:
        """For `Application.cleanup_ctx`."""
        yield
        if self._session is not None:
            await self._session.close()

    async def begin(self, provider: OidcProvider, callback: str, after: str) -> tuple[str, Pending]:
        """Where to send the person, and what must come back. Raises `Unavailable`."""
        from channels.http.server import openid  # 0.2 s that a server without providers does not spend

        challenge = openid.Challenge()
        where = openid.question((await self._provider(provider)).discovery, provider, callback, challenge)
        expires = int(time.time()) + PENDING_SECONDS
        return where, Pending(provider.name, challenge.state, challenge.nonce, challenge.verifier, after, expires)

    async def finish(self, provider: OidcProvider, callback: str, pending: Pending, query: Mapping[str, str]) -> Who:
        """Returns the identity of a callback. Raises `Rejection`, `Unavailable`."""
        state = query.get("state", "")
        if pending.provider != provider.name or not hmac.compare_digest(
            state.encode(errors="replace"), pending.state.encode()
        ):
            raise Rejection("This is not the sign-in that was begun in this browser; start again")
        if "error" in query or not query.get("code"):
            log.info("sign-in refused by the provider", provider=provider.name, error=query.get("error", "")[:80])
            raise Rejection("The identity provider did not sign you in")
        token = await self._redeem(provider, callback, pending, query["code"])
        return _who(provider, await self._claims(provider, token, pending.nonce))

    async def _redeem(self, provider: OidcProvider, callback: str, pending: Pending, code: str) -> str:
        """The ID token for a code."""
        from channels.http.server import openid

        discovery = (await self._provider(provider)).discovery
        place, headers, body = openid.redemption(discovery, provider, callback, code, pending.verifier)
        status, raw = await self._ask("POST", place, headers=headers, data=body)
        answer = _json(raw)
        if status != 200 or not isinstance(answer.get("id_token"), str):
            reason = answer.get("error") if isinstance(answer.get("error"), str) else status
            log.warning("code not redeemed", provider=provider.name, reason=str(reason)[:80])
            raise Rejection("The identity provider did not confirm the sign-in")
        return str(answer["id_token"])

    async def _claims(self, provider: OidcProvider, token: str, nonce: str) -> Mapping[str, Any]:
        """The claims of an ID token that is the provider's, for us, for this sign-in, and not too old."""
        from channels.http.server import openid

        for older_than in (KNOWN_SECONDS, KEYS_SECONDS):  # it may have new keys
            known = await self._provider(provider, older_than)
            try:
                return openid.claims(token, known.keys, known.discovery.issuer, provider.client_id, nonce)
            except ValueError as error:
                reason = str(error)
        log.warning("ID token refused", provider=provider.name, reason=reason[:200])
        raise Rejection("The identity provider's answer is not valid")

    # ── what the provider publishes ─────────────────────────────────────────────────────────────────────────────────

    async def _provider(self, provider: OidcProvider, older_than: float = KNOWN_SECONDS) -> _Known:
        """Returns what a provider publishes. Who waits for an answer to somebody else gets that, also a failure."""
        began = time.monotonic()
        async with self._asking[provider.issuer]:
            known, failure = self._known.get(provider.issuer), self._failures.get(provider.issuer)
            if known is not None and time.monotonic() - known.at < older_than:
                return known
            if failure is not None and failure.at >= began:
                raise Unavailable(failure.reason)
            try:
                known = self._known[provider.issuer] = await self._fetched(provider)
            except Unavailable as error:
                self._failures[provider.issuer] = _Failure(str(error), time.monotonic())
                raise
            return known

    async def _fetched(self, provider: OidcProvider) -> _Known:
        from channels.http.server import openid

        place = provider.issuer.rstrip("/") + "/.well-known/openid-configuration"
        discovery = _decoded(await self._get(place), openid.Discovery)
        if discovery.issuer.rstrip("/") != provider.issuer.rstrip("/"):
            raise Unavailable(f"identity provider {provider.name}: its document is another issuer's")
        ends = (discovery.authorization_endpoint, discovery.token_endpoint, discovery.jwks_uri)
        if any(not _as_safe(end, provider.issuer) for end in ends):
            raise Unavailable(f"identity provider {provider.name}: its endpoints are not under https")
        try:
            keys = openid.keys(_json(await self._get(discovery.jwks_uri)))
        except ValueError as error:
            raise Unavailable(f"identity provider {provider.name}: its keys cannot be read") from error
        return _Known(discovery, keys, time.monotonic())

    async def _get(self, url: str) -> bytes:
        status, raw = await self._ask("GET", url)
        if status != 200:
            raise Unavailable(f"identity provider: {url} answers {status}")
        return raw

    async def _ask(self, method: str, url: str, **options: Any) -> tuple[int, bytes]:
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ASK_SECONDS))
        try:
            async with self._session.request(method, url, allow_redirects=False, **options) as response:
                raw = await response.content.read(MOST_BYTES)
                while len(raw) < MOST_BYTES and (more := await response.content.read(MOST_BYTES - len(raw))):
                    raw += more
                return response.status, raw
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            host = urlsplit(url).hostname
            raise Unavailable(f"identity provider: {host} does not answer: {reasons.lost(error)}") from None


def _who(provider: OidcProvider, claims: Mapping[str, Any]) -> Who:
    """Whom the claims name, by a verified address of an allowed domain."""
    subject, email = claims.get("sub"), claims.get("email")
    if not isinstance(subject, str) or not subject or not isinstance(email, str):
        raise Rejection("The identity provider did not say who you are; the scopes openid and email are needed")
    if claims.get("email_verified") is not True:
        raise Rejection("The identity provider has not verified your address")
    try:
        address = accounts.email(email)
    except Invalid:
        raise Rejection("The identity provider did not give an address that can be used") from None
    domain = address.rpartition("@")[2]
    if provider.allowed_domains and domain not in {allowed.lower() for allowed in provider.allowed_domains}:
        raise Rejection("People of your domain may not sign in here")
    return Who(subject, address)


def _as_safe(url: str, issuer: str) -> bool:
    """Plain HTTP only where the issuer, too, is on this machine."""
    scheme = urlsplit(url).scheme
    return scheme == "https" or (scheme == "http" and urlsplit(issuer).scheme == "http")


def _decoded(raw: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError as error:
        raise Unavailable(f"identity provider: its discovery document cannot be read: {error}") from None


def _json(raw: bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return {}
    return value if isinstance(value, dict) else {}
