"""Signed tokens (JWT, HS256): sessions of people, and the state of a sign-in at an identity provider.

Only HS256 is accepted, whatever a token says of itself.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from typing import Any, TypeVar

import msgspec

from core.config.settings import Secret
from core.identity.errors import Unauthenticated

T = TypeVar("T")
LONGEST = 4096
"""Limit of characters of a token: longer ones are invalid."""


class Session(msgspec.Struct, frozen=True, omit_defaults=True):
    """The claims of a session. `ver` is the version of its account; times are Unix seconds."""

    sub: str
    ver: int
    iat: int
    exp: int
    jti: str = ""
    """Tells it from the other sessions of its user."""
    kept: bool = True
    """False: the browser drops it when it is closed."""

    @property
    def id(self) -> str:
        """The id by which it is ended; tokens of earlier versions have no `jti`."""
        return self.jti or hashlib.sha256(f"{self.sub} {self.ver} {self.iat} {self.exp}".encode()).hexdigest()[:32]


class _Lifetime(msgspec.Struct):
    exp: int


def begin(user: str, version: int, seconds: int, *, persistent: bool) -> Session:
    """Returns a new session of an account."""
    now = int(time.time())
    return Session(user, version, now, now + seconds, secrets.token_hex(16), persistent)


def sign(claims: Any, secret: Secret) -> str:
    """Returns a signed token with a struct's fields as claims."""
    from joserfc import jwt  # takes 0.1 s, which a server without accounts does not need
    from joserfc.jwk import OctKey

    return jwt.encode({"alg": "HS256"}, msgspec.to_builtins(claims), OctKey.import_key(secret.reveal()))


def read(token: str, secret: Secret, kind: type[T], now: float | None = None) -> T:
    """Returns the claims of a token. Raises `Unauthenticated`: `token_invalid`, or `token_expired`."""
    from joserfc import jwt
    from joserfc.errors import JoseError
    from joserfc.jwk import OctKey

    try:
        if len(token) > LONGEST:
            raise ValueError
        claims = jwt.decode(token, OctKey.import_key(secret.reveal()), algorithms=["HS256"]).claims
        expires = msgspec.convert(claims, _Lifetime).exp
        session = msgspec.convert(claims, kind)
    except (JoseError, ValueError, TypeError, RecursionError):
        raise Unauthenticated("token_invalid", "The session is not valid; sign in again") from None
    if expires <= (time.time() if now is None else now):
        raise Unauthenticated("token_expired", "The session has expired; sign in again")
    return session
