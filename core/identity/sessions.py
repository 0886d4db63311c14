"""Tokens that we sign and read back: sessions of people, and what a sign-in elsewhere must bring back (JWT, HS256).

Only HS256 is accepted, whatever a token says of itself.
"""

from __future__ import annotations

import time
from typing import Any, TypeVar

import msgspec

from core.identity.errors import Unauthenticated
from core.settings import Secret

T = TypeVar("T")
LONGEST = 4096
"""Characters of a token: longer ones are not looked at."""


class Session(msgspec.Struct, frozen=True):
    """Whose session it is. `ver` is the version of the account it was made for; times are Unix seconds."""

    sub: str
    ver: int
    iat: int
    exp: int


class _Lifetime(msgspec.Struct):
    exp: int


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
