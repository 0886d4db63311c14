"""Tokens that we sign and read back: sessions of people, and what a sign-in elsewhere must bring back (JWT, HS256).

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
"""Characters of a token: longer ones are not looked at."""


class Session(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whose session it is. `ver` is the version of the account it was made for; times are Unix seconds."""

    sub: str
    ver: int
    iat: int
    exp: int
    jti: str = ""
    """Tells it from the others of its user."""
    kept: bool = True
    """Whether the browser keeps it when it is closed, if it can."""

    @property
    def id(self) -> str:
        """What it is called when it is ended; tokens of earlier versions have no `jti`."""
        return self.jti or hashlib.sha256(f"{self.sub} {self.ver} {self.iat} {self.exp}".encode()).hexdigest()[:32]


class _Lifetime(msgspec.Struct):
    exp: int


def begin(user: str, version: int, seconds: int, *, kept: bool) -> Session:
    """A new session of an account."""
    now = int(time.time())
    return Session(user, version, now, now + seconds, secrets.token_hex(16), kept)


def sign(claims: Any, secret: Secret) -> str:
    """A token of a struct's fields."""
    from joserfc import jwt  # 0.1 s that a server without accounts does not spend
    from joserfc.jwk import OctKey

    return jwt.encode({"alg": "HS256"}, msgspec.to_builtins(claims), OctKey.import_key(secret.reveal()))


def read(token: str, secret: Secret, kind: type[T], now: float | None = None) -> T:
    """What was signed. Raises `Unauthenticated`: `token_invalid`, or `token_expired`."""
    from joserfc import jwt
    from joserfc.errors import JoseError
    from joserfc.jwk import OctKey

    try:
        if len(token) > LONGEST:
            raise ValueError
        claims = jwt.decode(token, OctKey.import_key(secret.reveal()), algorithms=["HS256"]).claims
        expires = msgspec.convert(claims, _Lifetime).exp
        found = msgspec.convert(claims, kind)
    except (JoseError, ValueError, TypeError, RecursionError):
        raise Unauthenticated("token_invalid", "The session is not valid; sign in again") from None
    if expires <= (time.time() if now is None else now):
        raise Unauthenticated("token_expired", "The session has expired; sign in again")
    return found
