"""Signatures of requests, the same in both directions: `Sika-Signature: t=<Unix time>,v1=<HMAC>`.

The HMAC (SHA-256, hexadecimal) is that of `<Unix time>.<body>` with the secret.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time

from cachetools import TTLCache

from core.errors import Invalid

HEADER = "Sika-Signature"
WINDOW_SECONDS = 300
"""Most time between a signature and its arrival, in both directions: clocks differ."""
REMEMBERED = 50_000
_FORM = re.compile(r"t=(\d{1,12}),v1=([0-9a-f]{64})")


def signed(secret: str, body: bytes, at: int | None = None) -> str:
    """Returns the signature of a body. `at`: Unix time, now if not given."""
    at = int(time.time()) if at is None else at
    digest = hmac.new(secret.encode(), b"%d.%s" % (at, body), hashlib.sha256).hexdigest()
    return f"t={at},v1={digest}"


class Signatures:
    """The signatures that a secret makes, and those that were used within the window."""

    def __init__(self, secret: str) -> None:
        self._secret = secret
        self._used: TTLCache[str, None] = TTLCache(REMEMBERED, 2 * WINDOW_SECONDS)

    def check(self, header: str, body: bytes) -> None:
        """Raises `Invalid` for a signature that is not one of this body, or is too old or too new."""
        form = _FORM.fullmatch(header)
        if form is None or not hmac.compare_digest(signed(self._secret, body, int(form[1])), header):
            raise Invalid(f"{HEADER} is not the signature of this body")
        if abs(time.time() - int(form[1])) > WINDOW_SECONDS:
            raise Invalid(f"{HEADER}: its time is more than {WINDOW_SECONDS} s away")

    def is_used(self, header: str) -> bool:
        """Tells whether a request with this signature was taken already."""
        return header in self._used

    def use(self, header: str) -> None:
        self._used[header] = None
