"""API keys as people see them: `sk-<public id>-<256 random bits>`. Only a hash of the random part is stored."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from typing import NamedTuple

from core.config.settings import Secret

_KEY = re.compile(r"sk-([0-9a-f]{16})-([A-Za-z0-9_-]{43})")


class Presented(NamedTuple):
    """A key of a request."""

    id: str
    secret: Secret

    def matches(self, digest: str) -> bool:
        """Compares the key with a digest, in constant time."""
        return hmac.compare_digest(_digest(self.secret.reveal()), digest)


def make() -> tuple[str, str, Secret]:
    """Returns a new key: its id, its digest, and the key itself."""
    identity, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
    return identity, _digest(secret), Secret(f"sk-{identity}-{secret}")


def parse(text: str) -> Presented | None:
    """Returns a key of this format; None for other text."""
    match = _KEY.fullmatch(text)
    return Presented(match[1], Secret(match[2])) if match else None


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
