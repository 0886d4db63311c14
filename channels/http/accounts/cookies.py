"""The cookies of people who signed in with a browser, and the token against cross-site requests.

`access_token` is the session. `csrf_token` can be read by our pages (and by no other site), which send it back in
`X-CSRF-Token`. It is signed for its user: one that was planted by somebody else is worth nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

from aiohttp import web

from channels.http.server.guard import SEEN
from core.identity.directory import Directory

SESSION = "access_token"
CSRF = "csrf_token"
CSRF_HEADER = "X-CSRF-Token"
PENDING = "oidc_pending"
PENDING_PATH = "/api/v1/auth/callback"
PENDING_SECONDS = 600
"""Time for a sign-in at an identity provider."""


def set_session(
    request: web.Request, response: web.Response, directory: Directory, user: str, token: str, seconds: int | None
) -> None:
    """Sign a browser in. `seconds`: None ends it with the browser, and so does plain HTTP to another machine."""
    secure, lasting = request[SEEN].secure, _lasting(request, seconds)
    response.set_cookie(SESSION, token, max_age=lasting, httponly=True, samesite="Lax", secure=secure, path="/")
    set_csrf(request, response, directory, user, seconds)


def set_csrf(
    request: web.Request, response: web.Response, directory: Directory, user: str, seconds: int | None = None
) -> None:
    """A new token for a user ("": for nobody yet)."""
    secure, lasting = request[SEEN].secure, _lasting(request, seconds)
    response.set_cookie(
        CSRF,
        _signed(directory, secrets.token_hex(16), user),
        max_age=lasting,
        samesite="Strict",
        secure=secure,
        path="/",
    )


def _lasting(request: web.Request, seconds: int | None) -> int | None:
    return seconds if request[SEEN].private else None


def end_session(request: web.Request, response: web.Response, directory: Directory) -> None:
    secure = request[SEEN].secure
    response.del_cookie(SESSION, path="/", httponly=True, samesite="Lax", secure=secure)
    set_csrf(request, response, directory, "")


def set_pending(request: web.Request, response: web.Response, token: str) -> None:
    """Sets the cookie that a sign-in elsewhere must bring back. Lax: the way back is a link from there."""
    secure = request[SEEN].secure
    response.set_cookie(
        PENDING, token, max_age=PENDING_SECONDS, httponly=True, samesite="Lax", secure=secure, path=PENDING_PATH
    )


def end_pending(request: web.Request, response: web.Response) -> None:
    secure = request[SEEN].secure
    response.del_cookie(PENDING, path=PENDING_PATH, httponly=True, samesite="Lax", secure=secure)


def csrf_problem(request: web.Request, directory: Directory, user: str) -> str | None:
    """Returns what is wrong with a request's token, for people."""
    cookie, header = request.cookies.get(CSRF, ""), request.headers.get(CSRF_HEADER, "")
    if not cookie or not header:
        return f"CSRF token missing: send the cookie {CSRF} also as the header {CSRF_HEADER}"
    if not _equal(cookie, header) or not is_of(directory, cookie, user):
        return f"CSRF token mismatch: the header {CSRF_HEADER} is not the cookie {CSRF} of this session"
    return None


def is_of(directory: Directory, token: str, user: str) -> bool:
    """Tells whether a CSRF token was made for this user."""
    return _equal(token, _signed(directory, token.partition(".")[0], user))


def _signed(directory: Directory, nonce: str, user: str) -> str:
    key = directory.installation.derived("csrf").reveal().encode()
    return f"{nonce}.{hmac.new(key, f'{nonce} {user}'.encode(errors='replace'), hashlib.sha256).hexdigest()[:32]}"


def _equal(token: str, other: str) -> bool:
    return hmac.compare_digest(token.encode(errors="replace"), other.encode(errors="replace"))
